"""Follow the record of a rollout: one thread for each process that sends, and no round trip for a send."""

from __future__ import annotations

from os import getpid
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from repot.errors import RepotError
from repot.forks import no_fork
from repot.logs import get_logger
from repot.waiting import spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.routing.record import RolloutRecord

log = get_logger(__name__)

#: The record is read again after this time, give or take a quarter, so that many producers spread: at most 1.9 s.
INTERVAL_S, _JITTER = 1.5, 0.25
#: A process that sends for the first time waits for the record at most so long: short scripts must follow it as well.
FIRST_ANSWER_S = 0.5


class Follower:
    """The last known record of one rollout.

    A forked child reads for itself; until its first answer it goes by what its parent knew.
    """

    def __init__(
        self,
        name: str,
        open_reader: Callable[[], Callable[[], RolloutRecord | None]],
        accepts: Callable[[RolloutRecord], bool] = lambda _: True,
    ) -> None:
        """Take the rollout's name, what opens the store and returns what reads the record, and what accepts a record.

        A record that is not accepted counts as none.
        """
        self._name = name
        self._open_reader = open_reader
        self._record: RolloutRecord | None = None
        # one for each process, by its id: a fork copies a lock that another thread holds, and no thread
        self._threads: dict[int, _Reading] = {}
        self._accepts = accepts

    def record(self) -> RolloutRecord | None:
        """Return the last known record; None if none is known, or it was not accepted.

        The first call in a process waits for the store, at most 0.5 s.
        """
        reading = self._threads.get(getpid())
        if reading is None or not reading.is_begun:
            self._begin()
        return self._record

    def stop(self) -> None:
        """End the thread of this process; the next send begins again."""
        reading = self._threads.pop(getpid(), None)
        if reading is not None:
            reading.stopped.set()

    def _begin(self) -> None:
        # one step, as several threads may send first
        reading = self._threads.setdefault(getpid(), _Reading())
        with reading.lock:
            if not reading.is_begun:
                Thread(target=self._follow, args=(reading,), name=f"repot-rollout-{self._name}", daemon=True).start()
                reading.answered.wait(FIRST_ANSWER_S)
                reading.is_begun = True

    def _follow(self, reading: _Reading) -> None:
        read = None
        failed = False
        while not reading.stopped.is_set():
            try:
                with no_fork():
                    read = read or self._open_reader()
                    self._take(read())
                if failed:
                    log.warning("the rollout %s is followed again", self._name, extra={"action": "rollout_followed"})
                failed = False
            except RepotError as error:
                if not failed and not reading.stopped.is_set():
                    known = self._record
                    held = f"generation {known.generation} holds" if known else "tasks go to the source"
                    log.warning(
                        "the rollout %s cannot be read, and %s: %s",
                        self._name,
                        held,
                        error.message,
                        extra={"action": "rollout_unreadable"},
                    )
                failed = True
            reading.answered.set()
            reading.stopped.wait(INTERVAL_S * (1 + spread(-_JITTER, _JITTER)))

    def _take(self, record: RolloutRecord | None) -> None:
        if record is None:
            # a store that lost its data says nothing of the rollout: what is known holds
            return
        self._record = record if self._accepts(record) else None


class _Reading:
    """The thread of one process."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.answered = Event()
        self.stopped = Event()
        self.is_begun = False
