"""Two releases of repot on one lease store, as during a deploy: the one before `repot.store`, and this one."""

from __future__ import annotations

from contextlib import ExitStack, closing
from itertools import repeat
from typing import TYPE_CHECKING

import pytest

from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.records import Acquired, Done, Ending, Failed, FinishResult, Parked, Running, RunOutcome
from support.earlier_release.leases import MixedMachine, TimedMixed
from support.leases import drive, lease_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

KEY = Fingerprint("0" * 64)
DAY_S = 86400

#: How a run ends, and the answer to the next one.
ENDINGS = {
    "done": (Ending(RunOutcome.DONE, DAY_S, '"first"'), Done("one", '"first"')),
    "done without a result": (Ending(RunOutcome.DONE, DAY_S), Done("one", None)),
    "failed": (Ending(RunOutcome.FAILED, DAY_S, error="no card"), Failed("one", "no card")),
}


@pytest.fixture
def timed(redis: Server) -> Iterator[TimedMixed]:
    """A store in whose world time can pass."""
    found = TimedMixed(redis.url)
    with closing(found.store):
        yield found


@pytest.fixture(params=["the earlier release", "this release"])
def is_earlier(request: pytest.FixtureRequest) -> bool:
    """Whether the earlier one writes what the other reads; or the other way round."""
    return bool(request.param == "the earlier release")


def release(timed: TimedMixed, *, is_earlier: bool) -> None:
    """Let one release do all that follows."""
    timed.store.turns = repeat(is_earlier)


@pytest.mark.parametrize("name", ENDINGS)
def test_an_outcome_that_one_release_recorded_is_known_to_the_other(
    timed: TimedMixed, is_earlier: bool, name: str
) -> None:
    ending, answer = ENDINGS[name]
    who = lease_request("one")
    release(timed, is_earlier=is_earlier)
    timed.store.acquire(KEY, who)
    assert timed.store.finish(KEY.key, who.owner, ending) is FinishResult.OK
    release(timed, is_earlier=not is_earlier)
    assert timed.store.acquire(KEY, lease_request("two")) == answer


def test_a_lease_goes_from_one_release_to_the_other_with_a_larger_token(timed: TimedMixed, is_earlier: bool) -> None:
    """Either renews and releases it, keeps it for the retry of its task, and parks what no run has finished."""
    first, retry = lease_request("one"), lease_request("one")
    release(timed, is_earlier=is_earlier)
    granted = timed.store.acquire(KEY, first)
    release(timed, is_earlier=not is_earlier)
    assert isinstance(timed.store.acquire(KEY, lease_request("two")), Running)
    assert timed.store.renew(KEY.key, first)
    released = Ending(RunOutcome.RELEASED, DAY_S, hold_s=3600, held_for="one")
    assert timed.store.finish(KEY.key, first.owner, released) is FinishResult.OK
    release(timed, is_earlier=is_earlier)
    assert isinstance(timed.store.acquire(KEY, lease_request("two")), Running)
    again = timed.store.acquire(KEY, retry)
    assert isinstance(granted, Acquired)
    assert isinstance(again, Acquired)
    assert again.fencing_token > granted.fencing_token
    assert again.runs == 2
    timed.advance(7200)
    release(timed, is_earlier=not is_earlier)
    parked = timed.store.acquire(KEY, lease_request("one", parks=True))
    assert isinstance(parked, Parked)
    assert parked.first
    release(timed, is_earlier=is_earlier)
    parked = timed.store.acquire(KEY, lease_request("one", parks=True))
    assert isinstance(parked, Parked)
    assert not parked.first


def test_two_releases_keep_the_same_rules_on_the_same_records(redis: Server) -> None:
    """Hypothesis chooses the steps, and by which release each is done; every answer and record is that of the model."""
    with ExitStack() as stack:

        def make() -> TimedMixed:
            found = TimedMixed(redis.url)
            stack.callback(found.store.close)
            return found

        drive(make, MixedMachine, examples=50)
