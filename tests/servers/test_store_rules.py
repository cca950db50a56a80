"""The ways to apply a rule to a record: the same contract for memory, a hash on Redis, and rows of each database.

The rules here are those of the lease of one process.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from uuid import uuid4

import pytest

from repot.config import ExplicitSettings
from repot.database.connection import Database
from repot.database.outbox_tables import relay
from repot.idempotency.lease_store import RedisLeaseStore
from repot.routing.database_rows import write
from repot.store.hashes import HashRecords
from repot.store.lease import Held, Lease, LeaseFields, acquiring, releasing, renewing
from repot.store.memory import MemoryRecords
from repot.store.rows import RowRecords
from repot.waiting import wait_until
from support.databases import DATABASES, with_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.store.rules import Rule, T

FIELDS = LeaseFields("until")


class Way(Protocol):
    """Applies rules to one record."""

    def __call__(self, rule: Rule[Lease, T]) -> T: ...


def on_redis(url: str, read_by: str) -> Iterator[Way]:
    with closing(RedisLeaseStore(ExplicitSettings(lease_store=url))) as store:
        records, name = HashRecords(store.run, FIELDS, read_by), f"test-{uuid4()}"
        # of others, which no rule knows
        store.client.hset(name, "reserved", "3")
        yield lambda rule: records.apply(name, rule)[0]
        assert store.client.hget(name, "reserved") == "3"


def in_a_row(url: str) -> Iterator[Way]:
    columns = [relay.c.owner, relay.c.fencing_token, relay.c.expires_at]

    def values(lease: Lease) -> dict[str, Any]:
        return {"owner": lease.owner, "fencing_token": lease.token, "expires_at": lease.ends_at}

    records, prefix = RowRecords(relay, columns, lambda row: Lease(*row), values), str(uuid4())
    with closing(Database(ExplicitSettings(lease_store=url))) as database:
        yield lambda rule: database.transact(lambda one: records.apply(one, rule, prefix=prefix))


def in_rows(url: str) -> Iterator[Way]:
    key = f"test-{uuid4()}"
    with closing(Database(ExplicitSettings(lease_store=url))) as database:
        yield lambda rule: write(database, lambda rows: rows.apply(key, FIELDS, rule))


def in_memory(_url: str) -> Iterator[Way]:
    records: MemoryRecords[Lease] = MemoryRecords(lambda _record, _now: True)
    yield lambda rule: records.apply("key", rule)


WAYS: dict[str, tuple[str, Callable[[str], Iterator[Way]]]] = {
    "memory": ("", in_memory),
    "redis": ("redis", lambda url: on_redis(url, "HMGET")),
    "redis-by-hget": ("redis", lambda url: on_redis(url, "HGET")),
    **{f"{name}-row": (name, in_a_row) for name in DATABASES},
    **{f"{name}-named-values": (name, in_rows) for name in DATABASES},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    server, make = WAYS[request.param]
    found = request.getfixturevalue(server) if server else None
    yield from make((with_tables(found) if server in DATABASES else found).url if found else "")


def look(found: Lease | None, now: float) -> tuple[None, tuple[Lease | None, float]]:
    return None, (found, now)


def test_a_rule_sees_what_the_one_before_left(way: Way) -> None:
    assert way(look)[0] is None
    assert way(acquiring("ann", 60)) == Held(1, "ann")
    lease, now = way(look)
    assert lease is not None
    assert (lease.owner, lease.token) == ("ann", 1)
    assert 0 < lease.ends_at - now <= 60.01
    assert way(look)[0] == lease


def test_a_rule_that_fails_changes_nothing(way: Way) -> None:
    way(acquiring("ann", 60))
    before, _ = way(look)

    def fail(_found: Lease | None, _now: float) -> NoReturn:
        raise LookupError

    with pytest.raises(LookupError):
        way(fail)
    assert way(look)[0] == before


def test_no_change_of_many_at_once_is_lost(way: Way) -> None:
    def another(found: Lease | None, now: float) -> tuple[Lease, int]:
        token = (found.token if found else 0) + 1
        return Lease("all", token, now + 60), token

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: way(another), range(40)))
    assert list(range(1, 41)) == sorted(answers)


def test_one_owner_has_the_lease_and_each_a_larger_token(way: Way) -> None:
    assert [way(acquiring("ann", 60)).token for _ in range(2)] == [1, 1]
    refused = way(acquiring("bob", 60))
    assert (refused.token, refused.owner) == (None, "ann")
    assert 0 < refused.remaining_s <= 60.01
    assert way(acquiring("ann", 60, keeps_token=False)).token == 2
    # known to have ended
    assert way(acquiring("bob", 60, ended="ann")).token == 3
    assert [way(renewing(token, 60)) for token in (2, 3, 4)] == [False, True, False]
    for other in ("ann", 2, "cid", ""):
        way(releasing(other))
    assert way(acquiring("cid", 60)).owner == "bob"
    way(releasing("bob"))
    assert not way(renewing(3, 60))
    assert way(acquiring("cid", 60)).token == 4
    way(releasing(4))
    assert way(acquiring("ann", 60)).token == 5


def test_a_lease_ends_by_the_stores_clock(request: pytest.FixtureRequest, way: Way) -> None:
    """Its owner may have it again while no other one wants it."""
    if request.node.callspec.params["way"] == "memory":
        pytest.skip("its clock stands still")
    way(acquiring("ann", 0.3))
    wait_until(lambda: (found := way(look))[1] > (found[0] or Lease()).ends_at, within_s=20, what="it has ended")
    assert way(renewing(1, 60))
    assert way(acquiring("bob", 60)).token is None
    # a short one last: a machine that stands still for a moment outlasts it
    assert way(renewing(1, 0.3))
    wait_until(lambda: way(acquiring("bob", 60)).token == 2, within_s=20, what="it goes to another one")
    assert not way(renewing(1, 60))
