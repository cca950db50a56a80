"""What the recorder says of a main thread: a hanging one is not alive, and a fault waits for a pause of its timers."""

from __future__ import annotations

import json
from itertools import pairwise
from threading import Event
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from kombu.asynchronous import Hub
from kombu.utils.functional import retry_over_time

from repot.chaos.instruments import recorder
from repot.chaos.instruments.journal import ALIVE, Journal
from repot.chaos.instruments.recorder import MainProcess
from repot.chaos.runner.observer import Observer
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from repot.brokers import Broker
    from repot.chaos.instruments.journal import JournalEvent


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


def test_the_timers_of_the_event_loop_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "ALIVE_INTERVAL_S", 0.05)
    journal, hub = Journal(tmp_path / "journal"), Hub()
    hub.call_later(60, print)
    hub.call_later(30, print).cancel()
    MainProcess(journal).ready(SimpleNamespace(hostname="worker", controller=SimpleNamespace(hub=hub)))

    def alive() -> list[JournalEvent]:
        return [one for one in journal.read() if one.kind == ALIVE]

    first, *_ = wait_until(alive, within_s=10, what="it is alive")
    (due,) = first.details["due"]
    assert 50 < due - monotonic() <= 60


@pytest.mark.parametrize(
    ("age_s", "due_s", "pauses"),
    [(0, (0.4, 5), True), (0, (0.2, 5), False), (0, (-0.05,), False), (0, (-2, 3), True), (1, (5,), False)],
)
def test_a_fault_waits_for_a_pause_of_the_timers(
    tmp_path: Path, age_s: float, due_s: tuple[float, ...], *, pauses: bool
) -> None:
    """A timer that has just run or is about to is no pause; what was reported long ago says nothing."""
    journal, now = Journal(tmp_path / "journal"), monotonic()
    broker = cast("Broker", SimpleNamespace(depth_lag_s=0))
    observer = Observer(journal, lambda: broker, ("queue",), Event())
    assert not observer.timers_pause("worker", 0.3)
    line = [now - age_s, ALIVE, "worker", 1, "", {"due": [now + due for due in due_s]}]
    journal.path.write_text(json.dumps(line) + "\n")
    assert pauses == observer.timers_pause("worker", 0.3)
