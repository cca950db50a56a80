"""What a forked process inherits, and that it does not wait for what its parent's threads have in hand."""

from __future__ import annotations

import os
import signal
import socket
import traceback
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from amqp.exceptions import RecoverableConnectionError
from celery import Celery
from kombu import Connection

from repot.upstream.app_amqp import HookedAMQP, use_amqp
from repot.upstream.inherited import OwnConnection, leave_inherited
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def app() -> Iterator[Any]:
    found: Any = Celery(f"app-{uuid4()}", set_as_current=False, broker="memory://", backend="cache+memory://")
    use_amqp(found, HookedAMQP)
    leave_inherited(found)
    yield found
    found.close()


def in_a_child(work: Callable[[], object]) -> int:
    """Return the exit code of a process that `os.fork` makes, which runs no hook of multiprocessing's."""
    if child := os.fork():
        ended = [0, 0]

        def has_ended() -> bool:
            ended[:] = os.waitpid(child, os.WNOHANG)
            return bool(ended[0])

        try:
            wait_until(has_ended, within_s=20, what="the child ends", poll_s=0.01)
        finally:
            if not ended[0]:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(ended[1])
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - also of pytest: it is the outcome
        traceback.print_exc()
    finally:
        os._exit(code)


@pytest.mark.usefixtures("app")
def test_a_child_gets_a_connection_although_all_are_in_use() -> None:
    """Also while a thread has the lock of the pool."""
    pool: Any = Connection("memory://").Pool(1)
    with pool.acquire() as used:
        with pool._resource.mutex:
            assert in_a_child(lambda: pool.acquire(block=True)) == 0
        with pytest.raises(pool.LimitExceeded):
            pool.acquire()
    with pool.acquire() as again:
        assert again is used


def test_a_child_sends_an_event_while_a_thread_of_its_parent_sends_one(app: Any) -> None:
    app.conf.task_send_sent_event = True
    app.send_task("a")
    sending, ended = Event(), Event()

    def send() -> None:
        with app.amqp._event_dispatcher.mutex:
            sending.set()
            ended.wait(20)

    thread = Thread(target=send)
    thread.start()
    sending.wait()
    assert in_a_child(lambda: app.send_task("a")) == 0
    ended.set()
    thread.join()
    app.send_task("a")


def test_a_child_has_its_own_address_for_replies_and_its_own_result_backend(app: Any) -> None:
    found = app.thread_oid, app.backend

    def child() -> None:
        assert found[0] != app.thread_oid
        assert found[1] is not app.backend
        assert app.backend is app.backend

    assert in_a_child(child) == 0
    assert found == (app.thread_oid, app.backend)
    assert found[1] is app.backend


class _Transport:
    """What py-amqp reads and writes with, on a pair of sockets."""

    def __init__(self) -> None:
        self.sock, self.other = socket.socketpair()
        self.connected = True

    def close(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("end", ["collect", "close"])
def test_a_child_leaves_the_socket_of_its_parent_alone(end: str) -> None:
    connection = OwnConnection()
    connection.transport = _Transport()
    connection.frame_writer = connection.transport.sock.send

    def child() -> None:
        assert not connection.connected
        for use in (lambda: connection.frame_writer, connection.drain_events, connection.send_heartbeat):
            with pytest.raises(RecoverableConnectionError, match="is a fork of it"):
                use()
        getattr(connection, end)()

    transport = connection.transport
    assert connection.connected
    assert in_a_child(child) == 0
    transport.sock.send(b"as before")
    assert transport.other.recv(100) == b"as before"
    connection.collect()
    assert transport.other.recv(100) == b""
