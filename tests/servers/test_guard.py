"""Guarded tasks in real workers, on both brokers."""

from __future__ import annotations

import json
import re
import signal
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

import pytest
from celery import chain, chord
from celery.exceptions import TaskRevokedError, TimeLimitExceeded
from click.testing import CliRunner
from redis import Redis

from repot.chaos.instruments.journal import DELIVERED, EFFECT, ENDED, POSTPONED
from repot.chaos.runner.proxies import Proxy
from repot.cli.main import main
from repot.config import as_environment
from repot.idempotency.records import Ending, FinishMode, RunOutcome, State
from repot.testbed import redis_server
from repot.waiting import wait_until
from support.lost_answers import LosingLink
from support.servers import DISTINCT, migrated, servers_of
from support.shop import SHORT_LEASE_S, Shop, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import Server


@pytest.fixture
def order() -> str:
    """An order of this test alone."""
    return str(uuid4())


# What comes a second time


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_double_submit_has_one_effect_and_both_callers_get_its_result(shop: Shop, order: str) -> None:
    """Positional equals keyword, and a default equals the same value given."""
    hold = shop.file()
    first = shop.send("charge", order, 1, "", str(hold))
    shop.await_effects(order)
    second = shop.send("charge", kwargs={"order": order, "after": str(hold)})
    shop.await_lines(ENDED, second.id)
    assert second.state == "PENDING"
    hold.touch()
    expected = {"order": order, "amount": 1, "by": first.id}
    assert [expected, expected] == [shop.get(first), shop.get(second)]
    assert expected == shop.get(shop.send("charge", order, 1, "", str(hold)))
    assert len(shop.effects(order)) == 1


def test_a_class_behind_the_guard_is_called_for_each_run_that_has_the_key(shop: Shop, order: str) -> None:
    first = shop.send("audited", order, 1)
    assert first.id == shop.get(first)
    second = shop.send("audited", order, 1)
    assert first.id == shop.get(second)
    assert (
        len(shop.lines("audited", first.id)),
        len(shop.lines("audited", second.id)),
        len(shop.effects(order)),
    ) == (2, 0, 1)
    assert shop.effects(order)[0].details["fencing_token"] > 0


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_redelivery_in_mid_run_neither_runs_nor_answers_skipped(shop: Shop, order: str) -> None:
    """The flaw of a duplicate that stores "skipped" as the task's result."""
    hold, task = shop.file(), str(uuid4())
    first = shop.send("charge", order, 1, "", str(hold), task_id=task)
    shop.await_effects(order)
    shop.send("charge", order, 1, "", str(hold), task_id=task)
    shop.await_lines(DELIVERED, task, 2)
    # it found the key taken, and was sent again, maybe several times
    assert {"IGNORED"} == set(shop.await_ended(task))
    hold.touch()
    assert {"order": order, "amount": 1, "by": task} == shop.get(first)
    # the copy comes back, finds the success stored, and has nothing to do
    await_all_deliveries(shop, task, 2)
    assert first.state == "SUCCESS"
    assert len(shop.effects(order)) == 1


@pytest.mark.parametrize("shop", DISTINCT[1:], ids="-".join, indirect=True)
def test_a_copy_that_waits_again_and_again_comes_back(shop: Shop, order: str) -> None:
    """RabbitMQ delays it by queues whose messages expire, and does not let a message into one of them twice."""
    hold, task = shop.file(), str(uuid4())
    first = shop.send("ship", order, str(hold), task_id=task)
    shop.await_effects(order)
    shop.send("ship", order, str(hold), task_id=task)
    wait_until(lambda: shop.await_ended(task).count("IGNORED") >= 3, within_s=60, what="it came back twice")
    hold.touch()
    shop.get(first)
    await_all_deliveries(shop, task, 2)


def await_all_deliveries(shop: Shop, task: str, sent: int) -> None:
    """Wait until what was sent so often, and again each time it waited for its key, has ended each time."""
    wait_until(
        lambda: len(shop.await_ended(task)) >= sent + len(shop.lines(POSTPONED, task)),
        within_s=60,
        what="no copy is on its way",
    )


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_chain_goes_on_from_the_first_result_and_once(shop: Shop) -> None:
    """The flaw of a skipped step whose answer goes down the chain."""
    number = uuid4().int % 10**9
    first = chain(_sign(shop, "add", number, 1), _sign(shop, "add", 10)).apply_async()
    assert shop.get(first) == number + 11
    again = chain(_sign(shop, "add", number, 1), _sign(shop, "add", 20)).apply_async()
    assert shop.get(again) == number + 21
    assert len(shop.effects([number, 1])) == 1


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_chord_goes_on_from_first_results(shop: Shop) -> None:
    number = uuid4().int % 10**9
    shop.get(shop.send("add", number, 1))
    both = chord([_sign(shop, "add", number, 1), _sign(shop, "add", number, 2)], _sign(shop, "total")).apply_async()
    assert 2 * number + 3 == shop.get(both)
    assert len(shop.effects([number, 1])) == 1


def test_a_task_that_replaces_itself_goes_on(shop: Shop, order: str) -> None:
    """The replacement has the id of the first task, and under some policies also its key."""
    assert shop.get(shop.send("steps", order, 1)) == 3
    assert len(shop.effects(order)) == 3


def test_a_chord_whose_part_died_before_it_was_counted_goes_on(shop: Shop) -> None:
    """Celery counts a part after it has stored its success: a redelivery of it has to count it."""
    if not hasattr(shop.client.backend, "client"):
        pytest.skip("in a database Celery counts nothing: it looks whether each part has ended")
    number, hold = uuid4().int % 10**9, shop.file()
    parts = [_sign(shop, "add", number, 1), _sign(shop, "charge", str(number), 1, "", str(hold))]
    body: Any = chord(parts, _sign(shop, "collect")).apply_async()
    first = body.parent[0]
    shop.get(first)
    client = cast("Any", shop.client.backend).client
    (counted,) = wait_until(lambda: client.keys(f"*{body.parent.id}.j"), within_s=30, what="it is counted")
    # all that is known of it but the number of parts
    client.delete(*(key for key in client.keys(f"*{body.parent.id}*") if not key.endswith(b".s")))
    message = {"group_id": body.parent.id, "group_index": 0, "chord": _chord_of(shop, body)}
    shop.send("add", number, 1, task_id=first.id, **message)
    wait_until(lambda: client.exists(counted), within_s=30, what="it is counted again")
    hold.touch()
    assert shop.get(body) == 2
    assert len(shop.effects([number, 1])) == 1


def test_the_same_key_with_other_arguments_is_refused(shop: Shop, order: str) -> None:
    headers = {"repot_key": order}
    shop.get(shop.send("charge", order, 1, headers=headers))
    assert order == shop.get(shop.send("charge", order, 1, headers=headers))["order"]
    with pytest.raises(Exception, match=r"used by task .* with other arguments"):
        shop.get(shop.send("charge", order, 2, headers=headers))
    assert len(shop.effects(order)) == 1


def test_a_result_too_large_to_keep_says_that_the_effect_is_done(shop: Shop, order: str) -> None:
    assert shop.get(shop.send("talkative", order)) == order * 200
    with pytest.raises(Exception, match="has already done this; its result was too large"):
        shop.get(shop.send("talkative", order))
    assert len(shop.effects(order)) == 1


# How a run can end


def test_a_retry_keeps_its_key_and_runs(shop: Shop, order: str) -> None:
    assert shop.get(shop.send("flaky", order, 2)) == 2
    assert len(shop.effects(order)) == 1


@pytest.mark.parametrize("ignores", [False, True], ids=["returns", "raises Ignore"])
def test_a_run_that_goes_on_after_it_has_sent_its_retry_is_not_done(shop: Shop, order: str, *, ignores: bool) -> None:
    """`self.retry(throw=False)`."""
    task = shop.send("postponed", order, kwargs={"ignores": ignores})
    (effect,) = shop.await_effects(order)
    assert effect.task == task.id
    wait_until(lambda: _state_of(shop, task.id) is State.DONE, within_s=20, what="its retry is done")
    assert len(shop.effects(order)) == 1


def _state_of(shop: Shop, task: str) -> State:
    (record,) = [record for record in shop.records if record.task_id == task]
    return record.state


def test_after_the_last_retry_the_key_is_free(shop: Shop, order: str) -> None:
    for _ in range(2):
        task = shop.send("flaky", order, 3)
        with pytest.raises(Exception, match=order):
            shop.get(task)
        # each run says so after it has stored its result: the last one may be quicker than the one before
        wait_until(lambda: len(own(shop, task.id)) >= 3, within_s=20, what="all runs have said so")  # noqa: B023
        assert sorted(own(shop, task.id)) == ["FAILURE", "RETRY", "RETRY"]


def own(shop: Shop, task: str) -> list[str]:
    """How the runs that had the key ended: a retry may come while the run that sent it still has the key."""
    return [state for state in shop.await_ended(task) if state != "IGNORED"]


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_failure_that_is_not_kept_may_be_tried_again(shop: Shop, order: str) -> None:
    marker = shop.file()
    with pytest.raises(Exception, match=order):
        shop.get(shop.send("broken", order, str(marker)))
    marker.touch()
    assert order == shop.get(shop.send("broken", order, str(marker)))


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_permanent_failure_is_kept(shop: Shop, order: str) -> None:
    with pytest.raises(Exception, match=order):
        shop.get(shop.send("decline", order))
    with pytest.raises(Exception, match=f"failed permanently with this key: Declined: {order}"):
        shop.get(shop.send("decline", order))
    assert len(shop.effects(order)) == 1


def test_a_replayed_dead_letter_of_a_permanent_failure_runs(shop: Shop, order: str) -> None:
    """The flaw of a dead letter that is skipped when it is replayed within a day."""
    task = str(uuid4())
    for replay in (None, 1, 1):
        with pytest.raises(Exception, match=order):
            shop.get(shop.send("decline", order, task_id=task, headers=replay and {"repot_replay": replay}))
        shop.client.backend.forget(task)
    assert len(shop.effects(order)) == 2


def test_a_rejected_message_may_come_again(shop: Shop, order: str) -> None:
    assert order == shop.get(shop.send("rejecting", order, str(shop.file())))


def test_an_ignored_run_is_done(shop: Shop, order: str) -> None:
    for task in (shop.send("ignoring", order), shop.send("ignoring", order)):
        # the second one may find the key taken first, and is sent again
        assert {"IGNORED"} == set(shop.await_ended(task.id))
    assert len(shop.effects(order)) == 1


def test_a_soft_time_limit_leaves_an_unknown_outcome(shop: Shop, order: str) -> None:
    task = shop.send("slow", order)
    with pytest.raises(Exception, match="SoftTimeLimit"):
        shop.get(task)
    (record,) = [record for record in shop.records if record.task_id == task.id]
    assert (record.state, record.unknown_outcomes) == (State.UNKNOWN, 1)


def test_a_hard_time_limit_leaves_an_unknown_outcome(shop: Shop, order: str) -> None:
    task = shop.send("stuck", order)
    with pytest.raises(TimeLimitExceeded):
        shop.get(task)
    wait_until(lambda: _record(shop, task.id).state is State.UNKNOWN, within_s=20, what="its lease runs out")
    # the next one runs; its own time limit ends it
    shop.send("stuck", order)
    assert len(shop.await_effects(order, 2)) == 2


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_revoked_run_leaves_an_unknown_outcome(shop: Shop, order: str) -> None:
    task = shop.send("endless", order)
    # a run acquires its lease only some moments after its start
    shop.await_effects(order)
    shop.client.control.revoke(task.id, terminate=True, signal="SIGKILL")
    with pytest.raises(TaskRevokedError):
        shop.get(task)
    wait_until(lambda: _record(shop, task.id).state is State.UNKNOWN, within_s=20, what="its lease runs out")


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_what_an_exception_says_nothing_about_has_an_unknown_outcome(shop: Shop, order: str) -> None:
    task = shop.send("unclear", order)
    with pytest.raises(Exception, match=order):
        shop.get(task)
    assert State.UNKNOWN is _record(shop, task.id).state


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_killed_process_does_not_lose_its_task(shop: Shop, order: str) -> None:
    """As the kernel does when memory runs out; Celery alone acknowledges such a task."""
    assert order == shop.get(shop.send("dying", order, str(shop.file())))
    assert len(shop.effects(order)) == 1


# Workers that die, or stand still


class Killed(NamedTuple):
    """A shop whose first worker was killed with three tasks in its hands, and what those were."""

    shop: Shop
    charge: Any
    #: What their policy parks.
    paid: Any
    replayed: Any
    broker: Server


@pytest.fixture(scope="module", params=DISTINCT, ids="-".join)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """One worker dies before an effect and after two others; a second worker has their messages."""
    servers = servers_of(request)
    shop = Shop(*servers, tmp_path_factory.mktemp("killed"), lease=SHORT_LEASE_S)
    hold, orders = shop.file(), [str(uuid4()) for _ in range(3)]
    try:
        worker = shop.start(3)
        charge = shop.send("charge", orders[0], 1, str(hold))
        paid, replayed = (shop.send("pay", order, str(hold)) for order in orders[1:])
        for order in orders[1:]:
            shop.await_effects(order)
        wait_until(lambda: len(shop.records) == 3, within_s=20, what="each key is acquired")
        worker.stop()
        hold.touch()
        shop.start(3)
        yield Killed(shop, charge, paid, replayed, servers.broker)
    finally:
        shop.stop()


@pytest.mark.promise("redis-redis")
def test_a_killed_workers_redelivered_task_is_not_skipped(killed: Killed) -> None:
    """The flaw of a key that a dead worker holds: the redelivery is acknowledged as "skipped", and the task is lost."""
    shop, task = killed.shop, killed.charge
    order = shop.get(task, within_s=60)["order"]
    assert len(shop.effects(order)) == 1
    record = _record(shop, task.id)
    assert (record.runs, record.unknown_outcomes) == (2, 1)


@pytest.mark.promise("rabbitmq-postgresql")
def test_an_effect_of_unknown_outcome_waits_for_an_operator_if_its_policy_says_so(killed: Killed) -> None:
    shop = killed.shop
    order, record = _parked(shop, killed.paid)
    assert (len(shop.effects(order)), record.parked) == (1, True)
    # the person looks, and says that it was done
    shop.store.finish(record.key, record.owner, Ending(RunOutcome.DONE, 3600, '"paid"'), FinishMode.OPERATOR)
    assert shop.get(shop.send("pay", order)) == "paid"


def test_a_parked_effect_is_run_again_by_replaying_its_dead_letter(
    killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a killed worker to `repot dlq replay`: a person looked, and wants the run."""
    shop, task = killed.shop, killed.replayed
    order, _ = _parked(shop, task)
    dead_letters = _dead_letters(killed, task, monkeypatch)
    (dead_letter,) = wait_until(dead_letters, within_s=20, what="its dead letter is written", poll_s=0.3)
    assert dead_letter["reason"] == "unknown_outcome"
    # with others it is left: its effect may have happened
    everything = CliRunner().invoke(main, ["dlq", "replay", "--task", dead_letter["task"], "--execute"])
    assert (everything.exit_code, dead_letters()) == (0, [dead_letter]), everything.output
    # the error has the commands for this one
    shown = CliRunner().invoke(main, ["dlq", "show", task.id]).stdout
    release, replay = dict.fromkeys(re.findall(r"`repot ([^`]+)`", " ".join(shown.split())))
    assert CliRunner().invoke(main, release.removesuffix(" --execute").split()).exit_code == 0
    shop.client.backend.forget(task.id)
    assert CliRunner().invoke(main, replay.split()).exit_code == 0
    # what was asked for before remembers the failure
    assert order == shop.get(shop.client.AsyncResult(task.id))
    assert (len(shop.effects(order)), _record(shop, task.id).state) == (2, State.DONE)


def test_what_failed_with_an_unknown_outcome_and_is_replayed_with_others_is_parked(
    killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dead letter says how it died, `failed`, and not what is unknown: only its guard knows that."""
    shop, order = killed.shop, str(uuid4())
    task = shop.send("unsure", order)
    with pytest.raises(ValueError, match=order):
        shop.get(task, within_s=60)
    dead_letters = _dead_letters(killed, task, monkeypatch)
    wait_until(dead_letters, within_s=20, what="its dead letter is written", poll_s=0.3)
    words = ["dlq", "replay", "--task", "support.guarded_app.unsure", "--reason", "failed", "--execute"]
    done = CliRunner().invoke(main, words)
    assert "1 replayed" in done.output
    again = lambda: [one["reason"] for one in dead_letters() if one["replays"]]  # noqa: E731
    assert wait_until(again, within_s=60, what="it is dead again", poll_s=0.3) == ["unknown_outcome"]
    assert len(shop.effects(order)) == 1
    assert CliRunner().invoke(main, ["dlq", "replay", task.id, "--execute"]).exit_code == 0
    assert len(shop.await_effects(order, 2, within_s=60)) == 2


@pytest.mark.promise("redis-redis")
def test_a_run_that_stood_still_past_its_lease_cannot_finish_over_its_successor(shop: Shop, order: str) -> None:
    """SIGSTOP, another run takes over, SIGCONT: fencing tokens distinguish the two writers."""
    hold = shop.file()
    key = {"headers": {"repot_key": order}}
    first = shop.send("brief", order, str(hold), **key)
    stopped = shop.await_effects(order)[0].pid
    with frozen(stopped):
        second = shop.send("brief", order, str(hold), **key)
        late, successor = shop.await_effects(order, 2, within_s=20)
        hold.touch()
        assert second.id == shop.get(second)["by"]
    assert late.details["fencing_token"] < successor.details["fencing_token"]
    # the late one gets its successor's result
    assert second.id == shop.get(first)["by"]
    record = _record(shop, second.id)
    assert (record.state, record.unknown_outcomes) == (State.DONE, 1)
    assert [one for one in shop.records if one.task_id == first.id] == []
    assert len(shop.effects(order)) == 2
    assert late.pid == stopped != successor.pid


@pytest.mark.parametrize("shop", DISTINCT[:1], ids="-".join, indirect=True)
def test_a_run_that_stood_still_and_was_not_missed_is_done(shop: Shop, order: str) -> None:
    """Its lease expired, but no other run came: it records its outcome, and the effect stays the only one."""
    hold = shop.file()
    task = shop.send("brief", order, str(hold))
    with frozen(shop.await_effects(order)[0].pid):
        wait_until(lambda: _record(shop, task.id).has_unknown_outcome, within_s=30, what="its lease runs out")
    hold.touch()
    assert task.id == shop.get(task)["by"]
    assert task.id == shop.get(shop.send("brief", order, str(hold)))["by"]
    assert (_record(shop, task.id).state, len(shop.effects(order))) == (State.DONE, 1)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet", "solo"])
def test_a_lease_is_renewed_in_every_pool(redis: Server, opened: Callable[..., Shop], order: str, pool: str) -> None:
    shop = opened(redis, redis, visibility_timeout=3600, lease=6)
    hold = shop.file()
    shop.start(2, "--pool", pool)
    task = shop.send("charge", order, 1, "", str(hold))
    shop.await_effects(order)
    owner, begun = shop.record.owner, shop.record.started_at
    # each renewal moves the end by a third of the lease
    renewed_twice = begun + 1.5 * shop.settings.lease
    wait_until(
        lambda: shop.store.now() + shop.record.remaining_s > renewed_twice, within_s=60, what="it is renewed again"
    )
    assert (State.RUNNING, owner) == (shop.record.state, shop.record.owner)
    hold.touch()
    assert task.id == shop.get(task)["by"]
    assert (shop.record.state, shop.record.unknown_outcomes) == (State.DONE, 0)


# A store that is away


@contextmanager
def _cut(
    shop_of: Callable[..., Shop], redis: Server, toxiproxy: Server, **changes: Any
) -> Iterator[tuple[Shop, Proxy]]:
    with redis_server() as store:
        link = Proxy.create(toxiproxy.url, f"leases-{uuid4()}", store.port)
        changes = {"visibility_timeout": 3600, **changes}
        yield shop_of(redis, redis, leases=store, lease_store=store.url_at(link.port), **changes), link
        link.delete()


@pytest.fixture(scope="module")
def begun_without(
    redis: Server, toxiproxy: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Shop, Proxy]]:
    """A shop whose worker started while the link to its lease store was cut."""
    with _cut(partial(_shop_in, tmp_path_factory.mktemp("cut")), redis, toxiproxy) as (shop, link):
        link.enable(enabled=False)
        shop.start()
        yield shop, link
        shop.stop()


def _shop_in(directory: Path, server: Server, results: Server, **changes: Any) -> Shop:
    return Shop(server, results, directory, **changes)


@pytest.fixture
def cut(begun_without: tuple[Shop, Proxy]) -> Iterator[tuple[Shop, Proxy]]:
    """The same at the beginning of each test."""
    begun_without[1].enable(enabled=False)
    yield begun_without
    begun_without[1].enable(enabled=True)


def test_what_may_run_unguarded_does_while_the_store_is_away(cut: tuple[Shop, Proxy], order: str) -> None:
    shop, _ = cut
    assert order == shop.get(shop.send("careless", order))
    # a store that compares refuses such a writer after any other
    assert [line.details["fencing_token"] for line in shop.effects(order)] == [0]


@pytest.mark.promise
def test_nothing_runs_unguarded_while_the_store_is_away(cut: tuple[Shop, Proxy], order: str) -> None:
    shop, link = cut
    task = shop.send("charge", order)
    assert shop.await_ended(task.id)[0] == "IGNORED"
    assert shop.effects(order) == []
    link.enable(enabled=True)
    assert order == shop.get(task)["order"]
    assert len(shop.effects(order)) == 1


def test_a_store_cut_off_in_mid_finish_neither_fails_nor_repeats_the_task(cut: tuple[Shop, Proxy], order: str) -> None:
    shop, link = cut
    hold = shop.file()
    link.enable(enabled=True)
    task = shop.send("charge", order, 1, "", str(hold))
    shop.await_effects(order)
    link.enable(enabled=False)
    hold.touch()
    assert order == shop.get(task)["order"]
    link.enable(enabled=True)
    wait_until(lambda: _record(shop, task.id).state is State.DONE, within_s=20, what="the outcome is recorded")
    assert task.id == shop.get(shop.send("charge", order, 1, "", str(hold)))["by"]
    assert len(shop.effects(order)) == 1


def test_a_store_cut_off_during_an_acquisition_leaves_no_key_taken(
    redis: Server, toxiproxy: Server, opened: Callable[..., Shop], order: str
) -> None:
    """The lease is acquired, but the answer is lost: it is released as soon as the store answers."""
    with _cut(opened, redis, toxiproxy, lease=30, socket_timeout=0.3) as (shop, link):
        # one process: in another one the connection would be new, and no acquisition would leave it
        shop.start(1)
        shop.get(shop.send("charge", "warm"))
        answers = link.add_toxic("timeout", "downstream", {"timeout": 0})
        task = shop.send("charge", order)
        wait_until(lambda: any(one.task_id == task.id for one in shop.records), within_s=60, what="it is acquired")
        assert shop.await_ended(task.id)[0] == "IGNORED"
        link.remove_toxic(answers)
        assert order == shop.get(task)["order"]
        record = _record(shop, task.id)
        assert (record.state, record.unknown_outcomes, len(shop.effects(order))) == (State.DONE, 0, 1)


@pytest.mark.promise("postgresql")
@pytest.mark.parametrize("name", ["redis", "postgresql"])
def test_a_task_whose_acquisition_got_no_answer_has_no_unknown_outcome(
    request: pytest.FixtureRequest, redis: Server, opened: Callable[..., Shop], order: str, name: str
) -> None:
    """Its lease was granted, its worker is killed before it can release it, and another worker has the message."""
    leases = migrated(request.getfixturevalue(name))
    with LosingLink(leases.port) as link:
        url = leases.url.replace(f":{leases.port}", f":{link.port}")
        shop = opened(redis, redis, leases=leases, lease_store=url, lease=SHORT_LEASE_S)
        worker = shop.start(1)
        shop.get(shop.send("pay", "warm"))
        with link.losing():
            task = shop.send("pay", order)
            # by the second one the message that names no owner is acknowledged
            assert shop.await_ended(task.id, 2) == ["IGNORED"] * 2
            worker.signal(signal.SIGKILL)
            worker.stop()
        wait_until(
            lambda: _record(shop, task.id).has_unknown_outcome, within_s=20, what="the lease that was granted expires"
        )
        shop.start(1)
        assert order == shop.get(task)
    record = _record(shop, task.id)
    assert (record.state, record.runs, record.unknown_outcomes) == (State.DONE, 1, 0)
    assert len(shop.effects(order)) == 1


# What it costs, and how to do without


@pytest.mark.promise
def test_a_guarded_task_costs_two_round_trips(redis: Server, opened: Callable[..., Shop]) -> None:
    with redis_server() as store:
        shop = opened(redis, redis, leases=store)
        shop.start(1)
        shop.get(shop.send("charge", "warm"))
        client: Any = Redis.from_url(store.url)
        before = _commands(client)
        for number in range(50):
            shop.get(shop.send("charge", str(number)))
        after = _commands(client)
    # our own request is among them; commands inside scripts are counted, but not sent
    sent = {name: after[name] - before.get(name, 0) for name in after if name in ("evalsha", "eval", "ping", "get")}
    assert {name: number for name, number in sent.items() if number} == {"evalsha": 100}


def test_the_switch_turns_the_guard_off(redis: Server, opened: Callable[..., Shop], order: str) -> None:
    shop = opened(redis, redis, guard=False)
    shop.start()
    for _ in range(2):
        shop.get(shop.send("charge", order))
    assert (len(shop.effects(order)), shop.records) == (2, [])


def _dead_letters(killed: Killed, task: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return what lists the dead letters of a task, by the command, whose environment is the shop's from now on."""
    for name, value in as_environment(killed.shop.settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WORKER_APP")
    if killed.broker.management_url:
        monkeypatch.setenv("WORKER_MANAGEMENT_URL", killed.broker.management_url)

    def listed() -> Any:
        found = CliRunner().invoke(main, ["dlq", "list", "--json"])
        assert found.exit_code == 0, found.output
        return [one for one in json.loads(found.stdout) if one["id"] == task.id]

    return listed


def _parked(shop: Shop, task: Any) -> Any:
    """Wait until a task whose worker was killed after its effect is parked; its order, and its record."""
    with pytest.raises(Exception, match=r"the outcome of task .* is unknown"):
        shop.get(task, within_s=60)
    record = _record(shop, task.id)
    (order,) = [one.details["value"] for one in shop.lines(EFFECT, task.id)]
    return order, record


def _record(shop: Shop, task: str) -> Any:
    (found,) = [record for record in shop.records if record.task_id == task]
    return found


def _chord_of(shop: Shop, body: Any) -> dict[str, Any]:
    """The body of a chord as its parts carry it."""
    return {**_sign(shop, "collect").set(task_id=body.id), "chord_size": 2}


def _sign(shop: Shop, task: str, *arguments: Any) -> Any:
    return shop.client.signature(f"support.guarded_app.{task}", arguments)


def _commands(client: Any) -> dict[str, int]:
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(values["calls"]) for name, values in stats.items()}
