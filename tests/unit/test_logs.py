"""Log lines of repot hold no secrets and nothing that controls a terminal."""

from __future__ import annotations

import logging
import re
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import repot
from repot.logs import get_logger
from support.hostile import CONTROLS, PLANTED, SHAPES, is_safe

if TYPE_CHECKING:
    from collections.abc import Iterator

#: They are Celery's or kombu's, or the parent of repot's own, for a handler.
_OTHERS = {"celery.app.trace", "push_response", "repot", ""}


@pytest.fixture
def lines() -> Iterator[StringIO]:
    """What a handler prints, which is not repot's."""
    logger, stream = logging.getLogger("repot"), StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_record_is_given_is_masked_and_escaped(lines: StringIO, shape: str) -> None:
    log, hostile = get_logger("repot.test"), f"{CONTROLS} {shape}"
    log.warning("%s[%r] was not published %d times: %s", CONTROLS, hostile, 3, ValueError(hostile))
    log.warning("%(name)s", {"name": hostile})
    log.warning(hostile.replace("%", "%%"))
    assert is_safe(lines.getvalue())
    assert "was not published 3 times" in lines.getvalue()
    assert len(lines.getvalue().splitlines()) == 3


def test_a_traceback_is_masked_and_keeps_its_lines(lines: StringIO) -> None:
    log = get_logger("repot.test")
    try:
        int(f"{CONTROLS} password={PLANTED}")
    except ValueError:
        log.exception("it failed")
    assert is_safe(lines.getvalue())
    assert len(lines.getvalue().splitlines()) > 3


def test_a_record_keeps_its_template_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    """A program that groups records does so by the template."""
    get_logger("repot.test").warning("%s waits", "shop", extra={"action": "waits"})
    (record,) = caplog.records
    assert (record.msg, record.getMessage(), record.action) == ("%s waits", "shop waits", "waits")  # type: ignore[attr-defined]


def test_every_logger_of_repot_is_made_in_one_place() -> None:
    found = {
        match[1].strip('"')
        for path in Path(repot.__file__).parent.rglob("*.py")
        if path.name != "logs.py"
        for match in re.finditer(r"logging\.getLogger\(([^)]*)\)", path.read_text())
    }
    assert found <= _OTHERS
