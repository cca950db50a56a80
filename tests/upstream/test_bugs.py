"""Bugs of the libraries, each reproduced on the untouched library: the day one is fixed, its test says so.

Each test asserts what should happen. `docs/upstream.md` describes the bugs and the patches we propose.
"""

from __future__ import annotations

import os
import pickle
import struct
from contextlib import ExitStack, suppress
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import amqp
import pytest
import redis as redis_py
from celery import Celery, signals, states
from celery.app.trace import build_tracer
from celery.concurrency.asynpool import ResultHandler
from celery.worker import state
from celery.worker.consumer import Consumer as TaskConsumer
from celery.worker.request import Request
from kombu import Connection, Consumer, Producer, Queue
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer
from kombu.common import ignore_errors
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from repot.chaos.runner.proxies import Proxy
from repot.testbed import executables, redis_server
from repot.waiting import wait_until
from support.installed import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kombu import Message

    from repot.testbed import Server

Test = TypeVar("Test", bound="Callable[..., None]")

#: A port of this machine on which nothing listens.
NOWHERE = "127.0.0.1:1"


def bug(workaround: str, *raises: type[BaseException]) -> pytest.MarkDecorator:
    """Mark a reproduction; `raises` is what the bug raises, AssertionError if not given."""
    return pytest.mark.xfail(
        strict=True,
        raises=raises or AssertionError,
        reason=f"a bug of the library; once it is fixed, remove the workaround in {workaround}",
    )


def _app(**settings: Any) -> Celery:
    app = Celery(f"bug-{uuid4()}", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.update(**settings)
    return app


def _message(app: Celery, body: str, task: str, **headers: Any) -> Message:
    """A task's message as a worker gets it."""
    with app.connection_for_write() as connection:
        queue = Queue(f"q-{uuid4()}")(connection.default_channel)
        queue.declare()
        Producer(connection.default_channel).publish(
            body,
            routing_key=queue.name,
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": task, "id": str(uuid4()), "lang": "py", **headers},
        )
        found = queue.get()
        assert found is not None
        return found


@pytest.fixture
def retried() -> Iterator[tuple[Any, Any, str]]:
    """An application, a task that retries itself, and its id."""
    app = _app()

    @app.task(bind=True, max_retries=3, shared=False)
    def retries(self: Any) -> None:
        raise self.retry(countdown=0)

    app.finalize()
    yield app, retries, str(uuid4())
    app.close()


def _run(app: Celery, task: Any, task_id: str) -> None:
    request = {"id": task_id, "task": task.name, "retries": 0, "delivery_info": {}, "args": (), "kwargs": {}}
    build_tracer(task.name, task, app=app)(task_id, [], {}, request)


@bug("repot/upstream/retry_state.py")
def test_a_retry_that_fails_at_once_keeps_its_failure(retried: tuple[Any, Any, str]) -> None:
    """Celery sends the retry before it stores RETRY, and does not look whether the retry has ended meanwhile."""
    app, task, task_id = retried

    def other_worker(**_: Any) -> None:
        app.backend.mark_as_failure(task_id, ValueError("the last try"))

    signals.after_task_publish.connect(other_worker, weak=False, dispatch_uid=task_id)
    try:
        _run(app, task, task_id)
    finally:
        signals.after_task_publish.disconnect(dispatch_uid=task_id)
    assert app.backend.get_state(task_id) == states.FAILURE


@bug("repot/upstream/retry_state.py")
def test_a_retry_that_succeeds_between_reading_and_writing_keeps_its_success(retried: tuple[Any, Any, str]) -> None:
    """Celery reads the stored state, and writes RETRY later, in two steps."""
    app, task, task_id = retried
    read = app.backend._get_task_meta_for

    def read_and_wait(name: str) -> Any:
        found = read(name)
        app.backend._get_task_meta_for = read
        app.backend.mark_as_done(task_id, 42)
        return found

    app.backend._get_task_meta_for = read_and_wait
    _run(app, task, task_id)
    assert app.backend.get_state(task_id) == states.SUCCESS


def test_a_well_formed_body_is_handled() -> None:
    """The reproduction below differs by its body alone."""
    assert len(_handled("[[], {}, {}]")) == 1


@bug("repot/worker/message_validation.py", TypeError, ValueError, AttributeError)
@pytest.mark.parametrize("body", ["[]", "{}", '"text"', "17"])
def test_a_malformed_body_ends_no_worker(body: str) -> None:
    """Celery's handler raises, which ends the worker; the broker delivers the message to the next one."""
    _handled(body)


def _handled(body: str) -> list[Any]:
    """Give a message to the handler of a worker's consumer; return the requests that it passes to the pool."""
    app = _app()

    @app.task(name="plain", shared=False)
    def plain() -> None: ...

    taken: list[Any] = []
    worker: Any = app.WorkController(app=app, pool_cls="solo")  # type: ignore[attr-defined]
    worker.pool = SimpleNamespace(is_green=False, apply_async=None)
    consumer: Any = TaskConsumer(taken.append, app=app, controller=worker, pool=worker.pool, timer=Timer())
    consumer.event_dispatcher = None
    consumer.update_strategies()
    try:
        consumer.create_task_handler()(_message(app, body, "plain"))
    finally:
        app.close()
    return taken


@bug("repot/upstream/failure_signal.py")
def test_a_task_over_its_hard_time_limit_fails_once() -> None:
    """Billiard's pool reports the limit, and the failure that it made of it: both by the request's callbacks."""
    app = _app()

    @app.task(name="slow", shared=False)
    def slow() -> None: ...

    request = Request(_message(app, "[[], {}, {}]", "slow"), app=app, task=slow)
    failures: list[str] = []

    def failed(task_id: str, **_: Any) -> None:
        failures.append(task_id)

    signals.task_failure.connect(failed, weak=False, dispatch_uid=request.id)
    try:
        _pool_job(request)
    finally:
        signals.task_failure.disconnect(dispatch_uid=request.id)
        app.close()
    assert [request.id] == failures


def _pool_job(request: Any) -> None:
    """Let billiard end a job at its hard limit, with the callbacks that Celery gives it."""
    from billiard.pool import ApplyResult, TimeoutHandler

    process: Any = SimpleNamespace(pid=os.getpid(), _is_alive=lambda: False, _popen=None, terminate=lambda: None)
    job: Any = ApplyResult(
        {},
        request.on_success,
        timeout_callback=request.on_timeout,
        error_callback=request.on_failure,
        timeout=1,
    )
    job._accepted, job._worker_pid = True, process.pid
    handler: Any = TimeoutHandler([process], {}, None, 1)
    handler._process_by_pid = lambda _: (process, 0)
    handler._trywaitkill = lambda _: None
    handler.on_hard_timeout(job)


@bug("repot/upstream/cold_shutdown.py")
def test_a_cold_shutdown_cancels_a_task_that_has_just_begun() -> None:
    """The process says that it has taken the task; the worker reads that while it waits for its pool."""
    app = _app()

    @app.task(name="long", shared=False)
    def long() -> None: ...

    killed: list[int] = []
    jobs: dict[int, Any] = {}

    def apply_async(*_: Any, accept_callback: Any, callback: Any, **__: Any) -> Any:
        from billiard.pool import ApplyResult

        return ApplyResult(jobs, callback, accept_callback)

    def terminate_job(pid: int, *_: Any) -> None:
        killed.append(pid)

    pool: Any = SimpleNamespace(apply_async=apply_async, terminate_job=terminate_job)
    request = Request(_message(app, "[[], {}, {}]", "long"), app=app, task=long)
    consumer: Any = SimpleNamespace(pool=pool)
    try:
        state.task_reserved(request)
        request.execute_using_pool(pool)
        TaskConsumer.cancel_active_requests(consumer)
        for job in jobs.values():
            job._ack(None, monotonic(), os.getpid(), None)
    finally:
        state.task_ready(request)
        app.close()
    assert [os.getpid()] == killed


@bug("repot/upstream/result_handler.py")
def test_a_result_that_is_read_in_part_is_read_on_after_a_lost_connection() -> None:
    """The worker's event loop resets the hub when it loses its broker; the pool registers with it again."""
    hub: Any = Hub()
    received: list[Any] = []
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    handler: Any = ResultHandler.__new__(ResultHandler)
    handler.fileno_to_outq, handler.on_state_change = {reader: object()}, received.append
    message = pickle.dumps("a result")
    sent = struct.pack(">i", len(message)) + message
    with ExitStack() as stack:
        stack.callback(os.close, reader)
        stack.callback(os.close, writer)
        stack.callback(hub.close)
        handler.register_with_event_loop(hub)
        hub.add_reader(reader, handler.handle_event, reader)
        os.write(writer, sent[:8])
        handler.handle_event(reader)
        hub.reset()
        handler.register_with_event_loop(hub)
        hub.add_reader(reader, handler.handle_event, reader)
        os.write(writer, sent[8:])
        callback, arguments = hub.readers[reader]
        callback(*arguments)
        assert received == ["a result"]


@bug("repot/upstream/native_delays.py", ValueError)
def test_a_delay_under_a_second_can_be_sent() -> None:
    """Nothing listens here: Celery fails before it connects."""
    app = _app(broker_url=f"amqp://{NOWHERE}//", task_default_queue_type="quorum", task_default_exchange_type="topic")
    with pytest.raises(OperationalError):
        app.send_task("any", countdown=0.5, retry=False)


@bug("repot/upstream/native_delays.py", KeyError)
def test_a_delayed_task_can_be_routed_by_an_exchange_alone() -> None:
    app = _app(
        broker_url=f"amqp://{NOWHERE}//", task_default_queue_type="quorum", task_routes={"any": {"exchange": "all"}}
    )
    with pytest.raises(OperationalError):
        app.send_task("any", countdown=5, retry=False)


@bug("repot/worker/reconnection.py")
def test_a_refused_login_is_an_error_after_which_a_worker_connects_again() -> None:
    """Celery's consumer tries again after the connection errors of its transport, and ends after any other."""
    assert isinstance(amqp.AccessRefused("while the password is changed"), Connection("amqp://").connection_errors)


@bug("repot/brokers/primary.py", ResponseError)
@pytest.mark.parametrize("polls", [False, True], ids=["READONLY", "UNBLOCKED"])
def test_a_demoted_redis_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch, *, polls: bool) -> None:
    """celery/celery#7946."""
    require(executables.REDIS)
    # what repot puts in its place, for a test before this one
    monkeypatch.setattr("kombu.transport.redis.Channel.connection_class", redis_py.Connection)
    queue = Queue(f"q-{uuid4()}")
    with ExitStack() as stack:
        server = stack.enter_context(redis_server())
        client = stack.enter_context(redis_py.Redis.from_url(server.url))
        connection = Connection(server.url)
        stack.callback(connection.collect)
        channel: Any = connection.default_channel
        producer = Producer(channel)
        if polls:
            Consumer(channel, [queue]).consume()
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
            wait_until(lambda: client.info("clients")["blocked_clients"], within_s=30, what="it polls")
        client.replicaof("127.0.0.1", "1")
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=30) if polls else producer.publish("a task", routing_key=queue.name)


@bug("repot/upstream/tls_hostname.py")
def test_each_server_of_a_failover_list_is_checked_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    class Recorded(amqp.Connection):
        """Notes the name that TLS compares with the certificate."""

        def __init__(self, **options: Any) -> None:
            checked.append(options["ssl"]["server_hostname"])
            super().__init__(**options)

    monkeypatch.setattr("kombu.transport.pyamqp.Transport.Connection", Recorded)
    connection = Connection(
        f"amqps://{NOWHERE};amqps://localhost.localdomain:1", ssl={"server_hostname": None}, connect_timeout=1
    )
    for _ in range(2):
        with suppress(*connection.connection_errors):
            connection.transport.establish_connection()
        connection.maybe_switch_next()
    assert checked == ["127.0.0.1", "localhost.localdomain"]


@bug("repot/upstream/raw_methods.py")
def test_py_amqp_has_a_basic_nack() -> None:
    assert hasattr(amqp.Channel, "basic_nack")


@bug("repot/upstream/prefetch_count.py")
def test_a_message_whose_ack_failed_takes_no_place(redis: Server) -> None:
    with Connection(redis.url) as connection:
        channel: Any = connection.channel()
        taken = _take_one(channel)
        key = channel.unacked_key
        kept = channel.client.hgetall(key)
        channel.client.delete(key)
        # what HDEL does not work on
        channel.client.set(key, "in the way")
        with pytest.raises(ResponseError):
            taken.ack()
        channel.client.delete(key)
        channel.client.hset(key, mapping=kept)
        try:
            assert channel.qos.can_consume()
        finally:
            channel.qos.ack(taken.delivery_tag)


def _take_one(channel: Any) -> Message:
    channel.basic_qos(0, 1, False)
    queue = Queue(f"q-{uuid4()}")(channel)
    queue.declare()
    Producer(channel).publish("a task", routing_key=queue.name)
    found = queue.get()
    assert found is not None
    return found


@bug("repot/config/redis.py")
def test_the_lock_of_a_killed_restore_scan_is_free_within_a_minute(redis: Server) -> None:
    """No worker restores anything while it is held."""
    from kombu.transport.redis import Channel

    with Connection(redis.url) as connection:
        channel: Any = connection.channel()
        assert Channel.unacked_mutex_expire == channel.unacked_mutex_expire
        assert channel.unacked_mutex_expire <= 60


@bug("repot/idempotency/task.py", AttributeError)
def test_publishing_on_a_connection_that_was_collected_raises_an_error_of_the_transport(redis: Server) -> None:
    with Connection(redis.url) as connection:
        producer = Producer(connection.default_channel)
        connection.collect()
        with pytest.raises((*connection.connection_errors, *connection.channel_errors)):
            producer.publish("a task", routing_key=f"q-{uuid4()}", retry=False)


@bug("repot/upstream/connecting.py", AttributeError)
def test_a_link_that_is_lost_in_a_poll_can_be_closed(redis: Server, toxiproxy: Server) -> None:
    """As Celery's consumer does: it collects a lost connection, and closes it then."""
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", redis.port)
    taken: list[Message] = []
    with ExitStack() as stack:
        stack.callback(link.delete)
        connection = Connection(f"redis://127.0.0.1:{link.port}/0")
        connection.connect()
        channel = connection.default_channel
        queue = Queue(f"q-{uuid4()}")
        Producer(channel).publish("a task", routing_key=queue.name, declare=[queue])
        Consumer(channel, [queue], on_message=taken.append).consume()
        connection.drain_events(timeout=10)
        other = connection.channel()
        Consumer(other, [Queue(f"q-{uuid4()}")]).consume()
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
        with link.closed():
            with suppress(*connection.connection_errors):
                connection.collect(socket_timeout=5)
            ignore_errors(connection, connection.close)
