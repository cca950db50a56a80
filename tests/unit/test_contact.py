"""When a process may take over an expired lease: not before the store has answered it for a lease."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

import pytest

from repot.errors import StoreRefused, StoreUnreachable
from repot.idempotency import contact as module
from repot.idempotency.contact import Contact

LEASE_S = 30.0


class World:
    """A process, whose clock a test moves."""

    def __init__(self, patch: pytest.MonkeyPatch, since: float = 0) -> None:
        self.now = 1000.0
        patch.setattr(module, "monotonic", lambda: self.now)
        self.contact = Contact(LEASE_S, since=since)
        self.answer()

    def answer(self, after_s: float = 0) -> None:
        self.now += after_s
        with self.contact.asking():
            pass

    def fail(self, after_s: float = 0, error: Exception | None = None) -> None:
        self.now += after_s
        with suppress(StoreUnreachable), self.contact.asking():
            raise error or StoreUnreachable("away")

    @property
    def grace_s(self) -> float:
        return self.contact.grace_s(LEASE_S)


def test_who_always_had_an_answer_waits_for_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert world.grace_s == 0
    # also after hours without a request
    world.answer(10_000)
    assert world.grace_s == 0


@pytest.mark.parametrize("error", [StoreUnreachable("away"), StoreRefused("no right")])
def test_after_an_outage_each_owner_has_a_lease_and_a_second(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    world = World(monkeypatch)
    world.fail(5, error)
    assert world.grace_s == LEASE_S + 1
    world.answer(5)
    assert world.grace_s == LEASE_S + 1
    world.answer(LEASE_S)
    assert world.grace_s == 1
    world.answer(1)
    assert world.grace_s == 0


def test_a_second_outage_begins_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.fail(5)
    world.answer(5)
    world.fail(LEASE_S)
    world.answer(5)
    assert world.grace_s == LEASE_S + 1


def test_a_single_request_that_fails_among_others_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a link that loses a packet now and then would keep what dead workers held."""
    world = World(monkeypatch)
    world.fail(0.3)
    world.answer(0.3)
    assert world.grace_s == 0


def test_a_request_that_waits_for_its_answer_is_an_outage_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that repeats it may get an answer in the end, and no error: other leases have expired meanwhile."""
    world = World(monkeypatch)
    with world.contact.asking():
        world.now += 0.5
        assert world.grace_s == 0
        world.now += LEASE_S / 6
        assert world.grace_s == LEASE_S + 1
    assert world.grace_s == LEASE_S + 1
    world.answer(LEASE_S + 1)
    assert world.grace_s == 0


def test_what_the_store_answers_with_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.now += 5
    with suppress(ValueError), world.contact.asking():
        raise ValueError
    assert world.grace_s == 0


def test_a_process_that_has_just_begun_knows_nothing_of_the_time_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been started because the store was away."""
    world = World(monkeypatch, since=990)
    assert world.grace_s == 990 + LEASE_S + 1 - 1000


def test_a_guard_without_a_process_of_its_own_has_no_such_time() -> None:
    assert Contact().grace_s(LEASE_S) == 0
    assert Contact(since=monotonic()).grace_s(LEASE_S) > LEASE_S
