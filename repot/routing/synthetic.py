"""Synthetic tasks of a rollout in the lease store: each id that was sent, its runs and its effects."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from repot.errors import RecordUnreadable
from repot.routing.store import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.routing.store import RolloutStore

#: The name of the task.
TASK = "repot.rollout.synthetic"

#: Set while synthetic tasks should end early.
_STOP = "stop"


class Sent(StrEnum):
    """What is known of the sending of a synthetic task."""

    #: It is being sent, or its sender died.
    SENDING = "sending"
    CONFIRMED = "confirmed"
    #: The broker may have it.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SyntheticTask:
    """One synthetic task.

    Attributes:
        kills: it kills its process in its first run.
        sent_at: in seconds since 1970, by the store's clock.
        runs: how often it began; effects: how often its effect happened, once if all is well.
        ended_at: when its effect first happened; None before.
    """

    id: str
    side: str
    queue: str
    length_s: float
    kills: bool
    sent_at: float
    sent: str = Sent.SENDING
    runs: int = 0
    effects: int = 0
    ended_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Return whether it has not ended yet."""
        return not self.effects


class SyntheticTasks:
    """The synthetic tasks of one rollout. Methods raise StoreUnreachable, StoreMisconfigured or StoreRefused."""

    def __init__(self, store: RolloutStore, prefix: str, name: str) -> None:
        """Take the store, the prefix of its keys (WORKER_LEASE_PREFIX), and the rollout's name."""
        self._store = store
        base = key_of(prefix, name)
        self._sent, self._runs, self._closed = (f"{base}:synthetic:{part}" for part in ("sent", "runs", "closed"))

    def note(self, task: SyntheticTask) -> None:
        """Keep a task that is being sent, or what became of its sending."""
        stated = {
            name: value for name, value in asdict(task).items() if name not in ("id", "runs", "effects", "ended_at")
        }
        self._store.put(self._sent, {task.id: json.dumps(stated)})

    def forget(self, id_: str) -> None:
        """Forget a task that surely was not sent."""
        self._store.drop(self._sent, id_)

    def begun(self, id_: str) -> int:
        """Count a run that begins; return how many began."""
        return int(self._store.step("begin", [self._runs], [id_, uuid4().hex]))

    def ended(self, id_: str) -> None:
        """Count an effect."""
        self._store.step("effect", [self._runs], [id_, uuid4().hex])

    def all(self) -> list[SyntheticTask]:
        """Return the tasks that are not closed, in the order of sending.

        Raises:
            RecordUnreadable: a value is not a synthetic task.
        """
        sent, runs = self._store.fields(self._sent), self._store.fields(self._runs)
        tasks = (_task(id_, text, runs) for id_, text in sent.items())
        return sorted(tasks, key=lambda one: one.sent_at)

    def close(self, tasks: Iterable[SyntheticTask]) -> None:
        """Add tasks that have ended to the totals of their sides, and forget their ids."""
        for one in tasks:
            added: list[str | float] = [one.id, one.side, one.runs, one.effects]
            self._store.step("close", [self._sent, self._runs, self._closed], added)

    def closed(self) -> dict[str, int]:
        """Return the totals of closed tasks: `SIDE:ended`, `SIDE:repeated` (runs after the first), `SIDE:doubled`."""
        return self._store.counts(self._closed)

    def stop(self, *, now: bool = True) -> None:
        """Let running tasks end early, and those that begin later end at once; or no longer."""
        if now:
            self._store.put(self._runs, {_STOP: "1"})
        else:
            self._store.drop(self._runs, _STOP)

    def is_stopped(self) -> bool:
        """Return whether tasks should end early."""
        return self._store.field(self._runs, _STOP) is not None

    def clear(self) -> None:
        """Forget all tasks: a rollout begins again."""
        self._store.forget(self._sent, self._runs, self._closed)


def _task(id_: str, text: str, counts: dict[str, str]) -> SyntheticTask:
    try:
        stated: dict[str, Any] = json.loads(text)
        ended_at = counts.get(f"ended:{id_}")
        return SyntheticTask(
            id_,
            **stated,
            runs=int(counts.get(f"runs:{id_}", 0)),
            effects=int(counts.get(f"effects:{id_}", 0)),
            ended_at=float(ended_at) if ended_at else None,
        )
    except (ValueError, TypeError) as error:
        message = f"a synthetic task of a rollout cannot be read: {error}"
        raise RecordUnreadable(message, hint="Another program writes under WORKER_LEASE_PREFIX.") from error
