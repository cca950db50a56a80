"""A lease store that answers with errors while `benchmarks/kills.py` kills workers."""

from __future__ import annotations

import random
from collections import Counter
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from repot.brokers.local.redis_errors import answering

if TYPE_CHECKING:
    from repot.brokers.local import Server

#: What it answers every write with: a failed save, too few replicas, a failover, a right that is missing.
WORDS = ("MISCONF", "NOREPLICAS", "READONLY", "NOPERM")
#: For how long, and how long it serves in between.
_ANSWERS_FOR_S = 1.0
_SERVES_FOR_S = (0.5, 3.0)


class Storm:
    """Lets a server answer with one error after the other for the duration of a `with`; which, and when, by a seed."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        # S311: to be repeated, not to keep a secret
        self._rng = random.Random(seed + 2)  # noqa: S311
        self._over = Event()
        self._thread = Thread(target=self._rage)
        self._error: BaseException | None = None
        #: How often it answered so.
        self.answered: Counter[str] = Counter()

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End with the server as it was; raises what ended the storm before."""
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
