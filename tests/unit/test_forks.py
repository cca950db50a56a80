"""A forked process does not wait for a lock that a thread of its parent held."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from repot.config import WorkerSettings
from repot.forks import no_fork
from repot.idempotency import connection
from repot.worker.rollout_store import RedisRolloutStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


log = logging.getLogger(__name__)
_FORK = multiprocessing.get_context("fork")


@contextmanager
def thread(work: Callable[[], object]) -> Iterator[None]:
    """Run something in a thread until its end."""
    running = Thread(target=work)
    running.start()
    try:
        yield
    finally:
        running.join(10)


def exit_code_of_a_child(work: Callable[[], object]) -> int | None:
    """The exit code of a forked process; None if it waits for ever."""
    child = _FORK.Process(target=work)
    child.start()
    child.join(5)
    code = child.exitcode
    child.kill()
    child.join()
    return code


def test_a_fork_waits_for_a_thread_that_holds_a_lock() -> None:
    lock, held, forking = Lock(), Event(), Event()

    def work() -> None:
        with no_fork(), lock:
            held.set()
            # a fork that does not wait copies the locked lock
            forking.wait(0.2)

    def child() -> None:
        lock.acquire()

    with thread(work):
        held.wait()
        assert exit_code_of_a_child(child) == 0


def test_a_fork_does_not_wait_for_ever() -> None:
    held, ended = Event(), Event()

    def work() -> None:
        with no_fork():
            held.set()
            ended.wait(10)

    with thread(work):
        held.wait()
        assert exit_code_of_a_child(lambda: None) == 0
        ended.set()


class Slow(io.RawIOBase):
    """A terminal or pipe that takes its time for each line of its first process."""

    def __init__(self) -> None:
        self.parent = os.getpid()
        self.writing, self.ended = Event(), Event()
        self.seconds = 0.2

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if os.getpid() == self.parent:
            self.writing.set()
            self.ended.wait(self.seconds)
        return len(data)


@pytest.fixture
def slow() -> Iterator[Slow]:
    """Where the lines of a logger go, by a buffered stream as standard error is."""
    found = Slow()
    handler = logging.StreamHandler(io.TextIOWrapper(io.BufferedWriter(found), line_buffering=True))
    log.addHandler(handler)
    yield found
    found.ended.set()
    log.removeHandler(handler)


def test_a_fork_waits_for_a_line_that_a_thread_logs(slow: Slow) -> None:
    """`logging` makes new locks for a child, the stream below has its own."""
    with thread(lambda: log.warning("a line")):
        assert slow.writing.wait(10)
        assert exit_code_of_a_child(lambda: log.warning("a line of the child")) == 0
    # the parent and its later children log on
    assert exit_code_of_a_child(lambda: log.warning("another")) == 0
    with thread(lambda: log.warning("the last")):
        pass
    assert not logging._lock._is_owned()  # type: ignore[attr-defined]


def test_a_fork_does_not_wait_for_ever_for_a_line(slow: Slow) -> None:
    slow.seconds = 10
    with thread(lambda: log.warning("a line")):
        assert slow.writing.wait(10)
        began = monotonic()
        assert exit_code_of_a_child(lambda: None) == 0
        assert monotonic() - began < 5
        slow.ended.set()


@pytest.mark.usefixtures("slow")
def test_a_fork_does_not_wait_for_who_configures_the_logs() -> None:
    """That thread has the lock of the module, and wants those of the handlers: as `logging.config` does."""
    configuring, forked = Event(), Event()

    def configure() -> None:
        with logging._lock:  # type: ignore[attr-defined]
            configuring.set()
            forked.wait(0.2)
            with log.handlers[0].lock:  # type: ignore[union-attr]
                pass

    with thread(configure):
        configuring.wait()
        assert exit_code_of_a_child(lambda: log.warning("a line of the child")) == 0


def test_a_child_forks_as_well() -> None:
    """What its parent's threads did holds up nothing there."""
    held, ended = Event(), Event()

    def work() -> None:
        with no_fork():
            held.set()
            ended.wait(10)

    def child() -> None:
        with no_fork():
            pass
        os._exit(3 if exit_code_of_a_child(lambda: None) == 0 else 4)

    with thread(work):
        held.wait()
        assert exit_code_of_a_child(child) == 3
        ended.set()


def test_a_forked_process_opens_its_client_while_a_thread_opens_one(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, opening, ended = os.getpid(), Event(), Event()

    def open_client(settings: WorkerSettings) -> object:
        if os.getpid() == parent:
            opening.set()
            ended.wait(10)
        return settings

    monkeypatch.setattr(connection, "open_client", open_client)
    settings = WorkerSettings()

    with thread(lambda: RedisRolloutStore(settings).client):
        opening.wait()
        assert exit_code_of_a_child(lambda: RedisRolloutStore(settings).client) == 0
        ended.set()
