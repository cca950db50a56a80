"""Control commands, sent as kombu's mailbox sends them, for a client that cannot wait as the mailbox does.

`Mailbox._broadcast` (`kombu/pidbox.py`) declares and consumes the reply queue for each command, eight round trips to
the broker for one reply, and publishes with `retry=True`, for ever. The format of command and reply is that of
`Mailbox._publish` and `Mailbox._collect`.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any

from kombu import Consumer, Producer
from kombu.pidbox import Mailbox

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_BREAKS = "Pings are not answered, and probes restart a worker that works."

POINTS = (
    Point(
        "kombu.pidbox:Mailbox._publish",
        Failure.SILENT,
        _BREAKS,
        contains=(
            "message = {'method': type, 'arguments': arguments, 'destination': destination, 'pattern': pattern,",
            "'matcher': matcher}",
            "message.update(ticket=reply_ticket, reply_to={'exchange': self.reply_exchange.name,",
            "'routing_key': self.oid})",
            "headers={'clock': self.clock.forward(), 'expires': time() + timeout if timeout else 0},",
        ),
    ),
    Point(
        "kombu.pidbox:Mailbox._publish_reply",
        Failure.SILENT,
        _BREAKS,
        contains=("'ticket': ticket,",),
    ),
    Point(
        "kombu.pidbox:Mailbox.__init__", Failure.LOUD, _BREAKS, contains=("self.reply_exchange =", "self.exchange =")
    ),
    Point("kombu.pidbox:Mailbox.reply_queue", Failure.LOUD, _BREAKS),
    Point("kombu.pidbox:Mailbox.oid", Failure.LOUD, _BREAKS),
    Point("kombu.pidbox:Mailbox.__call__", Failure.LOUD, _BREAKS, "(self, connection)"),
    Point(
        "kombu.pidbox:Mailbox",
        Failure.SILENT,
        _BREAKS,
        contains=("exchange_fmt = '%s.pidbox'", "reply_exchange_fmt = 'reply.%s.pidbox'"),
    ),
)


def mailbox_exchange(control_exchange: str) -> str:
    """Return the name of the exchange of commands; each worker has a queue `{worker}.{name}` there."""
    return f"{control_exchange}.pidbox"


def reply_exchange(control_exchange: str) -> str:
    """Return the name of the exchange of replies."""
    return f"reply.{control_exchange}.pidbox"


def command(
    method: str,
    arguments: Mapping[str, Any],
    ticket: str,
    reply_to: tuple[str, str],
    destination: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the body of a command; `reply_to` are exchange and routing key, without a destination it is for all."""
    return {
        "method": method,
        "arguments": dict(arguments),
        "destination": None if destination is None else list(destination),
        "pattern": None,
        "matcher": None,
        "ticket": ticket,
        "reply_to": {"exchange": reply_to[0], "routing_key": reply_to[1]},
    }


class CommandMailbox:
    """Sends control commands and receives replies on one connection, whose reply queue is consumed all the time.

    RabbitMQ removes the queue with the connection; kombu keeps its binding on Redis as long as the queue is consumed.
    """

    def __init__(self, connection: Any, control_exchange: str, on_reply: Callable[[str, Any], None]) -> None:
        """Declare the exchange of the commands and the queue of the replies; `on_reply(ticket, body)` takes a reply.

        A reply that is not JSON has the body None: its worker has another `task_serializer`.
        """
        mailbox: Any = Mailbox(control_exchange, type="fanout", accept=["json"], serializer="json")
        self._mailbox = mailbox(connection)
        channel = connection.default_channel
        self._mailbox.exchange(channel).declare()
        self._producer = Producer(channel, auto_declare=False, serializer="json")

        def receive(message: Any) -> None:
            is_json = message.content_type == "application/json"
            on_reply(str(message.headers.get("ticket")), message.decode() if is_json else None)

        # by message: a callback for bodies raises ContentDisallowed in the middle of a wait
        consumer = Consumer(channel, [self._mailbox.reply_queue], accept=["json"], no_ack=True, on_message=receive)
        consumer.consume()

    def send(self, method: str, node: str, ticket: str, within_s: float) -> None:
        """Send a command to one worker, once; errors of publishing are raised."""
        self._publish(method, {}, ticket, within_s, [node])

    def broadcast(self, method: str, arguments: Mapping[str, Any], ticket: str, within_s: float) -> None:
        """Send a command to all workers, once; errors of publishing are raised."""
        self._publish(method, arguments, ticket, within_s, None)

    def _publish(
        self, method: str, arguments: Mapping[str, Any], ticket: str, within_s: float, destination: list[str] | None
    ) -> None:
        self._producer.publish(
            command(method, arguments, ticket, (self._mailbox.reply_exchange.name, self._mailbox.oid), destination),
            exchange=self._mailbox.exchange.name,
            headers={"clock": self._mailbox.clock.forward(), "expires": time() + within_s},
            retry=False,
        )
