"""A lease store that answers with an error: guard, jobs and leases on real replies of a real server."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import redis as redis_client

from repot.config import ExplicitSettings
from repot.errors import RecordUnreadable, StoreMisconfigured, StoreRefused, StoreUnreachable
from repot.idempotency import FAIL_OPEN, Guard, Policy, idempotent
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.guard import Lease
from repot.idempotency.lease_store import RedisLeaseStore
from repot.idempotency.records import RunOutcome, State
from repot.submission.job import Status
from repot.submission.job_store import JobAttempt, Submission, digest
from repot.submission.redis_job_store import RedisJobStore
from repot.testbed import redis_server
from repot.testbed.redis_errors import WORDS, answering
from repot.waiting import wait_until
from support.leases import lease_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.testbed import Server
    from support.shop import Shop

TENANT = digest("")

#: Words of `answering` that are a missing right.
REFUSED = ("NOPERM", "NOEVAL")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server("--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024") as found:
        yield found


@pytest.fixture
def settings(server: Server) -> ExplicitSettings:
    return ExplicitSettings(lease_store=server.url, lease_prefix=f"test-{uuid4()}", lease=1.5)


@pytest.fixture
def patient(settings: ExplicitSettings) -> RedisLeaseStore:
    """A store that a busy machine has time to answer: it waits for a third of the lease at most."""
    return RedisLeaseStore(settings.replace(lease=30))


@pytest.fixture
def guard(settings: ExplicitSettings) -> Guard:
    return Guard(RedisLeaseStore(settings), settings)


def submission() -> Submission:
    return Submission(str(uuid4()), TENANT, digest("scope"), "scope", "shop.render", "p", digest(uuid4().hex), 1.0, 30)


def expected(word: str) -> type[StoreUnreachable]:
    return StoreRefused if word in REFUSED else StoreUnreachable


@pytest.mark.promise
@pytest.mark.parametrize("word", WORDS)
def test_a_store_that_answers_so_is_away(server: Server, guard: Guard, settings: ExplicitSettings, word: str) -> None:
    """No lease, job or scope changes; FAIL_OPEN runs; a finished run does not fail, and is recorded later."""
    jobs, effects = RedisJobStore(settings), list[str]()
    lease = guard.acquire(Fingerprint("a" * 64), Policy(), task="t", task_id="before")
    assert isinstance(lease, Lease)
    careless = idempotent(guard, Policy(on_store_down=FAIL_OPEN), name="careless")(effects.append)
    first = submission()
    run = JobAttempt(first.id, TENANT, first.scope, uuid4().hex)
    jobs.submit(first)
    jobs.start(run, "shop.render", 1.5)
    with answering(server, word):
        asked: list[Callable[[], object]] = [
            lambda: guard.acquire(Fingerprint("b" * 64), Policy(), task="t", task_id="1"),
            lambda: lease.store.renew(lease.key, lease.request),
            lambda: jobs.submit(submission()),
            lambda: jobs.renew(run, 1.5),
            lambda: jobs.cancel(TENANT, first.id),
            lambda: jobs.finish(run, Status.SUCCEEDED),
        ]
        # a store without room lets a job that holds its scope go on and end: it needs no more room for that
        for question in asked[:3] if word == "OOM" else asked:
            with pytest.raises(expected(word), match=r"did not answer|refuses access") as caught:
                question()
            assert (word in REFUSED) == isinstance(caught.value, StoreRefused)
        careless("order")
        assert effects == ["order"]
        guard.finish(lease, guard.ending(Policy(), RunOutcome.DONE, result='"first"'))
    wait_until(lambda: _state(guard, "a" * 64) is State.DONE, within_s=20, what="the outcome is noted")
    # what was asked for and not answered took no key and no scope
    free = guard.acquire(Fingerprint("b" * 64), Policy(), task="t", task_id="2")
    assert isinstance(free, Lease)
    guard.abandon(free)
    assert jobs.renew(run, 1.5) == "running"
    assert jobs.finish(run, Status.SUCCEEDED) == "succeeded"


def _state(guard: Guard, key: str) -> State | None:
    found = guard.store.inspect(key)
    return found.state if found else None


def test_a_store_that_loads_its_data_is_away(
    server: Server, settings: ExplicitSettings, patient: RedisLeaseStore
) -> None:
    client: Any = redis_client.Redis.from_url(server.url)
    for number in range(400):
        client.set(f"{settings.lease_prefix}:{number}", "x" * 100)
    client.config_set("key-load-delay", 5000)
    with _in_thread(lambda: client.execute_command("DEBUG", "RELOAD")):
        with pytest.raises(StoreUnreachable, match="is loading"):
            wait_until(lambda: not _acquires(patient), within_s=30, what="it says so")
        client.config_set("key-load-delay", 0)
    assert _acquires(patient)


def test_a_store_that_forgets_its_scripts_is_asked_again(server: Server, patient: RedisLeaseStore) -> None:
    """SCRIPT FLUSH, a restart or a failover between the upload of a script and its call."""
    over = Event()
    client: Any = redis_client.Redis.from_url(server.url)

    def forget() -> None:
        while not over.is_set():
            client.script_flush()

    answers = 0
    with _in_thread(forget, over):
        for _ in range(300):
            try:
                answers += _acquires(patient)
            except StoreUnreachable as error:
                assert "NoScript" in error.message  # noqa: PT017 - either of the two
    assert answers


def test_a_cluster_without_a_node_for_a_slot_is_away(tmp_path: Any) -> None:
    with redis_server("--cluster-enabled", "yes", "--cluster-config-file", str(tmp_path / "nodes")) as node:
        client: Any = redis_client.Redis.from_url(node.url)
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        settings = ExplicitSettings(lease_store=node.url.replace("redis://", "redis+cluster://").removesuffix("/0"))
        store = RedisLeaseStore(settings)
        wait_until(lambda: _answered(lambda: _acquires(store)), within_s=20, what="the cluster is formed")
        client.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16383)
        wait_until(lambda: "state:fail" in str(client.execute_command("CLUSTER", "INFO")), within_s=20, what="it fails")
        for asked in (store, RedisLeaseStore(settings)):
            with pytest.raises(StoreUnreachable):
                _acquires(asked)
        # named as if it were no cluster
        with pytest.raises(StoreUnreachable, match="ClusterDown"):
            _acquires(RedisLeaseStore(ExplicitSettings(lease_store=node.url)))


def _answered(question: Callable[[], object]) -> bool:
    try:
        question()
    except StoreUnreachable:
        return False
    return True


@pytest.mark.parametrize(
    ("address", "rule", "words"),
    [("/99", "+ping", "DB index is out of range"), ("/0", "", "unknown command|Unknown Redis command")],
    ids=["no such database", "no such command"],
)
def test_a_store_that_cannot_serve_is_one_clear_error(address: str, rule: str, words: str) -> None:
    """Not away: no retry helps, and a task that comes back for ever would hide it."""
    options = [] if rule else ["--rename-command", "HSET", "", "--rename-command", "EVALSHA", ""]
    with redis_server(*options) as server:
        settings = ExplicitSettings(lease_store=server.url.replace("/0", address))
        for ask in (lambda: _acquires(RedisLeaseStore(settings)), lambda: RedisJobStore(settings).submit(submission())):
            with pytest.raises(StoreMisconfigured, match=words) as caught:
                ask()
            assert "WORKER_LEASE_STORE" in caught.value.hint
            assert caught.value.exit_code == 2


def test_a_value_of_another_type_is_named_and_is_not_away(settings: ExplicitSettings) -> None:
    store = RedisLeaseStore(settings)
    store.client.set(store.name_of("c" * 64), "no hash")
    with pytest.raises(RecordUnreadable, match="a value of another type under this key"):
        store.acquire(Fingerprint("c" * 64), lease_request())


@pytest.mark.parametrize("word", ["MISCONF", "NOPERM"])
def test_a_worker_whose_store_answers_so_waits_and_loses_nothing(
    server: Server, redis: Server, opened: Callable[..., Shop], word: str
) -> None:
    """A task that begins waits, one that may runs unguarded, and one that ends has succeeded."""
    shop = opened(redis, redis, leases=server, visibility_timeout=3600)
    hold = shop.file()
    shop.start(3)
    running = shop.send("charge", "running", 1, "", str(hold))
    shop.await_effects("running")
    with answering(server, word):
        waiting, careless = shop.send("charge", "waiting"), shop.send("careless", "careless")
        assert shop.await_ended(waiting.id)[0] == "IGNORED"
        assert shop.get(careless) == "careless"
        hold.touch()
        assert shop.get(running)["order"] == "running"
        assert shop.effects("waiting") == []
    assert shop.get(waiting)["order"] == "waiting"
    again = shop.send("charge", "running", 1, "", str(hold))
    assert running.id == shop.get(again)["by"]
    assert [len(shop.effects(order)) for order in ("running", "waiting", "careless")] == [1, 1, 1]


def _acquires(store: RedisLeaseStore) -> bool:
    store.acquire(Fingerprint(uuid4().hex), lease_request())
    return True


@contextmanager
def _in_thread(act: Callable[[], object], over: Event | None = None) -> Iterator[None]:
    thread = Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        if over:
            over.set()
        thread.join()
