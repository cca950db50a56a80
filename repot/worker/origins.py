"""Which queue a message was taken from, which is where its letter belongs and where a replay goes."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)


class Origins:
    """The queues of a worker's consumer; kept, as a worker that leaves has cancelled them and still ends tasks."""

    def __init__(self) -> None:
        """Know none yet."""
        self._active: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._bindings: dict[str, set[tuple[str, str]]] = {}

    def note(self, consumer: Any) -> None:  # noqa: ANN401 - kombu's Consumer, None while a worker leaves
        """Remember what it consumes; cheap where nothing has changed, so that every message may ask."""
        active = consumer._active_tags if consumer is not None else {}  # noqa: SLF001 - kombu does not tell otherwise
        if not active or active == self._active:
            return
        self._active = dict(active)
        self._tags |= {tag: name for name, tag in active.items()}
        self._bindings |= {str(queue.name): _bindings(queue) for queue in consumer.queues}

    def of(self, message: Any) -> str:  # noqa: ANN401 - kombu's Message
        """The queue of a message: RabbitMQ names the consumer, Redis the way it was sent."""
        info = message.delivery_info or {}
        tag, exchange, key = (str(info.get(name) or "") for name in ("consumer_tag", "exchange", "routing_key"))
        if tag in self._tags:
            return self._tags[tag]
        candidates = [name for name, bound in self._bindings.items() if (exchange, key) in bound]
        if not candidates:
            # a topic, or a binding that somebody else made
            candidates = [name for name in _routed(message, exchange, key) if name in self._bindings]
        if not candidates and key in self._bindings:
            candidates = [key]
        # it was consumed, so it came from one of them: any is better than a name that nobody reads
        return next(iter((*candidates, *self._active, key)))


def _bindings(queue: Any) -> set[tuple[str, str]]:  # noqa: ANN401 - kombu's Queue
    """Exchange and routing key of each of its bindings; one that lists them has no exchange of its own."""
    bound = [*(queue.bindings or ()), *([queue] if queue.exchange is not None else [])]
    named = {(str(getattr(one.exchange, "name", one.exchange) or ""), str(one.routing_key or "")) for one in bound}
    # every queue is bound to the default exchange by its name
    return {("", str(queue.name)), *(one for one in named if one[0])}


def _routed(message: Any, exchange: str, key: str) -> list[str]:  # noqa: ANN401
    """The queues that kombu put it into, where kombu routes itself; a broker with exchanges names the consumer."""
    lookup = getattr(message.channel, "_lookup", None)
    if lookup is None or not exchange:
        return []
    try:
        return [str(name) for name in lookup(exchange, key)]
    except Exception:
        # the broker is away, or the channel closed
        log.debug("the bindings of %r could not be had", exchange, exc_info=True)
        return []
