"""A dead letter: the original message, and one header with the reason.

Messages that RabbitMQ itself dead-lettered (delivery limit, length limit, rejection, expiry) have its own header
`x-death`, which is read as well.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any

from repot.brokers.headers import REPLAY_HEADER, UNDECIDED_HEADER
from repot.deadletter.reason import UNREADABLE, Reason
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.brokers.message import Message

#: The header that makes a message a dead letter; its value is JSON.
HEADER = "repot-dead"
#: How often this message was replayed; kept through retries, as REPLAY_HEADER is, for its next dead letter.
REPLAYS_HEADER = "repot_replays"

#: Characters of an exception in the header: all headers of a message share one AMQP frame of 128 KiB.
_MAX_MESSAGE, _MAX_TRACEBACK = 1000, 4000

#: From here on JSON readers lose precision.
_TOO_LARGE = 2**53
#: The end of the year 9999, the last of `datetime`.
_LATEST_S = 253_402_300_799

#: Headers of the ended delivery; RabbitMQ before 4.0 would read its own counts again.
_DELIVERY_HEADERS = ("x-death", "x-delivery-count", "x-acquired-count", HEADER)
_DELIVERY_HEADER_PREFIXES = ("x-first-death-", "x-last-death-")


@dataclass(frozen=True, slots=True)
class Death:
    """How a message died, as in RabbitMQ's `x-death`.

    Instants are seconds since 1970 by the clock of their writer; None is unknown. `attempts` counts runs, `deliveries`
    deliveries by the broker, `replays` replays; `ttl_ms` is the time to live that was removed from the message.
    """

    #: A `Reason`, or any text that another program wrote.
    reason: str
    queue: str
    died_at: float | None = None
    exception: str = ""
    message: str = ""
    traceback: str = ""
    attempts: int | None = None
    deliveries: int | None = None
    worker: str = ""
    sent_at: float | None = None
    replays: int = 0
    ttl_ms: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in a dead-letter queue, and how it died."""

    message: Message
    death: Death
    #: The dead-letter queue that holds it.
    dead_queue: str

    @property
    def id(self) -> str:
        """The task's id; for a message without one a digest of the message."""
        found = self.message.headers.get("id") or self.message.properties.get("correlation_id")
        if found:
            return str(found)
        digest = hashlib.sha256(self.message.body)
        digest.update(repr(sorted(self.message.headers.items(), key=str)).encode())
        return f"m-{digest.hexdigest()[:16]}"

    @property
    def task(self) -> str:
        """The task's name; empty if the headers name none."""
        return str(self.message.headers.get("task") or "")

    @property
    def is_task(self) -> bool:
        """Whether a worker could run it."""
        # protocol 1 names its task in the body, which is not read here
        return self.death.reason not in UNREADABLE and bool(self.task or self.message.content_type)

    @property
    def expires_at(self) -> datetime | None:
        """When the task itself expires: after that a worker drops it silently."""
        stated = self.message.headers.get("expires")
        try:
            moment = stated if isinstance(stated, datetime) else datetime.fromisoformat(str(stated))
        except ValueError:
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def age_s(self, now: float) -> float | None:
        """Return the seconds since it died; None if that is unknown."""
        return None if self.death.died_at is None else max(now - self.death.died_at, 0)


def make_dead_letter(message: Message, death: Death) -> Message:
    """Return the dead letter for a message: one more header, persistent, and its time to live moved to that header."""
    properties = {name: value for name, value in message.properties.items() if name != "expiration"}
    recorded = replace(
        death,
        # other programs read the queue
        message=str(masked(death.message))[:_MAX_MESSAGE],
        traceback=str(masked(death.traceback))[-_MAX_TRACEBACK:],
        ttl_ms=message.properties.get("expiration"),
        replays=_number(message.headers.get(REPLAYS_HEADER)),
        sent_at=_seconds(message.properties.get("timestamp")),
        deliveries=_deliveries(message.headers),
    )
    fields = {name: value for name, value in asdict(recorded).items() if value not in (None, "")}
    return replace(
        message,
        headers={**message.headers, HEADER: json.dumps(fields)},
        properties={**properties, "delivery_mode": 2},
    )


def read_dead_letter(message: Message, dead_queue: str, source_queue: str = "") -> DeadLetter:
    """Read a dead letter of any origin; `source_queue` is assumed if the message does not name its queue."""
    death = _from_our_header(message) or _from_x_death(message) or Death(Reason.UNKNOWN, "")
    if not death.queue:
        death = replace(death, queue=source_queue)
    return DeadLetter(message, death, dead_queue)


def make_replay(dead_letter: DeadLetter, *, forget_expiry: bool = False, decided: bool = True) -> Message:
    """Return the message to send again: same id and body, retries at 0, and one more replay.

    Without `decided` an effect of unknown outcome does not happen again, where its policy parks it.
    """
    headers = {
        name: value
        for name, value in dead_letter.message.headers.items()
        if name not in (*_DELIVERY_HEADERS, UNDECIDED_HEADER) and not name.startswith(_DELIVERY_HEADER_PREFIXES)
    }
    headers[REPLAYS_HEADER] = dead_letter.death.replays + 1
    # clocks differ, and may be set back
    headers[REPLAY_HEADER] = max(int(time() * 1000), _number(headers.get(REPLAY_HEADER)) + 1)
    if not decided:
        headers[UNDECIDED_HEADER] = True
    if "retries" in headers:
        headers["retries"] = 0
    if forget_expiry and "expires" in headers:
        headers["expires"] = None
    properties = {name: value for name, value in dead_letter.message.properties.items() if name != "expiration"}
    return replace(dead_letter.message, headers=headers, properties=properties)


def _from_our_header(message: Message) -> Death | None:
    """Read repot's header; any program may have written to the queue, so an invalid value is unknown."""
    try:
        fields = json.loads(message.headers.get(HEADER, ""))
    except (TypeError, ValueError, RecursionError):
        # no such header, or another program's
        return None
    if not isinstance(fields, dict) or "reason" not in fields:
        return None
    return Death(
        reason=_text(fields["reason"]) or Reason.UNKNOWN,
        queue=_text(fields.get("queue")),
        died_at=_seconds(fields.get("died_at")),
        exception=_text(fields.get("exception")),
        message=_text(fields.get("message")),
        traceback=_text(fields.get("traceback")),
        attempts=_count(fields.get("attempts")),
        deliveries=_count(fields.get("deliveries")),
        worker=_text(fields.get("worker")),
        sent_at=_seconds(fields.get("sent_at")),
        replays=_number(fields.get("replays")),
        ttl_ms=_text(fields.get("ttl_ms")) or None,
    )


def _from_x_death(message: Message) -> Death | None:
    deaths = message.headers.get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], dict):
        return None
    last = deaths[0]
    died_at = last.get("time")
    if isinstance(died_at, datetime) and died_at.tzinfo is None:
        died_at = died_at.replace(tzinfo=UTC)
    return Death(
        reason=_text(last.get("reason")) or Reason.UNKNOWN,
        queue=_text(last.get("queue")),
        died_at=_seconds(died_at.timestamp()) if isinstance(died_at, datetime) else None,
        attempts=_number(message.headers.get("retries")) + 1,
        deliveries=_deliveries(message.headers),
        sent_at=_seconds(message.properties.get("timestamp")),
        replays=_number(message.headers.get(REPLAYS_HEADER)),
        ttl_ms=_text(last.get("original-expiration")) or None,
    )


def _deliveries(headers: Mapping[str, Any]) -> int | None:
    """Return the deliveries: one more than RabbitMQ's count of returns."""
    counted = _count(headers.get("x-delivery-count"))
    return None if counted is None else counted + 1


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return _count(value) or 0


def _count(value: object) -> int | None:
    """Return a number that every broker and JSON reader represents exactly; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_LARGE else None


def _seconds(value: object) -> float | None:
    """Return an instant that fits into `datetime`; None for NaN, infinity, and milliseconds of other programs."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST_S:
        return None
    return float(value)
