"""Find the queue a message came from: it decides the dead-letter queue and where a replay goes."""

from __future__ import annotations

from typing import Any

from repot.upstream.consumer_tags import active_tags, routed_queues


class QueueResolver:
    """Remembers a consumer's queues: a stopping worker has cancelled them while its tasks still end."""

    def __init__(self) -> None:
        """Begin without queues."""
        self._active: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._bindings: dict[str, set[tuple[str, str]]] = {}

    def note(self, consumer: Any) -> None:  # noqa: ANN401 - kombu's Consumer, None while a worker leaves
        """Remember the queues of `consumer`; cheap if nothing has changed, so it may run for every message."""
        active = active_tags(consumer)
        if not active or active == self._active:
            return
        self._active = dict(active)
        self._tags |= {tag: name for name, tag in active.items()}
        self._bindings |= {str(queue.name): _bindings(queue) for queue in consumer.queues}

    def queue_of(self, message: Any) -> str:  # noqa: ANN401 - kombu's Message
        """Return the queue of a message: RabbitMQ names the consumer, Redis the exchange and routing key."""
        info = message.delivery_info or {}
        tag, exchange, key = (str(info.get(name) or "") for name in ("consumer_tag", "exchange", "routing_key"))
        if tag in self._tags:
            return self._tags[tag]
        candidates = [name for name, bound in self._bindings.items() if (exchange, key) in bound]
        if not candidates:
            # a topic exchange, or a binding of another client
            candidates = [name for name in routed_queues(message.channel, exchange, key) if name in self._bindings]
        if not candidates and key in self._bindings:
            candidates = [key]
        # it came from one of the consumed queues: any of them is better than a name without a consumer
        return next(iter((*candidates, *self._active, key)))


def _bindings(queue: Any) -> set[tuple[str, str]]:  # noqa: ANN401 - kombu's Queue
    """Return exchange and routing key of each binding; a queue that lists bindings has no exchange of its own."""
    bound = [*(queue.bindings or ()), *([queue] if queue.exchange is not None else [])]
    named = {(str(getattr(one.exchange, "name", one.exchange) or ""), str(one.routing_key or "")) for one in bound}
    # every queue is bound to the default exchange by its name
    return {("", str(queue.name)), *(one for one in named if one[0])}
