"""The queues of a deployment on one broker, where each was found, and what is left out of a choice of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.brokers.facts import Unknown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from repot.brokers.held import Beside
    from repot.brokers.port import Depth


#: What names the default queue of repot's own application.
BY_DEFAULT = "the default of WORKER_QUEUE_NAMES"


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """One queue.

    Attributes:
        named_by: the setting, the part of the application, or the workers that name it; empty for one that only the
            broker has, which may be another application's.
        depth: its messages; None if the broker does not have it.
        is_certain: whether it is used whatever it holds: a setting names it, or a worker reads it.
    """

    name: str
    named_by: tuple[str, ...] = ()
    depth: Depth | Unknown | None = None
    is_certain: bool = False

    @property
    def holds_messages(self) -> bool:
        """Return whether messages wait there, are in hand, or may be delayed for it."""
        return self.depth is not None and not isinstance(self.depth, Unknown) and not self.depth.is_drained

    @property
    def described(self) -> str:
        """Return its name, where it was found, and what it holds."""
        where = ", ".join((*self.named_by, *(["on the broker"] if self.depth is not None else [])))
        return f"{self.name!r} ({where}): {self.counts}"

    @property
    def counts(self) -> str:
        """Return its counts as text."""
        if self.depth is None:
            return "not on the broker"
        if isinstance(self.depth, Unknown):
            return f"unknown how many messages: {self.depth.reason}"
        parts = {"waiting": self.depth.ready, "in hand": self.depth.unacked, "maybe delayed": self.depth.delayed}
        return ", ".join(f"{count} {name}" for name, count in parts.items() if count) or "empty"


@dataclass(frozen=True, slots=True)
class DeploymentQueues:
    """All queues that were found, by name.

    Attributes:
        queues: of tasks.
        dead_letters: dead-letter queues on the broker, by the names that the settings give them.
        beside: messages that other transport options would reach.
        unknown: what could not be asked, each with the reason.
        prefix_is_stated: whether the transport options state a prefix: then what is under another one is another's.
    """

    queues: Mapping[str, KnownQueue]
    dead_letters: Mapping[str, Depth | Unknown] = field(default_factory=dict)
    beside: tuple[Beside, ...] = ()
    unknown: tuple[str, ...] = ()
    prefix_is_stated: bool = False

    @property
    def in_use(self) -> tuple[str, ...]:
        """Return the deployment's queues that are worth a command's while.

        They are named by a setting, read by a worker, or named by the application and not empty. What only the broker
        has may be another application's. A queue that cannot be counted is not empty.
        """
        return tuple(
            one.name
            for one in self.queues.values()
            if one.is_certain or (one.named_by and (one.holds_messages or isinstance(one.depth, Unknown)))
        )

    @property
    def expected(self) -> tuple[str, ...]:
        """Return those in use; if none is, all that the application names, else the default: nothing waits now."""
        named = [one for one in self.queues.values() if one.named_by]
        by_app = [one.name for one in named if one.named_by != (BY_DEFAULT,)]
        return self.in_use or tuple(by_app or [one.name for one in named])

    def left_out(self, chosen: Collection[str]) -> tuple[KnownQueue, ...]:
        """Return the queues with messages that are not among the chosen ones.

        A queue that only delayed messages might be for is not one of them: the broker keeps those of all queues
        together.
        """
        return tuple(
            one
            for one in self.queues.values()
            if one.name not in chosen
            and one.depth is not None
            and (isinstance(one.depth, Unknown) or one.depth.ready or one.depth.unacked)
        )

    def unreached(self, chosen: Collection[str], *, on_purpose: bool) -> tuple[Beside, ...]:
        """Return the messages that the transport options in use do not reach: of all queues, or of those chosen."""
        return tuple(
            one
            for one in self.beside
            if (not on_purpose or one.queues & set(chosen))
            and not (self.prefix_is_stated and "global_keyprefix" in one.options)
        )


def refusals(
    deployment: DeploymentQueues, chosen: Collection[str], *, on_purpose: bool, options: str = "", app: str = "-A"
) -> Iterator[str]:
    """Yield a sentence for what a choice of queues would leave behind, with the next step.

    `on_purpose` if a person has named the queues: then other queues are theirs to leave. `options` is the command's
    option that takes kombu's transport options, `app` what would name the application; empty if it is known.
    """
    for queue in deployment.unreached(chosen, on_purpose=on_purpose):
        stated = json.dumps(dict(queue.options))
        ways = [f"give {options} '{stated}'"] if options else []
        ways += [f"{app}, which names an application with {stated}"] if app else []
        yield f"{queue.text}, which these transport options do not reach: {' or '.join(ways)}"
    left_out = [] if on_purpose else deployment.left_out(chosen)
    left = [queue for queue in left_out if not isinstance(queue.depth, Unknown)]
    if left:
        named = ", ".join(f"{queue.name!r} ({queue.counts})" for queue in left)
        yield (
            f"messages would be left in {named}: the settings, the application and the workers do not name "
            f"{'it' if len(left) == 1 else 'them'}; --queue names all queues that are meant"
            f"{f', {app} the application' if app else ''}"
        )


def notes(deployment: DeploymentQueues, chosen: Collection[str], *, on_purpose: bool) -> Iterator[str]:
    """Yield what stays on purpose, or is not a queue of tasks."""
    if on_purpose:
        yield from (f"not named by --queue, and stays: {queue.described}" for queue in deployment.left_out(chosen))
    for queue in deployment.queues.values():
        late = queue.depth
        if queue.name in chosen or late is None or isinstance(late, Unknown) or late.ready or late.unacked:
            continue
        if late.delayed:
            yield f"{late.delayed} messages that are not due yet may be for {queue.name!r}, and stay then"
    for name, depth in deployment.dead_letters.items():
        if isinstance(depth, Unknown):
            yield f"the dead-letter queue {name!r} stays: {depth.reason}"
        elif depth.ready or depth.unacked:
            yield f"the dead-letter queue {name!r} stays, with {depth.ready + depth.unacked} dead letters"
    unreached = deployment.unreached(chosen, on_purpose=on_purpose)
    yield from (
        f"{queue.text}: not of these queues, by these transport options"
        for queue in deployment.beside
        if queue not in unreached
    )


def unknowns(deployment: DeploymentQueues, chosen: Collection[str]) -> Iterator[str]:
    """Yield what could not be read about queues."""
    yield from deployment.unknown
    yield from (one.described for one in deployment.left_out(chosen) if isinstance(one.depth, Unknown))
