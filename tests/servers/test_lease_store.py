"""The lease store, its test double beside it: the same rules on each, and both driven against each other."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from installed import require
from leases import Timed, TimedMemory, TimedRedis, claimant, drive
from repot.brokers.local import LOOPBACK, GuardedProcess, free_port, programs, redis_server
from repot.config import inherited_environment
from repot.errors import ClaimUnreadable, StoreRefused, StoreUnreachable
from repot.idempotency.claims import (
    Claimed,
    Done,
    Ending,
    Failed,
    Mismatch,
    Outcome,
    Parked,
    Running,
    State,
    Verdict,
)
from repot.idempotency.fingerprint import Fingerprint
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.brokers.local import Server

KEY = Fingerprint("0" * 64)
DONE = Ending(Outcome.DONE, 86400, '"first"')
RELEASED = Ending(Outcome.RELEASED, 86400)


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """A private Valkey, where one is installed; the tests on Docker Compose have one anywhere."""
    program = shutil.which("valkey-server")
    if program is None:
        pytest.skip("valkey-server is not installed")
    with redis_server(program=program) as server:
        yield server


@pytest.fixture(params=["memory", "redis", "valkey"])
def timed(request: pytest.FixtureRequest) -> Timed:
    """A store in whose world time can pass."""
    if request.param == "memory":
        return TimedMemory()
    server: Server = request.getfixturevalue(request.param)
    return TimedRedis(server.url)


def test_a_key_is_claimed_once(timed: Timed) -> None:
    first, second = claimant("one"), claimant("two")
    assert isinstance(timed.store.claim(KEY, first), Claimed)
    found = timed.store.claim(KEY, second)
    assert isinstance(found, Running)
    assert "one" == found.task_id
    assert 3500 < found.remaining_s <= 3600


def test_a_claim_whose_answer_was_lost_is_claimed_again_by_its_owner(timed: Timed) -> None:
    who = claimant()
    first = timed.store.claim(KEY, who)
    again = timed.store.claim(KEY, who)
    assert isinstance(first, Claimed)
    assert isinstance(again, Claimed)
    assert (first.fence, 1) == (again.fence, again.runs)


def test_a_finish_whose_answer_was_lost_is_said_again(timed: Timed) -> None:
    who = claimant()
    timed.store.claim(KEY, who)
    assert [Verdict.OK, Verdict.OK] == [timed.store.finish(KEY.key, who.owner, DONE) for _ in range(2)]


def test_who_comes_after_gets_the_first_result(timed: Timed) -> None:
    who = claimant("one")
    timed.store.claim(KEY, who)
    timed.store.finish(KEY.key, who.owner, DONE)
    assert Done("one", '"first"') == timed.store.claim(KEY, claimant("two"))


def test_a_late_finisher_does_not_delete_anothers_claim(timed: Timed) -> None:
    """The flaw of a lock that is deleted without asking whose it is."""
    late, other = claimant("late"), claimant("other")
    timed.store.claim(KEY, late)
    timed.advance(7200)
    assert isinstance(timed.store.claim(KEY, other), Claimed)
    for outcome in Outcome:
        for how in ("", "late", "person", "force"):
            assert Verdict.LOST is timed.store.finish(KEY.key, late.owner, Ending(outcome, 86400), how)
    assert not timed.store.renew(KEY.key, late)
    record = timed.store.inspect(KEY.key)
    assert record is not None
    assert (State.RUNNING, other.owner) == (record.state, record.owner)


def test_a_late_owner_can_neither_finish_nor_renew_nor_release(timed: Timed) -> None:
    who = claimant()
    timed.store.claim(KEY, who)
    timed.advance(7200)
    assert Verdict.LATE is timed.store.finish(KEY.key, who.owner, DONE)
    assert Verdict.LATE is timed.store.finish(KEY.key, who.owner, RELEASED)
    assert not timed.store.renew(KEY.key, who)
    record = timed.store.inspect(KEY.key)
    assert record is not None
    assert record.is_stuck


def test_what_a_late_run_knows_is_taken_while_nobody_has_come(timed: Timed) -> None:
    """Its outcome is in doubt until then; a doubt that can be cleared up need not end in a second effect."""
    who = claimant("one")
    timed.store.claim(KEY, who)
    timed.advance(7200)
    assert Verdict.OK is timed.store.finish(KEY.key, who.owner, DONE, "late")
    assert Done("one", '"first"') == timed.store.claim(KEY, claimant())


def test_what_a_late_run_knows_is_taken_after_a_person_let_it_run_again_and_nobody_did(timed: Timed) -> None:
    who = claimant("one")
    timed.store.claim(KEY, who)
    timed.advance(7200)
    assert Verdict.OK is timed.store.finish(KEY.key, who.owner, RELEASED, "person")
    assert Verdict.OK is timed.store.finish(KEY.key, who.owner, DONE, "late")
    assert Done("one", '"first"') == timed.store.claim(KEY, claimant())


def test_a_fence_grows_with_each_claim_also_after_the_record_is_gone(timed: Timed) -> None:
    fences = []
    for seconds in (7200, 7200, 30 * 86400, 0):
        found = timed.store.claim(KEY, claimant())
        assert isinstance(found, Claimed)
        fences.append(found.fence)
        timed.advance(seconds)
    assert sorted(set(fences)) == fences


def test_a_run_that_died_is_in_doubt(timed: Timed) -> None:
    timed.store.claim(KEY, claimant())
    timed.advance(7200)
    found = timed.store.claim(KEY, claimant())
    assert isinstance(found, Claimed)
    assert (2, State.UNKNOWN) == (found.runs, found.after)


def test_a_doubt_can_wait_for_a_person(timed: Timed) -> None:
    timed.store.claim(KEY, claimant("one"))
    timed.advance(7200)
    second = claimant("two", parks=True)
    found = [timed.store.claim(KEY, second) for _ in range(2)]
    assert [("one", 1, True), ("one", 1, False)] == [
        (one.task_id, one.doubts, one.first) for one in found if isinstance(one, Parked)
    ]
    timed.advance(365 * 86400)
    assert isinstance(timed.store.claim(KEY, second), Parked)


def test_a_key_whose_runs_die_again_and_again_waits_for_a_person(timed: Timed) -> None:
    for _ in range(3):
        assert isinstance(timed.store.claim(KEY, claimant(most_doubts=3)), Claimed)
        timed.advance(7200)
    assert isinstance(timed.store.claim(KEY, claimant(most_doubts=3)), Parked)


def test_a_replayed_dead_letter_is_not_skipped(timed: Timed) -> None:
    """The flaw of a failure that is remembered for a day, whoever asks."""
    who = claimant("one")
    timed.store.claim(KEY, who)
    timed.store.finish(KEY.key, who.owner, Ending(Outcome.FAILED, 86400, error="why"))
    assert Failed("one", "why") == timed.store.claim(KEY, claimant("one"))
    assert isinstance(timed.store.claim(KEY, claimant("one", replay=1)), Claimed)


def test_a_replay_that_is_delivered_twice_runs_once(timed: Timed) -> None:
    who = claimant("one", replay=1)
    timed.store.claim(KEY, who)
    timed.store.finish(KEY.key, who.owner, Ending(Outcome.FAILED, 86400, error="why"))
    assert Failed("one", "why") == timed.store.claim(KEY, claimant("one", replay=1))


def test_a_replay_runs_what_waits_for_a_person(timed: Timed) -> None:
    timed.store.claim(KEY, claimant())
    timed.advance(7200)
    timed.store.claim(KEY, claimant(parks=True))
    assert isinstance(timed.store.claim(KEY, claimant(parks=True, replay=1)), Claimed)


def test_a_replay_of_what_was_done_gets_its_result(timed: Timed) -> None:
    who = claimant("one")
    timed.store.claim(KEY, who)
    timed.store.finish(KEY.key, who.owner, DONE)
    assert Done("one", '"first"') == timed.store.claim(KEY, claimant("one", replay=1))


def test_the_same_key_with_another_payload_is_an_error(timed: Timed) -> None:
    who = claimant("one")
    timed.store.claim(replace(KEY, payload="1" * 64), who)
    assert Mismatch("one") == timed.store.claim(replace(KEY, payload="2" * 64), claimant())
    timed.store.finish(KEY.key, who.owner, DONE)
    assert Mismatch("one") == timed.store.claim(replace(KEY, payload="2" * 64), claimant())
    assert isinstance(timed.store.claim(replace(KEY, payload="1" * 64), claimant()), Done)


def test_a_key_between_two_tries_stays_with_its_task(timed: Timed) -> None:
    who = claimant("one")
    timed.store.claim(KEY, who)
    timed.store.finish(KEY.key, who.owner, Ending(Outcome.RELEASED, 86400, hold_s=3600, held_for="one"))
    assert isinstance(timed.store.claim(KEY, claimant("two")), Running)
    assert isinstance(timed.store.claim(KEY, claimant("one")), Claimed)


def test_a_key_whose_retry_never_comes_is_free_again(timed: Timed) -> None:
    who = claimant("one")
    timed.store.claim(KEY, who)
    timed.store.finish(KEY.key, who.owner, Ending(Outcome.RELEASED, 86400, hold_s=3600, held_for="one"))
    timed.advance(7200)
    assert isinstance(timed.store.claim(KEY, claimant("two")), Claimed)


def test_a_renewed_lease_holds_on(timed: Timed) -> None:
    who = claimant()
    timed.store.claim(KEY, who)
    for _ in range(5):
        timed.advance(1800)
        assert timed.store.renew(KEY.key, who)
    assert isinstance(timed.store.claim(KEY, claimant()), Running)


def test_a_person_cannot_end_a_live_lease_unless_by_force(timed: Timed) -> None:
    """The flaw of a reaper that deletes live locks."""
    who = claimant()
    timed.store.claim(KEY, who)
    assert Verdict.LIVE is timed.store.finish(KEY.key, who.owner, RELEASED, "person")
    assert Verdict.OK is timed.store.finish(KEY.key, who.owner, RELEASED, "force")
    assert isinstance(timed.store.claim(KEY, claimant()), Claimed)


def test_what_is_done_is_forgotten_in_time(timed: Timed) -> None:
    who = claimant()
    timed.store.claim(KEY, who)
    timed.store.finish(KEY.key, who.owner, DONE)
    timed.advance(2 * 86400)
    assert timed.store.inspect(KEY.key) is None


def test_store_and_double_agree_whatever_is_done_to_them(redis: Server) -> None:
    """Hypothesis drives both, and compares every answer and record."""
    drive(redis.url)


def test_valkey_and_double_agree_whatever_is_done_to_them(valkey: Server) -> None:
    drive(valkey.url)


def test_behind_sentinel(redis: Server, tmp_path: Path) -> None:
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind {LOOPBACK}\ndir {tmp_path}\nsentinel monitor shop {LOOPBACK} {redis.port} 1\n"
    )
    with _process(str(configuration), "--sentinel", folder=tmp_path) as sentinel:
        timed = TimedRedis(f"sentinel://{LOOPBACK}:{port}/0", sentinel_master="shop")
        _await_answer(timed, sentinel)
        who = claimant("one")
        assert isinstance(timed.store.claim(KEY, who), Claimed)
        assert Verdict.OK is timed.store.finish(KEY.key, who.owner, DONE)
        assert isinstance(timed.store.claim(KEY, claimant()), Done)


def test_on_a_cluster(tmp_path: Path) -> None:
    """Each script touches one record, whose name carries its hash tag."""
    # a node listens on its port + 10000, too
    port = next(port for port in iter(free_port, 0) if port < 50000)
    options = ["--port", str(port), "--bind", LOOPBACK, "--dir", str(tmp_path), "--cluster-enabled", "yes"]
    with _process(*options, "--save", "", folder=tmp_path) as node:
        timed = TimedRedis(f"redis+cluster://{LOOPBACK}:{port}")
        _take_all_slots(port, node)
        _await_answer(timed, node)
        for number in range(20):
            key, who = replace(KEY, key=f"{number:064}"), claimant()
            assert isinstance(timed.store.claim(key, who), Claimed)
            assert timed.store.renew(key.key, who)
            assert Verdict.OK is timed.store.finish(key.key, who.owner, DONE)
        assert 20 == len(list(timed.store.records()))
        timed.store.close()


def test_a_store_that_is_not_there_is_named() -> None:
    timed = TimedRedis(f"redis://:hunter2@{LOOPBACK}:{free_port()}/0")
    with pytest.raises(StoreUnreachable) as caught:
        timed.store.claim(KEY, claimant())
    assert "did not answer" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_full_store_is_unreachable_and_not_free() -> None:
    with redis_server("--maxmemory", "1mb", "--maxmemory-policy", "noeviction") as server:
        timed = TimedRedis(server.url)

        def fill() -> None:
            for number in range(10000):
                timed.store.claim(replace(KEY, key=f"{number:064}"), claimant())

        with pytest.raises(StoreUnreachable, match="OutOfMemory"):
            fill()


def _process(*options: str, folder: Path) -> GuardedProcess:
    require(programs.REDIS)
    environment = inherited_environment(without=())
    return GuardedProcess([programs.REDIS.find(), *options], log=folder / "log", environment=environment)


def _await_answer(timed: TimedRedis, process: GuardedProcess) -> None:
    def answers() -> bool:
        assert process.exit_code is None, process.log_tail()
        try:
            timed.store.inspect(KEY.key)
        except StoreUnreachable:
            return False
        return True

    wait_until(answers, within_s=20, what="the store answers")


def _take_all_slots(port: int, process: GuardedProcess) -> None:
    import redis

    client: Any = redis.Redis(host=LOOPBACK, port=port)

    def taken() -> bool:
        assert process.exit_code is None, process.log_tail()
        try:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        except redis.ConnectionError:
            return False
        return True

    wait_until(taken, within_s=20, what="the node has all slots")
    client.close()


def test_a_store_that_refuses_access_is_away_for_workers_and_named_for_people() -> None:
    """A password that is being changed must not fail a whole queue's tasks."""
    with redis_server() as server:
        TimedRedis(server.url).store.client.config_set("requirepass", "hunter2")
        timed = TimedRedis(server.url.replace("://", "://:wrong-password@"))
        with pytest.raises(StoreRefused, match="refuses access") as caught:
            timed.store.claim(KEY, claimant())
    assert isinstance(caught.value, StoreUnreachable)
    assert "wrong-password" not in str(caught.value)


def test_what_is_no_claim_is_left_out_and_named(redis: Server, caplog: pytest.LogCaptureFixture) -> None:
    timed = TimedRedis(redis.url)
    client: Any = timed.store.client
    timed.store.claim(KEY, claimant("one"))
    client.set(timed.store.name_of("a" * 64), "no hash")
    client.hset(timed.store.name_of("b" * 64), "state", "banana")
    assert ["one"] == [record.task_id for record in timed.store.records()]
    assert 2 == sum("is none" in record.message for record in caplog.records)
    for key in ("a" * 64, "b" * 64):
        with pytest.raises(ClaimUnreadable):
            timed.store.inspect(key)
    with pytest.raises(ClaimUnreadable):
        timed.store.claim(replace(KEY, key="a" * 64), claimant())
