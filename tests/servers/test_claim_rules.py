"""The rules of claims, by one call each: who may renew, remove and put back a message in hand, and when."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from redis import Redis

from repot.brokers.headers import DEATHS_PROPERTY
from repot.brokers.message import Message, to_redis
from repot.brokers.redis.claims import Claim, Claims, ClaimsOfProcess
from repot.chaos.runner.proxies import Proxy
from support.claims import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

pytestmark = pytest.mark.promise

LEASE_S = 60.0
#: Seconds between two scans; a test does not wait for them.
EVERY_S = 1.0


class Place:
    """One Redis with the claims of two processes; time is in the scores of the index, which a test sets back."""

    def __init__(self, server: Server) -> None:
        self.client: Any = Redis.from_url(server.url)
        self.client.flushdb()
        self.queue = f"q-{uuid4()}"
        self.own, self.other = (self._claims(server, one) for one in ("own@host", "other@host"))

    def _claims(self, server: Server, worker: str) -> Claims:
        return Claims(lambda: Redis.from_url(server.url).connection_pool, KEYS, LEASE_S, worker)

    def now(self) -> float:
        seconds, microseconds = self.client.time()
        return float(seconds + microseconds / 1e6)

    def claim(self, claims: Claims, age_s: float = 0.0, body: bytes = b"[[], {}, {}]") -> str:
        """Let a process have a message in hand whose last renewal was so long ago."""
        before, after = claims.next_tag()
        tag = f"{before}{round(self.now() * 1000)}{after}"
        message = Message(body, "application/json", "utf-8", {"id": "1", "task": "pay"}, {})
        entry = f"[{to_redis(message, self.queue, '')}" + f', "", {json.dumps(self.queue)}]'
        self.client.hset("unacked", tag, entry)
        self.client.zadd("unacked_index", {tag: self.now() - age_s})
        return tag

    def scans_go_on(self) -> None:
        """As if claims were looked for since long ago: no owner missed its renewal because Redis stood still."""
        self.client.set("unacked_recovery:since", self.now() - 2 * LEASE_S)
        self.client.delete("unacked_recovery")

    def recover(self, claims: Claims) -> int:
        self.scans_go_on()
        return claims.recover(EVERY_S)

    def in_hand(self) -> set[str]:
        kept = {one.decode() for one in self.client.hkeys("unacked")}
        assert kept == {one.decode() for one in self.client.zrange("unacked_index", 0, -1)}
        return kept

    def waiting(self) -> list[dict[str, Any]]:
        return [json.loads(one) for one in self.client.lrange(self.queue, 0, -1)]

    def age_s(self, tag: str) -> float:
        return self.now() - float(self.client.zscore("unacked_index", tag))


@contextmanager
def _held(claims: Claims, tag: str) -> Iterator[None]:
    claims.hold(tag)
    yield
    claims._let_go(tag)


@pytest.fixture
def place(redis: Server) -> Iterator[Place]:
    found = Place(redis)
    yield found
    found.client.flushdb()


def test_what_a_dead_owner_held_returns_once_with_its_death_counted(place: Place) -> None:
    place.claim(place.other, age_s=LEASE_S + 1)
    assert [place.recover(place.own) for _ in range(2)] == [1, 0]
    (found,) = place.waiting()
    assert found["properties"][DEATHS_PROPERTY] == 1
    assert place.in_hand() == set()


def test_a_look_over_a_slow_link_leaves_time_for_renewals(place: Place, redis: Server, toxiproxy: Server) -> None:
    """The renewals of what the looking process holds wait for its look, and their leases would run out."""
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", redis.port)
    far = Claims(lambda: Redis.from_url(redis.url_at(link.port)).connection_pool, KEYS, LEASE_S, "far@host")
    place.claim(place.other, age_s=LEASE_S + 1)
    # it connects, and loads its scripts
    assert place.recover(far) == 1
    for _ in range(20):
        place.claim(place.other, age_s=LEASE_S + 1)
    with link.with_toxic("latency", ("downstream",), {"latency": round(1000 * EVERY_S / 4)}):
        assert 0 < place.recover(far) < 10
    link.delete()
    place.recover(place.own)
    assert len(place.waiting()) == 21


def test_a_claim_lives_until_its_own_lease_is_over(place: Place) -> None:
    tag = place.claim(place.other, age_s=LEASE_S - 5)
    assert (0, {tag}) == (place.recover(place.own), place.in_hand())


def test_a_lease_is_its_owner_s_and_not_that_of_who_looks(place: Place, redis: Server) -> None:
    """Else a worker with a short lease would double what one with a long lease runs."""
    tag = place.claim(place.other, age_s=LEASE_S - 5)
    hasty = Claims(lambda: Redis.from_url(redis.url).connection_pool, place.own.keys, 1.0, "hasty@host")
    assert (0, {tag}) == (place.recover(hasty), place.in_hand())


def test_a_living_owner_recovers_nothing_of_its_own(place: Place) -> None:
    tag = place.claim(place.own, age_s=LEASE_S + 1)
    with _held(place.own, tag):
        assert place.recover(place.own) == 0
    assert {tag} == place.in_hand()


def test_when_nobody_looked_each_owner_gets_the_time_of_its_lease_first(place: Place) -> None:
    """Redis stood still, or failed over: its owners could not renew."""
    tag = place.claim(place.other, age_s=LEASE_S + 1)
    assert place.own.recover(EVERY_S) == 0
    assert {tag} == place.in_hand()


def test_what_is_in_the_future_of_a_clock_that_went_back_counts_as_of_now(place: Place) -> None:
    tag, stock = place.claim(place.other, age_s=-7200), "a stock worker's"
    place.client.zadd("unacked_index", {stock: place.now() + 7200})
    for key in ("unacked_recovery", "unacked_recovery:since"):
        place.client.set(key, place.now() + 7200, px=7200000)
    assert place.own.recover(EVERY_S) == 0
    assert abs(place.age_s(tag)) < LEASE_S / 2
    # its worker's clock, and not that of Redis, may be ahead
    assert place.age_s(stock) < -7000
    assert float(place.client.get("unacked_recovery:since")) <= place.now()
    assert place.client.pttl("unacked_recovery") <= 1000 * EVERY_S
    place.client.zrem("unacked_index", stock)
    place.client.zadd("unacked_index", {tag: place.now() - LEASE_S})
    assert place.recover(place.own) == 1


def test_what_went_back_does_not_begin_and_what_has_begun_does_not_go_back(place: Place) -> None:
    begun, withdrawn = place.claim(place.own, age_s=0), place.claim(place.own, age_s=0)
    with _held(place.own, begun), _held(place.own, withdrawn):
        assert place.own.begin(begun)
        assert (place.own.withdraw(begun), place.own.withdraw(withdrawn)) == (False, True)
        assert not place.own.begin(withdrawn)
    assert not place.own.begin(begun)


def test_what_was_not_renewed_for_a_lease_begins_only_if_it_is_still_in_hand(place: Place) -> None:
    kept, gone = place.claim(place.own, age_s=0), place.claim(place.own, age_s=0)
    with _held(place.own, kept), _held(place.own, gone):
        for tag in (kept, gone):
            place.own._held[tag] -= LEASE_S + 1
        place.own._remove(place.own._server, gone)
        assert (place.own.begin(kept), place.own.begin(gone)) == (True, False)
        assert (place.own.holds(kept), place.own.holds(gone)) == (True, False)


def test_one_process_looks_in_a_time(place: Place) -> None:
    place.claim(place.other, age_s=LEASE_S + 1)
    place.scans_go_on()
    place.client.set("unacked_recovery", "1")
    assert place.own.recover(EVERY_S) == 0
    assert place.recover(place.own) == 1


def test_renewing_keeps_what_is_held_and_names_what_is_gone(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    kept, gone = place.claim(place.own, age_s=30), place.claim(place.own, age_s=30)
    with _held(place.own, kept), _held(place.own, gone):
        place.own._remove(place.own._server, gone)
        assert place.own.renew()
        assert place.age_s(kept) < 5
        # it is not claimed again by its renewal
        assert {kept} == place.in_hand()
        assert (place.own.holds(kept), place.own.holds(gone)) == (True, False)
    assert "claim_lost" in [getattr(one, "action", "") for one in caplog.records]


def test_an_owner_that_slept_removes_nothing_that_was_handed_out_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    tag = place.claim(place.own, age_s=LEASE_S + 1)
    assert place.recover(place.other) == 1
    again = place.claim(place.other)
    place.own.settle(tag)
    assert {again} == place.in_hand()
    assert len(place.waiting()) == 1
    assert [one.action for one in caplog.records if getattr(one, "action", "").startswith("ack")] == ["ack_fenced"]  # type: ignore[attr-defined]
    assert (place.own.still_holds(tag), place.other.still_holds(again)) == (False, True)


def test_a_claim_that_was_renewed_since_it_was_seen_is_not_put_back(place: Place) -> None:
    """Its owner lives: it was only late."""
    tag = place.claim(place.other, age_s=LEASE_S + 1)
    value = place.client.hget("unacked", tag).decode()
    with _held(place.other, tag):
        place.other.renew()
    assert place.own._recover(tag, value) == 0
    assert ({tag}, []) == (place.in_hand(), place.waiting())


def test_of_two_processes_that_have_seen_a_dead_claim_one_puts_it_back(place: Place) -> None:
    tag = place.claim(place.other, age_s=LEASE_S + 1)
    value = place.client.hget("unacked", tag).decode()
    assert [claims._recover(tag, value) for claims in (place.own, place.other)] == [1, 0]
    assert len(place.waiting()) == 1


def test_what_is_given_back_is_first_or_last_and_was_no_death(place: Place) -> None:
    place.client.rpush(place.queue, '{"old": 1}')
    first, last = (place.claim(place.own, body=body) for body in (b"first", b"last"))
    place.own.give_back(first, first=True)
    place.own.give_back(last, first=False)
    # the next one to be taken is at the right
    (*_, taken_next), taken_last = (found := place.waiting()), found[0]
    assert taken_next["body"] != taken_last["body"]
    assert found[1] == {"old": 1}
    assert [DEATHS_PROPERTY in one["properties"] for one in (taken_next, taken_last)] == [False, False]
    bodies = {key: to_redis(Message(key, "application/json", "utf-8", {}, {}), "", "") for key in (b"first", b"last")}
    assert [json.loads(bodies[key])["body"] for key in (b"first", b"last")] == [taken_next["body"], taken_last["body"]]
    assert place.in_hand() == set()


def test_an_entry_that_cannot_be_read_is_kept_aside(place: Place) -> None:
    tag = place.claim(place.other, age_s=LEASE_S + 1)
    place.client.hset("unacked", tag, "no message")
    assert place.recover(place.own) == 0
    assert (set(), [b"no message"]) == (place.in_hand(), place.client.lrange("unacked_unreadable", 0, -1))


def test_what_is_no_claim_is_left_to_kombu(place: Place) -> None:
    place.client.hset("unacked", "0d9b6a2e", "kombu's")
    place.client.zadd("unacked_index", {"0d9b6a2e": 0})
    assert (0, {"0d9b6a2e"}) == (place.recover(place.own), place.in_hand())
    assert Claim.of("0d9b6a2e") is None


def test_a_tag_says_who_when_and_for_how_long(place: Place) -> None:
    tag = place.claim(place.own)
    found = Claim.of(tag)
    assert found is not None
    assert (found.lease_s, found.worker) == (LEASE_S, "own@host")
    assert abs(found.claimed_at - place.now()) < 60
    # a late ACK finds nothing of another delivery, also of one in the same millisecond
    assert place.own.next_tag() != place.own.next_tag()


def test_a_forked_child_holds_no_claims_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ClaimsOfProcess()
    first: Any = object()
    assert made.at("here", lambda: first) is first
    assert made.at("here", object) is first  # type: ignore[arg-type]
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert made.at("here", object) is not first  # type: ignore[arg-type]
