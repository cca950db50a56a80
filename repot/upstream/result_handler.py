"""Results that a pool process sends in pieces while the worker loses its broker.

Bug of Celery: its event loop reads a large result in pieces (`ResultHandler._recv_message` in
`celery/concurrency/asynpool.py`), and the generator that holds the pieces stands in the hub's table of readers alone.
When the link to the broker breaks, `asynloop` (`celery/worker/loops.py`) resets the hub, which empties that table, and
the pool registers a new reader. That one takes the middle of a message for the beginning of the next: it reads four
bytes of a pickle as a length and waits for as many bytes, for ever. The task stays active, and its process gets no
other.

The generators are kept here and put back, unless their process has gone meanwhile. If the hub keeps its readers some
day, or the pool its generators, putting them back changes nothing.
"""

from __future__ import annotations

from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import TYPE_CHECKING, Any, Self

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Reading = Generator[None, None, None]

_BREAKS = "A process whose large result was cut off by a lost connection never gets another task."

POINTS = (
    Point("celery.concurrency.asynpool:AsynPool", Failure.SILENT, _BREAKS, contains=("self._result_handler",)),
    Point(
        "celery.concurrency.asynpool:ResultHandler.__init__",
        Failure.SILENT,
        _BREAKS,
        contains=("self.fileno_to_outq = kwargs.pop('fileno_to_outq')",),
    ),
    Point(
        "celery.concurrency.asynpool:ResultHandler._make_process_result",
        Failure.SILENT,
        _BREAKS,
        contains=(
            "recv_message = self._recv_message",
            "it = recv_message(add_reader, fileno, on_state_change)",
            "add_reader(fileno, it)",
        ),
    ),
    Point("celery.worker.loops:asynloop", Failure.SILENT, _BREAKS, contains=("hub.reset()",)),
)


class PartialResults:
    """The results that one pool's processes are sending."""

    def __init__(self, handler: Any) -> None:
        """Keep each reader that `handler`, a `ResultHandler`, makes from now on."""
        self._owners: dict[int, Any] = handler.fileno_to_outq
        self._receive: Callable[..., Reading] = handler._recv_message
        self._readings: dict[int, tuple[Any, Reading]] = {}
        handler._recv_message = self._keep

    @classmethod
    def of(cls, pool: Any) -> Self | None:
        """Keep the partial results of a worker's pool; None for a pool that does not read in pieces."""
        handler = getattr(getattr(pool, "_pool", None), "_result_handler", None)
        reads_in_pieces = hasattr(handler, "_recv_message") and hasattr(handler, "fileno_to_outq")
        return cls(handler) if reads_in_pieces else None

    def _keep(self, add_reader: Any, descriptor: int, callback: Any) -> Reading:
        reading = self._receive(add_reader, descriptor, callback)
        self._readings[descriptor] = self._owners.get(descriptor), reading
        return reading

    def put_back(self, hub: Any) -> None:
        """Register the readers of unfinished results of living processes with kombu's hub."""
        for descriptor, (owner, reading) in self._readings.items():
            if getgeneratorstate(reading) == GEN_SUSPENDED and self._owners.get(descriptor) is owner:
                hub.add_reader(descriptor, reading)
