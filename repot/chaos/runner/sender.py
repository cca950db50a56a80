"""Send the messages of a load at their times, from several threads, whatever becomes of each."""

from __future__ import annotations

from itertools import count
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from repot.chaos.runner.environment import NOT_SENT
from repot.chaos.runner.verdict import Sending
from repot.errors import ExperimentFailed
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.chaos.runner.observer import Sent

#: A broker that does not answer holds up one of them.
_THREADS = 8
#: A message that has no reply so long after the last one was due has none.
_REPLIED_WITHIN_S = 30


class Sender:
    """Sends each message at its time, and notes what the broker replied."""

    def __init__(
        self, calls: Sequence[Callable[[], object]], sent: Sequence[Sent], note: Callable[[Sent], None], rate: float
    ) -> None:
        """Send by `calls`, each of which is described by the one of `sent`, at `rate` a second.

        `note` is called with each before it is sent. A message that is not begun by the end of the time that all take
        at this rate is never sent.
        """
        self._calls, self._sent, self._note, self._rate = calls, sent, note, rate
        self._numbers, self._lock, self._stop = count(), Lock(), Event()
        self._unmade: list[Exception] = []
        self.behind_s = 0.0
        self._threads = [Thread(target=self._work, daemon=True, name="repot-sender") for _ in range(_THREADS)]

    def start(self) -> None:
        """Begin to send."""
        self._begun = monotonic()
        self._ends = self._begun + len(self._calls) / self._rate
        for one in self._threads:
            one.start()

    def stop(self) -> None:
        """Send nothing more."""
        self._stop.set()

    @property
    def is_over(self) -> bool:
        """Return whether no further message is sent."""
        return bool(self._unmade) or monotonic() >= self._ends or not any(one.is_alive() for one in self._threads)

    def end(self) -> None:
        """Send nothing more; wait for replies, for some time.

        Raises:
            ExperimentFailed: a message could not be made, whatever the broker does.
        """
        self.stop()
        deadline = monotonic() + _REPLIED_WITHIN_S
        for one in self._threads:
            one.join(max(0.0, deadline - monotonic()))
        if self._unmade:
            error = self._unmade[0]
            message = f"a message was never sent: {type(error).__name__}: {masked(str(error))}"
            raise ExperimentFailed(message, hint="A producer of the application gets this error as well.")

    def _work(self) -> None:
        while not self._stop.is_set() and not self._unmade:
            with self._lock:
                number = next(self._numbers)
            if number >= len(self._calls) or not self._await(self._begun + number / self._rate):
                return
            self._send(self._calls[number], self._sent[number])

    def _await(self, due: float) -> bool:
        """Wait until a message is due; return whether it may still be sent."""
        if (wait_s := due - monotonic()) > 0 and self._stop.wait(wait_s):
            return False
        now = monotonic()
        if now >= self._ends:
            return False
        self.behind_s = max(self.behind_s, now - due)
        return True

    def _send(self, call: Callable[[], object], sent: Sent) -> None:
        sent.at, sent.sending, sent.error = monotonic(), Sending.UNKNOWN, "no reply"
        self._note(sent)
        try:
            call()
        except NOT_SENT as error:
            sent.error = f"{type(error).__name__}: {masked(str(error))}"
        except Exception as error:  # noqa: BLE001 - raised by `is_over`, in another thread
            # the application's own serializer, router or signal receiver
            self._unmade.append(error)
        else:
            sent.sending, sent.error = Sending.ACCEPTED, ""
