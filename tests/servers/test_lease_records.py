"""Idempotency records as hashes on Redis: of an earlier release, and of another program; and what a step costs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.records import (
    Acquired,
    Done,
    Ending,
    Failed,
    FinishMode,
    FinishResult,
    Parked,
    Running,
    RunOutcome,
    State,
)
from support.leases import TimedRedis, lease_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.idempotency.lease_store import RedisLeaseStore
    from repot.testbed import Server

KEY = Fingerprint("0" * 64, "p" * 64)
OWNER = "0" * 32
DONE = Ending(RunOutcome.DONE, 86400)
RELEASED = Ending(RunOutcome.RELEASED, 86400)

#: What a run writes when it gets the lease; instants are seconds from now.
GRANTED: dict[str, Any] = {
    "state": "running",
    "owner": OWNER,
    "fencing_token": str(2**52),
    "expires_at": 30,
    "payload": KEY.payload,
    "replay": "0",
    "task": "shop.charge",
    "task_id": "t1",
    "worker": "w@1",
    "runs": "1",
    "unknown_outcomes": "0",
    "started_at": -10,
}
#: What the end of a run added to it in releases whose rules were scripts, which wrote empty texts as well.
ENDED = {"ended_at": -5, "expires_at": -5, "has_result": "", "result": "", "error": "", "held_for": ""}
RECORDED: dict[str, dict[str, Any]] = {
    "running": GRANTED,
    "expired": GRANTED | {"expires_at": -1},
    "done": GRANTED | ENDED | {"state": "done", "has_result": "1", "result": '"r"'},
    "done-without-result": GRANTED | ENDED | {"state": "done"},
    "failed": GRANTED | ENDED | {"state": "failed", "error": "why"},
    "released": GRANTED | ENDED | {"state": "released", "held_for": "t1", "expires_at": 20},
    "unknown": GRANTED | ENDED | {"state": "unknown", "error": "x", "unknown_outcomes": "1"},
    "parked": GRANTED | {"state": "unknown", "unknown_outcomes": "1", "expires_at": -1, "parked_at": -1},
}


@pytest.fixture
def store(redis: Server) -> Iterator[RedisLeaseStore]:
    with closing(TimedRedis(redis.url).store) as found:
        yield found


@pytest.fixture(params=RECORDED)
def recorded(request: pytest.FixtureRequest, store: RedisLeaseStore) -> str:
    """The name of a record that is in the store."""
    now = store.now()
    fields = {
        name: round((now + value) * 1000) if isinstance(value, int) else value
        for name, value in RECORDED[request.param].items()
    }
    client: Any = store.client
    client.hset(store.name_of(KEY.key), mapping=fields)
    return str(request.param)


#: For each of them: its state, the answer to another task, and the answer to its owner, who says that it is done.
READ: dict[str, tuple[State, Any, FinishResult]] = {
    "running": (State.RUNNING, Running(30, "t1", "w@1"), FinishResult.OK),
    "expired": (State.UNKNOWN, Acquired(2**52 + 1, 2, State.UNKNOWN), FinishResult.LATE),
    "done": (State.DONE, Done("t1", '"r"'), FinishResult.OK),
    "done-without-result": (State.DONE, Done("t1", None), FinishResult.OK),
    "failed": (State.FAILED, Failed("t1", "why"), FinishResult.LOST),
    "released": (State.RELEASED, Running(20, "t1", "w@1"), FinishResult.LATE),
    "unknown": (State.UNKNOWN, Acquired(2**52 + 1, 2, State.UNKNOWN), FinishResult.LATE),
    "parked": (State.UNKNOWN, Acquired(2**52 + 1, 2, State.UNKNOWN), FinishResult.LATE),
}


def test_a_record_of_an_earlier_release_is_read_as_it_was(store: RedisLeaseStore, recorded: str) -> None:
    state, answer, _ = READ[recorded]
    record = store.inspect(KEY.key)
    assert record is not None
    assert (record.state, record.parked, record.owner) == (state, recorded == "parked", OWNER)
    found = store.acquire(KEY, lease_request("t2"))
    if isinstance(found, Running):
        assert 0 < found.remaining_s <= answer.remaining_s
        found = replace(found, remaining_s=answer.remaining_s)
    assert answer == found


def test_the_owner_of_such_a_record_has_what_it_had(store: RedisLeaseStore, recorded: str) -> None:
    assert READ[recorded][2] is store.finish(KEY.key, OWNER, DONE)


def test_the_owner_of_such_a_record_renews_a_lease_that_no_other_run_has(store: RedisLeaseStore, recorded: str) -> None:
    holds = recorded in ("running", "expired")
    assert store.renew(KEY.key, replace(lease_request("t1"), owner=OWNER)) is holds
    assert (READ[recorded][2] if not holds else FinishResult.OK) is store.finish(KEY.key, OWNER, DONE)


def test_such_a_record_waits_for_an_operator(store: RedisLeaseStore, recorded: str) -> None:
    parking = lease_request("t2", parks=True)
    found = [store.acquire(KEY, parking) for _ in range(2)]
    is_unknown = READ[recorded][0] is State.UNKNOWN
    assert [is_unknown] * 2 == [isinstance(one, Parked) for one in found]
    if is_unknown:
        assert [one.first for one in found if isinstance(one, Parked)] == [recorded != "parked", False]
        client: Any = store.client
        assert client.ttl(store.name_of(KEY.key)) == -1


def test_an_earlier_release_finds_the_fields_that_it_writes(store: RedisLeaseStore, recorded: str) -> None:
    """Whatever was there: those of a lease, and instants in milliseconds. An empty text is as good as none."""
    client: Any = store.client
    store.finish(KEY.key, OWNER, RELEASED, FinishMode.FORCE)
    request = lease_request("t1", replay=7, worker="w@2")
    if recorded.startswith("done"):
        # nothing else runs such a key again
        client.hset(store.name_of(KEY.key), "state", "failed")
    assert isinstance(store.acquire(KEY, request), Acquired)
    found = {name: value for name, value in client.hgetall(store.name_of(KEY.key)).items() if value}
    assert GRANTED.keys() == found.keys()
    now = store.now() * 1000
    assert now - 60_000 < int(found.pop("started_at")) <= now < int(found.pop("expires_at")) <= now + 3_600_000
    assert int(found.pop("fencing_token")) == 2**52 + 1
    unknown = RECORDED[recorded]["unknown_outcomes"] if recorded != "expired" else "0"
    expected = {"state": "running", "owner": request.owner, "payload": KEY.payload, "replay": "7", "runs": "2"}
    assert expected | {"task": request.task, "task_id": "t1", "worker": "w@2", "unknown_outcomes": unknown} == found
    assert 0 < client.ttl(store.name_of(KEY.key)) <= 3600 + 864000


def test_fields_of_another_program_are_replaced_as_a_whole(store: RedisLeaseStore) -> None:
    """What cannot be read is no lease, and no result of a run."""
    client: Any = store.client
    for strange in ({"state": "strange", "runs": "4"}, {"state": "done", "runs": "many"}, {"replay": "x"}):
        fields = {"fencing_token": "7", "has_result": "1", "result": "theirs", "error": "theirs", "parked_at": "1"}
        client.hset(store.name_of(KEY.key), mapping=fields | strange)
        who = lease_request("t1")
        found = store.acquire(KEY, who)
        assert isinstance(found, Acquired)
        assert found.runs == 1
        assert FinishResult.OK is store.finish(KEY.key, who.owner, DONE)
        assert Done("t1", None) == store.acquire(KEY, lease_request("t2"))
        client.delete(store.name_of(KEY.key))


def test_a_step_of_the_guard_is_one_round_trip(store: RedisLeaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that gets no lease. Another one follows where a step changes what it did not expect."""
    asked: list[str] = []
    run = store.run

    def counted(script: str, keys: list[str], argument: str) -> Any:
        asked.append(keys[0])
        return run(script, keys, argument)

    monkeypatch.setattr(store._records, "_run", counted)

    def trips(act: Any) -> int:
        asked.clear()
        act()
        return len(asked)

    first, second = lease_request("t1"), lease_request("t2")
    held = Ending(RunOutcome.RELEASED, 600, hold_s=60, held_for="t1")
    assert trips(lambda: store.acquire(KEY, first)) == 1
    assert trips(lambda: store.renew(KEY.key, first)) == 1
    assert trips(lambda: store.acquire(KEY, second)) == 1
    assert trips(lambda: store.renew(KEY.key, second)) == 1
    assert trips(lambda: store.finish(KEY.key, first.owner, held)) == 1
    assert trips(lambda: store.acquire(KEY, second)) == 1
    assert trips(lambda: store.acquire(KEY, first)) == 2
    assert trips(lambda: store.finish(KEY.key, first.owner, DONE, FinishMode.LATE)) == 1
    assert trips(lambda: store.finish(KEY.key, first.owner, DONE)) == 1
    assert trips(lambda: store.acquire(KEY, second)) == 1
