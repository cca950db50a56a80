"""The record of a rollout, in the lease store: what every producer and worker follows.

Named values of one key for each rollout, and lines with every state that it had. Both keys have the rollout's name as
their hash tag, so that a cluster keeps them on one node. Addresses are stored without passwords.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from repot.errors import RecordUnreadable, RolloutConflict, RolloutNotFound
from repot.routing.side import Weights
from repot.routing.store import key_of
from repot.store.shapes import Change as StoredChange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repot.routing.store import RolloutStore
    from repot.store.rules import Rule

#: States that the history keeps, the latest.
MAX_HISTORY = 1000


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """The state of a rollout.

    Attributes:
        source, target: the brokers' addresses, without passwords.
        phase: where the rollout is; the controller's word.
        generation: grows by one with each change, from 1.
        weights: shares of root ids that go to the target.
        gather: messages of roots that run already follow the weights as well, so that no root stays on a side that is
            to become empty; a root may then have messages on both sides.
        who, why: of the last change.
        updated_at: the last change, in seconds since 1970, by the store's clock.
        token: the fencing token of the last change that was bound to one; 0 for none.
    """

    name: str
    source: str
    target: str
    phase: str
    generation: int
    weights: Weights
    gather: bool
    who: str
    why: str
    updated_at: float
    token: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the state for people and machines."""
        return {
            "name": self.name,
            "source": self.source,
            "target": self.target,
            "phase": self.phase,
            "weight": self.weights.default,
            "weights_by_queue": dict(self.weights.queues),
            "weights_by_task": dict(self.weights.tasks),
            "generation": self.generation,
            "who": self.who,
            "why": self.why,
            "updated_at": datetime.fromtimestamp(self.updated_at, UTC).isoformat(timespec="seconds"),
        }


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a record, with who makes it and why; None leaves a value as it is."""

    who: str
    why: str
    phase: str | None = None
    weights: Weights | None = None
    gather: bool | None = None

    def fields(self) -> dict[str, str]:
        """Return the fields of the hash."""
        values = {"who": self.who, "why": self.why}
        if self.phase is not None:
            values["phase"] = self.phase
        if self.gather is not None:
            values["gather"] = "1" if self.gather else "0"
        if self.weights is not None:
            values["weight"] = repr(self.weights.default)
            values["queue_weights"] = json.dumps(dict(self.weights.queues), sort_keys=True)
            values["task_weights"] = json.dumps(dict(self.weights.tasks), sort_keys=True)
        return values


class RolloutRecords:
    """The records of rollouts in one lease store.

    Every method is one round trip; on Redis a change is two. It is safe to repeat, and raises StoreUnreachable,
    StoreMisconfigured or StoreRefused as every request to the store, and RecordUnreadable where the value is of another
    program.
    """

    def __init__(self, store: RolloutStore, prefix: str) -> None:
        """Take the store, and the prefix of its keys (WORKER_LEASE_PREFIX)."""
        self._store = store
        self._prefix = prefix

    def read(self, name: str) -> RolloutRecord | None:
        """Return the record of a rollout; None if there is no record."""
        found = self._store.fields(self.key(name))
        return _read(name, found) if found else None

    def create(self, name: str, source: str, target: str, change: Change) -> RolloutRecord:
        """Make the record of a new rollout, at weight 0 unless `change` names weights; addresses without passwords.

        Raises:
            RolloutConflict: there is one of this name.
        """
        first = {"phase": "", "gather": "0", **Change("", "", weights=Weights()).fields()}
        return self._change(name, 0, {"source": source, "target": target, **first, **change.fields()}, None)

    def change(self, record: RolloutRecord, change: Change, *, token: int | None = None) -> RolloutRecord:
        """Change a record that is still as `record` says, and return the new state.

        A change that is bound to a fencing `token` is refused after one with a later token.

        Raises:
            RolloutNotFound: the record was deleted.
            RolloutConflict: it was changed meanwhile, or by the holder of a later token.
        """
        return self._change(record.name, record.generation, change.fields(), token)

    def history(self, name: str) -> list[RolloutRecord]:
        """Return the states that a rollout had, the first one first; at most the last 1000."""
        lines = self._store.lines(f"{self.key(name)}:history")
        return [_read(name, _paired(_parsed(name, line))) for line in lines]

    def key(self, name: str) -> str:
        """Return the key of a record."""
        return key_of(self._prefix, name)

    def _change(self, name: str, expected: int, fields: Mapping[str, str], token: int | None) -> RolloutRecord:
        key = self.key(name)
        # a repeated request has the same id
        rule = changing(expected, uuid4().hex, token or 0, fields)
        answer, values = self._store.apply(key, _Fields(), rule, f"{key}:history")
        if answer is not Answer.CHANGED and not values:
            message = f"there is no record of the rollout {name}"
            raise RolloutNotFound(message, hint="It was deleted, or the lease store lost it; begin the rollout again.")
        found = _read(name, values)
        if answer is Answer.CHANGED:
            return found
        if answer is Answer.FENCED:
            message = f"the rollout {name} was changed with the fencing token {found.token}, later than {token}"
            raise RolloutConflict(message, hint="Another controller has taken over; this one must stop.")
        message = f"the rollout {name} is at generation {found.generation}, not {expected}: {found.who}, {found.why!r}"
        hint = "Read it again, and decide again." if expected else "Choose another name, or go on with that rollout."
        raise RolloutConflict(message, hint=hint)


class Answer(Enum):
    """What becomes of a request to change a record."""

    CHANGED = auto()
    #: It has another generation.
    CONFLICT = auto()
    #: The holder of a later token has changed it.
    FENCED = auto()


def changing(
    expected: int, request: str, token: int, fields: Mapping[str, str]
) -> Rule[Mapping[str, str], tuple[Answer, Mapping[str, str]]]:
    """Return the rule that puts fields of a record with the generation `expected`, 0 for none.

    `request` tells one change from others; `token` is the fencing token that it is bound to, 0 for none. The answer has
    the record as it is then.
    """

    def rule(
        found: Mapping[str, str] | None, now: float
    ) -> tuple[Mapping[str, str] | None, tuple[Answer, Mapping[str, str]]]:
        before = found or {}
        if before.get("request") == request:
            # the answer to the first attempt was lost
            return None, (Answer.CHANGED, before)
        if stored_number(before.get("generation")) != expected:
            return None, (Answer.CONFLICT, before)
        if token and token < stored_number(before.get("token")):
            return None, (Answer.FENCED, before)
        its = {"generation": str(expected + 1), "updated_at": str(round(now * 1000)), "request": request}
        after = {**before, **fields, **its, **({"token": str(token)} if token else {})}
        return after, (Answer.CHANGED, after)

    return rule


class _Fields:
    """A record as named values; its history has the whole record at each change."""

    names: Sequence[str] = (
        *("generation", "request", "updated_at", "token", "source", "target", "phase", "gather", "who", "why"),
        *("weight", "queue_weights", "task_weights"),
    )

    def read(self, found: Mapping[str, str]) -> Mapping[str, str]:
        """Return the values."""
        return found

    def change(self, before: Mapping[str, str] | None, after: Mapping[str, str], now: float) -> StoredChange:
        """Return all values, and the line of the history."""
        del before, now
        flat = [word for pair in after.items() for word in pair]
        return StoredChange(put=flat, line=json.dumps(flat), most=MAX_HISTORY)


def stored_number(text: str | None) -> int:
    """Return a stored number; 0 for none, and for what another program wrote: the reader says so."""
    return int(text) if text and text.isdecimal() else 0


def _paired(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=False))


def _parsed(name: str, text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except ValueError as error:
        raise _unreadable(name, error) from error


def _read(name: str, fields: Mapping[str, str]) -> RolloutRecord:
    try:
        weights = Weights(
            float(fields["weight"]), json.loads(fields["queue_weights"]), json.loads(fields["task_weights"])
        )
        return RolloutRecord(
            name=name,
            source=fields["source"],
            target=fields["target"],
            phase=fields["phase"],
            generation=int(fields["generation"]),
            weights=weights,
            gather=fields["gather"] == "1",
            who=fields["who"],
            why=fields["why"],
            updated_at=float(fields["updated_at"]) / 1000,
            token=int(fields.get("token") or 0),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> RecordUnreadable:
    message = f"the value stored as the rollout {name} is not a rollout's record: {type(error).__name__}: {error}"
    return RecordUnreadable(message, hint="Another program writes under WORKER_LEASE_PREFIX.")
