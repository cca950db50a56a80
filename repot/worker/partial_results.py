"""Results that a pool process sends while the worker loses its broker: what was read of them is kept.

Celery's event loop reads a large result in pieces (`ResultHandler._recv_message` in
`celery/concurrency/asynpool.py`): the generator that holds the pieces stands in the
hub's table of readers and nowhere else. When the link to the broker breaks,
`asynloop` (`celery/worker/loops.py`) resets the hub, which empties that table, and
the pool registers a new reader. That one takes the middle of a message for the
beginning of the next: it reads four bytes of a pickle as a length and waits for as
many bytes, for ever. The task stays active, and its process gets no other.

The generators are remembered here and put back, unless the process has gone meanwhile.

Reaches into Celery 5.7: `AsynPool._result_handler`, `ResultHandler._recv_message` and
`ResultHandler.fileno_to_outq`. If one of them is renamed, the step does nothing and
`tests/servers/test_partial_results.py` fails; if the hub keeps its readers or the
pool keeps the generators some day, putting them back changes nothing.
"""

from __future__ import annotations

from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import TYPE_CHECKING, Any

from celery import bootsteps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Reading = Generator[None, None, None]


class PartialResults:
    """The results that one pool's processes are sending."""

    def __init__(self, handler: Any) -> None:  # noqa: ANN401 - asynpool's ResultHandler
        """Remember each reader that the handler makes from now on."""
        self._owners: dict[int, Any] = handler.fileno_to_outq
        self._receive: Callable[..., Reading] = handler._recv_message  # noqa: SLF001
        self._readings: dict[int, tuple[Any, Reading]] = {}
        handler._recv_message = self._remember  # noqa: SLF001

    def _remember(self, add_reader: Any, descriptor: int, callback: Any) -> Reading:  # noqa: ANN401
        reading = self._receive(add_reader, descriptor, callback)
        self._readings[descriptor] = self._owners.get(descriptor), reading
        return reading

    def put_back(self, hub: Any) -> None:  # noqa: ANN401 - kombu's Hub
        """Go on reading what was begun, from processes that still live."""
        for descriptor, (owner, reading) in self._readings.items():
            if getgeneratorstate(reading) == GEN_SUSPENDED and self._owners.get(descriptor) is owner:
                hub.add_reader(descriptor, reading)


class PartialResultsStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Keeps partly read results over a lost connection; only the prefork pool reads in pieces."""

    name = "repot partial results"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Keep nothing yet: the pool starts after the steps are made."""
        self._partial: PartialResults | None = None
        super().__init__(c, **options)

    def start(self, c: Any) -> None:  # noqa: ANN401
        """The pool is there, and its results are not read before the event loop begins."""
        handler = getattr(getattr(c.pool, "_pool", None), "_result_handler", None)
        reads_in_pieces = hasattr(handler, "_recv_message") and hasattr(handler, "fileno_to_outq")
        if self._partial is None and c.hub is not None and reads_in_pieces:
            self._partial = PartialResults(handler)

    def stop(self, c: Any) -> None:  # noqa: ANN401
        """Put back what the reset took: a worker that leaves before it is connected again reads results to the end."""
        self._put_back(c.hub)

    def register_with_event_loop(self, c: Any, hub: Any) -> None:  # noqa: ANN401, ARG002
        """The pool has registered its own readers, over ours."""
        self._put_back(hub)

    def _put_back(self, hub: Any) -> None:  # noqa: ANN401
        if self._partial is not None:
            self._partial.put_back(hub)
