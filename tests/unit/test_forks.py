"""A forked process does not wait for a lock that a thread of its parent held."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from repot.config import WorkerSettings
from repot.forks import no_fork
from repot.idempotency import connection
from repot.worker.rollout_store import RedisRolloutStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

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
        assert 0 == exit_code_of_a_child(child)


def test_a_fork_does_not_wait_for_ever() -> None:
    held, ended = Event(), Event()

    def work() -> None:
        with no_fork():
            held.set()
            ended.wait(10)

    with thread(work):
        held.wait()
        assert 0 == exit_code_of_a_child(lambda: None)
        ended.set()


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
        assert 3 == exit_code_of_a_child(child)
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
        assert 0 == exit_code_of_a_child(lambda: RedisRolloutStore(settings).client)
        ended.set()
