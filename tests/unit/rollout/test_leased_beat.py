"""A beat that ends while it sends: what has left is stored, so that the next beat does not send it again."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from repot.errors import StoreUnreachable
from repot.worker.rollout_beat import LeasedBeat


class Lease:
    """A lease that this beat has; a test says whether the store answers."""

    token, other, is_answered = 1, "", True

    def __init__(self) -> None:
        self.stored: dict[str, float] = {}
        self.is_away = self.is_released = False

    def is_held(self) -> bool:
        return True

    def runs(self) -> dict[str, float]:
        return {}

    def ran(self, runs: dict[str, float]) -> None:
        if self.is_away:
            message = "away"
            raise StoreUnreachable(message, hint="")
        self.stored = dict(runs)

    def release(self) -> None:
        self.is_released = True


@pytest.fixture
def lease() -> Lease:
    return Lease()


@pytest.fixture
def beat(lease: Lease) -> LeasedBeat:
    given: Any = lease
    found = LeasedBeat(None, given, "friday", 1.0)
    found._token = lease.token
    return found


def test_a_signal_that_comes_while_it_sends_ends_it_once_the_run_is_stored(beat: LeasedBeat, lease: Lease) -> None:
    """Celery's handler of a signal raises at once, wherever the beat is."""

    def end(*_: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit):
            beat.send("nightly", lambda _: signal.raise_signal(signal.SIGTERM), 0.0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [*lease.stored] == ["nightly"]


def test_a_run_that_could_not_be_stored_is_stored_before_the_lease_goes(beat: LeasedBeat, lease: Lease) -> None:
    lease.is_away = True
    beat.send("nightly", lambda _: None, 0.0)
    assert lease.stored == {}
    lease.is_away = False
    beat.close()
    assert ([*lease.stored], lease.is_released) == (["nightly"], True)
