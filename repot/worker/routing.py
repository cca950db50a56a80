"""Route an application's messages as stock Celery does, with delays in the broker.

Exchanges and bindings stay Celery's own, so a message reaches the same queues as without repot. repot changes the
declaration of queues of which the application specifies only the name (`repot/config/queues.py`, `adopted`), and the
last step of sending: each message gets a timestamp, and a message with an ETA for such a queue is delayed by RabbitMQ.

Celery's own delays (`celery/app/base.py`, `send_task`) work only with topic exchanges, which route a message to all
queues bound with its key; fail below one second (`int(countdown)`) and for a task routed by an exchange alone
(KeyError); and send the retry of a delayed task to the default queue.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import floor
from time import time
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_make_aware
from kombu import Queue

from repot.config import delays
from repot.config.queues import TaskQueue, adopter, is_delayed, natively_delayed
from repot.upstream import delay_queues
from repot.upstream.app_amqp import HookedAMQP, HookedQueues, HookedRouter, use_amqp
from repot.upstream.app_state import state_of
from repot.upstream.native_delays import leave_delays_to
from repot.worker.sent_spans import sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from repot.config import WorkerSettings

#: A message is sent moments after its ETA was computed: a second that is shorter by less counts as a whole one.
_TOLERANCE_S = 0.05


def install(app: Celery, settings: WorkerSettings) -> None:
    """Make an application declare and send this way; Celery reads its queues again."""
    state_of(app).adopt = adopter(settings)
    use_amqp(app, RoutedAMQP)
    leave_delays_to(_is_routed)


def _is_routed(app: Celery) -> bool:
    return isinstance(app.amqp, RoutedAMQP)


class RoutedQueues(HookedQueues):
    """Celery's queue declarations; queues that specify only a name are declared by repot."""

    def __init__(self, adopt: Callable[..., Queue] | None, *args: Any, **options: Any) -> None:  # noqa: ANN401 - Celery's
        """Take Celery's arguments, and a function that adopts a queue; None on brokers without queue arguments."""
        self.adopt = adopt or _unchanged
        super().__init__(*args, **options)

    def is_bare(self, queue: Queue) -> bool:
        """Return whether a queue has no exchange of its own; Celery itself may have set the default one."""
        return not (queue.exchange and queue.exchange.name) or queue.exchange == self.default_exchange

    def adjusted(self, queue: Queue) -> Queue:
        """Adopt a queue that specifies only its name."""
        return self.adopt(queue) if self.is_bare(queue) else queue

    def new_missing(self, name: str) -> Queue:
        """Make a queue that is used by name and not declared."""
        made = super().new_missing(name)
        made.queue_arguments = None  # with nothing but the queue's type
        return self.adopt(made, self.create_missing_queue_type or "classic")

    def select_add(self, queue: Any, **options: Any) -> Any:  # noqa: ANN401 - a name or a queue
        """Consume from a further queue; a bare name is declared by `new_missing`, as for its senders."""
        given = {name: value for name, value in options.items() if value and value != queue}
        if isinstance(queue, str) and given in ({}, {"exchange_type": "direct"}):
            queue, options = self.new_missing(queue), {}
        return super().select_add(queue, **options)  # type: ignore[func-returns-value]


def _unchanged(queue: Queue, _kind: str = "") -> Queue:
    return queue


class RoutedRouter(HookedRouter):
    """Celery's router, with support for queues given as objects and for retries of delayed messages."""

    def route(self, options: Any, *args: Any, **rest: Any) -> Any:  # noqa: ANN401 - Celery's
        """Route a message; the retry of a delayed message goes to its queue, not into the delays behind it."""
        exchange, key = options.get("exchange"), options.get("routing_key") or ""
        if isinstance(exchange, str) and exchange in delays.LAST_EXCHANGES and (queue := delays.queue_of(key)):
            options = {name: value for name, value in options.items() if name not in ("exchange", "routing_key")}
            options["queue"] = queue
        return super().route(options, *args, **rest)

    def expand_destination(self, route: Any) -> Any:  # noqa: ANN401 - Celery's
        """Find the queue; a queue given as an object is declared like the known queue of its name."""
        found: Any = super().expand_destination(route)  # type: ignore[func-returns-value]
        given = found.get("queue")
        if type(given) is Queue:
            known = self.queues.get(given.name)
            if isinstance(known, TaskQueue) or (known is None and self.queues.is_bare(given)):
                found["queue"] = self.queues.adopt(given)
        return found


class RoutedAMQP(HookedAMQP):
    """Celery's AMQP class with these queues and this router."""

    def make_queues(self, *args: Any, **options: Any) -> RoutedQueues:  # noqa: ANN401 - Celery's
        """Return the declarations; unchanged for an application without `repot.configure`."""
        return RoutedQueues(state_of(self.app).adopt, *args, **options)

    def make_router(self, *args: Any, **options: Any) -> RoutedRouter:  # noqa: ANN401 - Celery's
        """Return the router."""
        return RoutedRouter(*args, **options)

    def delayed(self, exchange: Any, key: str, seconds: int) -> dict[str, Any]:  # noqa: ANN401 - kombu's or a name
        """Return the options of publishing with which the broker delays a message to `exchange`.

        Empty if the worker must hold it: as in stock Celery, a message to an exchange of the application's own, because
        a client cannot find out which queues others have bound to that.
        """
        name = str(getattr(exchange, "name", exchange) or "")
        if seconds < 1 or not key:
            return {}
        queues, levels = list(self.queues.values()), delays.levels_of(state_of(self.app).settings)
        held_by = {"kind": delay_queues.queue_type(self.app), "levels": levels}
        if not name:
            queue = self.queues.get(key)
            held = delays.delayed_key(key, seconds, levels) if queue is not None and is_delayed(queue) else ""
            way_out = delays.DelayExit(name=key, queues=[queue], native="", **held_by)
        elif name == delays.EXIT or name in natively_delayed(queues):
            held = delays.native_key(key, seconds, levels)
            bound = [one for one in queues if one.exchange and one.exchange.name == name]
            way_out = delays.DelayExit(name=name, queues=bound, native=name, **held_by)
        else:
            return {}
        return {"exchange": delays.entry(levels), "routing_key": held, "declare": [way_out]} if held else {}

    def wrap_sender(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Add a timestamp and the trace to each message, and let RabbitMQ delay messages with an ETA."""
        traced = sent(self.app, send)

        def send_task_message(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - Celery's
            eta = message.headers.get("eta") or (message.body.get("eta") if isinstance(message.body, dict) else None)
            through = _Delaying(producer, self, eta) if eta else producer
            # the only source of how long the oldest message of a queue, or a received one, has waited
            message.properties.setdefault("timestamp", int(time()))
            return traced(through, name, message, *args, **options)

        return send_task_message


class _Delaying:
    """A producer for one message with an ETA.

    Only here is Celery's decision about the destination known. The message keeps its ETA, and the worker waits for the
    fraction of a second that is left.
    """

    def __init__(self, producer: Any, routed: RoutedAMQP, eta: str) -> None:  # noqa: ANN401 - kombu's
        self._producer, self._amqp, self._eta = producer, routed, eta

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:  # noqa: ANN401 - kombu's
        if delays.can_hold(self._producer.connection):
            seconds = seconds_until(self._eta, self._amqp.app)
            delayed = self._amqp.delayed(options.get("exchange"), options.get("routing_key") or "", seconds)
            if delayed:
                options |= delayed | {"declare": [*(options.get("declare") or ()), *delayed["declare"]]}
                # Celery before 5.6.3 gives a retry those of the run before it
                options["headers"] = delays.without_deaths(options.get("headers") or {})
        return self._producer.publish(body, **options)


def seconds_until(eta: str, app: Celery) -> int:
    """Return the whole seconds until an ETA, the unit of RabbitMQ's delays; 0 if past or unreadable."""
    try:
        at = maybe_make_aware(datetime.fromisoformat(eta), app.timezone)
    except ValueError:
        return 0
    return max(floor((at - datetime.now(UTC)).total_seconds() + _TOLERANCE_S), 0)
