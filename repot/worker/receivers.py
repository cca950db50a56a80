"""Receivers of signals for as long as one worker lives: a process may run several, as applications' tests do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Receivers:
    """Connects receivers, and disconnects all of them together."""

    def __init__(self) -> None:
        """Connect none."""
        self._ends: list[Callable[[], None]] = []

    def connect(self, signal: Any, receiver: Callable[..., Any]) -> None:  # noqa: ANN401 - Celery's
        """Call `receiver` by a signal."""
        uid = f"repot-{id(self)}-{len(self._ends)}"
        # weak references would drop local functions at once
        signal.connect(receiver, weak=False, dispatch_uid=uid)
        self.add(lambda: signal.disconnect(dispatch_uid=uid))

    def add(self, end: Callable[[], None]) -> None:
        """Call `end` as well when all are disconnected."""
        self._ends.append(end)

    def disconnect(self) -> None:
        """Disconnect all receivers."""
        ends, self._ends = self._ends, []
        for end in ends:
            end()
