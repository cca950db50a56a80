"""Where an application's messages go: where stock Celery sends them, and delayed by the broker on the way.

Every exchange and binding is Celery's own, so that a message reaches the queues it would reach without repot. Changed
is what is said about a queue that the application says nothing about (`repot/config/queues.py`, `adopted`), and
the last step of sending: each message says when it was sent, and one with an ETA for such a queue goes there by the
delays of RabbitMQ.

Celery's own way (`celery/app/base.py`, `send_task`) delays behind topic exchanges only, which send a message to all
queues bound with its key, fails for less than a second (`int(countdown)`), and for a task that is routed by an
exchange alone (KeyError); and it sends the retry of a delayed task to the default queue.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from math import floor
from time import time
from typing import TYPE_CHECKING, Any

from celery.app import base
from celery.app.amqp import AMQP, Queues
from celery.app.routes import Router
from celery.utils.imports import symbol_by_name
from celery.utils.time import maybe_make_aware
from kombu import Queue

from repot.config import delays
from repot.config.queues import TaskQueue, adopted, is_delayed, natively_delayed

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from repot.config import WorkerSettings

#: A message is sent moments after its ETA was computed: what is missing to a whole second by less counts as one.
_TOLERANCE_S = 0.05

_OURS = f"{__name__}:RoutedAMQP"


def install(app: Celery, settings: WorkerSettings) -> None:
    """Let an application declare and send this way; queues that Celery has read before are read again."""
    own: Any = symbol_by_name(app.amqp_cls)  # type: ignore[arg-type]
    if not issubclass(own, RoutedAMQP):
        app.amqp_cls = _OURS if own is AMQP else type(own.__name__, (RoutedAMQP, own), {})  # type: ignore[assignment]
    rabbitmq = settings.read_url.is_rabbitmq or settings.write_url.is_rabbitmq
    app.repot_adopt = partial(adopted, settings) if rabbitmq else None  # type: ignore[attr-defined]
    app.__dict__.pop("amqp", None)
    _leave_delays_alone()


class RoutedQueues(Queues):  # type: ignore[misc]
    """Celery's declarations; those that say nothing of their own are ours."""

    default_exchange: Any
    create_missing_queue_type: str | None

    def __init__(self, adopt: Callable[..., Queue] | None, *args: Any, **options: Any) -> None:  # noqa: ANN401 - Celery's
        """Take what Celery takes, and how to adopt a queue; None on brokers where no argument counts."""
        self.adopt = adopt or _as_it_is
        super().__init__(*args, **options)

    def is_bare(self, queue: Queue) -> bool:
        """Whether a queue has no exchange but Celery's default one, which Celery itself may have given it."""
        return not (queue.exchange and queue.exchange.name) or queue.exchange == self.default_exchange

    def _add(self, queue: Queue) -> Queue:
        added: Queue = super()._add(self.adopt(queue) if self.is_bare(queue) else queue)  # type: ignore[misc]
        # as stock Celery leaves the application's own object
        queue.exchange, queue.routing_key = added.exchange, added.routing_key
        return added

    def new_missing(self, name: str) -> Queue:
        """Make a queue that nothing declares, but something names."""
        made = super().new_missing(name)
        made.queue_arguments = None  # the kind alone
        return self.adopt(made, self.create_missing_queue_type or "classic")

    def select_add(self, queue: Any, **options: Any) -> Any:  # noqa: ANN401 - a name or a queue
        """Consume from one more; a name alone is what `new_missing` makes for those that send to it."""
        said = {name: value for name, value in options.items() if value and value != queue}
        if isinstance(queue, str) and said in ({}, {"exchange_type": "direct"}):
            queue, options = self.new_missing(queue), {}
        return super().select_add(queue, **options)  # type: ignore[func-returns-value]


def _as_it_is(queue: Queue, _kind: str = "") -> Queue:
    return queue


class RoutedRouter(Router):  # type: ignore[misc]
    """Celery's router, for queues given as objects, and for what comes back from a delay."""

    queues: Any

    def route(self, options: Any, *args: Any, **rest: Any) -> Any:  # noqa: ANN401 - Celery's
        """Route; the retry of a message that was delayed goes to its queue, and not to the delays' exit."""
        if options.get("exchange") == delays.EXIT and (queue := delays.queue_of(options.get("routing_key") or "")):
            options = {name: value for name, value in options.items() if name not in ("exchange", "routing_key")}
            options["queue"] = queue
        return super().route(options, *args, **rest)

    def expand_destination(self, route: Any) -> Any:  # noqa: ANN401 - Celery's
        """Find the queue; one that is given as an object is declared as those of its name are."""
        found: Any = super().expand_destination(route)  # type: ignore[func-returns-value]
        given = found.get("queue")
        if type(given) is Queue:
            known = self.queues.get(given.name)
            if isinstance(known, TaskQueue) or (known is None and self.queues.is_bare(given)):
                found["queue"] = self.queues.adopt(given)
        return found


class RoutedAMQP(AMQP):  # type: ignore[misc]
    """Celery's way to queues, with the three above."""

    def __init__(self, app: Celery) -> None:
        """Take the application; one that was not configured is as stock."""
        super().__init__(app)
        self.queues_cls = partial(RoutedQueues, getattr(app, "repot_adopt", None))  # type: ignore[assignment]

    def Router(self, queues: Any = None, create_missing: Any = None) -> Any:  # noqa: ANN401, N802 - Celery's
        """Make the router."""
        create = self.app.either("task_create_missing_queues", create_missing)
        return RoutedRouter(self.routes, queues or self.queues, create, app=self.app)

    def delayed(self, exchange: Any, key: str, seconds: int) -> dict[str, Any]:  # noqa: ANN401 - kombu's or a name
        """How to publish a message on its way to `exchange` so that the broker delays it.

        Empty where the worker holds it: that is what goes through an exchange of the application's own, as in stock
        Celery, for no client can tell which queues others have bound to it.
        """
        name = str(getattr(exchange, "name", exchange) or "")
        if seconds < 1 or not key:
            return {}
        queues, kind = list(self.queues.values()), self.app.conf.broker_native_delayed_delivery_queue_type
        if not name:
            queue = self.queues.get(key)
            held = delays.delayed_key(key, seconds) if queue is not None and is_delayed(queue) else ""
            way_out = delays.DelayExit(name=key, queues=[queue], native="", kind=kind)
        elif name == delays.EXIT or name in natively_delayed(queues):
            held = delays.native_key(key, seconds)
            bound = [one for one in queues if one.exchange and one.exchange.name == name]
            way_out = delays.DelayExit(name=name, queues=bound, native=name, kind=kind)
        else:
            return {}
        return {"exchange": delays.ENTRY, "routing_key": held, "declare": [way_out]} if held else {}

    def _create_task_sender(self) -> Callable[..., Any]:
        send = super()._create_task_sender()  # type: ignore[misc]

        def send_task_message(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - Celery's
            eta = message.headers.get("eta") or (message.body.get("eta") if isinstance(message.body, dict) else None)
            through = _Delaying(producer, self, eta) if eta else producer
            # nothing else tells how long the oldest message of a queue has waited, or the one that a worker takes
            message.properties.setdefault("timestamp", int(time()))
            return send(through, name, message, *args, **options)

        return send_task_message


class _Delaying:
    """A producer for one message with an ETA.

    It knows where Celery has decided to send it, which nothing before this point does. The message keeps its ETA, so
    that the worker waits for what is left of a second.
    """

    def __init__(self, producer: Any, routed: RoutedAMQP, eta: str) -> None:  # noqa: ANN401 - kombu's
        self._producer, self._amqp, self._eta = producer, routed, eta

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:  # noqa: ANN401 - kombu's
        if self._producer.connection.transport.driver_type == "amqp":
            seconds = _seconds_until(self._eta, self._amqp.app)
            delayed = self._amqp.delayed(options.get("exchange"), options.get("routing_key") or "", seconds)
            if delayed:
                options |= delayed | {"declare": [*(options.get("declare") or ()), *delayed["declare"]]}
        return self._producer.publish(body, **options)


def _seconds_until(eta: str, app: Celery) -> int:
    """Whole seconds, at least 0: RabbitMQ delays by no less; 0 if the ETA is for the worker to read."""
    try:
        at = maybe_make_aware(datetime.fromisoformat(eta), app.timezone)
    except ValueError:
        return 0
    return max(floor((at - datetime.now(UTC)).total_seconds() + _TOLERANCE_S), 0)


def _leave_delays_alone() -> None:
    """Keep `send_task` from delaying itself, for applications configured by us alone.

    It does so where it detects quorum queues (`celery/app/base.py`); there is no setting, and workers detect them by
    the same function under another name, which has to go on.
    """
    module: Any = base
    detect = module.detect_quorum_queues
    if getattr(detect, "repot", False):
        return

    def detect_quorum_queues(app: Celery, driver_type: str) -> tuple[bool, str]:
        return (False, "") if isinstance(app.amqp, RoutedAMQP) else detect(app, driver_type)

    detect_quorum_queues.repot = True  # type: ignore[attr-defined]
    module.detect_quorum_queues = detect_quorum_queues
