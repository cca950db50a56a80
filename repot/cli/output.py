"""Print text and JSON without secrets and control characters; end cleanly when the output cannot be written.

A pipe may be closed early, as by `head`.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

from repot.errors import RepotError
from repot.masking import masked
from repot.sanitize import fitted, readable

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The exit code of a program that SIGPIPE ended, as a shell reports it: 128 and the number of the signal.
PIPE_CLOSED = 141


#: Text that is read is not wider, also on a wider terminal and in a pipe or a file.
PROSE_WIDTH = 100


def terminal_width(*, err: bool = False) -> int | None:
    """Return the columns of the terminal that a stream is; None for a pipe or a file, whose lines are never broken."""
    stream = sys.stderr if err else sys.stdout
    try:
        is_terminal = stream is not None and stream.isatty()
    except ValueError:
        # it is closed
        return None
    return shutil.get_terminal_size().columns if is_terminal else None


def wants_color() -> bool | None:
    """Return whether output has colours, by `--color` and the environment; None if that depends on the stream."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.color


def prose_width() -> int:
    """Return the width of paragraphs on standard output."""
    return min(terminal_width() or PROSE_WIDTH, PROSE_WIDTH)


def echo(text: object = "", *, err: bool = False, bold: bool = False, nl: bool = True, verbatim: bool = False) -> None:
    """Print text that may hold names, exceptions or addresses; line breaks and tabs stay.

    A terminal gets longer lines broken between words, unless they are `verbatim`: code, or a command to be copied.
    """
    shown = readable(text, keep="\n\t")
    if not verbatim:
        shown = fitted(shown, terminal_width(err=err))
    click.echo(click.style(shown, bold=True) if bold else shown, err=err, nl=nl)


def echo_json(data: Any, *, err: bool = False, indent: int | None = 2, is_masked: bool = False) -> None:  # noqa: ANN401 - any JSON
    """Print data as JSON with secrets masked; JSON escapes control characters itself. Other types become text.

    With `is_masked` that was done before: the names of its fields do not say which values are secret.
    """
    shown = data if is_masked else masked(data)
    click.echo(json.dumps(shown, indent=indent, default=lambda one: str(masked(str(one)))), err=err)


def echo_line(text: object, *, err: bool = False, bold: bool = False) -> None:
    """Print text that may hold names, exceptions or addresses as one line: line breaks are escaped."""
    echo(readable(text), err=err, bold=bold)


@contextmanager
def closed_pipe_is_no_error() -> Iterator[None]:
    """End the process without a traceback when standard output or standard error cannot be written.

    Errors of other files and sockets pass through, such as a broken connection to a broker.

    Raises:
        SystemExit: with 141 if the pipe was closed, with 1 if the output cannot be written for another reason.
    """
    try:
        yield
    except OSError as error:
        if not _silenced():
            raise
        if error.errno == errno.EPIPE:
            sys.exit(PIPE_CLOSED)
        click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
        sys.exit(RepotError.exit_code)
    except SystemExit as end:
        # rich ends the process itself, with 1: rich/console.py, Console.on_broken_pipe
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(PIPE_CLOSED)
        raise


def _silenced() -> list[TextIO]:
    """Find the standard streams that cannot be written, and drop what is written to them from now on.

    At exit Python flushes its streams and would report the error again.
    """
    found = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and not _is_writable(stream)]
    for stream in found:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
    return found


def _is_writable(stream: TextIO) -> bool:
    """Return whether a stream can be written: its pipe is open, and its buffer can be flushed."""
    try:
        stream.flush()
        readers = select.poll()
        readers.register(stream.fileno(), 0)
        return not readers.poll(0)
    except OSError:
        return False
