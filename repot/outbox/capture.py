"""Let Celery make the messages of a call, routed and encoded, and keep them in the place of sending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu import Connection, Producer
from kombu.common import Broadcast

from repot.brokers.message import Message, encoded
from repot.errors import ConfigInvalid
from repot.routing.destination import only_queue_at
from repot.telemetry.messages import creating
from repot.upstream.sending import options_with_those_of_the_task, sends_taken

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

#: Options of a call that name a broker; the relay's settings do that.
_OF_THE_BROKER = ("producer", "publisher", "connection")

#: For what Celery asks a producer's connection before it publishes; it is never opened.
_NOWHERE = Connection("memory://")


@dataclass(frozen=True, slots=True)
class Captured:
    """A message, and the queue that Celery's routing names."""

    queue: str
    message: Message


def captured(app: Celery, call: Callable[[], Any]) -> tuple[Any, list[Captured]]:
    """Return what a call that sends returns, and the messages that it would have sent.

    Signals are sent, arguments encoded and routes chosen as ever. The broker is asked for nothing; the result backend
    is only by a group, which subscribes to its results, and by a chord.

    Raises:
        ConfigInvalid: a message does not go to exactly one queue.
    """
    found: list[Captured] = []

    def take(used: Celery, original: Callable[..., Any], name: str, args: Any, kwargs: Any, options: Any) -> Any:  # noqa: ANN401 - Celery's
        if used is not app:
            message = f"{name} belongs to another application than the one that the outbox sends for"
            raise ConfigInvalid(
                message, hint="Send it by its own application: outbox.send(..., app=), app.signature()."
            )
        keeper = _Keeper(app)
        ignored = options_with_those_of_the_task(app, name, options).get("ignore_result")
        given = {key: value for key, value in options.items() if key not in _OF_THE_BROKER}
        # else Celery would subscribe to the result, at a server that may be away
        result = original(name, args, kwargs, **given | {"producer": keeper, "retry": False, "ignore_result": True})
        result.ignored = ignored
        for one in keeper.kept:
            one.message.headers["ignore_result"] = ignored  # type: ignore[index] # made below
        found.extend(keeper.kept)
        return result

    with sends_taken(app, take), creating():
        return call(), found


class _Keeper(Producer):
    """A producer without a broker: it encodes a message as every other one, and its channel keeps it."""

    def __init__(self, app: Celery) -> None:
        keeping: Any = _KeepingChannel(app)
        super().__init__(keeping, auto_declare=False)
        self.kept: list[Captured] = keeping.kept

    @property
    def connection(self) -> Connection:
        """The connection that is never opened."""
        return _NOWHERE

    def maybe_declare(self, entity: Any, retry: bool = False, **retry_policy: Any) -> bool:  # noqa: ANN401, ARG002, FBT001, FBT002 - kombu's
        """Declare nothing: there is no broker."""
        return False


class _KeepingChannel:
    """What a producer asks of a channel (kombu's `StdChannel`)."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.kept: list[Captured] = []

    def prepare_message(
        self,
        body: Any,  # noqa: ANN401 - text or bytes
        priority: int | None,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
    ) -> Message:
        """Return the message."""
        stated = {name: value for name, value in properties.items() if value is not None}
        if priority is not None:
            stated["priority"] = priority
        return Message(encoded(body, content_encoding), content_type, content_encoding, dict(headers), stated)

    def basic_publish(self, message: Message, *, exchange: str, routing_key: str, **_: object) -> None:
        """Keep it, unless it is an event that says that the task was sent, which it is not yet."""
        if message.headers.get("task"):
            self.kept.append(Captured(self._queue(exchange, routing_key, message.headers["task"]), message))

    def _queue(self, exchange: str, routing_key: str, task: str) -> str:
        found = only_queue_at(self._app.amqp.queues, {"exchange": exchange, "routing_key": routing_key})
        # each worker has a queue of its own for it
        if found is None or isinstance(self._app.amqp.queues.get(found), Broadcast):
            message = (
                f"{task} is routed to the exchange {exchange!r} with the key {routing_key!r}, to which the "
                "application binds no queue, or several"
            )
            raise ConfigInvalid(message, hint="The outbox sends to one queue: name it, as in outbox.send(..., queue=)")
        return found or routing_key
