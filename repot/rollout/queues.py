"""The queues that a rollout leads: those that are named, or all that the deployment has on the source."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repot.config.capabilities import NAMING_OPTIONS
from repot.errors import BrokerUnreachable, RepotError
from repot.masking import masked
from repot.migrate.addresses import Address
from repot.migrate.in_hand import CONTROL_EXCHANGE
from repot.queues import find_queues
from repot.queues.deployment import notes, refusals, unknowns
from repot.worker.app_loader import load_app

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from celery import Celery

    from repot.config import WorkerSettings
    from repot.queues.deployment import KnownQueue
    from repot.rollout.phases import Plan

_APP = "WORKER_APP"


@dataclass(frozen=True, slots=True)
class LedQueues:
    """What was found on the source.

    Attributes:
        read: a line for each queue that is led.
        obstacles: what the rollout would leave behind, or would lead without being asked to.
        notes: what stays on purpose, and what is unknown.
        control_exchange: by which the application's workers answer.
    """

    read: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    control_exchange: str = CONTROL_EXCHANGE


def with_queues(plan: Plan, named: Collection[str], settings: WorkerSettings) -> tuple[Plan, LedQueues]:
    """Return the plan with its queues; those of the settings, and an obstacle, while the source does not answer."""
    unread: tuple[str, ...] = ()
    app = None
    try:
        app = load_app(settings.app) if "app" in settings.model_fields_set else None
    except RepotError as error:
        # a controller may run where the application is not installed
        unread = (f"unknown: which queues the application has: {masked(error.message)}",)
    options = _naming_options(app)
    exchange = CONTROL_EXCHANGE if app is None else str(app.conf.control_exchange)
    management = settings.management_url.reveal() if settings.management_url else ""
    source = Address(settings.broker_url, options, management)
    try:
        with closing(source.open(settings)) as broker:
            deployment = find_queues(broker, settings, app, prefix_is_stated="global_keyprefix" in options)
    except BrokerUnreachable as error:
        unknown = f"which queues the source has is unknown: {error.message}"
        obstacles, more = ((), (unknown,)) if named else ((unknown,), ())
        led = LedQueues((), obstacles, (*unread, *more), exchange)
        return replace(plan, queues=tuple(named) or settings.queue_names, whole=not named, options=options), led
    chosen = tuple(named) or deployment.expected
    on_purpose = bool(named)
    unnamed = tuple(one for one in deployment.in_use if one not in chosen)
    sent = (*chosen, *unnamed)
    led = LedQueues(
        tuple(deployment.queues[one].described for one in chosen if one in deployment.queues),
        (
            *_unnamed(deployment.queues[one] for one in unnamed),
            *refusals(deployment, sent, on_purpose=on_purpose, app=_APP),
        ),
        (
            *unread,
            *notes(deployment, sent, on_purpose=on_purpose),
            *(f"unknown: {one}" for one in unknowns(deployment, sent)),
        ),
        exchange,
    )
    return replace(plan, queues=chosen, whole=not on_purpose, options=options), led


def _unnamed(queues: Iterable[KnownQueue]) -> Iterator[str]:
    """Yield why queues that the deployment uses cannot be left out."""
    for queue in queues:
        yield (
            f"--queue leaves out {queue.described}: a rollout sends tasks of every queue to the target, so name it as "
            "well; `repot move start --queue` moves the backlog of one queue"
        )


def _naming_options(app: Celery | None) -> dict[str, object]:
    if app is None:
        return {}
    stated = {"global_keyprefix": "", **(app.conf.broker_transport_options or {})}
    return {
        name: list(value) if isinstance(value, range | tuple) else value
        for name, value in stated.items()
        if name in NAMING_OPTIONS
    }
