"""Loggers whose records a terminal may show: without the secrets and control characters of exceptions and names.

Handlers belong to the application or to Celery, so the logger itself makes its records safe.
"""

from __future__ import annotations

import logging
from numbers import Number

from repot.sanitize import readable

_FORMATTER = logging.Formatter()


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name; what a record is given is masked, and its control characters are escaped."""
    logger = logging.getLogger(name)
    if not any(isinstance(one, _Readable) for one in logger.filters):
        logger.addFilter(_Readable())
    return logger


class _Readable(logging.Filter):
    """Lets each record pass, with its arguments and its traceback made readable."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and record.args:
            record.args = tuple(map(_readable, record.args))
        elif isinstance(record.args, dict) and record.args:
            record.args = {name: _readable(value) for name, value in record.args.items()}
        else:
            record.msg = readable(record.msg)
        if record.exc_info and not record.exc_text:
            # a formatter takes the text that is there: logging/__init__.py, Formatter.format
            record.exc_text = readable(_FORMATTER.formatException(record.exc_info), keep="\n\t")
        return True


def _readable(value: object) -> object:
    """Return a number as it is, so that `%d` takes it, and anything else as a text that is made when it is needed."""
    return value if isinstance(value, Number) else _Text(value)


class _Text:
    """What `%s` and `%r` print of a value."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return readable(self._value)

    def __repr__(self) -> str:
        return readable(repr(self._value))
