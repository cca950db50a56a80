"""The functions and bases of `repot.upstream`, each called by the library as it is."""

from __future__ import annotations

import logging
from functools import partial, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from amqp import spec
from billiard.exceptions import TimeLimitExceeded
from celery import Celery
from celery.app.trace import LOG_IGNORED
from celery.exceptions import WorkerLostError
from celery.local import Proxy
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu import Connection, Producer, Queue
from kombu.asynchronous.timer import Timer

from repot.upstream import worker_state
from repot.upstream.app_amqp import HookedAMQP, HookedQueues, HookedRouter, use_amqp
from repot.upstream.consumer_hooks import (
    Dropped,
    InterceptedEnd,
    before_drop,
    on_close,
    on_lost_connection,
    wrap_task_handler,
)
from repot.upstream.current_app import resolve
from repot.upstream.failure_signal import once_a_failure
from repot.upstream.producers import choose_producer
from repot.upstream.raw_methods import nack_all
from repot.upstream.sending import current_root, options_with_those_of_the_task, send_by, stop_sending_by
from repot.upstream.sibling_app import own_pools, sibling_of, with_own_queues
from repot.upstream.skipped_tasks import on_skipped
from repot.upstream.soft_shutdown import before_soft_shutdown
from repot.upstream.task_request import HookedRequest, use_request
from repot.upstream.task_run import before_success_stored, wrap_run
from repot.upstream.tasks import last_of_chain, original_run
from repot.upstream.unconfirmed import send_events_unconfirmed, send_replies_unconfirmed
from repot.upstream.wrapped_errors import as_exception_info
from repot.upstream.wrapping import wrap_once
from support.releases import has, needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def app() -> Iterator[Any]:
    found: Any = Celery(f"app-{uuid4()}", set_as_current=False, broker="memory://", backend="cache+memory://")
    yield found
    found.close()


@pytest.fixture
def task(app: Any) -> Any:
    def plain() -> None:
        """Do nothing."""

    app.task(name="plain", shared=False, acks_late=True, max_retries=3)(plain)
    app.finalize()
    return app.tasks["plain"]


@pytest.fixture
def consumer(app: Any) -> Any:
    """A worker's consumer before its first connection."""
    worker = app.WorkController(app=app, pool_cls="solo")
    worker.pool = SimpleNamespace(is_green=False, apply_async=None, flush=None)
    found: Any = Consumer(lambda _: None, app=app, controller=worker, pool=worker.pool, timer=Timer())
    found.event_dispatcher = None
    return found


def _message(app: Any, body: str = "[[], {}, {}]", **headers: Any) -> Any:
    with app.connection_for_write() as connection:
        queue = Queue(f"q-{uuid4()}")(connection.default_channel)
        queue.declare()
        kind: Any = {"content_type": "application/json", "content_encoding": "utf-8"}
        Producer(connection.default_channel).publish(body, routing_key=queue.name, headers=headers, **kind)
        return queue.get()


def _of(task: Any) -> dict[str, str]:
    return {"task": task.name, "id": str(uuid4())}


def test_a_proxy_is_resolved(app: Any) -> None:
    proxy: Any = Proxy(lambda: app)
    assert resolve(proxy) is app
    assert resolve(app) is app


def test_the_run_behind_autoretry_is_found(app: Any) -> None:
    def again() -> None:
        """Do nothing."""

    app.task(name="again", shared=False, autoretry_for=(ValueError,))(again)
    app.finalize()
    assert app.tasks["again"].run.__wrapped__ == original_run(app.tasks["again"])


def test_the_last_task_of_a_chain(task: Any) -> None:
    assert last_of_chain(task.s() | task.s().set(priority=2)).options["priority"] == 2
    assert last_of_chain(task.s()).task == "plain"


class _Adjusted(HookedQueues):
    def adjusted(self, queue: Queue) -> Queue:
        queue.queue_arguments = {"x-adjusted": True}
        return queue


class _Routed(HookedAMQP):
    sent: list[str]

    def make_queues(self, *args: Any, **options: Any) -> HookedQueues:
        return _Adjusted(*args, **options)

    def wrap_sender(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def noted(producer: Any, name: str, *args: Any, **options: Any) -> Any:
            self.app.noted.append(name)  # type: ignore[attr-defined]
            return send(producer, name, *args, **options)

        return noted


def test_queues_router_and_sender_are_hooked(app: Any, task: Any) -> None:
    app.noted = []
    use_amqp(app, _Routed)
    task.delay()
    assert app.noted == ["plain"]
    assert all(queue.queue_arguments == {"x-adjusted": True} for queue in app.amqp.queues.values())
    assert isinstance(app.amqp.router, HookedRouter)


def test_a_producer_is_chosen(app: Any, task: Any) -> None:
    chosen: list[str] = []

    def choose() -> None:
        chosen.append("asked")

    for _ in range(2):
        choose_producer(app, choose)
    task.delay()
    assert chosen == ["asked"]


@needs("celery", "5.5", "no soft shutdown")
def test_the_soft_shutdown_is_announced(app: Any) -> None:
    worker, announced = app.WorkController(app=app, pool_cls="solo"), []
    before_soft_shutdown(worker, lambda: announced.append("soft"))
    worker.wait_for_soft_shutdown()
    assert announced == ["soft"]


def test_a_skipped_task_is_seen() -> None:
    seen: list[str] = []
    forget = on_skipped(seen.append)
    said = {"id": "1", "name": "plain", "description": "Task already completed successfully."}
    logger = logging.getLogger("celery.app.trace")
    told = [said, said | {"description": "ignored"}]
    records = [logger.makeRecord(logger.name, logging.INFO, "", 0, LOG_IGNORED, (one,), None) for one in told]
    for record in records:
        logger.handle(record)
    forget()
    logger.handle(records[0])
    assert seen == ["plain"]


def test_a_failure_is_told_once(task: Any) -> None:
    failed: list[str] = []
    receive = once_a_failure(lambda found, _: failed.append(found.name))
    # the releases before 5.7 send one
    killed = [TimeLimitExceeded(1)] * (2 if has("celery", "5.7") else 1)
    for error in (*killed, ValueError(), *killed):
        receive(sender=task, task_id="1", exception=error)
    assert failed == ["plain", "plain", "plain"]


def test_each_way_to_drop_a_message_is_noted(app: Any, task: Any, consumer: Any) -> None:
    dropped: list[Dropped] = []
    before_drop(consumer, lambda message, why, error: dropped.append(why))  # noqa: ARG005
    consumer.update_strategies()
    handle = consumer.create_task_handler()
    handle(_message(app, "no json {"))
    handle(_message(app, "{}"))
    handle(_message(app, task="unknown", id="1"))
    handle(_message(app, **_of(task), eta="never"))
    assert list(Dropped) == dropped


@pytest.mark.parametrize("acknowledges", [True, False])
def test_the_end_of_a_message_is_intercepted_once(app: Any, consumer: Any, *, acknowledges: bool) -> None:
    message = _message(app)
    asked: list[str] = []
    end = InterceptedEnd(consumer, message, lambda: asked.append("end"))
    message.ack()
    message.reject_log_error(None, ())
    assert not message.acknowledged
    end.acknowledge() if acknowledges else end.reject(requeue=True)
    assert asked == ["end", "end"]
    assert ("ACK" if acknowledges else "REJECTED") == message._state


def test_the_handler_of_messages_is_wrapped(consumer: Any) -> None:
    handled: list[str] = []
    wrap_task_handler(consumer, lambda create: handled.append)  # noqa: ARG005
    consumer.create_task_handler()("a message")
    assert handled == ["a message"]


def test_a_lost_connection_and_a_shutdown_are_told_apart(consumer: Any) -> None:
    told: list[str] = []
    on_close(consumer, lambda: told.append("lost"), lambda: told.append("shutdown"))
    # by two steps of a worker
    on_close(consumer, lambda: told.append("also lost"), lambda: told.append("also shutdown"))
    consumer.on_close()
    consumer.blueprint.close(consumer)
    assert told == ["also lost", "lost", "also shutdown", "shutdown"]


def test_the_error_of_a_lost_connection_is_told(consumer: Any) -> None:
    told: list[BaseException] = []
    consumer.on_connection_error_after_connected = lambda _: None
    on_lost_connection(consumer, told.append)
    error = OSError()
    consumer.on_connection_error_after_connected(error)
    assert [error] == told


class _Noted(HookedRequest):
    noted: list[str]

    def on_stored_success(self) -> None:
        self.noted.append("success")

    def on_lost(self, retry: Callable[[], bool]) -> bool:
        self.noted.append("lost")
        return retry()


def _lost(app: Any, task: Any) -> tuple[Any, list[str]]:
    use_request(app, _Noted, noted=[])
    request = task.Request(_message(app, **_of(task)), app=app, task=task)
    return request, request.noted


def _failure(request: Any) -> None:
    request.on_failure(as_exception_info(WorkerLostError()))


def test_a_stored_success_of_a_lost_process_is_noted(app: Any, task: Any) -> None:
    request, noted = _lost(app, task)
    app.backend.mark_as_done(request.id, 42)
    _failure(request)
    assert noted == ["success"]


def test_the_retry_of_a_lost_process_is_noted(app: Any, task: Any) -> None:
    task.retry_on_worker_lost = True
    request, noted = _lost(app, task)
    _failure(request)
    assert noted == ["lost"]
    assert app.backend.get_state(request.id) == "RETRY"


def test_a_request_says_how_often_it_was_retried_and_can_fail(app: Any, task: Any) -> None:
    request, _ = _lost(app, task)
    assert request.retries == 0
    assert not request.is_withdrawn
    request.fail(ValueError("refused"))
    assert app.backend.get_state(request.id) == "FAILURE"


def test_the_state_of_a_worker(app: Any, task: Any) -> None:
    request = task.AsyncResult(str(uuid4()))
    waiting = Request(_message(app, **_of(task) | {"id": request.id}, timelimit=[7, None]), app=app, task=task)
    worker: Any = SimpleNamespace(time_limit=3)
    worker_state._state.task_reserved(waiting)
    try:
        assert worker_state.is_waiting(request.id)
        assert waiting in worker_state.reserved_requests()
        assert [waiting] == [one for one in worker_state.unacknowledged_requests() if one.id == request.id]
        assert worker_state.time_limit_of(waiting, worker) == 7
    finally:
        worker_state._state.task_ready(waiting)
    assert not worker_state.is_waiting(request.id)
    assert worker_state.pool_kind(worker) == ""
    assert worker_state.pool_size(worker) == 0


def test_a_run_and_a_stored_success_are_wrapped(app: Any, task: Any) -> None:
    noted: list[str] = []
    wrap_run(task, lambda body: partial(noted.append, body.__name__))
    task.run()
    for _ in range(2):
        before_success_stored(app.backend, lambda task_id, request: noted.append(task_id))  # noqa: ARG005
    app.backend.mark_as_done("1", 42, SimpleNamespace(chord=None, ignore_result=False))
    assert noted == ["plain", "1"]


def test_all_messages_of_a_channel_are_given_back_at_once() -> None:
    sent: list[Any] = []
    nack_all(SimpleNamespace(send_method=lambda *arguments: sent.append(arguments)))
    assert [(spec.Basic.Nack, "Lbb", (0, True, True))] == sent


def test_events_are_sent_without_confirms(app: Any, consumer: Any) -> None:
    app.conf.broker_transport_options = {"confirm_publish": True}
    app.conf.broker_connection_retry_on_startup = True
    assert consumer.connection_for_write().transport_options == {"confirm_publish": True}
    send_events_unconfirmed(consumer)
    assert consumer.connection_for_write().transport_options == {"confirm_publish": False}


def test_replies_are_sent_without_confirms(app: Any) -> None:
    connection = Connection("memory://", transport_options={"confirm_publish": True})
    send_replies_unconfirmed(SimpleNamespace(connection=connection, app=app))
    replies = app.control.mailbox.producer_pool.connections.connection
    assert replies.transport_options == {"confirm_publish": False}
    assert replies.heartbeat == 0


def test_a_revoked_task_is_known_to_celery() -> None:
    task_id = str(uuid4())
    worker_state.revoke(task_id)
    assert task_id in worker_state._state.revoked


def test_every_way_of_sending_calls_the_hook(app: Any, task: Any) -> None:
    """Arguments without a name arrive by name, and what the class' method is by then sends."""
    seen: list[tuple[str, Any, dict[str, Any]]] = []

    def send(original: Callable[..., Any], name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        seen.append((name, args, options))
        return original(name, args, kwargs, **options)

    send_by(app, send)
    task.delay()
    task.apply_async(task_id="one")
    app.send_task(task.name, (), {}, 7, None, "two")
    app.signature(task.name).delay()
    app.Beat(app=app).Service(app).get_scheduler(lazy=True).send_task(task.name, task_id="three")
    assert [task.name] * 5 == [name for name, _, _ in seen]
    assert [options["task_id"] for _, _, options in seen if options.get("task_id")] == ["one", "two", "three"]
    assert seen[2][2]["countdown"] == 7
    stop_sending_by(app)
    assert "send_task" not in vars(app)
    task.delay()
    assert len(seen) == 5


def test_the_hook_calls_what_another_library_has_put_there(app: Any, task: Any) -> None:
    stock, theirs = app.send_task, list[str]()

    def send_task(name: str, *args: Any, **options: Any) -> Any:
        theirs.append(name)
        return stock(name, *args, **options)

    app.send_task = send_task
    send_by(app, lambda original, name, args, kwargs, options: original(name, args, kwargs, **options))
    send_by(app, lambda original, name, args, kwargs, options: original(name, args, kwargs, **options))
    task.delay()
    assert [task.name] == theirs
    stop_sending_by(app)
    assert send_task is app.send_task


def test_the_root_of_the_task_that_runs(app: Any) -> None:
    def look() -> str | None:
        return current_root(app)

    assert look() is None
    looking = app.task(name="look", shared=False)(look)
    looking.push_request(id="one", called_directly=False)
    from celery._state import _task_stack  # type: ignore[attr-defined]

    _task_stack.push(looking)
    try:
        assert look() == "one"
        looking.push_request(id="one", root_id="root", called_directly=False)
        assert look() == "root"
    finally:
        _task_stack.pop()
        looking.pop_request()


def test_the_options_of_a_task_s_class_count_below_those_of_the_call(app: Any) -> None:
    app.task(name="sorted", shared=False, serializer="yaml", compression="gzip")(_unused)
    app.finalize()
    found = options_with_those_of_the_task(app, "sorted", {"serializer": "json", "queue": "q"})
    # before 5.7 a task that is sent by its name has no options of its class
    of_the_class = {"compression": "gzip"} if has("celery", "5.7") else {}
    assert {"serializer": "json", "queue": "q", **of_the_class} == found
    assert options_with_those_of_the_task(app, "of another program", {"queue": "q"}) == {"queue": "q"}


def _unused() -> None:
    """Is never run."""


def test_a_sibling_shares_tasks_and_results_and_has_a_configuration_of_its_own(app: Any, task: Any) -> None:
    app.conf.task_routes = {"x": {"queue": "routed"}}
    app.conf.task_queues = [Queue("one"), Queue("routed")]
    # declared, and so changed
    assert app.amqp.queues["one"].exchange
    found: Any = sibling_of(app)
    found.conf.update(broker_url="memory://other", task_default_queue="two")
    with_own_queues(found)
    pool = own_pools(found)
    assert found.tasks is app.tasks
    assert (app, app.backend) == (task.app, found.backend)
    assert found.AsyncResult is app.AsyncResult
    assert (app.conf.broker_url, found.conf.broker_url) == ("memory://", "memory://other")
    assert app.conf.task_default_queue == "celery"
    assert found.conf.task_routes is app.conf.task_routes
    assert not {id(queue) for queue in app.conf.task_queues} & {id(queue) for queue in found.conf.task_queues}
    assert pool is found.pool is not app.pool
    assert found.producer_pool.connections is pool
    assert found.amqp is not app.amqp
    assert (found.connection_for_write().hostname, app.connection_for_write().hostname or "") == ("other", "")


def test_a_function_is_wrapped_once_whoever_else_wraps_it() -> None:
    """Instrumentation leaves the same `__wrapped__`, before repot and after it."""

    class Library:
        @staticmethod
        def answer() -> int:
            return 1

    def instrument() -> None:
        own = Library.answer

        @wraps(own)
        def answer() -> int:
            return own()

        Library.answer = answer  # type: ignore[method-assign] # as instrumentation does

    for _ in range(2):
        instrument()
        wrap_once(Library, "answer", lambda own: lambda: own() + 10)
    assert Library.answer() == 11
