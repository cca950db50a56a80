"""How many messages a worker reserves for tasks of celery-batches: a batch is made of what one worker holds."""

from __future__ import annotations

from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from repot.upstream.collector import batch_of, queue_of
from repot.worker.effective_config import NOT_STATED, effective_config

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, MutableMapping

    from celery import Celery

_MULTIPLIER = "worker_prefetch_multiplier"


def reserve_batches(consumer: Any) -> None:  # noqa: ANN401 - celery's Consumer
    """Let a worker that runs batches alone reserve a full one for each process, unless a multiplier is stated.

    A worker that runs other tasks as well keeps its prefetch: it would hold many of those from idle workers.
    """
    if not consumer.initial_prefetch_count:
        return
    # the pool has not started yet
    processes = consumer.initial_prefetch_count // consumer.prefetch_multiplier
    multiplier = multiplier_for(consumer.app, tuple(consumer.app.amqp.queues.consume_from), processes)
    if multiplier > consumer.prefetch_multiplier and not _is_stated(consumer.app):
        consumer.initial_prefetch_count = processes * multiplier
        consumer.prefetch_multiplier = multiplier
        # what the first lines say
        consumer.controller.prefetch_multiplier = multiplier


def multiplier_for(app: Celery, queues: Collection[str], processes: int) -> int:
    """Return how many messages each process has to reserve; 0 if these queues bring other tasks, or no batches."""
    own = [task for task in app.tasks.values() if not str(task.name).startswith("celery.")]
    if not any(map(batch_of, own)):
        return 0
    with _known(app.amqp.queues):
        # a router that does not say may name any of them
        sizes = [batch_of(task) for task in own if queue_of(app, task) in {"", *queues}]
    if not sizes or not all(map(str.isdecimal, sizes)):
        return 0
    counts = list(map(int, sizes))
    # messages of several tasks wait together: one of their batches is full when so many are there
    return max(*counts, ceil(sum(counts) / processes))


@contextmanager
def _known(queues: MutableMapping[str, Any]) -> Iterator[None]:
    """Forget the queues that are added meanwhile.

    Celery's router adds each queue that it meets, and before Celery 5.7 a worker without `-Q` reads all that are known.
    """
    before = set(queues)
    try:
        yield
    finally:
        for name in set(queues) - before:
            del queues[name]


def _is_stated(app: Celery) -> bool:
    """Return whether a variable, the application or the worker's command states the multiplier."""
    command = click.get_current_context(silent=True)
    if command and command.get_parameter_source("prefetch_multiplier") is ParameterSource.COMMANDLINE:
        return True
    return not any(one.key == _MULTIPLIER and one.origin.endswith(NOT_STATED) for one in effective_config(app))
