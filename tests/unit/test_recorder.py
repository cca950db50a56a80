"""A main thread that hangs is not recorded as alive; one that pauses before it reconnects is."""

from __future__ import annotations

from itertools import pairwise
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from kombu.utils.functional import retry_over_time

from repot.chaos.instruments import recorder
from repot.chaos.instruments.journal import ALIVE, Journal
from repot.chaos.instruments.recorder import MainProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Refused(Exception):
    """No process listens."""


def refuse() -> None:
    raise Refused


def hang() -> None:
    Event().wait(1)


@pytest.mark.parametrize(("attempt", "hangs"), [(refuse, False), (hang, True)])
def test_a_pause_between_attempts_to_connect_is_no_standstill(
    attempt: Callable[[], None], *, hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "ALIVE_INTERVAL_S", 0.05)
    journal = Journal(tmp_path / "journal")
    MainProcess(journal).ready(SimpleNamespace(hostname="worker", controller=SimpleNamespace(hub=None)))
    try:
        # it gives up after one pause of a second
        retry_over_time(attempt, Refused, max_retries=1, interval_start=1)
    except Refused:
        assert not hangs
    beats = [line.at for line in journal.read() if line.kind == ALIVE]
    silent = max((later - earlier for earlier, later in pairwise(beats)), default=1)
    assert hangs == (silent > 0.5)
