"""A worker that runs batches alone reserves full ones, and any other worker what its settings say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, _state
from kombu import Queue

import repot
from repot.worker.batches import reserve_batches
from support.bill import bill

#: As that of the library, which is not installed: its package and its attribute count.
BATCHES = type("Batches", (Task,), {"__module__": "celery_batches", "abstract": True, "flush_every": 10})


@pytest.fixture(autouse=True)
def _no_shared_tasks_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery gives them to each application of the process, and they are no batches."""
    found: set[Any] = _state._on_app_finalizers  # type: ignore[attr-defined]
    monkeypatch.setattr(_state, "_on_app_finalizers", {one for one in found if one.__module__ == "celery.app.builtins"})


def reserved(monkeypatch: pytest.MonkeyPatch, *flush_every: int | None, processes: int = 2, **conf: Any) -> int:
    """What a worker of the queue `celery` reserves for each process; None is an ordinary task."""
    monkeypatch.setenv("WORKER_RESULT_BACKEND", "cache+memory://")
    monkeypatch.setenv("WORKER_BROKER_URL", "amqp://guest:guest@localhost//")
    app = Celery("shop", set_as_current=False)
    app.conf.update({"task_routes": {"shop.elsewhere": {"queue": "reports"}}, **conf})
    repot.configure(app)
    for index, size in enumerate(flush_every):
        options: dict[str, Any] = {} if size is None else {"base": BATCHES, "flush_every": size}
        app.task(name=f"shop.{index}", shared=False, **options)(bill)  # type: ignore[no-untyped-call,unused-ignore]
    # of another worker's queue
    app.task(name="shop.elsewhere", shared=False)(bill)  # type: ignore[no-untyped-call,unused-ignore]
    multiplier = app.conf.worker_prefetch_multiplier
    consumer = SimpleNamespace(
        app=app,
        controller=SimpleNamespace(),
        prefetch_multiplier=multiplier,
        initial_prefetch_count=multiplier * processes,
    )
    before = set(app.amqp.queues.consume_from)
    reserve_batches(consumer)
    # the router adds each queue that it meets, and a worker of Celery 5.6 would read it
    assert set(app.amqp.queues) == set(app.amqp.queues.consume_from) == before
    assert consumer.initial_prefetch_count == consumer.prefetch_multiplier * processes
    return int(consumer.prefetch_multiplier)


@pytest.mark.parametrize(
    ("flush_every", "processes", "multiplier"),
    [
        ((100,), 2, 100),
        ((100,), 8, 100),
        ((1,), 2, 1),
        # each may have 9 of its 10 when the other has them as well
        ((10, 10), 1, 20),
        ((10, 10), 2, 10),
        ((100, 10), 1, 110),
        # another task would be held back behind those that run
        ((100, None), 2, 1),
        ((None,), 2, 1),
        ((), 2, 1),
    ],
)
def test_a_worker_of_batches_reserves_full_ones(
    monkeypatch: pytest.MonkeyPatch, flush_every: tuple[int | None, ...], processes: int, multiplier: int
) -> None:
    assert reserved(monkeypatch, *flush_every, processes=processes) == multiplier


def test_what_is_stated_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiplier of the application's or of the environment, also the default's value."""
    assert reserved(monkeypatch, 100, worker_prefetch_multiplier=3) == 3
    assert reserved(monkeypatch, 100, worker_prefetch_multiplier=0) == 0
    monkeypatch.setenv("WORKER_PREFETCH_MULTIPLIER", "1")
    assert reserved(monkeypatch, 100) == 1


def test_another_task_in_any_of_its_queues_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [Queue("celery"), Queue("reports")]
    assert reserved(monkeypatch, 100, task_queues=queues) == 1
