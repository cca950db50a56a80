"""A lease store that answers with errors while `benchmarks/kills.py` kills workers."""

from __future__ import annotations

import random
from collections import Counter
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from repot.testbed.redis_errors import answering

if TYPE_CHECKING:
    from repot.testbed import Server

#: Its answers to writes: a failed save, too few replicas, a failover, a missing right.
WORDS = ("MISCONF", "NOREPLICAS", "READONLY", "NOPERM")
#: How long it answers with errors, and how long it serves in between.
_ANSWERS_FOR_S = 1.0
_SERVES_FOR_S = (0.5, 3.0)


class Storm:
    """Make a server answer with one error after the other during a `with` block; a seed determines which and when."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        # S311: for repetition, not for secrets
        self._rng = random.Random(seed + 2)  # noqa: S311
        self._over = Event()
        self._thread = Thread(target=self._rage)
        self._error: BaseException | None = None
        #: Number of errors by code.
        self.answered: Counter[str] = Counter()

    def __enter__(self) -> Self:
        """Start the storm."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the server; raise the error that ended the storm early."""
        self._over.set()
        self._thread.join()
        if self._error:
            raise self._error

    def _rage(self) -> None:
        try:
            while not self._over.wait(self._rng.uniform(*_SERVES_FOR_S)):
                word = self._rng.choice(WORDS)
                with answering(self._server, word):
                    self._over.wait(_ANSWERS_FOR_S)
                self.answered[word] += 1
        except BaseException as error:  # noqa: BLE001 - raised where the campaign is
            self._error = error
