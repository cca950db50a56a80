"""Jobs on a real store, without a worker: who gets in, and who keeps whom out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Barrier
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import redis as redis_client
from sqlalchemy import delete, func, select, update

from repot.config import ExplicitSettings, inherited_environment
from repot.database import job_tables as tables
from repot.database.migrate import Migrations
from repot.errors import StoreRefused, StoreUnreachable
from repot.submission.database_job_store import DatabaseJobStore
from repot.submission.job import JobProgress, Status
from repot.submission.job_store import JobAttempt, Submission, digest
from repot.submission.redis_job_store import RedisJobStore
from repot.submission.stores import open_job_store
from repot.testbed import LOOPBACK, ReapedProcess, executables, free_port, redis_server
from repot.waiting import wait_until
from support.installed import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from repot.submission.job_store import JobStore
    from repot.testbed import Server

pytestmark = pytest.mark.promise("redis", "postgresql")

TENANT = digest("a tenant")
SCOPE = digest("a scope")

#: Seconds: short enough to wait for, long enough for a slow machine to renew.
SOON_S = 0.3
LONG_S = 3600


REDIS, DATABASES = ["redis", "valkey"], ["sqlite", "postgresql", "mariadb"]


@pytest.fixture(params=[*REDIS, *DATABASES])
def store(request: pytest.FixtureRequest) -> Iterator[JobStore]:
    """A store under a prefix of its own, which holds characters that mean something in patterns."""
    server = request.getfixturevalue(request.param)
    settings = ExplicitSettings(lease_store=server.url, lease_prefix=f"test-{uuid4()}")
    with closing(open_job_store(settings)) as found:
        if isinstance(found, DatabaseJobStore):
            Migrations(found.database).apply()
        yield found


only_redis = pytest.mark.parametrize("store", REDIS, indirect=True)
only_databases = pytest.mark.parametrize("store", DATABASES, indirect=True)


def submission(**changes: Any) -> Submission:
    """A submission with an id of its own."""
    terms: dict[str, Any] = {"payload": "p1", "key": "", "cost": 1.5, "lease_s": LONG_S}
    return Submission(
        **{"id": str(uuid4()), "tenant": TENANT, "scope": SCOPE, "name": "7", "task": "shop.render"} | terms | changes
    )


def run(of: Submission) -> JobAttempt:
    """A run with an owner of its own."""
    return JobAttempt(of.id, of.tenant, of.scope, uuid4().hex)


def overdue(store: JobStore, of: Submission) -> JobAttempt:
    """A run of a job that is accepted now; its lease has expired."""
    store.submit(of)
    attempt = run(of)
    store.start(attempt, "shop.render", SOON_S)
    lost(store, of.id)
    return attempt


def lost(store: JobStore, job: str) -> None:
    """Wait until a job's lease has run out."""

    def ran_out() -> bool:
        found = store.get(TENANT, job)
        return found is not None and found.status is Status.LOST

    wait_until(ran_out, within_s=30, what=f"the lease of {job} runs out")


def status(store: JobStore, job: str) -> Status:
    found = store.get(TENANT, job)
    assert found is not None
    return found.status


# Who gets in


def test_of_many_that_ask_at_once_one_gets_in(store: JobStore) -> None:
    """The flaw of a check, and then a set."""
    together = Barrier(8)

    def ask(number: int) -> list[str]:
        verdicts = []
        for generation in range(10):
            together.wait()
            verdicts.append(store.submit(submission(scope=digest(f"{generation}"), payload=str(number))).result)
        return verdicts

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert [[one[number] for one in answers].count("accepted") for number in range(10)] == [1] * 10
    assert {"accepted", "conflict"} == {verdict for one in answers for verdict in one}


def test_the_second_does_not_overwrite_the_winner(store: JobStore) -> None:
    """The flaw of SETEX."""
    first = submission()
    store.submit(first)
    found = store.submit(submission())
    assert found.job is not None
    assert ("conflict", first.id) == (found.result, found.job.id)
    again = store.submit(submission())
    assert again.job is not None
    assert first.id == again.job.id


def test_a_submission_whose_answer_was_lost_is_repeated(store: JobStore) -> None:
    first = submission()
    answers = [store.submit(first), store.submit(first)]
    assert [answer.result for answer in answers] == ["accepted", "accepted"]
    assert [answer.job and answer.job.generation for answer in answers] == [1, 1]


def test_generations_of_a_scope_grow_by_one(store: JobStore) -> None:
    generations = []
    for _ in range(3):
        one = submission()
        accepted = store.submit(one).job
        assert accepted is not None
        generations.append(accepted.generation)
        store.cancel(TENANT, one.id)
    assert generations == [1, 2, 3]


def test_other_scopes_and_other_tenants_are_not_in_the_way(store: JobStore) -> None:
    assert store.submit(submission()).result == "accepted"
    assert store.submit(submission(scope=digest("another"))).result == "accepted"
    assert store.submit(submission(tenant=digest("another"))).result == "accepted"


def test_a_tenant_sees_and_cancels_no_other_tenants_job(store: JobStore) -> None:
    mine = submission()
    store.submit(mine)
    other = digest("another")
    assert store.get(other, mine.id) is None
    assert store.cancel(other, mine.id).result == "unknown"
    assert Status.ACCEPTED is status(store, mine.id)


@only_redis
def test_names_of_keys_show_no_data(store: RedisJobStore) -> None:
    store.submit(submission(name="secret-scope", key=digest("secret-key"), payload="secret-payload"))
    store.submit(submission(name="secret-scope"))
    names: Any = list(store.client.scan_iter(count=1000))
    ours = [name for name in names if TENANT in name]
    assert len(ours) > 5
    assert not [name for name in ours if "secret" in name]
    assert {f"{{{TENANT}}}"} == {name[name.index("{") : name.index("}") + 1] for name in ours}


# Idempotency keys


def test_the_same_key_gets_the_same_job_and_another_payload_is_a_mismatch(store: JobStore) -> None:
    first = submission(key="k")
    store.submit(first)
    again, other = store.submit(submission(key="k")), store.submit(submission(key="k", payload="p2"))
    assert ("repeated", first.id) == (again.result, again.job and again.job.id)
    assert ("mismatch", first.id) == (other.result, other.job and other.job.id)


def test_the_same_key_gets_the_same_job_after_it_ended(store: JobStore) -> None:
    first = submission(key="k")
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", LONG_S)
    store.finish(began, Status.SUCCEEDED)
    again = store.submit(submission(key="k"))
    assert (again.result, again.job and again.job.status) == ("repeated", Status.SUCCEEDED)


def test_the_key_of_a_submitter_that_died_is_free_when_its_lease_has_expired(store: JobStore) -> None:
    first = submission(key="k", lease_s=SOON_S)
    store.submit(first)
    lost(store, first.id)
    assert store.submit(submission(key="k")).result == "accepted"


@pytest.mark.parametrize("found_by", ["another job", "its own submitter", "an operator"])
def test_the_key_of_a_job_that_nothing_has_sent_is_free_whoever_finds_it_lost(store: JobStore, found_by: str) -> None:
    """Its retry got the lost job, with 202, and the work was never done."""
    first, other = submission(key="k", lease_s=SOON_S), submission()
    store.submit(first)
    lost(store, first.id)
    if found_by == "an operator":
        assert [one.scope for one in store.reap(TENANT)] == [first.scope]
    else:
        store.submit(other)
        if found_by == "its own submitter":
            assert store.undo(TENANT, first.id, OSError()).result == Status.LOST.value
        assert store.submit(submission(key="k")).result == "conflict"
        store.cancel(TENANT, other.id)
    again = submission(key="k")
    assert store.submit(again).result == "accepted"
    # and names that one from now on
    assert (found := store.submit(submission(key="k"))).job
    assert (found.result, found.job.id) == ("repeated", again.id)


# What frees a scope


@only_redis
def test_whatever_the_store_holds_it_forgets_in_time(store: RedisJobStore) -> None:
    """A record, an index, a key or a sum without an expiry would stay for ever."""
    one = submission(key="k")
    began = run(one)

    def forever() -> list[str]:
        client: Any = store.client
        found = [name for name in client.scan_iter(match=f"*{store._prefix}*") if client.pttl(name) < 0]
        return sorted(found)

    for step in (
        lambda: store.submit(one),
        lambda: store.submit(submission()),
        lambda: store.sent(TENANT, one.id, LONG_S),
        lambda: store.start(began, "shop.render", LONG_S),
        lambda: store.renew(began, LONG_S, ["done", 1]),
        lambda: store.finish(began, Status.SUCCEEDED),
        lambda: store.submit(submission(key="j", scope=digest("another"))),
        lambda: store.start(run(submission(scope=digest("a third"))), "shop.render", LONG_S),
    ):
        step()
        assert forever() == []


def test_what_could_not_be_sent_blocks_neither_scope_nor_key(store: JobStore) -> None:
    """The flaw of an index that is written before the message."""
    first = submission(key="k")
    store.submit(first)
    for _ in range(2):
        reply = store.undo(TENANT, first.id, ConnectionError("redis://:hunter2@broker/0 is away"))
        assert reply.result == "unsent"
    found = store.get(TENANT, first.id)
    assert found is not None
    assert (found.error_type, found.error) == ("ConnectionError", "redis://:**@broker/0 is away")
    assert store.submit(submission(key="k")).result == "accepted"
    assert store.start(run(first), "shop.render", LONG_S).result == "ended"


def test_a_job_that_a_worker_has_is_not_undone(store: JobStore) -> None:
    """The message arrived, its confirmation did not."""
    first = submission()
    store.submit(first)
    store.start(run(first), "shop.render", LONG_S)
    assert store.undo(TENANT, first.id, ConnectionError("no answer")).result == "running"
    assert store.submit(submission()).result == "conflict"


def test_a_message_that_no_worker_takes_frees_its_scope(store: JobStore) -> None:
    first, second = submission(), submission()
    store.submit(first)
    assert store.sent(TENANT, first.id, SOON_S).result == "queued"
    lost(store, first.id)
    assert store.submit(second).result == "accepted"
    found = store.get(TENANT, first.id)
    assert found is not None
    assert (Status.LOST, second.id) == (found.status, found.successor)


def test_a_dead_run_frees_its_scope_by_its_lease(store: JobStore) -> None:
    """The flaw of a status that stays "processing" for 24 h."""
    first = submission()
    store.submit(first)
    dead = run(first)
    store.start(dead, "shop.render", LONG_S)
    assert store.submit(submission()).result == "conflict"
    store.renew(dead, SOON_S)
    lost(store, first.id)
    assert store.submit(submission()).result == "accepted"


def test_a_run_that_renews_keeps_its_scope(store: JobStore) -> None:
    first = submission()
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", SOON_S)
    assert store.renew(began, LONG_S, ["done", 3, "total", 9, "stage", "pages"]) == "running"
    found = store.get(TENANT, first.id)
    assert found is not None
    assert found.lease_remaining_s > LONG_S - 60
    assert JobProgress(3, 9, "pages") == found.progress


# After an outage of the store, which its runs did not reach either


def test_a_run_keeps_the_scope_of_its_expired_lease_for_a_grace(store: JobStore) -> None:
    """It can renew its lease as soon as it can reach the store; a successor would run beside it."""
    first, second = submission(), submission()
    alive = overdue(store, first)
    refused = store.submit(replace(second, grace_s=LONG_S))
    assert ("conflict", first.id) == (refused.result, refused.job and refused.job.id)
    # another delivery of its own message
    assert store.start(run(first), "shop.render", LONG_S, LONG_S).result == "busy"
    assert store.renew(alive, LONG_S) == "running"
    assert store.submit(second).result == "conflict"


def test_a_job_that_waits_is_not_superseded_by_a_run_that_may_be_dead(store: JobStore) -> None:
    first, second = submission(), submission(lease_s=SOON_S)
    store.submit(second)
    lost(store, second.id)
    overdue(store, first)
    assert store.start(run(second), "shop.render", LONG_S, LONG_S).result == "busy"
    assert store.start(run(second), "shop.render", LONG_S).result == "started"


def test_only_a_run_has_a_grace(store: JobStore) -> None:
    """What was not sent, or waits on the broker, renews nothing."""
    first = submission(lease_s=SOON_S)
    store.submit(first)
    lost(store, first.id)
    assert store.submit(submission(grace_s=LONG_S)).result == "accepted"


# Late ones


def test_a_late_end_of_a_job_leaves_its_successors_scope_alone(store: JobStore) -> None:
    """The flaw of a clear by scope, without comparing whose it is."""
    first, second = submission(), submission()
    late = overdue(store, first)
    store.submit(second)
    assert store.renew(late, LONG_S) == "lost"
    assert store.finish(late, Status.SUCCEEDED) == "succeeded"
    found = store.submit(submission())
    assert ("conflict", second.id) == (found.result, found.job and found.job.id)


def test_a_late_cancellation_of_a_job_leaves_its_successors_scope_alone(store: JobStore) -> None:
    first, second = submission(lease_s=SOON_S), submission()
    store.submit(first)
    lost(store, first.id)
    store.submit(second)
    assert store.cancel(TENANT, first.id).result == "cancelled"
    assert store.submit(submission()).result == "conflict"


def test_a_lost_job_whose_message_comes_runs_if_its_scope_is_free(store: JobStore) -> None:
    first = submission(lease_s=SOON_S)
    store.submit(first)
    lost(store, first.id)
    assert [first.id] == [one.job and one.job.id for one in store.reap(TENANT)]
    assert store.start(run(first), "shop.render", LONG_S).result == "started"
    assert store.submit(submission()).result == "conflict"


def test_a_lost_job_whose_message_comes_when_another_is_active_does_not_run(store: JobStore) -> None:
    first, second = submission(lease_s=SOON_S), submission()
    store.submit(first)
    lost(store, first.id)
    store.submit(second)
    for expected in ("superseded", "ended"):
        assert expected == store.start(run(first), "shop.render", LONG_S).result
    assert Status.SUPERSEDED is status(store, first.id)
    (entry,) = store.audit(TENANT, 10).refusals
    assert ("superseded", "7", first.id, second.id, "accepted") == (
        entry.kind,
        entry.scope,
        entry.job_id,
        entry.active_job_id,
        entry.active_status,
    )


def test_a_second_delivery_does_not_run_beside_the_first(store: JobStore) -> None:
    first = submission()
    store.submit(first)
    began, copy = run(first), run(first)
    assert store.start(began, "shop.render", LONG_S).result == "started"
    assert store.start(began, "shop.render", LONG_S).result == "started"
    found = store.start(copy, "shop.render", LONG_S)
    assert (found.result, found.job and found.job.attempts) == ("busy", 1)
    assert store.finish(copy, Status.FAILED, ValueError("not mine")) == "running"
    store.finish(began, Status.SUCCEEDED)
    assert store.start(copy, "shop.render", LONG_S).result == "succeeded"


def test_a_run_whose_job_was_cancelled_finds_out_and_keeps_that_status(store: JobStore) -> None:
    first = submission()
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", LONG_S)
    store.cancel(TENANT, first.id)
    assert store.renew(began, LONG_S) == "cancelled"
    assert store.finish(began, Status.SUCCEEDED) == "cancelled"
    assert store.submit(submission()).result == "accepted"


def test_a_cancelled_job_is_not_started(store: JobStore) -> None:
    first = submission()
    store.submit(first)
    store.cancel(TENANT, first.id)
    assert store.start(run(first), "shop.render", LONG_S).result == "ended"


def test_a_worker_may_be_quicker_than_the_submitter(store: JobStore) -> None:
    first = submission()
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", LONG_S)
    assert store.sent(TENANT, first.id, LONG_S).result == "running"
    store.finish(began, Status.SUCCEEDED)
    assert store.sent(TENANT, first.id, LONG_S).result == "succeeded"
    assert store.submit(submission()).result == "accepted"


@only_redis
def test_a_run_whose_index_was_taken_away_holds_nothing(store: RedisJobStore) -> None:
    """By a store that evicts, or by hand."""
    first = submission()
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", LONG_S)
    assert store.client.delete(f"{store._prefix}{{{TENANT}}}:active:{SCOPE}") == 1
    assert store.renew(began, LONG_S) == "lost"


def test_a_job_whose_record_the_store_lost_still_runs(store: JobStore) -> None:
    first = submission()
    began = run(first)
    assert store.start(began, "shop.render", LONG_S).result == "started"
    assert store.submit(submission()).result == "conflict"
    assert store.finish(began, Status.SUCCEEDED) == "succeeded"


def test_a_job_that_failed_runs_again_when_it_is_replayed(store: JobStore) -> None:
    first = submission()
    store.submit(first)
    for attempt in (1, 2):
        began = run(first)
        found = store.start(began, "shop.render", LONG_S)
        assert ("started", attempt) == (found.result, found.job and found.job.attempts)
        store.finish(began, Status.FAILED, ValueError("no"))
    assert Status.FAILED is status(store, first.id)


def test_a_replacement_need_not_wait_for_the_end_of_the_run_that_sent_it(store: JobStore) -> None:
    first = submission()
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", LONG_S)
    after = replace(run(first), replacements=1)
    assert store.start(after, "shop.render", LONG_S).result == "started"
    assert store.renew(began, LONG_S) == "lost"
    assert store.finish(replace(began, replacements=1), Status.QUEUED, hold_s=LONG_S) == "running"
    assert store.finish(after, Status.SUCCEEDED) == "succeeded"


def test_a_copy_of_a_message_whose_run_was_replaced_does_not_run(store: JobStore) -> None:
    first = submission()
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", LONG_S)
    assert store.finish(replace(began, replacements=1), Status.QUEUED, hold_s=LONG_S) == "queued"
    assert store.submit(submission()).result == "conflict"
    assert store.start(run(first), "shop.render", LONG_S).result == "ended"
    after = replace(run(first), replacements=1)
    assert store.start(after, "shop.render", LONG_S).result == "started"
    assert store.start(replace(run(first), replacements=1), "shop.render", LONG_S).result == "busy"
    assert store.start(run(first), "shop.render", LONG_S).result == "ended"
    store.finish(after, Status.SUCCEEDED)
    assert store.start(run(first), "shop.render", LONG_S).result == "ended"


# What cannot be read


def record_of(store: RedisJobStore, of: Submission) -> str:
    return f"{store._prefix}{{{of.tenant}}}:job:{of.id}"


def index_of(store: RedisJobStore, of: Submission) -> str:
    return f"{store._prefix}{{{of.tenant}}}:active:{of.scope}"


def stand_in(store: RedisJobStore, name: str) -> None:
    """Put something under a name that no reader expects there."""
    client: Any = store.client
    client.delete(name)
    client.rpush(name, "no record")


@pytest.mark.parametrize("done", [0.5, "all of it", "nan", ""])
def test_progress_that_is_not_an_integer_blocks_no_reader(store: JobStore, done: Any) -> None:
    first = submission()
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", LONG_S)
    assert store.renew(began, LONG_S, ["done", done, "total", 2]) == "running"
    found = store.get(TENANT, first.id)
    assert found is not None
    assert JobProgress(0.5 if done == 0.5 else None, 2) == found.progress
    assert store.submit(submission()).result == "conflict"


@only_redis
def test_what_cannot_be_read_ends_no_list(store: RedisJobStore, caplog: pytest.LogCaptureFixture) -> None:
    numbered = [submission(scope=digest(f"{number}"), lease_s=SOON_S) for number in range(5)]
    for one in numbered:
        store.submit(one)
    lost(store, numbered[0].id)
    client: Any = store.client
    client.hset(
        record_of(store, numbered[1]),
        mapping={"created_at": "soon", "generation": "x", "updated_at": "", "expires_at": "?"},
    )
    client.hdel(record_of(store, numbered[2]), "created_at", "expires_at", "id", "task", "name", "generation")
    stand_in(store, record_of(store, numbered[3]))
    stand_in(store, index_of(store, numbered[4]))
    for listed in (list(store.expired()), list(store.reap(TENANT))):
        found = {one.scope: one.job for one in listed}
        assert {one.scope for one in numbered} == set(found)
        jobs = [found[one.scope] for one in numbered]
        unreadable = [job.status is Status.UNREADABLE for job in jobs if job]
        assert unreadable == [False, False, False, True, True]
        assert [job.created_at for job in jobs[1:3] if job] == [None, None]
    assert f"the record of job {numbered[3].id} cannot be read" in caplog.text
    assert index_of(store, numbered[4]) in caplog.text
    assert list(store.expired()) == []


@only_redis
@pytest.mark.parametrize("name_of", [record_of, index_of])
def test_a_scope_whose_job_cannot_be_read_is_free(store: RedisJobStore, name_of: Any) -> None:
    first = submission()
    store.submit(first)
    stand_in(store, name_of(store, first))
    assert store.submit(submission()).result == "accepted"


@only_redis
def test_a_scope_whose_job_has_no_end_of_its_lease_is_free(store: RedisJobStore) -> None:
    first = submission()
    store.submit(first)
    assert store.client.hdel(record_of(store, first), "expires_at") == 1
    assert store.submit(submission()).result == "accepted"


@only_redis
def test_a_job_whose_record_cannot_be_read_runs_when_its_message_comes(store: RedisJobStore) -> None:
    first = submission()
    store.submit(first)
    stand_in(store, record_of(store, first))
    assert store.cancel(TENANT, first.id).result == "unknown"
    began = run(first)
    assert store.start(began, "shop.render", LONG_S).result == "started"
    assert store.finish(began, Status.SUCCEEDED) == "succeeded"


@only_redis
def test_an_audit_that_cannot_be_read_shows_the_rest_and_stops_no_refusal(
    store: RedisJobStore, caplog: pytest.LogCaptureFixture
) -> None:
    base = f"{store._prefix}{{{TENANT}}}"
    client: Any = store.client
    store.submit(submission())
    store.submit(submission(scope=digest("8"), name="8"))
    for name in ("7", "8"):
        store.submit(submission(scope=SCOPE if name == "7" else digest(name), name=name))
    client.hset(f"{base}:counts", "=7", "many")
    client.hdel(f"{base}:costs", "=8")
    client.xadd(f"{base}:refused", {"scope": "7"})
    audit = store.audit(TENANT, 10)
    assert [one.kind for one in audit.refusals] == ["unreadable", "refused", "refused"]
    assert {name: (one.refused, one.cost) for name, one in audit.by_scope.items()} == {"8": (1, 0)}
    assert audit.total.refused == 2
    assert "sum of =7" in caplog.text
    for what in ("refused", "costs", "scopes"):
        stand_in(store, f"{base}:{what}")
    assert (len(store.audit(TENANT, 10).refusals), store.audit(TENANT, 10).total.refused) == (0, 2)
    assert store.submit(submission()).result == "conflict"
    assert (len(store.audit(TENANT, 10).refusals), store.audit(TENANT, 10).total.refused) == (1, 3)


@only_redis
def test_a_generation_that_is_not_a_number_starts_again(store: RedisJobStore) -> None:
    client: Any = store.client
    client.set(f"{store._prefix}{{{TENANT}}}:generation:{SCOPE}", "many")
    found = store.submit(submission()).job
    assert found is not None
    assert found.generation == 1


def test_an_error_with_broken_characters_ends_its_job(store: JobStore) -> None:
    first = submission()
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", LONG_S)
    assert store.finish(began, Status.FAILED, ValueError("no file \udcff")) == "failed"


# The reaper


def test_the_reaper_frees_what_is_stuck_and_nothing_that_lives(store: JobStore) -> None:
    dead, alive = submission(lease_s=SOON_S), submission(scope=digest("alive"), lease_s=60)
    elsewhere = submission(tenant=digest("another"), lease_s=SOON_S)
    for one in (dead, alive, elsewhere):
        store.submit(one)
    wait_until(lambda: len(list(store.expired())) == 2, within_s=30, what="two leases run out")
    assert {dead.id, elsewhere.id} == {one.job.id for one in store.expired() if one.job}
    assert [dead.id] == [one.job.id for one in store.reap(TENANT) if one.job]
    assert [elsewhere.id] == [one.job.id for one in store.reap() if one.job]
    assert list(store.expired()) == []
    assert [status(store, one.id) for one in (dead, alive)] == [Status.LOST, Status.ACCEPTED]


# The audit


def test_refusals_are_counted_with_what_they_saved(store: JobStore) -> None:
    active = submission()
    store.submit(active)
    store.submit(submission(scope=digest("8"), name="8"))
    refused = [submission(cost=1.5), submission(cost=2), submission(scope=digest("8"), name="8", cost=0.25)]
    for one in refused:
        store.submit(one)
    audit = store.audit(TENANT, 2)
    assert [refused[2].id, refused[1].id] == [entry.job_id for entry in audit.refusals]
    assert (audit.total.refused, audit.total.cost) == (3, 3.75)
    assert {name: (one.refused, one.cost) for name, one in audit.by_scope.items()} == {"7": (2, 3.5), "8": (1, 0.25)}
    assert list(store.audit(digest("another"), 10).refusals) == []


def test_the_audit_does_not_grow_without_end(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("redis_job_store", "job_rows"):
        monkeypatch.setattr(f"repot.submission.{module}.MAX_SCOPES", 3)
    for number in range(5):
        one = submission(scope=digest(f"{number}"), name=f"{number}")
        store.submit(one)
        store.submit(replace(one, id=str(uuid4())))
    audit = store.audit(TENANT, 10)
    assert {"2", "3", "4"} == set(audit.by_scope)
    assert audit.total.refused == 5


@only_databases
def test_the_list_of_refusals_does_not_grow_without_end(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis keeps about the last 1000."""
    monkeypatch.setattr("repot.submission.job_rows.MAX_REFUSALS", 3)
    store.submit(submission())
    refused = [submission() for _ in range(5)]
    for one in refused:
        store.submit(one)
    audit = store.audit(TENANT, 10)
    assert [one.id for one in reversed(refused[2:])] == [one.job_id for one in audit.refusals]
    assert audit.total.refused == 5


# What only a database needs


def advance(store: DatabaseJobStore, seconds: float) -> None:
    """Move every row into the past, as if the server's clock had advanced."""
    for table in (tables.jobs, tables.scopes, tables.keys, tables.audits):
        moments = {name: table.c[name] - seconds for name in ("expires_at", "deleted_at") if name in table.c}
        step = update(table).where(table.c.prefix == store._prefix).values(moments)
        store.database.transact(lambda connection, step=step: connection.execute(step))  # type: ignore[misc]


def rows(store: DatabaseJobStore) -> dict[str, int]:
    """Count the rows of each table."""
    found = (tables.jobs, tables.scopes, tables.keys, tables.audits, tables.refusals, tables.sums)
    queries = {one.name: select(func.count()).where(one.c.prefix == store._prefix) for one in found}
    return store.database.read(
        lambda connection: {name: connection.scalars(one).one() for name, one in queries.items()}
    )


@only_databases
def test_what_is_past_its_retention_is_absent_and_is_deleted(store: DatabaseJobStore) -> None:
    """Redis forgets by itself."""
    first = submission(key="k")
    for one in (first, submission(), submission()):
        store.submit(one)
    assert {1, 2} == set(rows(store).values())
    advance(store, LONG_S + store._retention_s + 1)
    assert (store.get(TENANT, first.id), list(store.expired()), store.audit(TENANT, 10).total.refused) == (None, [], 0)
    again = store.submit(submission(key="k"))
    assert (again.result, again.job and again.job.generation) == ("accepted", 1)
    assert store.submit(submission()).result == "conflict"
    assert (len(store.audit(TENANT, 10).refusals), store.audit(TENANT, 10).total.refused) == (1, 1)
    store.clean()
    assert {1} == set(rows(store).values())
    advance(store, LONG_S + store._retention_s + 1)
    assert store.start(run(first), "shop.render", LONG_S).result == "started"
    store.clean()
    assert {name: number for name, number in rows(store).items() if number} == {"repot_jobs": 1, "repot_job_scopes": 1}


@only_databases
def test_a_run_whose_scope_was_deleted_holds_nothing(store: DatabaseJobStore) -> None:
    first = submission()
    store.submit(first)
    began = run(first)
    store.start(began, "shop.render", LONG_S)
    gone = delete(tables.scopes).where(tables.scopes.c.prefix == store._prefix)
    store.database.transact(lambda connection: connection.execute(gone))
    assert store.renew(began, LONG_S) == "lost"


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_an_id_that_no_job_has_is_unknown(store: JobStore, name: str) -> None:
    """Of a caller over HTTP."""
    assert store.get(TENANT, name) is None
    assert store.cancel(TENANT, name).result == "unknown"


@only_databases
def test_one_key_for_two_scopes_at_once_is_one_job(store: JobStore) -> None:
    together = Barrier(8)

    def ask(number: int) -> list[str]:
        verdicts = []
        for turn in range(10):
            together.wait()
            one = submission(scope=digest(f"{number}"), key=digest(f"{turn}"), payload=f"{number}")
            verdicts.append(store.submit(one).result)
            store.cancel(TENANT, one.id)
        return verdicts

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert [[one[turn] for one in answers].count("accepted") for turn in range(10)] == [1] * 10


# Stores of other kinds


def test_behind_sentinel(redis: Server, tmp_path: Path) -> None:
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind {LOOPBACK}\ndir {tmp_path}\nsentinel monitor shop {LOOPBACK} {redis.port} 1\n"
    )
    with _process(tmp_path / "log", str(configuration), "--sentinel"):
        store = RedisJobStore(
            ExplicitSettings(
                lease_store=f"sentinel://{LOOPBACK}:{port}/0", sentinel_master="shop", lease_prefix=f"t-{uuid4()}"
            )
        )
        _await_answer(store)
        _go_through(store)


def test_on_a_cluster_of_three(tmp_path: Path) -> None:
    """All keys of a tenant are on one node; tenants are spread over all."""
    ports = [free_port() for _ in range(3)]
    with _node(ports[0], tmp_path), _node(ports[1], tmp_path), _node(ports[2], tmp_path):
        _join(ports)
        url = f"redis+cluster://{LOOPBACK}:{ports[0]}"
        store = RedisJobStore(ExplicitSettings(lease_store=url, lease_prefix=f"t-{uuid4()}"))
        _await_answer(store)
        _go_through(store)
        for number in range(30):
            one = submission(tenant=digest(str(number)))
            assert store.submit(one).result == "accepted"
            assert store.submit(replace(one, id=str(uuid4()))).result == "conflict"
            assert store.sent(one.tenant, one.id, SOON_S).result == "queued"
        wait_until(lambda: len(list(store.expired())) == 30, within_s=30, what="the leases run out")
        assert len(list(store.reap())) == 30
        store.client.close()


def test_a_store_that_is_not_there_is_named_without_its_password() -> None:
    store = RedisJobStore(ExplicitSettings(lease_store=f"redis://:hunter2@{LOOPBACK}:{free_port()}/0"))
    with pytest.raises(StoreUnreachable) as caught:
        store.submit(submission())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("user", [":wrong@", "", "guest:guest@"], ids=["wrong password", "no password", "no right"])
def test_a_store_that_refuses_access_is_unreachable(user: str) -> None:
    with redis_server() as server:
        client: Any = redis_client.Redis(port=server.port)
        client.acl_setuser("guest", enabled=True, passwords=["+guest"], keys=["*"], commands=["+ping"])
        client.config_set("requirepass", "right")
        store = RedisJobStore(ExplicitSettings(lease_store=f"redis://{user}{LOOPBACK}:{server.port}/0"))
        with pytest.raises(StoreRefused) as caught:
            store.submit(submission())
        assert "wrong" not in caught.value.message
        client.close()


def test_a_full_store_accepts_nothing_and_lets_what_runs_end() -> None:
    with redis_server("--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as server:
        store = RedisJobStore(ExplicitSettings(lease_store=server.url))
        first = submission()
        store.submit(first)
        began = run(first)
        store.start(began, "shop.render", LONG_S)

        def fill() -> None:
            for number in range(10000):
                store.submit(submission(scope=digest(str(number)), name="x" * 500))

        with pytest.raises(StoreUnreachable, match="OutOfMemory"):
            fill()
        # what a refused client held is free again: at the brim another submission may find room
        store.client.config_set("maxmemory", 1)
        with pytest.raises(StoreUnreachable, match="OutOfMemory"):
            store.submit(submission())
        assert store.renew(began, LONG_S, ["done", 1]) == "running"
        assert store.finish(began, Status.SUCCEEDED) == "succeeded"


def _go_through(store: JobStore) -> None:
    one = submission(key="k")
    began = run(one)
    assert store.submit(one).result == "accepted"
    assert store.sent(TENANT, one.id, LONG_S).result == "queued"
    assert store.submit(submission()).result == "conflict"
    assert store.start(began, "shop.render", LONG_S).result == "started"
    assert store.renew(began, LONG_S) == "running"
    assert store.finish(began, Status.SUCCEEDED) == "succeeded"
    assert store.submit(submission(key="k")).result == "repeated"
    assert list(store.expired()) == []
    assert store.audit(TENANT, 10).total.refused == 1


def _process(log: Path, *options: str) -> AbstractContextManager[ReapedProcess]:
    require(executables.REDIS)
    environment = inherited_environment(without=())
    return ReapedProcess([executables.REDIS.find(), *options], log=log, environment=environment)


def _node(port: int, directory: Path) -> AbstractContextManager[ReapedProcess]:
    home = directory / str(port)
    home.mkdir()
    options = ["--port", str(port), "--bind", LOOPBACK, "--dir", str(home), "--cluster-enabled", "yes", "--save", ""]
    return _process(home / "log", *options)


def _join(ports: list[int]) -> None:
    """Make one cluster of nodes that know nothing yet."""
    clients: list[Any] = [redis_client.Redis(host=LOOPBACK, port=port, decode_responses=True) for port in ports]

    def serves(client: Any) -> bool:
        try:
            return bool(client.ping())
        except redis_client.RedisError:
            return False

    for number, client in enumerate(clients):
        wait_until(lambda client=client: serves(client), within_s=20, what="the node serves")  # type: ignore[misc]
        first, last = 16384 * number // 3, 16384 * (number + 1) // 3 - 1
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for port in ports[1:]:
        clients[0].execute_command("CLUSTER", "MEET", LOOPBACK, port)
    for client in clients:
        wait_until(
            lambda client=client: "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")),  # type: ignore[misc]
            within_s=30,
            what="the cluster is formed",
        )
        client.close()


def _await_answer(store: JobStore) -> None:
    def answers() -> bool:
        try:
            store.get(TENANT, "none")
        except StoreUnreachable:
            return False
        return True

    wait_until(answers, within_s=30, what="the store answers")
