"""The lease of a run: how long it holds, and a renewal thread that survives whatever a store raises."""

from __future__ import annotations

import logging
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
import redis

from repot.config import ExplicitSettings
from repot.errors import RecordUnreadable, StoreMisconfigured, StoreRefused, StoreUnreachable
from repot.idempotency import Guard, Policy
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.guard import Lease
from repot.idempotency.memory_store import MemoryLeaseStore
from repot.idempotency.records import RunOutcome, State
from repot.renewal import Renewer
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = Fingerprint("k")

#: What a store and its client library can raise.
ERRORS: list[Exception] = [
    StoreUnreachable("away"),
    StoreRefused("no right"),
    StoreMisconfigured("no such command"),
    RecordUnreadable("another type"),
    redis.ResponseError("MISCONF ..."),
    AttributeError("'NoneType' object has no attribute 'send'"),
    RuntimeError("dictionary changed size during iteration"),
]


class Failing:
    """Something to renew that raises at first, and then holds on."""

    interval_s = 0.05

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.renewed = 0

    def renew(self) -> bool:
        if self.errors:
            raise self.errors.pop()
        self.renewed += 1
        return True


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_error_ends_the_renewal_of_any_lease(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """One job's lease met MISCONF, and every lease of its process ran out."""
    renewer, failing, other = Renewer(), Failing(error, error), Failing()
    renewer.add(failing)
    renewer.add(other)
    wait_until(lambda: failing.renewed >= 2 and other.renewed >= 2, within_s=10, what="both are renewed")
    renewer.remove(failing)
    renewer.remove(other)
    assert "a lease could not be renewed" in caplog.text


def test_an_error_of_the_thread_itself_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Failing):
        asked = 0

        @property
        def interval_s(self) -> float:  # type: ignore[override]
            self.asked += 1
            if self.asked > 3:
                message = "no interval"
                raise ValueError(message)
            return 0.05

    renewer, broken, other = Renewer(), Broken(), Failing()
    renewer.add(broken)
    renewer.add(other)
    wait_until(lambda: "error while renewing leases" in caplog.text, within_s=10, what="the error is logged")
    renewer.remove(broken)
    before = other.renewed
    wait_until(lambda: other.renewed > before, within_s=10, what="the other lease is renewed")
    renewer.remove(other)


def test_what_is_to_be_sent_is_sent_after_any_error(caplog: pytest.LogCaptureFixture) -> None:
    renewer, errors, said = Renewer(), list(ERRORS[-3:]), Event()

    def say() -> None:
        if errors:
            raise errors.pop()
        said.set()

    renewer.send_later(say, 0.05)
    assert said.wait(10)
    assert sum("error while" in record.message for record in caplog.records) == 3


class Slow(MemoryLeaseStore):
    """Takes its time to answer, and notes when it was asked."""

    asked_at = 0.0

    def acquire(self, *arguments: Any) -> Any:
        return self._slowly(lambda: super(Slow, self).acquire(*arguments))

    def renew(self, *arguments: Any) -> bool:
        return bool(self._slowly(lambda: super(Slow, self).renew(*arguments)))

    def _slowly(self, answer: Callable[[], Any]) -> Any:
        self.asked_at = monotonic()
        found = answer()
        Event().wait(0.05)
        return found


def test_a_lease_holds_no_longer_than_its_store_counts() -> None:
    """Counted from the answer it would hold, by the worker's clock, when the store has given it away."""
    store = Slow()
    lease = Guard(store, ExplicitSettings(lease=30)).acquire(KEY, Policy(), task="t", task_id="1")
    assert isinstance(lease, Lease)
    assert lease.expires_at <= store.asked_at + 30
    assert lease.renew()
    assert lease.expires_at <= store.asked_at + 30
    lease.lost = True


class Deaf(MemoryLeaseStore):
    """Raises at the end of a run, once per given error."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def finish(self, *arguments: Any) -> Any:
        if self.errors:
            raise self.errors.pop()
        return super().finish(*arguments)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_run_whose_end_the_store_does_not_take_has_not_failed(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The effect happened: its caller must not hear of a failure, and the outcome is noted as soon as it can be."""
    store = Deaf(error, error)
    guard, policy = Guard(store, ExplicitSettings(lease=0.3)), Policy()
    lease = guard.acquire(KEY, policy, task="t", task_id="1")
    assert isinstance(lease, Lease)
    guard.finish(lease, guard.ending(policy, RunOutcome.DONE))
    assert "could not be recorded; it is sent again" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING

    def noted() -> bool:
        found = store.inspect(KEY.key)
        return found is not None and found.state is State.DONE

    wait_until(noted, within_s=10, what="the outcome is noted")


class Away(MemoryLeaseStore):
    """Does not answer while it is away."""

    is_away = False

    def acquire(self, *arguments: Any) -> Any:
        self._answer()
        return super().acquire(*arguments)

    def finish(self, *arguments: Any) -> Any:
        self._answer()
        return super().finish(*arguments)

    def _answer(self) -> None:
        if self.is_away:
            message = "away"
            raise StoreUnreachable(message)


def test_no_number_of_requests_displaces_the_outcome_of_an_effect() -> None:
    """A backlog that kept asking while the store was away made workers forget what they had done: it was done again."""
    store = Away()
    guard, policy = Guard(store, ExplicitSettings(lease=0.3)), Policy()
    lease = guard.acquire(KEY, policy, task="t", task_id="1")
    assert isinstance(lease, Lease)
    store.is_away = True
    guard.finish(lease, guard.ending(policy, RunOutcome.DONE))
    for number in range(1100):
        with pytest.raises(StoreUnreachable):
            guard.acquire(Fingerprint(f"k-{number}"), policy, task="t", task_id=str(number))
    store.is_away = False

    def noted() -> bool:
        found = store.inspect(KEY.key)
        return found is not None and found.state is State.DONE

    wait_until(noted, within_s=10, what="the outcome is noted")


@pytest.mark.parametrize("is_away", [True, False])
def test_an_outcome_does_not_wait_for_the_requests_of_a_backlog(*, is_away: bool) -> None:
    """A thousand releases were tried, each until its timeout, before the outcome of an effect was tried again.

    The store may as well have come back since the outcome was tried.
    """
    renewer, asked, tried = Renewer(), [], []

    def release() -> None:
        asked.append(1)
        Event().wait(0.02)
        if is_away:
            message = "away"
            raise StoreUnreachable(message)

    def record() -> None:
        tried.append(len(asked))
        if len(tried) < 3:
            message = "away"
            raise StoreUnreachable(message)

    for _ in range(500):
        renewer.send_later(release, 0.3, is_optional=True)
    renewer.send_later(record, 0.3)
    wait_until(lambda: len(tried) == 3, within_s=30, what="the outcome is sent")
    # those that were sent at the same time
    assert tried[2] - tried[0] < 100


class Losing(Away):
    """A store that grants a lease and is away before its answer."""

    def acquire(self, *arguments: Any) -> Any:
        granted = super().acquire(*arguments)
        self.is_away = True
        self._answer()
        return granted


def test_no_number_of_requests_displaces_the_release_of_a_lease_without_an_answer() -> None:
    """It was granted as the store was lost; a backlog that kept asking since then was never granted anything."""
    store = Losing()
    guard, policy = Guard(store, ExplicitSettings(lease=0.3)), Policy()
    for number in range(1100):
        with pytest.raises(StoreUnreachable):
            guard.acquire(KEY if number == 0 else Fingerprint(f"k-{number}"), policy, task="t", task_id=str(number))
    assert [KEY.key] == store.keys()
    store.is_away = False

    def released() -> bool:
        found = store.inspect(KEY.key)
        return found is not None and found.state is State.RELEASED

    wait_until(released, within_s=10, what="the lease is released")


class Returning:
    """Something whose renewal says that it is over, and that is added again at that moment."""

    interval_s = 0.05

    def __init__(self, renewer: Renewer) -> None:
        self._renewer, self.calls = renewer, 0

    def renew(self) -> bool:
        self.calls += 1
        if self.calls == 1:
            self._renewer.remove(self)
            self._renewer.add(self)
            return False
        return True


def test_what_is_added_again_while_it_is_renewed_stays() -> None:
    renewer = Renewer()
    returning = Returning(renewer)
    renewer.add(returning)
    wait_until(lambda: returning.calls >= 3, within_s=10, what="it is renewed again")
    renewer.remove(returning)
