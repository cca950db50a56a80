"""What the first messages of a queue say about all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from repot.brokers.headers import instant
from repot.brokers.message import media_type, read_json
from repot.migrate.identity import task_id
from repot.migrate.translate import Quarantine, Translation

if TYPE_CHECKING:
    from repot.brokers.message import Message
    from repot.migrate.rpc_results import RpcResults

#: Where a body of protocol 2 has callbacks, chain and chord, after arguments and keywords.
_EMBED = 2
#: What a broker stores for a message besides its body, its headers and Base64: an estimate.
_ENVELOPE_BYTES = 300


@dataclass(slots=True)
class TaskLook:
    """What the sampled messages of one task have in common; instants are seconds since 1970, None if unknown."""

    count: int = 0
    oldest_at: float | None = None
    newest_at: float | None = None
    earliest_eta: str | None = None
    latest_eta: str | None = None
    largest_bytes: int = 0
    total_bytes: int = 0
    compressed: int = 0
    delayed_by_target: int = 0
    priorities: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)

    def add(self, message: Message, translation: Translation, now: float) -> None:
        """Look at one message."""
        headers, properties = message.headers, message.properties
        self.count += 1
        self.largest_bytes = max(self.largest_bytes, len(message.body))
        self.total_bytes += len(message.body)
        self.compressed += bool(headers.get("compression"))
        sent_at, eta = properties.get("timestamp"), headers.get("eta")
        if isinstance(sent_at, int | float):
            self.oldest_at = min(self.oldest_at or sent_at, sent_at)
            self.newest_at = max(self.newest_at or sent_at, sent_at)
        if eta:
            self.earliest_eta = min(self.earliest_eta or str(eta), str(eta))
            self.latest_eta = max(self.latest_eta or str(eta), str(eta))
        found = translation.translate(message, now)
        if isinstance(found, Quarantine):
            _count(self.quarantined, found.reason)
            return
        self.delayed_by_target += found.delay_s > 0
        before, after = properties.get("priority", "none"), found.message.properties.get("priority", "none")
        _count(self.priorities, f"{before} -> {after}")


@dataclass(slots=True)
class GoalLook:
    """The sampled messages that go to one target queue.

    Attributes:
        held_s: for how long a worker has to hold one of them until it is due.
    """

    count: int = 0
    body_bytes: int = 0
    stored_bytes: int = 0
    held_s: float = 0

    def add(self, message: Message, held_s: float) -> None:
        """Look at one message."""
        self.count += 1
        self.body_bytes += len(message.body)
        # Base64, as Redis needs it, is a third longer
        self.stored_bytes += len(message.body) * 4 // 3 + len(str(message.headers)) + _ENVELOPE_BYTES
        self.held_s = max(self.held_s, held_s)


@dataclass(slots=True)
class Sample:
    """Messages that were looked at, by task and by target queue.

    Attributes:
        awaited: those whose `rpc://` results are awaited on the source.
        ids: of their tasks.
        chords: those whose end a chord counts; `groups` are those whose body is not read and that may be of one.
    """

    translation: Translation
    now: float
    rpc: RpcResults
    count: int = 0
    awaited: list[Message] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    chords: int = 0
    groups: int = 0
    tasks: dict[str, TaskLook] = field(default_factory=dict)
    goals: dict[str, GoalLook] = field(default_factory=dict)

    def add(self, message: Message) -> None:
        """Look at one message."""
        self.count += 1
        goal = self.translation.goal_of(message)
        self.goals.setdefault(goal, GoalLook()).add(message, self._held_s(message, goal))
        self.awaited += self.rpc.awaited([message])
        self.ids.add(task_id(message))
        is_counted = _is_in_chord(message)
        self.chords += is_counted is True
        self.groups += is_counted is None
        task = str(message.headers.get("task") or "(no task header)")
        self.tasks.setdefault(task, TaskLook()).add(message, self.translation, self.now)

    def _held_s(self, message: Message, goal: str) -> float:
        due_at = instant(message.headers.get("eta"))
        return 0 if due_at is None or self.translation.traits_of(goal).delays else due_at - self.now

    @property
    def quarantined(self) -> dict[str, int]:
        """Return how many of them would be quarantined, by reason."""
        by_reason: dict[str, int] = {}
        for task in self.tasks.values():
            for reason, count in task.quarantined.items():
                by_reason[reason] = by_reason.get(reason, 0) + count
        return by_reason

    def backlogs(self, messages: int | None, usual: str) -> dict[str, Backlog]:
        """Return an estimate for each target queue of so many messages; None if their number is unknown.

        The usual one has those that were not looked at.
        """
        if messages is None or (messages and not self.count):
            return {usual: Backlog(messages)}
        share = messages / self.count if self.count else 0
        by_goal = {usual: Backlog(messages, 0, 0)}
        for goal, look in self.goals.items():
            bodies, stored = round(look.body_bytes * share), round(look.stored_bytes * share)
            by_goal[goal] = Backlog(round(look.count * share), bodies, stored)
        by_goal[usual] = replace(
            by_goal[usual], messages=messages - sum(by_goal[goal].messages or 0 for goal in by_goal if goal != usual)
        )
        return by_goal


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much is to be moved: counted messages, and estimated bytes; None if unknown."""

    messages: int | None = 0
    body_bytes: int | None = None
    stored_bytes: int | None = None

    def __add__(self, other: Backlog) -> Backlog:
        """Add two backlogs; an unknown part makes the sum unknown."""
        return Backlog(
            _sum(self.messages, other.messages),
            _sum(self.body_bytes, other.body_bytes),
            _sum(self.stored_bytes, other.stored_bytes),
        )


def _is_in_chord(message: Message) -> bool | None:
    """Return whether a chord counts the end of a task; None if its body is not read and it is of a group.

    The chord stands in the body: in protocol 2 in the third of its parts, in protocol 1 in a field.
    """
    if media_type(message.content_type) != "application/json" or message.headers.get("compression"):
        return None if message.headers.get("group") else False
    if b'"chord"' not in message.body:
        return False
    try:
        body = read_json(message.body)
    except (ValueError, RecursionError):
        return False
    stated = body[_EMBED] if isinstance(body, list) and len(body) > _EMBED else body
    return isinstance(stated, dict) and bool(stated.get("chord"))


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
