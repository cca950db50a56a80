"""The span of each message that an application sends, by its OpenTelemetry; nothing without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.config import delays
from repot.telemetry.messages import Destination, annotated, sending
from repot.telemetry.provider import Telemetry, is_instrumented, telemetry
from repot.upstream.app_state import state_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from repot.config import BrokerUrl


def system_of(url: BrokerUrl) -> str:
    """Return what traces call the kind of a broker; empty without a server."""
    return url.kind.name.lower() if url.kind else ""


def sent(app: Celery, send: Callable[..., Any]) -> Callable[..., Any]:
    """Return what sends a message in the place of `send(producer, name, message, ...)`, traced."""

    def send_task_message(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - Celery's
        found = telemetry()
        if found is None:
            return send(producer, name, message, *args, **options)
        settings = state_of(app).settings
        destination = _destination(system_of(settings.write_url) if settings else "", options)
        traced = _Traced(producer, found, destination)
        with sending(found, destination, name, message.headers):
            return send(traced, name, message, *args, **options)

    return send_task_message


def _destination(system: str, options: dict[str, Any]) -> Destination:
    """Return the queue that Celery's router chose, or else exchange and key as RabbitMQ's conventions write them.

    An exchange and a key that a caller names count more than the queue beside them, which then is the default one:
    celery/app/amqp.py, send_task_message.
    """
    queue = options.get("queue")
    exchange, key = _name(options.get("exchange")), str(options.get("routing_key") or "")
    if exchange and key and not _is_of(queue, exchange, key):
        delayed = delays.queue_of(key)
        return Destination(system, delayed) if delayed else Destination(system, f"{exchange}:{key}", exchange)
    # to the anonymous exchange a key is a queue
    return Destination(system, _name(queue) or key or exchange)


def _is_of(queue: Any, exchange: str, key: str) -> bool:  # noqa: ANN401 - a kombu Queue, or the name of one
    """Return whether a queue is declared with this exchange and key."""
    return (_name(getattr(queue, "exchange", "")), getattr(queue, "routing_key", "")) == (exchange, key)


def _name(one: Any) -> str:  # noqa: ANN401 - kombu's Queue or Exchange, or the name of one
    return str(getattr(one, "name", one) or "")


class _Traced:
    """A producer for one message: what is published has the context of the span of this moment.

    Only here are the headers whole: those of a retry repeat the ones that the message before had.
    """

    def __init__(self, producer: Any, found: Telemetry, destination: Destination) -> None:  # noqa: ANN401 - kombu's
        self._producer, self._found, self._destination = producer, found, destination

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:  # noqa: ANN401 - kombu's
        headers = options.get("headers")
        if isinstance(headers, dict):
            if is_instrumented():
                annotated(self._found, self._destination, headers)
            else:
                self._found.inject(headers)
        return self._producer.publish(body, **options)
