"""Choose the queues of a move: those that are named, or all that the deployment has on the source broker."""

from __future__ import annotations

import difflib
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.errors import ConfigInvalid
from repot.queues import find_queues
from repot.queues.deployment import notes, refusals, unknowns

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from celery import Celery

    from repot.config import WorkerSettings
    from repot.migrate.addresses import Address
    from repot.queues import DeploymentQueues

#: The option that takes the transport options of the source.
_OPTIONS = "--from-options"


@dataclass(frozen=True, slots=True)
class QueueChoice:
    """The queues of a move, what was read to find them, and what the choice leaves behind.

    Attributes:
        queues: source queue -> target queue.
        read: a line for each queue that is moved: where it was found, and what it holds.
        problems: what would be left behind against the deployment's interest.
        notes: what stays on purpose.
        unknown: what could not be read.
    """

    queues: Mapping[str, str]
    read: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def choose(
    source: Address,
    settings: WorkerSettings,
    app: Celery | None,
    named: Collection[str],
    mapping: Mapping[str, str],
) -> QueueChoice:
    """Return the choice; `named` are the queues that a person named, `mapping` leads source queues to other ones.

    Raises:
        ConfigInvalid: the mapping names a queue that would not be moved.
        BrokerUnreachable: the source did not answer.
    """
    with closing(source.open(settings)) as broker:
        stated = source.stated_options(settings)
        deployment = find_queues(broker, settings, app, prefix_is_stated="global_keyprefix" in stated)
    _refuse_unknown(mapping, named, deployment)
    chosen = tuple(named) or tuple(dict.fromkeys((*deployment.expected, *mapping)))
    narrowed = bool(named)
    absent = [] if deployment.unknown else [queue for queue in named if queue not in deployment.queues]
    missing = [f"the source has no queue {queue!r}" for queue in absent]
    return QueueChoice(
        {queue: mapping.get(queue, queue) for queue in chosen},
        tuple(deployment.queues[one].described for one in chosen if one in deployment.queues),
        tuple(refusals(deployment, chosen, on_purpose=narrowed, options=_OPTIONS, app="" if app else "-A")),
        (*missing, *notes(deployment, chosen, on_purpose=narrowed)),
        tuple(unknowns(deployment, chosen)),
    )


def _refuse_unknown(mapping: Mapping[str, str], named: Collection[str], deployment: DeploymentQueues) -> None:
    known = [*named] if named else [*deployment.queues, *deployment.dead_letters]
    for queue in mapping:
        if queue in known or (deployment.unknown and not named):
            continue
        near = difflib.get_close_matches(queue, known, n=1)
        message = f"--map {queue}={mapping[queue]}: {queue!r} is not among the queues that are moved"
        raise ConfigInvalid(
            message, hint=f"Is {near[0]!r} meant?" if near else f"They are: {', '.join(known) or 'none'}."
        )
