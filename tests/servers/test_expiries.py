"""Tasks that expire in a queue: their callers hear of it while workers are busy, and no task that runs is called so."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic, time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery, signals, states
from celery.exceptions import TaskRevokedError

from repot.chaos.instruments.journal import DELIVERED, EFFECT, STARTED
from repot.config import ExplicitSettings, Role
from repot.errors import DeadlineExceeded
from repot.testbed import redis_server
from repot.waiting import wait_until
from repot.worker.configure import configure
from repot.worker.expiry_register import GRACE_S, expiry_register_of
from repot.worker.expiry_watch import CHECK_EVERY_S, ExpiryWatch
from support.servers import DISTINCT
from support.signals import heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.result import AsyncResult

    from repot.testbed import Server
    from support.shop import Shop

SHOP = {"app": "support.expiring_app"}

#: A caller hears so long after the expiry at most, on a machine that is busy; the tasks that hold it last longer.
WITHIN_S = GRACE_S + CHECK_EVERY_S + 20


#: The expiries of tasks are registered there.
RESULTS_IN_REDIS = pytest.mark.parametrize("shop", DISTINCT[:1], ids="-".join, indirect=True)
RESULTS_IN_A_DATABASE = pytest.mark.parametrize("shop", DISTINCT[1:], ids="-".join, indirect=True)

#: As many as the shop's worker has.
PROCESSES = 4


@contextmanager
def busy(shop: Shop, processes: int = PROCESSES) -> Iterator[None]:
    """Every process of the worker is busy meanwhile."""
    file = shop.file()
    held = [shop.send("hold", str(file)) for _ in range(processes)]
    try:
        for task in held:
            shop.await_lines(EFFECT, task.id)
        yield
    finally:
        file.touch()


def revoked_after_s(task: AsyncResult[Any], expires_at: float) -> float:
    """How long after its expiry a caller hears; it must hear."""
    with pytest.raises(TaskRevokedError):
        task.get(timeout=30, interval=0.05)
    assert str(task.state) == states.REVOKED
    return time() - expires_at


@pytest.mark.promise
@RESULTS_IN_REDIS
def test_callers_hear_in_time_while_the_worker_is_busy(shop: Shop) -> None:
    """In a queue that is backed up with tasks that last, and others that expire later; those that last run."""
    with busy(shop):
        lasting = [shop.send("hold") for _ in range(3)]
        begun = time()
        expiries = [4.0, 2.0, 1.0, 3.0]
        expiring = [shop.send("hold", expires=seconds) for seconds in expiries]
        at = shop.send("hold", expires=datetime.now(UTC) + timedelta(seconds=1))
        for seconds, task in sorted(zip([*expiries, 1.0], [*expiring, at], strict=True), key=lambda one: one[0]):
            late_s = revoked_after_s(task, begun + seconds)
            assert 0 < late_s < WITHIN_S
        assert [task.state for task in lasting] == [states.PENDING] * 3
    assert [shop.get(task) for task in lasting] == ["ran"] * 3
    # the worker has taken every message by now, and has begun with none that was revoked
    begun_with = {line.task for line in shop.lines(STARTED)}
    assert not begun_with & {task.id for task in (*expiring, at)}
    assert [str(task.state) for task in (*expiring, at)] == [states.REVOKED] * 5


@pytest.mark.promise
@RESULTS_IN_REDIS
def test_a_caller_hears_in_time_from_an_empty_queue(shop: Shop) -> None:
    """Nothing else waits, and the worker is busy."""
    with busy(shop):
        begun = time()
        assert 0 < revoked_after_s(shop.send("hold", expires=1), begun + 1) < WITHIN_S


@RESULTS_IN_A_DATABASE
def test_with_results_in_a_database_a_caller_hears_when_a_worker_is_free(shop: Shop) -> None:
    with busy(shop):
        task = shop.send("hold", expires=1)
        last = shop.send("hold", expires=60)
        # a process that is free takes the first one, which has expired, and then the last
        expired = time() + 1
        wait_until(lambda: time() > expired, within_s=30, what="it has expired")
    with pytest.raises(TaskRevokedError):
        task.get(timeout=30, interval=0.05)
    assert shop.get(last) == "ran"
    assert not shop.lines(STARTED, task.id)


def test_a_task_that_runs_is_not_called_revoked(shop: Shop) -> None:
    """It began before it expired, and takes longer than that; a retry in time runs, and has its result."""
    file, lasts_s = shop.file(), 4
    task = shop.send("hold", str(file), expires=lasts_s)
    shop.await_lines(EFFECT, task.id)
    again = shop.send("twice", expires=60)
    overdue = monotonic() + lasts_s + GRACE_S + 2 * CHECK_EVERY_S
    seen = set()

    def overdue_now() -> bool:
        seen.add(str(task.state))
        return monotonic() > overdue

    wait_until(overdue_now, within_s=30, what="it would have been REVOKED")
    file.touch()
    assert shop.get(task) == "ran"
    assert states.REVOKED not in seen
    assert shop.get(again) == "ran twice"


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_what_began_in_time_is_not_called_revoked_when_it_comes_again(
    broker: str, opened: Callable[..., Shop], redis: Server, request: pytest.FixtureRequest
) -> None:
    """Its worker is killed in the run, and the message comes to another after the expiry; what never began is due."""
    shop = opened(request.getfixturevalue(broker), redis, prefetch_multiplier=2, visibility_timeout=2)
    file = shop.file()
    first = shop.start(1)
    begun = shop.send("hold", str(file), expires=4)
    shop.await_lines(EFFECT, begun.id)
    held = shop.send("hold", str(file), expires=2)
    expired = time() + 4
    shop.await_lines(DELIVERED, held.id)
    first.stop()
    wait_until(lambda: time() > expired, within_s=30, what="both have expired")
    shop.start(1)
    shop.await_lines(EFFECT, begun.id, 2)
    file.touch()
    assert shop.get(begun) == "ran"
    with pytest.raises(TaskRevokedError):
        held.get(timeout=15, interval=0.05)
    assert not shop.lines(EFFECT, held.id)
    # the message is gone, and nothing changes that afterwards
    assert str(begun.state) == states.SUCCESS


def test_who_waits_in_a_worker_hears_in_time(opened: Callable[..., Shop], rabbitmq: Server, redis: Server) -> None:
    """A worker that prefetches holds tasks for which its pool has no place."""
    shop = opened(rabbitmq, redis, prefetch_multiplier=4)
    shop.start(1)
    with busy(shop, 1):
        begun = time()
        task = shop.send("hold", expires=1)
        assert 0 < revoked_after_s(task, begun + 1) < WITHIN_S
    assert not shop.lines(EFFECT, task.id)


def test_the_broker_drops_nothing_that_expires(shop: Shop) -> None:
    """RabbitMQ gets no time to live but one that was asked for by itself."""
    sent: list[dict[str, Any]] = []

    def note(properties: dict[str, Any], **_: Any) -> None:
        sent.append(dict(properties))

    with heard(signals.before_task_publish, note):
        shop.send("hold", expires=60)
        shop.send("hold", expires=60, ignore_result=True)
        shop.send("hold", expiration=60)
    assert [one.get("expiration") for one in sent] == [None, None, 60]


@pytest.mark.promise
@RESULTS_IN_REDIS
def test_a_worker_whose_clock_is_behind_does_not_run_what_was_revoked(shop: Shop) -> None:
    """Another has called it REVOKED; to this worker its expiry is still to come."""
    register = expiry_register_of(shop.client)
    assert register is not None
    with busy(shop):
        task = shop.send("hold", expires=60)
        # as seen by a clock that is ahead
        register.add(task.id, time() - GRACE_S - 1)
        list(register.revoke_due())
        wait_until(lambda: str(task.state) == states.REVOKED, within_s=30, what="it is called REVOKED")
        after = shop.send("hold")
    assert shop.get(after) == "ran"
    assert str(task.state) == states.REVOKED
    assert not shop.lines(EFFECT, task.id)


@pytest.mark.promise
@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's
def test_the_register_takes_each_task_once(opened: Callable[..., Shop]) -> None:
    """Who is first has it: the worker that takes a task, or the one that calls it REVOKED."""
    # without a worker, which would look as well
    with redis_server() as server:
        _take_each_once(opened(server, server))


def _take_each_once(shop: Shop) -> None:
    register = expiry_register_of(shop.client)
    assert register is not None
    past, names = time() - GRACE_S - 1, [str(uuid4()) for _ in range(4)]
    taken, due, retried, running = names
    for name in names:
        register.add(name, past)
    assert register.claim(taken)
    shop.client.backend.store_result(retried, None, states.RETRY)
    shop.client.backend.store_result(running, None, states.STARTED)
    assert {due, retried} == set(register.revoke_due())
    found = {name: shop.client.AsyncResult(name).state for name in names}
    assert {taken: "PENDING", due: "REVOKED", retried: "REVOKED", running: "STARTED"} == found
    assert not register.claim(due)
    assert not list(register.revoke_due())
    # sent again, under the same id
    register.add(due, time() + 60)
    assert register.claim(due)
    # a run that ends leaves its result to say so
    register.begin(taken)
    assert [register.has_begun(one) for one in (taken, due, running)] == [True, False, True]
    shop.client.backend.store_result(taken, "ran", states.SUCCESS)
    assert not register.has_begun(taken)
    register.begin(due)
    register.end(due)
    assert not register.has_begun(due)
    # another try is another task
    register.begin(due)
    register.add(due, time() + 60)
    assert not register.has_begun(due)


@pytest.mark.parametrize("expires_in_s", [60, -1])
def test_a_task_waits_while_the_register_does_not_answer(expires_in_s: float) -> None:
    """A worker that cannot say that it has begun does not begin; what does not expire is not held up.

    Nor does Celery's handler get one that has expired, which it would have to store.
    """
    with redis_server() as server:
        app = Celery("test", set_as_current=False)
        timeouts: Any = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
        configure(
            app,
            ExplicitSettings(broker_url=server.url, result_backend=server.results_url, **timeouts),
            Role.CLIENT,
        )
        handled: list[object] = []
        watch = ExpiryWatch(SimpleNamespace(app=app, hub=None, task_consumer=object()))
        receive = watch.handler(lambda: handled.append)
        watch.start()
        later = datetime.now(UTC) + timedelta(seconds=expires_in_s)
        expires = SimpleNamespace(headers={"id": "one", "expires": later.isoformat()}, delivery_info={})
        lasts = SimpleNamespace(headers={"id": "another", "expires": None})
        with server.process.frozen():
            receive(expires)
            receive(lasts)
            with pytest.raises(DeadlineExceeded):
                wait_until(lambda: expires in handled, within_s=2, what="it begins all the same")
        wait_until(lambda: expires in handled, within_s=20, what="it begins")
        watch.close()
    assert [lasts, expires] == handled


def test_what_could_not_be_called_revoked_is_tried_again() -> None:
    """The result backend goes away in between: the worker goes on."""
    with redis_server() as server:
        app = Celery("test", set_as_current=False)
        settings = ExplicitSettings(broker_url=server.url, result_backend=server.results_url)
        configure(app, settings, Role.CLIENT)
        handled: list[object] = []

        def handle(message: object) -> None:
            handled.append(message)
            if len(handled) == 1:
                raise ConnectionError

        later: list[tuple[Any, ...]] = []
        timer = SimpleNamespace(call_after=lambda _, function, given: later.append((function, given)))
        watch = ExpiryWatch(SimpleNamespace(app=app, hub=None, task_consumer=object(), timer=timer))
        receive = watch.handler(lambda: handle)
        watch.start()
        past = datetime.now(UTC) - timedelta(seconds=60)
        message = SimpleNamespace(headers={"id": "one", "expires": past.isoformat()}, delivery_info={})
        receive(message)
        ((function, given),) = wait_until(lambda: later, within_s=20, what="it is put off")
        function(*given)
        wait_until(lambda: len(handled) == 2, within_s=20, what="it is handled again")
        watch.close()
    assert [message, message] == handled
