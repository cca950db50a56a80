"""Jobs in real workers, on both brokers."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Event, get_ident
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.signals import after_task_publish, before_task_publish
from kombu import Connection

from repot.chaos.instruments.journal import DELIVERED, ENDED
from repot.chaos.runner.proxies import Proxy
from repot.config import Role, child_environment
from repot.errors import InvalidIdempotencyKey, JobEnded, JobNotFound, ScopeConflict, StoreUnreachable, SubmissionFailed
from repot.submission import Jobs, Status
from repot.submission import jobs as jobs_module
from repot.submission.job_store import JobAttempt, digest
from repot.submission.job_task import HEADER
from repot.submission.redis_job_store import RedisJobStore
from repot.submission.scope import scope_of
from repot.submission.stores import open_job_store
from repot.testbed import free_port, redis_server
from repot.waiting import wait_until
from repot.worker.configure import configure
from support import forked
from support.lost_answers import LosingLink
from support.servers import DISTINCT, migrated, servers_of
from support.shop import LEASE_S, SHORT_LEASE_S, Shop
from support.signals import heard
from support.submitting import Outcomes, breaking, mistakes, submitters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.submission import Job
    from repot.submission.job_store import JobStore
    from repot.testbed import Server
    from support.databases import PrivateDatabase
    from support.servers import Servers


SHOP: dict[str, Any] = {"app": "support.job_app", "visibility_timeout": 3600}


@pytest.fixture(params=["redis", "postgresql"])
def leases(request: pytest.FixtureRequest) -> Server | PrivateDatabase:
    """A lease store."""
    return migrated(request.getfixturevalue(request.param))


@dataclass(slots=True)
class Desk:
    """Submits jobs for one project."""

    shop: Shop
    jobs: Jobs
    project: str

    def submit(self, **arguments: Any) -> Job:
        return self.jobs.submit({"project": self.project} | arguments).job

    def await_status(self, job: str, *statuses: Status, within_s: float = 30) -> Job:
        seen: list[Job] = []

        def reached() -> bool:
            seen[:] = [self.jobs.get(job)]
            return seen[0].status in statuses

        try:
            wait_until(reached, within_s=within_s, what=f"the job is {statuses}")
        except Exception as error:
            error.add_note(f"it is {seen}\n" + "\n".join(worker.log_tail(30) for worker in self.shop._workers))
            raise
        return seen[0]

    @property
    def effects(self) -> int:
        return len(self.shop.effects(self.project))


def desk(shop: Shop, task: str = "render", **terms: Any) -> Desk:
    """A desk for a project of this test alone."""
    return Desk(shop, Jobs(shop.client, f"jobs.{task}", scope="project", **terms), str(uuid4()))


# A job, from beginning to end


def test_a_job_runs_with_its_id_as_the_tasks_and_frees_its_scope(shop: Shop) -> None:
    ours, hold = desk(shop), shop.file()
    job = ours.submit(hold=str(hold))
    assert (job.status.is_active, job.generation) == (True, 1)
    running = ours.await_status(job.id, Status.RUNNING)
    shop.await_effects(ours.project)
    wait_until(lambda: ours.jobs.get(job.id).progress.stage, within_s=30, what="progress is written")
    progress = ours.jobs.get(job.id).progress
    assert (progress.done, progress.total, progress.stage) == (1, 2, "render")
    assert running.attempts == 1
    with pytest.raises(ScopeConflict) as refused:
        ours.submit()
    assert (job.id, "running", "render") == (refused.value.job_id, refused.value.status, refused.value.stage)
    assert 0 < refused.value.retry_after_s <= LEASE_S
    hold.touch()
    ended = ours.await_status(job.id, Status.SUCCEEDED)
    assert ended.ended_at is not None
    assert {"project": ours.project, "job": job.id} == shop.client.AsyncResult(job.id).get(timeout=10)
    assert ours.submit().generation == 2


def test_a_run_longer_than_its_lease_keeps_its_scope(shop: Shop) -> None:
    ours, hold = desk(shop), shop.file()
    job = ours.submit(hold=str(hold))

    def ends_at_s(found: Job) -> float:
        return (found.age_s or 0) + found.lease_remaining_s

    # each renewal moves the end by a third of the lease
    renewed_twice = ends_at_s(ours.await_status(job.id, Status.RUNNING)) + LEASE_S / 2
    wait_until(lambda: ends_at_s(ours.jobs.get(job.id)) > renewed_twice, within_s=30, what="it is renewed again")
    assert Status.RUNNING is ours.jobs.get(job.id).status
    with pytest.raises(ScopeConflict):
        ours.submit()
    hold.touch()
    ours.await_status(job.id, Status.SUCCEEDED)


def test_a_double_submit_with_one_key_runs_once_and_both_get_the_result(shop: Shop) -> None:
    ours = desk(shop)
    first = ours.jobs.submit({"project": ours.project}, idempotency_key="click")
    second = ours.jobs.submit({"project": ours.project}, idempotency_key="click")
    assert (first.repeated, second.repeated) == (False, True)
    results = [shop.client.AsyncResult(one.job.id).get(timeout=20) for one in (first, second)]
    assert results[0] == results[1]
    assert ours.effects == 1


def test_a_job_that_fails_says_why_without_passwords(shop: Shop) -> None:
    ours = desk(shop, "fail")
    failed = ours.await_status(ours.submit().id, Status.FAILED)
    assert failed.error_type == "ValueError"
    assert f"no connection to postgres://shop:**@db/{ours.project}" == failed.error
    ours.submit()


def test_a_job_that_is_rejected_has_failed(shop: Shop) -> None:
    ours = desk(shop, "reject")
    assert ours.await_status(ours.submit().id, Status.FAILED).error_type == "Reject"


@pytest.mark.parametrize("throw", [True, False], ids=["which it raises", "after which it goes on"])
def test_a_job_keeps_its_scope_while_it_waits_for_its_retry(shop: Shop, *, throw: bool) -> None:
    _waits_for_its_next_run(shop, "retry", throw=throw)
    ours = desk(shop, "retry")
    job = ours.submit(throw=throw)
    assert ours.await_status(job.id, Status.SUCCEEDED).attempts == 2
    assert ours.effects == 2
    if throw:
        # of a run that goes on Celery stores a result first
        assert shop.client.AsyncResult(job.id).get(timeout=10) == 1


def _waits_for_its_next_run(shop: Shop, task: str, **options: Any) -> None:
    """Look at a job whose next run comes in ten minutes: it holds its scope for longer than that."""
    ours = desk(shop, task)
    job = ours.submit(countdown=600, **options)
    shop.await_effects(ours.project)
    assert ours.await_status(job.id, Status.QUEUED).lease_remaining_s > 3600
    with pytest.raises(ScopeConflict):
        ours.submit()
    ours.jobs.cancel(job.id)


@pytest.fixture(scope="module", params=DISTINCT, ids="-".join)
def unguarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The same without the guard."""
    found = Shop(*servers_of(request), tmp_path_factory.mktemp("unguarded"), **SHOP, guard=False)
    found.start(3)
    yield found
    found.stop()


def test_a_job_that_replaces_itself_ends_with_its_last_replacement(shop: Shop) -> None:
    _replaces_itself(desk(shop, "relay"))


def test_a_job_that_replaces_itself_ends_with_its_last_replacement_where_the_guard_is_off(unguarded: Shop) -> None:
    _replaces_itself(desk(unguarded, "relay"))


def _replaces_itself(ours: Desk) -> None:
    _waits_for_its_next_run(ours.shop, "relay")
    hold = ours.shop.file()
    job = ours.submit(hold=str(hold))
    ours.shop.await_effects(ours.project, 3)
    assert Status.RUNNING is ours.jobs.get(job.id).status
    with pytest.raises(ScopeConflict):
        ours.submit()
    hold.touch()
    assert ours.await_status(job.id, Status.SUCCEEDED).generation == 1
    assert {"left": 0, "job": job.id} == ours.shop.client.AsyncResult(job.id).get(timeout=20)
    assert ours.effects == 3
    assert ours.submit(left=0).generation == 2


def test_a_job_replaced_by_a_chain_ends_with_its_last_task(shop: Shop) -> None:
    ours, hold = desk(shop, "hand_over"), shop.file()
    job = ours.submit(hold=str(hold), last="job")
    ours.await_status(job.id, Status.QUEUED)
    shop.await_ended(job.id)
    with pytest.raises(ScopeConflict):
        ours.submit(hold="", last="job")
    hold.touch()
    ours.await_status(job.id, Status.SUCCEEDED)
    assert {"left": 0, "job": job.id} == shop.client.AsyncResult(job.id).get(timeout=20)


def test_a_job_replaced_by_a_task_that_knows_of_no_job_has_succeeded_by_then(shop: Shop) -> None:
    ours, hold = desk(shop, "hand_over"), shop.file()
    job = ours.submit(hold=str(hold), last="plain")
    ours.await_status(job.id, Status.SUCCEEDED)
    hold.touch()
    assert ours.project == shop.client.AsyncResult(job.id).get(timeout=20)


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_second_delivery_runs_neither_beside_the_first_nor_after_it(shop: Shop) -> None:
    """A copy of the message, as a broker makes them: the same id, the same headers."""
    ours, hold = desk(shop), shop.file()
    job = ours.submit(hold=str(hold))
    shop.await_effects(ours.project)
    _send_copy(ours, job.id, hold)
    assert {"IGNORED"} == set(shop.await_ended(job.id))
    hold.touch()
    ours.await_status(job.id, Status.SUCCEEDED)
    # the first copy waits for as long as the run's lease
    _send_copy(ours, job.id, hold)
    shop.await_ended(job.id, 3)
    assert ours.effects == 1
    assert ours.jobs.get(job.id).attempts == 1


def test_a_second_delivery_runs_neither_beside_nor_after_the_first_where_the_guard_is_off(unguarded: Shop) -> None:
    ours = desk(unguarded)
    hold = ours.shop.file()
    job = ours.submit(hold=str(hold))
    ours.shop.await_effects(ours.project)
    _send_copy(ours, job.id, hold)
    assert {"IGNORED"} == set(ours.shop.await_ended(job.id))
    hold.touch()
    ours.await_status(job.id, Status.SUCCEEDED)
    _send_copy(ours, job.id, hold)
    wait_until(lambda: "SUCCESS" in ours.shop.await_ended(job.id, 3), within_s=20, what="the first says how it ended")
    ended = ours.shop.await_ended(job.id)
    assert (1, {"IGNORED", "SUCCESS"}) == (ended.count("SUCCESS"), set(ended))
    assert ours.effects == 1


def test_a_task_that_is_sent_without_a_job_runs(shop: Shop) -> None:
    project = str(uuid4())
    sent = shop.client.send_task("jobs.render", kwargs={"project": project})
    assert {"project": project, "job": sent.id} == sent.get(timeout=20)


# Cancelling


def test_a_cancelled_job_that_waits_is_never_run(server: Server, redis: Server, opened: Callable[..., Shop]) -> None:
    ours = desk(opened(server, redis))
    job = ours.submit()
    ours.jobs.cancel(job.id)
    after = ours.submit()
    ours.shop.start()
    ours.await_status(after.id, Status.SUCCEEDED)
    with pytest.raises(TaskRevokedError):
        ours.shop.client.AsyncResult(job.id).get(timeout=20)
    assert Status.CANCELLED is ours.jobs.get(job.id).status
    assert ours.effects == 1


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_a_cancelled_job_that_runs_ends_when_it_looks(shop: Shop) -> None:
    ours = desk(shop, "watch")
    job = ours.submit()
    shop.await_effects(ours.project)
    assert ours.jobs.cancel(job.id).workers_notified
    again = ours.submit(within_s=0)
    with pytest.raises(TaskRevokedError):
        shop.client.AsyncResult(job.id).get(timeout=20)
    assert Status.CANCELLED is ours.jobs.get(job.id).status
    ours.await_status(again.id, Status.SUCCEEDED)


def test_a_cancelled_job_that_runs_is_killed_if_wanted(shop: Shop) -> None:
    ours = desk(shop, terminate=True)
    job = ours.submit(hold=str(shop.file()))
    shop.await_effects(ours.project)
    ours.jobs.cancel(job.id)
    state = shop.client.backend.get_state
    wait_until(lambda: state(job.id) == "REVOKED", within_s=20, what="the task is revoked")
    assert Status.CANCELLED is ours.jobs.get(job.id).status


def test_to_cancel_twice_is_to_cancel_once_and_what_ended_cannot_be(shop: Shop) -> None:
    ours = desk(shop)
    done = ours.await_status(ours.submit().id, Status.SUCCEEDED)
    with pytest.raises(JobEnded):
        ours.jobs.cancel(done.id)
    job = ours.submit(hold=str(shop.file()))
    assert [ours.jobs.cancel(job.id).job.status for _ in range(2)] == [Status.CANCELLED] * 2


def test_another_tenants_job_is_not_there(shop: Shop) -> None:
    ours = desk(shop)
    job = ours.jobs.submit({"project": ours.project}, tenant="one").job.id
    for tenant in ("two", ""):
        with pytest.raises(JobNotFound):
            ours.jobs.get(job, tenant=tenant)
        with pytest.raises(JobNotFound):
            ours.jobs.cancel(job, tenant=tenant)
    assert job == ours.jobs.get(job, tenant="one").id
    # nor in the way
    ours.jobs.submit({"project": ours.project}, tenant="two")


# When something dies


def test_a_job_killed_by_the_kernel_frees_its_scope_by_its_lease(brief: Shop) -> None:
    """The flaw of an OOM-killed job that blocks its scope for 24 h."""
    ours = desk(brief, "die")
    job = ours.submit()
    brief.await_effects(ours.project)
    ours.await_status(job.id, Status.LOST)
    assert ours.submit().generation == 2


@pytest.fixture
def brief(servers: Servers, opened: Callable[..., Shop]) -> Shop:
    """A shop whose leases a test sees expire, with a worker."""
    found = opened(*servers, visibility_timeout=4, lease=SHORT_LEASE_S)
    found.start(3)
    return found


@pytest.mark.promise("rabbitmq-postgresql")
def test_a_worker_that_is_killed_frees_the_scope_and_its_message_does_not_run_beside_the_next(brief: Shop) -> None:
    """The message of the lost job comes again when its successor runs: it is superseded.

    At least once: where no other job took the scope, the redelivered message runs.
    """
    ours, others, hold = desk(brief), desk(brief), brief.file()
    job, other = ours.submit(hold=str(hold)), others.submit(hold=str(hold))
    for one in (ours, others):
        brief.await_effects(one.project)
    # with all its processes, by SIGKILL
    brief.stop()
    ours.await_status(job.id, Status.LOST)
    after = ours.submit(hold=str(hold))
    brief.settings = brief.settings.replace(lease=LEASE_S)
    brief.start(3)
    ours.await_status(job.id, Status.SUPERSEDED, within_s=60)
    assert after.id == ours.jobs.get(job.id).successor
    hold.touch()
    ours.await_status(after.id, Status.SUCCEEDED)
    assert ours.effects == 2
    assert [one.kind for one in ours.jobs.refused().refusals if one.job_id == job.id] == ["superseded"]
    assert others.await_status(other.id, Status.SUCCEEDED, within_s=60).attempts == 2


def test_a_job_whose_run_dies_before_its_submission_returns_was_sent(
    redis: Server, leases: Server | PrivateDatabase, opened: Callable[..., Shop]
) -> None:
    ours = desk(opened(redis, redis, leases=leases, visibility_timeout=4, lease=SHORT_LEASE_S))
    hold = ours.shop.file()
    worker = ours.shop.start(1)

    def dies(headers: dict[str, Any], **_: Any) -> None:
        ours.await_status(headers["id"], Status.RUNNING)
        # with all its processes, by SIGKILL
        worker.stop()
        ours.await_status(headers["id"], Status.LOST)

    with heard(after_task_publish, dies):
        job = ours.submit(hold=str(hold))
    assert (job.status, job.attempts) == (Status.LOST, 1)
    hold.touch()
    ours.shop.start(1)
    assert ours.await_status(job.id, Status.SUCCEEDED, within_s=60).attempts == 2


def test_a_job_that_takes_longer_to_send_than_its_scope_is_held_says_so(
    redis: Server, leases: Server | PrivateDatabase, opened: Callable[..., Shop]
) -> None:
    ours = desk(opened(redis, redis, leases=leases), publish_lease_s=1)
    theirs = Desk(ours.shop, Jobs(ours.shop.client, "jobs.render", scope="project"), ours.project)
    found: list[Job] = []

    def is_slow(headers: dict[str, Any], **_: Any) -> None:
        if not found:
            found.append(theirs.await_status(headers["id"], Status.LOST))
            found.append(theirs.submit())

    with heard(after_task_publish, is_slow), pytest.raises(SubmissionFailed, match="took longer than 1 s") as failed:
        ours.submit()
    slow, after = found
    assert "Its message does not run" in failed.value.hint
    assert after.id == ours.jobs.get(slow.id).successor
    ours.shop.start(1)
    ours.await_status(after.id, Status.SUCCEEDED)
    # its message is behind neither of these, and its scope is free
    ours.await_status(ours.submit().id, Status.SUCCEEDED)
    assert (ours.effects, ours.jobs.get(slow.id).status) == (2, Status.CANCELLED)


def test_a_submitter_killed_before_it_publishes_frees_the_scope(shop: Shop) -> None:
    """The flaw of two steps that are not one: marked as seen, never sent."""
    ours = desk(shop, publish_lease_s=4)
    code = (
        "import os, signal, sys; from celery import Celery, signals; from repot.config import Role; "
        "from repot.submission import Jobs; from repot.worker.configure import configure; "
        "app = Celery('doomed'); configure(app, role=Role.CLIENT); "
        "kill = lambda **_: os.kill(os.getpid(), signal.SIGKILL); signals.before_task_publish.connect(kill); "
        "Jobs(app, 'jobs.render', scope='project', publish_lease_s=4)"
        ".submit({'project': sys.argv[1]}, idempotency_key='k')"
    )
    command = [sys.executable, "-c", code, ours.project]
    died = forked.run(command, env=child_environment(shop.settings), check=False)
    assert died.returncode == -signal.SIGKILL
    with pytest.raises(ScopeConflict) as refused:
        ours.submit()
    assert refused.value.status == "accepted"
    ours.await_status(refused.value.job_id, Status.LOST, within_s=40)
    again = ours.jobs.submit({"project": ours.project}, idempotency_key="k").job
    ours.await_status(again.id, Status.SUCCEEDED)
    assert ours.effects == 1


@pytest.mark.promise
@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_a_broker_that_is_away_leaves_no_scope_and_no_key_blocked(
    redis: Server, opened: Callable[..., Shop], broker: str
) -> None:
    """The flaw of an index that is written before the message."""
    url = f"redis://127.0.0.1:{free_port()}/0" if broker == "redis" else f"amqp://guest:guest@127.0.0.1:{free_port()}//"
    ours = desk(opened(redis, redis, broker_url=url))
    for _ in range(2):
        with pytest.raises(SubmissionFailed):
            ours.jobs.submit({"project": ours.project}, idempotency_key="k")
    assert list(ours.jobs.refused().refusals) == []


def test_a_broker_that_swallows_everything_leaves_no_scope_blocked(
    server: Server, redis: Server, toxiproxy: Server, opened: Callable[..., Shop]
) -> None:
    proxy = Proxy.create(toxiproxy.url, f"p-{uuid4()}", server.port)
    ours = desk(opened(server, redis, broker_url=server.url_at(proxy.port), socket_timeout=3))
    with Connection(server.url) as connection:
        # a submission declares it as well, which may take RabbitMQ longer than the timeout
        ours.shop.client.amqp.queues[ours.shop.name](connection.default_channel).declare()
    ours.submit()
    ours.project = str(uuid4())
    toxics = [proxy.add_toxic("timeout", way, {"timeout": 0}) for way in ("upstream", "downstream")]
    with pytest.raises(SubmissionFailed):
        ours.submit()
    for toxic in toxics:
        proxy.remove_toxic(toxic)
    assert Status.QUEUED is ours.submit().status
    proxy.delete()


def test_a_second_submission_with_one_key_does_not_get_a_job_that_is_never_sent(
    server: Server, redis: Server, toxiproxy: Server, opened: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until the first one is sent, or could not be; then it is the first."""
    monkeypatch.setattr(jobs_module, "_SENT_WITHIN_S", 30)
    proxy = Proxy.create(toxiproxy.url, f"p-{uuid4()}", server.port)
    slow = {"socket_timeout": 20, "socket_connect_timeout": 20}
    theirs = opened(server, redis, broker_url=server.url_at(proxy.port), **slow)
    ours, second = desk(theirs), Celery("second", set_as_current=False)
    configure(second, theirs.settings.replace(broker_url=server.url), Role.CLIENT)
    here = Jobs(second, "jobs.render", scope="project")
    for way in ("upstream", "downstream"):
        proxy.add_toxic("timeout", way, {"timeout": 0})
    store, looks = here._store, Event()
    assert isinstance(store, RedisJobStore)
    look = store.get

    def noted(tenant: str, job: str) -> Job | None:
        looks.set()
        return look(tenant, job)

    monkeypatch.setattr(store, "get", noted)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ours.jobs.submit, {"project": ours.project}, idempotency_key="k")
        keys = f"{theirs.settings.lease_prefix}:jobs:*:key:*"
        wait_until(lambda: list(store.client.scan_iter(keys)), within_s=20, what="the first has its scope")
        later = threads.submit(here.submit, {"project": ours.project}, idempotency_key="k")
        wait_until(looks.is_set, within_s=20, what="the second waits for the first")
        proxy.enable(enabled=False)
        with pytest.raises(SubmissionFailed):
            first.result()
        accepted = later.result()
    assert (accepted.repeated, accepted.job.status) == (False, Status.QUEUED)
    proxy.delete()


def test_no_submission_with_one_key_gets_a_job_that_is_never_sent_however_many_there_are(
    redis: Server, opened: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third waits for the second as well, which has the key when the first could not be sent."""
    ours = desk(opened(redis, redis, broker_url=f"redis://127.0.0.1:{free_port()}/0"))
    store, claims, looks, published = ours.jobs._store, count(), set[int](), count()
    assert isinstance(store, RedisJobStore)
    claim, look = store.submit, store.get
    claimed: list[int] = []

    def counted(submission: Any) -> Any:
        try:
            return claim(submission)
        finally:
            claimed.append(next(claims))

    def noted(tenant: str, job: str) -> Job | None:
        looks.add(get_ident())
        return look(tenant, job)

    monkeypatch.setattr(store, "submit", counted)
    monkeypatch.setattr(store, "get", noted)

    def waits(**_: Any) -> None:
        number = next(published)
        if number == 0:
            wait_until(lambda: len(looks) == 2, within_s=20, what="two wait for the first")
        if number == 1:
            wait_until(lambda: len(claimed) == 5, within_s=20, what="the third has seen the second's job")

    with heard(before_task_publish, waits), ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(ours.jobs.submit, {"project": ours.project}, idempotency_key="k") for _ in range(3)]
        assert [type(one.exception(60)) for one in answers] == [SubmissionFailed] * 3


def test_a_job_that_is_retried_before_its_submission_fails_was_sent(
    redis: Server, leases: Server | PrivateDatabase, opened: Callable[..., Shop]
) -> None:
    """The confirmation is lost; the run waits for its next attempt, and its caller must not hear that nothing runs."""
    ours = desk(opened(redis, redis, leases=leases, broker_url=f"redis://127.0.0.1:{free_port()}/0"))
    store = ours.jobs._store

    def arrives(headers: dict[str, Any], **_: Any) -> None:
        found = headers[HEADER]
        attempt = JobAttempt(headers["id"], found["tenant"], found["scope"], "a worker")
        store.start(attempt, "jobs.render", LEASE_S)
        store.finish(attempt, Status.QUEUED, hold_s=LEASE_S)

    with heard(before_task_publish, arrives):
        job = ours.submit()
    assert (job.status, job.attempts) == (Status.QUEUED, 1)


def test_a_store_that_is_away_accepts_nothing(server: Server, redis: Server, opened: Callable[..., Shop]) -> None:
    ours = desk(opened(server, redis, lease_store=f"redis://127.0.0.1:{free_port()}/0"))
    with pytest.raises(StoreUnreachable):
        ours.submit()
    with pytest.raises(StoreUnreachable):
        ours.jobs.refused()


@pytest.mark.promise("postgresql")
def test_a_submission_whose_answer_was_lost_leaves_no_scope_and_no_key_blocked(
    redis: Server, leases: Server | PrivateDatabase, opened: Callable[..., Shop]
) -> None:
    """The store has accepted a job that nothing will send: its submitter got an error, and tries again."""
    with LosingLink(leases.port) as link:
        url = leases.url.replace(f":{leases.port}", f":{link.port}")
        ours = desk(opened(redis, redis, leases=leases, lease_store=url))
        ours.submit()
        ours.project = str(uuid4())
        with link.losing(), pytest.raises(StoreUnreachable):
            ours.jobs.submit({"project": ours.project}, idempotency_key="k")
        assert link.lost.is_set()
        again = ours.jobs.submit({"project": ours.project}, idempotency_key="k")
    assert (again.repeated, again.job.status) == (False, Status.QUEUED)
    assert list(ours.jobs.refused().refusals) == []


def test_a_run_that_an_outage_of_the_store_outlasted_keeps_its_scope(
    redis: Server, leases: Server | PrivateDatabase, opened: Callable[..., Shop]
) -> None:
    """Who submits may reach the store again before the worker does, whose lease has expired."""
    with LosingLink(leases.port) as link:
        url = leases.url.replace(f":{leases.port}", f":{link.port}")
        shop = opened(redis, redis, leases=leases, lease_store=url)
        ours = desk(shop)
        job = ours.submit()
        theirs = open_job_store(shop.settings.replace(lease_store=leases.url))
        scope, _ = scope_of("jobs.render", ["project"], {"project": ours.project})
        run = JobAttempt(job.id, digest(""), scope, uuid4().hex)
        assert theirs.start(run, "jobs.render", 2).result == "started"
        with link.cut():
            wait_until(lambda: is_lost(theirs, run), within_s=30, what="its lease expires", poll_s=0.05)
            with pytest.raises(StoreUnreachable):
                ours.submit()
        with pytest.raises(ScopeConflict, match="may be active") as refused:
            ours.submit()
        assert job.id == refused.value.job_id
        assert 0 < refused.value.retry_after_s <= LEASE_S + 1
        assert theirs.renew(run, LEASE_S) == Status.RUNNING
        theirs.finish(run, Status.SUCCEEDED)
        theirs.close()
        assert Status.QUEUED is ours.submit().status


def is_lost(store: JobStore, run: JobAttempt) -> bool:
    """Return whether the lease of a run has expired."""
    found = store.get(run.tenant, run.id)
    return found is not None and found.status is Status.LOST


def test_a_result_backend_that_is_away_is_not_needed_to_submit(
    server: Server, redis: Server, opened: Callable[..., Shop]
) -> None:
    """Celery asks it for each task that is sent, for 20 s when it is away."""
    ours = desk(opened(server, redis, result_backend=f"redis://127.0.0.1:{free_port()}/1"))
    assert Status.QUEUED is ours.submit().status


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def linked(
    request: pytest.FixtureRequest, toxiproxy: Server, redis: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Shop, Proxy]]:
    """A shop whose worker reaches its lease store through a link; who submits looks at the store itself."""
    server = request.getfixturevalue(request.param)
    with redis_server() as store:
        proxy = Proxy.create(toxiproxy.url, f"p-{uuid4()}", store.port)
        changes = {"lease_store": store.url_at(proxy.port), "lease": 5}
        theirs = Shop(server, redis, tmp_path_factory.mktemp("linked"), **{**SHOP, **changes})
        configure(theirs.client, theirs.settings.replace(lease_store=store.url), Role.CLIENT)
        try:
            theirs.start(1)
            yield theirs, proxy
        finally:
            theirs.stop()
            proxy.delete()


def test_a_message_that_finds_the_store_away_comes_back(linked: tuple[Shop, Proxy]) -> None:
    theirs, proxy = linked
    ours = desk(theirs)
    proxy.enable(enabled=False)
    job = ours.submit()
    theirs.await_lines(DELIVERED, job.id, 2)
    assert ours.effects == 0
    proxy.enable(enabled=True)
    ours.await_status(job.id, Status.SUCCEEDED)
    assert ours.effects == 1


def test_an_end_that_finds_the_store_away_is_recorded_later(linked: tuple[Shop, Proxy]) -> None:
    theirs, proxy = linked
    ours, hold = desk(theirs), theirs.file()
    job = ours.submit(hold=str(hold))
    theirs.await_effects(ours.project)
    proxy.enable(enabled=False)
    hold.touch()
    theirs.await_lines(ENDED, job.id)
    ours.await_status(job.id, Status.LOST)
    proxy.enable(enabled=True)
    ours.await_status(job.id, Status.SUCCEEDED)


# Who asks wrongly


@pytest.mark.parametrize("value", [None, True, 1.5, "", "x" * 513, ["p"], "a\nb", "\ud800"])
def test_what_names_no_scope_is_refused(shop: Shop, value: object) -> None:
    with pytest.raises(InvalidIdempotencyKey):
        desk(shop).jobs.submit({"project": value})


def test_a_number_and_its_text_are_one_scope(shop: Shop) -> None:
    ours, number = desk(shop), uuid4().int
    ours.jobs.submit({"project": number, "hold": str(shop.file())})
    with pytest.raises(ScopeConflict):
        ours.jobs.submit({"project": str(number)})


def test_several_fields_make_one_scope(shop: Shop) -> None:
    jobs = Jobs(shop.client, "jobs.render", scope=("project", "hold"))
    project, hold = str(uuid4()), shop.file()
    jobs.submit({"project": project, "hold": str(hold)})
    with pytest.raises(ScopeConflict):
        jobs.submit({"project": project, "hold": str(hold)})
    jobs.submit({"project": project, "hold": str(shop.file())})
    hold.touch()


# All at once


def test_many_processes_let_one_job_in_for_each_scope_and_generation(
    server: Server, redis: Server, toxiproxy: Server, opened: Callable[..., Shop], tmp_path: Path
) -> None:
    """While their link to the broker is cut again and again; `benchmarks/submission.py` does it with more of them."""
    proxy = Proxy.create(toxiproxy.url, f"p-{uuid4()}", server.port)
    theirs = opened(server, redis, lease=10)
    theirs.start(2)
    through = theirs.settings.replace(broker_url=server.url_at(proxy.port))
    with submitters(through, tmp_path, processes=6, submissions=20, scopes=6, seed=1) as process:
        assert breaking(proxy, 0.5, 0.3, lambda: process.exit_code is not None) > 0
    outcomes = Outcomes.read(tmp_path)
    assert outcomes.answers.total() == 120
    # that a cut met a submission, and not its second try, is up to the machine
    assert {202, 409} <= set(outcomes.answers) <= {202, 409, 503}
    assert mistakes(theirs, outcomes, scopes=6) == []
    proxy.delete()


def _send_copy(ours: Desk, job: str, hold: Path) -> None:
    from repot.submission.job_store import digest
    from repot.submission.job_task import HEADER
    from repot.submission.scope import scope_of

    scope, _ = scope_of("jobs.render", ("project",), {"project": ours.project})
    header = {"tenant": digest(""), "scope": scope, "wait_s": 3600}
    arguments = {"project": ours.project, "hold": str(hold)}
    ours.shop.client.send_task("jobs.render", kwargs=arguments, task_id=job, headers={HEADER: header})
