"""The lease store, its test double beside it: the same rules on each, and both driven against each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from repot.config import inherited_environment
from repot.errors import RecordUnreadable, StoreRefused, StoreUnreachable
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.records import (
    Acquired,
    Done,
    Ending,
    Failed,
    FinishMode,
    FinishResult,
    Mismatch,
    Parked,
    Running,
    RunOutcome,
    State,
)
from repot.testbed import LOOPBACK, ReapedProcess, executables, free_port, redis_server
from repot.waiting import wait_until
from support.installed import require
from support.leases import Timed, TimedDatabase, TimedMemory, TimedRedis, drive, lease_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import Server

pytestmark = pytest.mark.promise("redis", "postgresql")

KEY = Fingerprint("0" * 64)
DONE = Ending(RunOutcome.DONE, 86400, '"first"')
RELEASED = Ending(RunOutcome.RELEASED, 86400)


#: Stores besides the double, and how to make time pass in them.
TIMED: dict[str, Callable[[str], TimedRedis | TimedDatabase]] = {
    **dict.fromkeys(("redis", "valkey"), TimedRedis),
    **dict.fromkeys(("sqlite", "postgresql", "mariadb"), TimedDatabase),
}


@pytest.fixture(params=["memory", *TIMED])
def timed(request: pytest.FixtureRequest) -> Iterator[Timed]:
    """A store in whose world time can pass."""
    if request.param == "memory":
        yield TimedMemory()
        return
    found = TIMED[request.param](request.getfixturevalue(request.param).url)
    with closing(found.store):
        yield found


def test_a_key_is_acquired_once(timed: Timed) -> None:
    first, second = lease_request("one"), lease_request("two")
    assert isinstance(timed.store.acquire(KEY, first), Acquired)
    found = timed.store.acquire(KEY, second)
    assert isinstance(found, Running)
    assert found.task_id == "one"
    assert 3500 < found.remaining_s <= 3600


def test_a_lease_whose_answer_was_lost_is_acquired_again_by_its_owner(timed: Timed) -> None:
    who = lease_request()
    first = timed.store.acquire(KEY, who)
    again = timed.store.acquire(KEY, who)
    assert isinstance(first, Acquired)
    assert isinstance(again, Acquired)
    assert (first.fencing_token, 1) == (again.fencing_token, again.runs)


@pytest.mark.parametrize("others", [(), ("another",)], ids=["the-first", "a-later-one"])
@pytest.mark.parametrize("passed_s", [0, 7200], ids=["while-its-lease-lives", "after-it"])
def test_a_lease_whose_owner_got_no_answer_is_no_run(timed: Timed, passed_s: int, others: tuple[str, ...]) -> None:
    """The message that comes again names its owner, and another message may have been parked meanwhile."""
    lost = lease_request("one", parks=True)
    timed.store.acquire(KEY, lost)
    timed.advance(passed_s)
    timed.store.acquire(KEY, lease_request("two", parks=True))
    again = lease_request("one", parks=True, unanswered=(*others, lost.owner, "a third"))
    found = timed.store.acquire(KEY, again)
    assert isinstance(found, Acquired)
    assert (found.runs, found.after) == (1, State.RELEASED)
    record = timed.store.inspect(KEY.key)
    assert record is not None
    assert (State.RUNNING, again.owner, 0, False) == (
        record.state,
        record.owner,
        record.unknown_outcomes,
        record.parked,
    )
    assert FinishResult.LOST is timed.store.finish(KEY.key, lost.owner, RELEASED, FinishMode.LATE)


def test_a_run_that_may_have_begun_is_not_taken_for_one_that_got_no_answer(timed: Timed) -> None:
    """Its message is delivered again after its worker died, with the owners that it already named then."""
    lost = lease_request("one", parks=True)
    timed.store.acquire(KEY, lost)
    for _ in range(2):
        timed.advance(7200)
        found = timed.store.acquire(KEY, lease_request("one", parks=True, unanswered=(lost.owner,)))
    assert isinstance(found, Parked)
    assert found.unknown_outcomes == 1


def test_what_a_run_is_known_to_have_done_stays_done_whoever_got_no_answer(timed: Timed) -> None:
    who = lease_request("one")
    for outcome in (RunOutcome.FAILED, RunOutcome.DONE):
        timed.store.acquire(KEY, who)
        timed.store.finish(KEY.key, who.owner, Ending(outcome, 86400), FinishMode.FORCE)
        assert isinstance(timed.store.acquire(KEY, lease_request(unanswered=(who.owner,))), Failed | Done)
        timed.advance(10 * 86400)


def test_a_finish_whose_answer_was_lost_is_repeated(timed: Timed) -> None:
    who = lease_request()
    timed.store.acquire(KEY, who)
    assert [timed.store.finish(KEY.key, who.owner, DONE) for _ in range(2)] == [FinishResult.OK, FinishResult.OK]


def test_who_comes_after_gets_the_first_result(timed: Timed) -> None:
    who = lease_request("one")
    timed.store.acquire(KEY, who)
    timed.store.finish(KEY.key, who.owner, DONE)
    assert Done("one", '"first"') == timed.store.acquire(KEY, lease_request("two"))


def test_a_late_finisher_does_not_delete_the_lease_of_another_run(timed: Timed) -> None:
    """The flaw of a lock that is deleted without asking whose it is."""
    late, other = lease_request("late"), lease_request("other")
    timed.store.acquire(KEY, late)
    timed.advance(7200)
    assert isinstance(timed.store.acquire(KEY, other), Acquired)
    for outcome in RunOutcome:
        for mode in FinishMode:
            assert FinishResult.LOST is timed.store.finish(KEY.key, late.owner, Ending(outcome, 86400), mode)
    assert not timed.store.renew(KEY.key, late)
    record = timed.store.inspect(KEY.key)
    assert record is not None
    assert (State.RUNNING, other.owner) == (record.state, record.owner)


def test_a_late_owner_can_neither_finish_nor_release_unless_it_says_so(timed: Timed) -> None:
    who = lease_request()
    timed.store.acquire(KEY, who)
    timed.advance(7200)
    assert FinishResult.LATE is timed.store.finish(KEY.key, who.owner, DONE)
    assert FinishResult.LATE is timed.store.finish(KEY.key, who.owner, RELEASED)
    record = timed.store.inspect(KEY.key)
    assert record is not None
    assert record.has_unknown_outcome


def test_an_expired_lease_that_no_other_run_has_is_renewed(timed: Timed) -> None:
    """Its owner lives, and could not reach the store: a long task would run a second time beside itself."""
    who = lease_request()
    timed.store.acquire(KEY, who)
    timed.advance(7200)
    assert timed.store.renew(KEY.key, who)
    assert isinstance(timed.store.acquire(KEY, lease_request()), Running)
    assert FinishResult.OK is timed.store.finish(KEY.key, who.owner, DONE)


@pytest.mark.parametrize("parks", [False, True])
def test_an_expired_lease_is_left_to_its_owner_after_an_outage(timed: Timed, *, parks: bool) -> None:
    """The owner sends its outcome as soon as the store is back, and one that asks before would repeat the effect."""
    who = lease_request("one")
    timed.store.acquire(KEY, who)
    timed.advance(7200)
    assert timed.store.acquire(KEY, lease_request(grace_s=31, parks=parks)) == Running(31, "one", "w")
    record = timed.store.inspect(KEY.key)
    assert record is not None
    assert (record.owner, record.unknown_outcomes, record.parked) == (who.owner, 0, False)
    assert FinishResult.OK is timed.store.finish(KEY.key, who.owner, DONE, FinishMode.LATE)
    assert Done("one", '"first"') == timed.store.acquire(KEY, lease_request(grace_s=31))


@pytest.mark.parametrize("owner", ["dead", "unanswered"])
def test_a_grace_delays_no_other_answer(timed: Timed, owner: str) -> None:
    """Nor does it keep a key from a message whose own request got no answer."""
    who = lease_request("one")
    assert isinstance(timed.store.acquire(KEY, replace(who, grace_s=31)), Acquired)
    timed.advance(7200)
    unanswered = (who.owner,) if owner == "unanswered" else ()
    assert isinstance(
        timed.store.acquire(KEY, lease_request(unanswered=unanswered, grace_s=31 * bool(unanswered))), Acquired
    )


def test_what_a_late_run_knows_is_taken_while_no_other_run_has_the_key(timed: Timed) -> None:
    """Its outcome is unknown until then; an outcome that is recorded late need not lead to a second effect."""
    who = lease_request("one")
    timed.store.acquire(KEY, who)
    timed.advance(7200)
    assert FinishResult.OK is timed.store.finish(KEY.key, who.owner, DONE, FinishMode.LATE)
    assert Done("one", '"first"') == timed.store.acquire(KEY, lease_request())


def test_what_a_late_run_knows_is_taken_after_an_operator_released_the_key_and_no_run_came(timed: Timed) -> None:
    who = lease_request("one")
    timed.store.acquire(KEY, who)
    timed.advance(7200)
    assert FinishResult.OK is timed.store.finish(KEY.key, who.owner, RELEASED, FinishMode.OPERATOR)
    assert FinishResult.OK is timed.store.finish(KEY.key, who.owner, DONE, FinishMode.LATE)
    assert Done("one", '"first"') == timed.store.acquire(KEY, lease_request())


def test_a_fencing_token_grows_with_each_lease_also_after_the_record_is_gone(timed: Timed) -> None:
    fencing_tokens = []
    for seconds in (7200, 7200, 30 * 86400, 0):
        found = timed.store.acquire(KEY, lease_request())
        assert isinstance(found, Acquired)
        fencing_tokens.append(found.fencing_token)
        timed.advance(seconds)
    assert sorted(set(fencing_tokens)) == fencing_tokens


def test_a_run_that_died_has_an_unknown_outcome(timed: Timed) -> None:
    timed.store.acquire(KEY, lease_request())
    timed.advance(7200)
    found = timed.store.acquire(KEY, lease_request())
    assert isinstance(found, Acquired)
    assert (found.runs, found.after) == (2, State.UNKNOWN)


def test_an_unknown_outcome_can_wait_for_an_operator(timed: Timed) -> None:
    timed.store.acquire(KEY, lease_request("one"))
    timed.advance(7200)
    second = lease_request("two", parks=True)
    found = [timed.store.acquire(KEY, second) for _ in range(2)]
    assert [(one.task_id, one.unknown_outcomes, one.first) for one in found if isinstance(one, Parked)] == [
        ("one", 1, True),
        ("one", 1, False),
    ]
    timed.advance(365 * 86400)
    assert isinstance(timed.store.acquire(KEY, second), Parked)


def test_a_key_whose_runs_die_again_and_again_waits_for_an_operator(timed: Timed) -> None:
    for _ in range(3):
        assert isinstance(timed.store.acquire(KEY, lease_request(max_unknown_outcomes=3)), Acquired)
        timed.advance(7200)
    assert isinstance(timed.store.acquire(KEY, lease_request(max_unknown_outcomes=3)), Parked)


def test_a_replayed_dead_letter_is_not_skipped(timed: Timed) -> None:
    """The flaw of a failure that is remembered for a day, also for a replay."""
    who = lease_request("one")
    timed.store.acquire(KEY, who)
    timed.store.finish(KEY.key, who.owner, Ending(RunOutcome.FAILED, 86400, error="why"))
    assert Failed("one", "why") == timed.store.acquire(KEY, lease_request("one"))
    assert isinstance(timed.store.acquire(KEY, lease_request("one", replay=1)), Acquired)


def test_a_replay_that_is_delivered_twice_runs_once(timed: Timed) -> None:
    who = lease_request("one", replay=1)
    timed.store.acquire(KEY, who)
    timed.store.finish(KEY.key, who.owner, Ending(RunOutcome.FAILED, 86400, error="why"))
    assert Failed("one", "why") == timed.store.acquire(KEY, lease_request("one", replay=1))


def test_a_replay_runs_what_waits_for_an_operator(timed: Timed) -> None:
    timed.store.acquire(KEY, lease_request())
    timed.advance(7200)
    timed.store.acquire(KEY, lease_request(parks=True))
    assert isinstance(timed.store.acquire(KEY, lease_request(parks=True, replay=1)), Acquired)


def test_a_replay_among_others_goes_on_waiting_for_an_operator(timed: Timed) -> None:
    """What was killed, or ran out of time, and was replayed with all that died: its effect may have happened."""
    timed.store.acquire(KEY, lease_request())
    timed.advance(7200)
    for replay in (1, 2):
        waits = timed.store.acquire(KEY, lease_request(parks=True, replay=replay, undecided=True))
        assert isinstance(waits, Parked)
    assert isinstance(timed.store.acquire(KEY, lease_request(parks=True, replay=1)), Acquired)


def test_a_replay_among_others_runs_what_failed_or_may_happen_again(timed: Timed) -> None:
    who = lease_request("one")
    timed.store.acquire(KEY, who)
    timed.store.finish(KEY.key, who.owner, Ending(RunOutcome.FAILED, 86400, error="why"))
    assert isinstance(timed.store.acquire(KEY, lease_request("one", replay=1, undecided=True)), Acquired)
    timed.advance(7200)
    assert isinstance(timed.store.acquire(KEY, lease_request("one", replay=2, undecided=True)), Acquired)


def test_a_replay_of_what_was_done_gets_its_result(timed: Timed) -> None:
    who = lease_request("one")
    timed.store.acquire(KEY, who)
    timed.store.finish(KEY.key, who.owner, DONE)
    assert Done("one", '"first"') == timed.store.acquire(KEY, lease_request("one", replay=1))


def test_the_same_key_with_another_payload_is_an_error(timed: Timed) -> None:
    who = lease_request("one")
    timed.store.acquire(replace(KEY, payload="1" * 64), who)
    assert Mismatch("one") == timed.store.acquire(replace(KEY, payload="2" * 64), lease_request())
    timed.store.finish(KEY.key, who.owner, DONE)
    assert Mismatch("one") == timed.store.acquire(replace(KEY, payload="2" * 64), lease_request())
    assert isinstance(timed.store.acquire(replace(KEY, payload="1" * 64), lease_request()), Done)


def test_a_key_between_two_tries_stays_with_its_task(timed: Timed) -> None:
    who = lease_request("one")
    timed.store.acquire(KEY, who)
    timed.store.finish(KEY.key, who.owner, Ending(RunOutcome.RELEASED, 86400, hold_s=3600, held_for="one"))
    assert isinstance(timed.store.acquire(KEY, lease_request("two")), Running)
    assert isinstance(timed.store.acquire(KEY, lease_request("one")), Acquired)


def test_a_key_whose_retry_never_comes_is_free_again(timed: Timed) -> None:
    who = lease_request("one")
    timed.store.acquire(KEY, who)
    timed.store.finish(KEY.key, who.owner, Ending(RunOutcome.RELEASED, 86400, hold_s=3600, held_for="one"))
    timed.advance(7200)
    assert isinstance(timed.store.acquire(KEY, lease_request("two")), Acquired)


def test_a_renewed_lease_holds_on(timed: Timed) -> None:
    who = lease_request()
    timed.store.acquire(KEY, who)
    for _ in range(5):
        timed.advance(1800)
        assert timed.store.renew(KEY.key, who)
    assert isinstance(timed.store.acquire(KEY, lease_request()), Running)


def test_an_operator_cannot_end_a_live_lease_unless_by_force(timed: Timed) -> None:
    """The flaw of a reaper that deletes live locks."""
    who = lease_request()
    timed.store.acquire(KEY, who)
    assert FinishResult.LIVE is timed.store.finish(KEY.key, who.owner, RELEASED, FinishMode.OPERATOR)
    assert FinishResult.OK is timed.store.finish(KEY.key, who.owner, RELEASED, FinishMode.FORCE)
    assert isinstance(timed.store.acquire(KEY, lease_request()), Acquired)


def test_what_is_done_is_forgotten_in_time(timed: Timed) -> None:
    who = lease_request()
    timed.store.acquire(KEY, who)
    timed.store.finish(KEY.key, who.owner, DONE)
    timed.advance(2 * 86400)
    assert timed.store.inspect(KEY.key) is None


def test_one_of_many_runs_at_once_gets_the_key(timed: Timed) -> None:
    """Each that comes after it in the same moment is shown its lease, also where it expects a key that is free."""
    for before in (None, RELEASED):
        if before:
            who = lease_request()
            timed.store.acquire(KEY, who)
            timed.store.finish(KEY.key, who.owner, before, FinishMode.FORCE)
        requests = [lease_request(str(number)) for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda one: timed.store.acquire(KEY, one), requests))
        (got,) = [number for number, one in enumerate(answers) if isinstance(one, Acquired)]
        assert {str(got)} == {one.task_id for one in answers if isinstance(one, Running)}
        assert len([one for one in answers if isinstance(one, Running)]) == 7
        assert FinishResult.OK is timed.store.finish(KEY.key, requests[got].owner, RELEASED)


@pytest.mark.parametrize("lease_s", [0.5, 1.0, 2.0, 7200.0])
def test_a_lease_is_renewed_for_as_long_as_its_owner_asks(timed: Timed, lease_s: float) -> None:
    who = lease_request()
    timed.store.acquire(KEY, who)
    assert timed.store.renew(KEY.key, replace(who, lease_s=lease_s))
    record = timed.store.inspect(KEY.key)
    assert record is not None
    assert lease_s - 100 < record.remaining_s <= lease_s


@pytest.mark.parametrize("name", TIMED)
def test_store_and_double_agree_whatever_is_done_to_them(request: pytest.FixtureRequest, name: str) -> None:
    """Hypothesis drives both, and compares every answer and record."""
    url = request.getfixturevalue(name).url
    with ExitStack() as stack:

        def make() -> Timed:
            found = TIMED[name](url)
            stack.callback(found.store.close)
            return found

        drive(make)


#: Seconds until a frozen node counts as away; a start of the node takes longer on a busy machine, and is waited for.
_SOON = {"socket_timeout": 1, "socket_connect_timeout": 1}


def _behind_sentinel(stack: ExitStack, redis: Server, directory: Path) -> tuple[TimedRedis, ReapedProcess]:
    """Return a store, and the process of its Redis."""
    port = free_port()
    configuration = directory / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind {LOOPBACK}\ndir {directory}\nsentinel monitor shop {LOOPBACK} {redis.port} 1\n"
    )
    sentinel = stack.enter_context(_process(str(configuration), "--sentinel", directory=directory))
    timed = TimedRedis(f"sentinel://{LOOPBACK}:{port}/0", sentinel_master="shop", **_SOON)
    _await_answer(timed, sentinel)
    return timed, redis.process


def _on_cluster(stack: ExitStack, directory: Path) -> tuple[TimedRedis, ReapedProcess]:
    """Return a store on a cluster of one node, and its process."""
    port = free_port()
    options = ["--port", str(port), "--bind", LOOPBACK, "--dir", str(directory), "--cluster-enabled", "yes"]
    node = stack.enter_context(_process(*options, "--save", "", directory=directory))
    timed = TimedRedis(f"redis+cluster://{LOOPBACK}:{port}", **_SOON)
    _take_all_slots(port, node)
    _await_answer(timed, node)
    return timed, node


def test_behind_sentinel(redis: Server, tmp_path: Path) -> None:
    with ExitStack() as stack:
        timed, _ = _behind_sentinel(stack, redis, tmp_path)
        who = lease_request("one")
        assert isinstance(timed.store.acquire(KEY, who), Acquired)
        assert FinishResult.OK is timed.store.finish(KEY.key, who.owner, DONE)
        assert isinstance(timed.store.acquire(KEY, lease_request()), Done)


def test_on_a_cluster(tmp_path: Path) -> None:
    """Each script touches one record, whose name carries its hash tag."""
    with ExitStack() as stack:
        timed, _ = _on_cluster(stack, tmp_path)
        for number in range(20):
            key, who = replace(KEY, key=f"{number:064}"), lease_request()
            assert isinstance(timed.store.acquire(key, who), Acquired)
            assert timed.store.renew(key.key, who)
            assert FinishResult.OK is timed.store.finish(key.key, who.owner, DONE)
        assert len(list(timed.store.records())) == 20
        timed.store.close()


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_a_node_that_is_frozen_is_away_and_forgets_nothing(redis: Server, tmp_path: Path, kind: str) -> None:
    """Each call ends within its timeout; once the node is awake its owner renews, and finishes, what it had."""
    who, other = lease_request("one"), lease_request("other")
    with ExitStack() as stack:
        timed, process = _on_cluster(stack, tmp_path) if kind == "cluster" else _behind_sentinel(stack, redis, tmp_path)
        first = timed.store.acquire(KEY, who)
        assert isinstance(first, Acquired)
        with process.frozen():
            for call in (
                lambda: timed.store.acquire(KEY, other),
                lambda: timed.store.renew(KEY.key, who),
                lambda: timed.store.finish(KEY.key, who.owner, DONE),
            ):
                with pytest.raises(StoreUnreachable):
                    call()
        # what was sent to the frozen node may have been read since: an ending then says so, and is the same twice
        assert FinishResult.OK is timed.store.finish(KEY.key, who.owner, DONE)
        found = timed.store.acquire(KEY, other)
        assert found == Done("one", '"first"')
        timed.store.close()


def test_a_store_that_is_not_there_is_named() -> None:
    timed = TimedRedis(f"redis://:hunter2@{LOOPBACK}:{free_port()}/0")
    with pytest.raises(StoreUnreachable) as caught:
        timed.store.acquire(KEY, lease_request())
    assert "did not answer" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_full_store_is_unreachable_and_not_free() -> None:
    with redis_server("--maxmemory", "1mb", "--maxmemory-policy", "noeviction") as server:
        timed = TimedRedis(server.url)

        def fill() -> None:
            for number in range(10000):
                timed.store.acquire(replace(KEY, key=f"{number:064}"), lease_request())

        with pytest.raises(StoreUnreachable, match="OutOfMemory"):
            fill()


def _process(*options: str, directory: Path) -> ReapedProcess:
    require(executables.REDIS)
    environment = inherited_environment(without=())
    return ReapedProcess([executables.REDIS.find(), *options], log=directory / "log", environment=environment)


def _await_answer(timed: TimedRedis, process: ReapedProcess) -> None:
    def answers() -> bool:
        assert process.exit_code is None, process.log_tail()
        try:
            timed.store.inspect(KEY.key)
        except StoreUnreachable:
            return False
        return True

    wait_until(answers, within_s=20, what="the store answers")


def _take_all_slots(port: int, process: ReapedProcess) -> None:
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
            timed.store.acquire(KEY, lease_request())
    assert isinstance(caught.value, StoreUnreachable)
    assert "wrong-password" not in str(caught.value)


def test_what_is_not_a_record_is_skipped_and_named(redis: Server, caplog: pytest.LogCaptureFixture) -> None:
    timed = TimedRedis(redis.url)
    client: Any = timed.store.client
    timed.store.acquire(KEY, lease_request("one"))
    client.set(timed.store.name_of("a" * 64), "no hash")
    client.hset(timed.store.name_of("b" * 64), "state", "banana")
    assert [record.task_id for record in timed.store.records()] == ["one"]
    assert sum("is not an idempotency record" in record.message for record in caplog.records) == 2
    for key in ("a" * 64, "b" * 64):
        with pytest.raises(RecordUnreadable):
            timed.store.inspect(key)
    with pytest.raises(RecordUnreadable):
        timed.store.acquire(replace(KEY, key="a" * 64), lease_request())
