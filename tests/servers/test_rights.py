"""The rights of docs/rights.md: enough for each part, and nothing opens without one of them."""

from __future__ import annotations

import os
import sys
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import redis as redis_client
from amqp import AccessRefused
from celery import Celery

from repot.brokers import inspect, open_broker
from repot.brokers.facts import Unknown
from repot.config import ExplicitSettings, Role, child_environment
from repot.config.endpoints import endpoints
from repot.doctor import collect
from repot.doctor.collect import read_app
from repot.doctor.config import DoctorConfig
from repot.doctor.registry import own_rules
from repot.errors import StoreRefused
from repot.healthcheck.ping import PingClient, PingOutcome
from repot.idempotency import IdempotentTask, administration
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.lease_store import RedisLeaseStore
from repot.idempotency.records import Acquired, Ending, Parked, Running, RunOutcome
from repot.idempotency.rights import BEAT, DELIVERIES, GUARD, JOBS, LEASES, ROLLOUT, ROLLOUTS, Rights, missing_rights
from repot.rollout.phases import Plan
from repot.rollout.store import ControllerStore
from repot.routing.beat_lease import BeatLease
from repot.routing.record import Change
from repot.routing.revoked import RevokedIds
from repot.routing.side import Side
from repot.routing.synthetic import SyntheticTask, SyntheticTasks
from repot.routing.tally import Tally, WorkerState
from repot.submission import JobTask, redis_job_store
from repot.submission.job import Status
from repot.submission.job_store import JobAttempt, Submission, digest
from repot.submission.redis_job_store import RedisJobStore
from repot.testbed import ReapedProcess, redis_server
from repot.waiting import wait_until
from repot.worker.configure import configure
from repot.worker.delivery_limit import Deliveries
from repot.worker.rollout_store import open_rollout_store, rollout_records
from repot.worker.status_file import Link
from support.leases import lease_request
from support.realm import Realm
from support.shop import APPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.config import WorkerSettings
    from repot.testbed import Server

TENANT = digest("")
RETENTION_S = 600.0

PAGE = (Path(__file__).parents[2] / "docs" / "rights.md").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as found:
        yield found


class Desk:
    """A lease store, its administrator, and a user whose rights change."""

    def __init__(self, server: Server) -> None:
        self.admin: Any = redis_client.Redis(port=server.port, db=1, decode_responses=True)
        self.admin.flushdb()
        address = f"127.0.0.1:{server.port}/1"
        # one user's connections and scripts know nothing of the rights that a former one had
        self.name = f"user-{uuid4()}"
        self.settings = ExplicitSettings(lease_store=f"redis://{self.name}:secret@{address}", lease=30)
        self.all_rights = ExplicitSettings(lease_store=f"redis://{address}", lease=30)

    def allow(self, rights: str, *, without: str = "") -> None:
        """Give the user these rules, as the page has them, and no others."""
        rules = [rule for rule in rights.split() if rule != without]
        self.admin.execute_command("ACL", "SETUSER", self.name, "reset", "on", ">secret", *rules)
        self.admin.script_flush()


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    found = Desk(server)
    with closing(found.admin):
        yield found


@contextmanager
def lease_store(settings: ExplicitSettings) -> Iterator[RedisLeaseStore]:
    with closing(RedisLeaseStore(settings)) as store:
        yield store


@contextmanager
def jobs(settings: ExplicitSettings) -> Iterator[RedisJobStore]:
    with closing(RedisJobStore(settings)) as store:
        yield store


def guarded(desk: Desk) -> None:
    """Everything that the guard asks of its store."""
    with lease_store(desk.settings) as store:
        for ending in (
            Ending(RunOutcome.DONE, RETENTION_S, '"result"'),
            Ending(RunOutcome.UNKNOWN, RETENTION_S),
            Ending(RunOutcome.RELEASED, RETENTION_S, hold_s=1, held_for="t"),
        ):
            key, who = uuid4().hex, lease_request("t", parks=True)
            assert isinstance(store.acquire(Fingerprint(key), who), Acquired)
            assert store.renew(key, who)
            store.finish(key, who.owner, ending)
            store.acquire(Fingerprint(key), lease_request("another", parks=True))


def submission(**changes: Any) -> Submission:
    terms: dict[str, Any] = {"scope": digest("scope"), "name": "scope", "lease_s": 30} | changes
    key = digest(uuid4().hex)
    return Submission(str(uuid4()), TENANT, task="shop.render", payload="p", key=key, cost=1.5, **terms)


def run_of(one: Submission) -> JobAttempt:
    return JobAttempt(one.id, TENANT, one.scope, uuid4().hex)


def submitted(desk: Desk) -> None:
    """Everything that submitters and workers ask of the store of jobs."""
    with jobs(desk.settings) as store:
        one, another, unsent = submission(), submission(scope=digest("b")), submission(scope=digest("c"))
        run = run_of(one)
        store.submit(one)
        store.sent(TENANT, one.id, 30)
        for name in ("first", "second"):
            assert store.submit(submission(name=name)).result == "conflict"
        store.get(TENANT, one.id)
        store.start(run, one.task, 30)
        store.renew(run, 30, ["done", 1])
        store.finish(run, Status.SUCCEEDED)
        store.submit(another)
        store.cancel(TENANT, another.id)
        store.submit(unsent)
        store.undo(TENANT, unsent.id, OSError())
        store.audit(TENANT, 10)


def looked_after(desk: Desk) -> None:
    """Everything that `repot leases` does."""
    with lease_store(desk.all_rights) as store:
        store.acquire(Fingerprint("f" * 64), lease_request("t", lease_s=0.001))
        wait_until(
            lambda: isinstance(store.acquire(Fingerprint("f" * 64), lease_request(parks=True)), Parked),
            within_s=20,
            what="it waits for an operator",
        )
        store.acquire(Fingerprint("e" * 64), lease_request(lease_s=0.001))
    with jobs(desk.all_rights) as store:
        store.submit(submission(lease_s=0.001))
    with lease_store(desk.settings) as store:
        found = list(administration.find_records(store, administration.RecordFilter()))
        administration.find_record(store, "f" * 64)
        administration.reap(store, found, administration.Decision.DONE, retention_of=lambda _: RETENTION_S)
    with jobs(desk.settings) as store:
        assert len(list(store.expired())) == 1
        assert len(list(store.reap())) == 1


SYNTHETIC = SyntheticTask("id", Side.SOURCE, "orders", 1.0, kills=False, sent_at=0.0)


def rolled_out(desk: Desk) -> None:
    """Everything that a rollout's controller asks of the store."""
    records = rollout_records(desk.settings)
    first = records.create("shop", "redis://source/0", "amqp://target//", Change("test", "why"))
    records.change(first, Change("test", "why"))
    assert len(records.history("shop")) == 2
    assert records.read("shop")
    with closing(open_rollout_store(desk.settings)) as counts:
        store = ControllerStore(counts, desk.settings.lease_prefix, "shop")
        tally = Tally(counts, desk.settings.lease_prefix, "shop")
        store.put_plan(Plan(queues=("orders",)))
        assert store.plan().queues == ("orders",)
        assert store.hold("ann", 10) == store.hold("ann", 10)
        store.release("ann")
        assert store.first_counts("1", {side: tally.counts(side) for side in Side})[Side.SOURCE] == {}
        store.forget_steps()
        assert (tally.workers(), tally.now() > 0) == ([], True)
        synthetic = SyntheticTasks(counts, desk.settings.lease_prefix, "shop")
        synthetic.note(SYNTHETIC)
        synthetic.close(synthetic.all())
        synthetic.forget(SYNTHETIC.id)
        synthetic.stop()
        assert {"source:ended", "source:repeated", "source:doubled"} == synthetic.closed().keys()
        synthetic.clear()


def beaten(desk: Desk) -> None:
    """Everything that a beat asks of the store during a rollout."""
    with closing(open_rollout_store(desk.settings)) as store:
        lease = BeatLease(store, desk.settings.lease_prefix, "shop", "ann", 10, lambda _: False)
        lease.acquire()
        lease.ran({"hourly": 1.5})
        assert lease.runs() == {"hourly": 1.5}
        lease.release()


PARTS = {
    "guard": (GUARD, guarded),
    "jobs": (JOBS, submitted),
    "leases": (LEASES, looked_after),
    "beat": (BEAT, beaten),
    "rollouts": (ROLLOUTS, rolled_out),
}
_EACH = pytest.mark.parametrize(("rights", "use"), PARTS.values(), ids=PARTS)


@pytest.mark.promise
@_EACH
def test_the_rights_are_enough_and_each_of_them_is_needed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, rights: Rights, use: Callable[[Desk], None]
) -> None:
    """Without any one of them: a clear refusal, which the doctor says before."""
    monkeypatch.setattr(redis_job_store, "MAX_SCOPES", 1)
    desk.allow(rights.acl())
    use(desk)
    assert missing_rights(desk.settings, rights) == ()
    for rule in rights.acl().split():
        desk.admin.flushdb()
        desk.allow(rights.acl(), without=rule)
        with pytest.raises(StoreRefused, match="refuses access"):
            use(desk)
        try:
            missing = missing_rights(desk.settings, rights)
        except StoreRefused:
            assert rule in (
                "+client|setname",
                "+select",
                "+evalsha",
                "+script|load",
                "~repot:idempotency:*",
                "~repot:jobs:*",
                "~repot:rollout:*",
            )
            continue
        assert not isinstance(missing, Unknown)
        words = {word for one in missing for word in one.split()}
        assert rule in words, rule
        assert {rule} == {word for word in words if word[0] == rule[0]}


@pytest.mark.promise
def test_no_missing_right_lets_a_second_run_in(desk: Desk) -> None:
    """A key that is claimed stays claimed, whichever right the second worker lacks."""
    key = Fingerprint("a" * 64)
    with lease_store(desk.all_rights) as store:
        store.acquire(key, lease_request("first"))
        for rule in GUARD.acl().split():
            desk.allow(GUARD.acl(), without=rule)
            with lease_store(desk.settings) as restricted:
                try:
                    found = restricted.acquire(key, lease_request("second"))
                except StoreRefused:
                    continue
                assert isinstance(found, Running), rule
        assert store.acquire(key, lease_request("third")).task_id == "first"  # type: ignore[union-attr]


def test_no_missing_right_lets_a_second_job_in_or_frees_a_live_one(desk: Desk) -> None:
    """A user without `get` or `hmget` let every job in, and its reaper freed the scopes of live ones."""
    rights = Rights(("claim", "jobs"), tuple(dict.fromkeys([*JOBS.commands, *LEASES.commands]))).acl()
    first = submission()
    run = run_of(first)
    with jobs(desk.all_rights) as store:
        store.submit(first)
        store.start(run, first.task, 30)
        for rule in rights.split():
            desk.allow(rights, without=rule)
            with jobs(desk.settings) as restricted:
                for ask in (
                    lambda: restricted.submit(submission()).result,
                    lambda: restricted.start(run_of(submission()), first.task, 30).result,
                    lambda: [one.scope for one in restricted.reap()],
                ):
                    try:
                        assert ask() in ("conflict", "superseded", []), rule
                    except StoreRefused:
                        continue
            assert store.renew(run, 30) == "running", rule
        assert first.id == store.submit(submission()).job.id  # type: ignore[union-attr]


def test_the_doctor_names_a_right_that_the_store_does_not_give(desk: Desk, redis: Server) -> None:
    app: Any = Celery("shop", set_as_current=False)
    settings = desk.settings.replace(broker_url=redis.url)
    configure(app, settings)

    def work() -> None:
        """Do nothing."""

    app.task(work, name="shop.charge", base=IdempotentTask)

    def found() -> list[str]:
        facts = collect.collect_from(app, collect.DoctorRequest("shop", live=True), DoctorConfig(Path.cwd()))
        return [finding.message for finding in own_rules()["RPT407"].check(facts)]

    desk.allow(GUARD.acl())
    assert found()[:1] == ["missing: +incrby ~repot:deliveries:*"]
    desk.allow(f"{GUARD.acl()} {DELIVERIES.acl()}")
    assert found() == []
    desk.allow(f"{GUARD.acl()} {DELIVERIES.acl()}", without="+persist")
    assert found() == ["missing: +persist ~repot:idempotency:*"]
    desk.allow(GUARD.acl(), without="+evalsha")
    (refused,) = found()
    assert "evalsha" in refused
    app.task(work, name="shop.render", base=JobTask)
    desk.allow(f"{GUARD.acl()} {JOBS.acl()} {DELIVERIES.acl()}", without="+get")
    assert found() == ["missing: +get ~repot:jobs:*"]


def test_without_a_right_deliveries_are_not_counted_and_the_log_says_so(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    message = SimpleNamespace(delivery_info={"redelivered": True}, headers={"id": "t"}, properties={})

    def counted() -> int:
        deliveries = Deliveries(desk.settings.replace(max_deliveries=2))
        deliveries.note_returned([message])
        deliveries.record_returned()
        return [deliveries.beyond(message) for _ in range(3)][-1]

    desk.allow(DELIVERIES.acl())
    # one was given back, and the first delivery is not counted
    assert (counted(), caplog.text) == (1, "")
    for rule in DELIVERIES.acl().split():
        desk.admin.flushdb()
        desk.allow(DELIVERIES.acl(), without=rule)
        caplog.clear()
        assert counted() == 0
        assert "deliveries are not counted" in caplog.text, rule


def test_a_sender_follows_a_rollout_with_the_rights_of_the_page_and_none_less(desk: Desk) -> None:
    rollout_records(desk.all_rights).create("shop", "redis://source/0", "amqp://target//", Change("test", "why"))
    desk.allow(ROLLOUT.acl())
    follow_and_report(desk)
    for rule in ROLLOUT.acl().split():
        desk.allow(ROLLOUT.acl(), without=rule)
        with pytest.raises(StoreRefused, match="refuses access"):
            follow_and_report(desk)


def follow_and_report(desk: Desk) -> None:
    """What a worker asks of the store during a rollout."""
    assert rollout_records(desk.settings).read("shop")
    with closing(open_rollout_store(desk.settings)) as store:
        tally = Tally(store, desk.settings.lease_prefix, "shop")
        tally.add(Side.SOURCE, uuid4().hex, 1, {"sent": 1}, WorkerState("celery@a", "source", "running", ("orders",)))
        synthetic = SyntheticTasks(store, desk.settings.lease_prefix, "shop")
        synthetic.begun(SYNTHETIC.id)
        assert not synthetic.is_stopped()
        synthetic.ended(SYNTHETIC.id)
        revoked = RevokedIds(store, desk.settings.lease_prefix, "shop")
        revoked.add([uuid4().hex])
        assert revoked.new()


@pytest.mark.parametrize("part", [*PARTS, "deliveries", "rollout"])
def test_the_lines_of_the_page_are_the_rights(part: str) -> None:
    alone = {"deliveries": DELIVERIES, "rollout": ROLLOUT}
    rights = alone[part] if part in alone else PARTS[part][0]
    assert f"ACL SETUSER {part} on >PASSWORD {rights.acl()}\n" in PAGE


# RabbitMQ


@pytest.fixture
def realm(rabbitmq: Server) -> Realm:
    return Realm(rabbitmq)


@contextmanager
def worker(settings: WorkerSettings, directory: Path) -> Iterator[ReapedProcess]:
    """A worker as Celery starts it: with events, and with the other workers' company."""
    command = [sys.executable, "-m", "celery", "-A", "support.dead_app", "worker", "-n", "w@rights", "-c", "1", "-E"]
    paths = {"PYTHONPATH": os.pathsep.join([APPS, *sys.path]), "TMPDIR": str(directory)}
    environment = child_environment(settings) | paths
    with ReapedProcess(command, log=directory / "log", environment=environment) as process:
        yield process


def client(settings: WorkerSettings) -> Any:
    app = Celery("client", set_as_current=False)
    configure(app, settings, Role.CLIENT)
    return app


def test_each_part_works_with_the_permissions_of_the_page(realm: Realm, redis: Server, tmp_path: Path) -> None:
    """Pings, events, delays and dead letters of a worker; a producer, a sidecar and the doctor beside it."""
    settings = ExplicitSettings(
        app="support.dead_app",
        broker_url=realm.of_page("worker"),
        result_backend=redis.results_url,
        queue_names=("orders",),
        status_dir=tmp_path / "status",
        management_url=realm.server.management_url,
    )
    admin = client(settings.replace(broker_url=realm.url))
    producer = client(settings.replace(broker_url=realm.of_page("producer")))
    asking = settings.replace(broker_url=realm.of_page("sidecar", "management"))
    link = Link("", "", "celery", {}, server=f"127.0.0.1:{realm.server.port}")
    with worker(settings, tmp_path) as process, closing(PingClient(asking, link, 2)) as sidecar:
        wait_until(lambda: PingOutcome.ANSWERED is sidecar.ping("w@rights").outcome, within_s=40, what="it answers")
        wait_until(lambda: admin.control.ping(timeout=2), within_s=40, what="it answers Celery's own ping")
        now, later = tmp_path / "now", tmp_path / "later"
        with _heard(admin, "task-succeeded") as heard:
            producer.send_task("dead.ok", [str(now)])
            wait_until(now.exists, within_s=20, what="a task runs")
            assert heard.wait(20)
        producer.send_task("dead.ok", [str(later)], countdown=1)
        producer.send_task("dead.fail")
        wait_until(later.exists, within_s=20, what="a delayed task runs")
        wait_until(lambda: realm.messages("orders.dead") == 1, within_s=30, what="there is a dead letter")
        assert sidecar.count_waiting(["orders"]) == 0
        with closing(open_broker(asking.read_url, management_url=realm.server.management_url)) as counting:
            # RabbitMQ counts what is delayed every few seconds
            wait_until(lambda: counting.depth("orders").is_drained, within_s=30, what="nothing is left", poll_s=0.5)
        assert "refused" not in process.log_tail(500)
    api = realm.server.management_url
    facts = inspect(endpoints(realm.of_page("doctor", "administrator")), management_url=api)
    assert not [one.name for one in fields(facts) if isinstance(getattr(facts, one.name), Unknown)]
    # what the worker was seen to do with its permissions is what the doctor's rule finds enough
    granted = inspect(endpoints(realm.of_page("worker", "administrator")), management_url=api)
    judged = replace(read_app(client(settings), "shop", DoctorConfig(tmp_path)), live=granted)
    assert [finding.message for finding in own_rules()["RPT803"].check(judged)] == []
    admin.close()
    producer.close()


@contextmanager
def _heard(app: Any, kind: str) -> Iterator[Event]:
    """Set once a worker has sent an event of this kind."""
    heard, over = Event(), Event()

    def listen() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={kind: lambda _: heard.set()})
            with receiver.consumer_context() as (own, _channel, _consumers):
                listening.set()
                while not over.is_set():
                    with suppress(TimeoutError):
                        own.drain_events(timeout=0.2)

    listening = Event()
    thread = Thread(target=listen)
    thread.start()
    try:
        assert listening.wait(20)
        yield heard
    finally:
        over.set()
        thread.join()


@pytest.mark.promise
@pytest.mark.parametrize("missing", ["write", "configure", "read"])
def test_a_producer_without_a_right_gets_an_error(realm: Realm, redis: Server, missing: str) -> None:
    """Nothing is lost in silence: the exchange is there, and its user may not use it."""
    rights = {"configure": ".*", "write": ".*", "read": ".*"} | {missing: "^$"}
    url = realm.user("poor", ("", rights["configure"], rights["write"], rights["read"]))
    settings = ExplicitSettings(broker_url=url, result_backend=redis.results_url, queue_names=("orders",))
    producer, admin = client(settings), client(settings.replace(broker_url=realm.url))
    with admin.connection_for_write() as connection:
        admin.amqp.queues["orders"](connection.default_channel).declare()
    with pytest.raises(AccessRefused, match="orders"):
        producer.send_task("dead.ok")
    assert realm.messages("orders") == 0
    admin.close()
