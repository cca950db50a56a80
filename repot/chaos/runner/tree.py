"""The tree of the task under test: the tasks that it and its children have sent, each by its root id."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.instruments.journal import DELIVERED, EFFECT, SENDING, SENT, STARTED
from repot.chaos.runner.application import OTHER_TASKS
from repot.chaos.runner.verdict import Sending

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from repot.chaos.instruments.journal import JournalEvent

#: The same work of one task: who sent it, its name, its arguments, and which of several equal ones it was in that run.
_Slot = tuple[str, str, str, int]


@dataclass(slots=True)
class Child:
    """A task of the tree; `at` is on the journal's clock.

    Attributes:
        queues: where its message was sent.
        repeats: a second run of the task that sent it has sent the same work under another id.
    """

    task: str
    name: str
    at: float
    sending: Sending = Sending.DUE
    queues: tuple[str, ...] = ()
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """The children of one task.

    Attributes:
        children: those that count, in the order of sending; none of Celery's own, such as the unlocking of a chord.
        ids: of all tasks of the tree.
    """

    children: tuple[Child, ...] = ()
    ids: frozenset[str] = field(default_factory=frozenset)


def tree_of(root: str, events: Sequence[JournalEvent]) -> Tree:
    """Return the tree of a task that the experiment has sent."""
    mine = [one for one in events if one.details.get("root") == root]
    children = _announced(mine)
    for one in mine:
        if one.kind in (SENDING, DELIVERED, STARTED):
            _note(children.setdefault(one.task, Child(one.task, str(one.details["name"]), one.at)), one)
    sent = {one.task for one in events if one.kind == SENT}
    for child in children.values():
        child.sending = Sending.ACCEPTED if child.task in sent else child.sending
    for task in _repeated([one for one in mine if one.kind == SENDING and one.task != root], events):
        children[task].repeats = True
    children.pop(root, None)
    counted = sorted((one for one in children.values() if not one.name.startswith(OTHER_TASKS)), key=lambda one: one.at)
    return Tree(tuple(counted), frozenset(children))


def _announced(mine: Iterable[JournalEvent]) -> dict[str, Child]:
    """Return the tasks that are to be sent when others of the tree have succeeded."""
    following = ((task, name, one.at) for one in mine for task, name in one.details.get("follows", ()))
    return {task: Child(task, name, at) for task, name, at in following}


def _note(child: Child, event: JournalEvent) -> None:
    if event.kind != SENDING:
        child.sending = Sending.ACCEPTED
        return
    child.queues = tuple(event.details["queues"])
    if child.sending is Sending.DUE:
        child.sending = Sending.UNKNOWN


def strangers(roots: Collection[str], known: Collection[str], events: Iterable[JournalEvent]) -> list[str]:
    """Return tasks that ran and that neither the experiment nor a task of its own has sent."""
    started = (one for one in events if one.kind == STARTED and one.details.get("root") not in roots)
    return sorted({one.task for one in started} - set(known))


def _repeated(sendings: Sequence[JournalEvent], events: Sequence[JournalEvent]) -> Iterator[str]:
    """Yield tasks whose work, with an effect, another id had done before: two runs of one task have sent it."""
    effects = Counter(event.task for event in events if event.kind == EFFECT)
    slots: dict[_Slot, list[str]] = defaultdict(list)
    ordinals: Counter[tuple[str, float, str, str]] = Counter()
    for sending in sendings:
        by, name, arguments = sending.details["by"], str(sending.details["name"]), sending.details["arguments"]
        run = max((begun.at for begun in events if _begins(begun, by, sending)), default=0.0)
        place = (by, run, name, arguments)
        ordinals[place] += 1
        slots[by, name, arguments, ordinals[place]].append(sending.task)
    for tasks in slots.values():
        done = [task for task in dict.fromkeys(tasks) if effects[task]]
        yield from done[1:]


def _begins(event: JournalEvent, task: str, sending: JournalEvent) -> bool:
    return event.kind == STARTED and event.task == task and event.pid == sending.pid and event.at <= sending.at
