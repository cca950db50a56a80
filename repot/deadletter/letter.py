"""A dead letter: the message as it was, and one header that says how it died.

Letters that RabbitMQ itself put aside (delivery limit, a length limit, a rejection, an
expiry) say so in its own header `x-death`, and are read as well.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any

from repot.brokers.headers import REPLAY_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.brokers.message import Message

#: The header that makes a message a letter; its value is JSON.
HEADER = "repot-dead"
#: How often a person sent this message back; carried through retries as REPLAY_HEADER is, for its next letter.
REPLAYS_HEADER = "repot_replays"

FAILED = "failed"
RETRIES_EXHAUSTED = "retries_exhausted"
PERMANENT = "permanent"
WORKER_LOST = "worker_lost"
TIME_LIMIT = "time_limit"
UNKNOWN_OUTCOME = "unknown_outcome"
REJECTED = "rejected"
UNDECODABLE = "undecodable"
UNKNOWN_TASK = "unknown_task"
NOT_A_TASK = "not_a_task"
DELIVERY_LIMIT = "delivery_limit"
EXPIRED = "expired"
TOO_LONG = "maxlen"
UNKNOWN = "unknown"

#: Why a message can be in a dead-letter queue; those from `delivery_limit` on are RabbitMQ's words.
REASONS = (
    FAILED,
    RETRIES_EXHAUSTED,
    PERMANENT,
    WORKER_LOST,
    TIME_LIMIT,
    UNKNOWN_OUTCOME,
    REJECTED,
    UNDECODABLE,
    UNKNOWN_TASK,
    NOT_A_TASK,
    DELIVERY_LIMIT,
    EXPIRED,
    TOO_LONG,
    UNKNOWN,
)
#: Letters of these reasons can be no tasks, or none of this application's.
UNREADABLE = (UNDECODABLE, NOT_A_TASK)

#: What an exception may take up in a header: all headers of a message share one AMQP frame, 128 KiB.
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 1000, 4000

_TOO_LARGE = 2**53
#: The end of the year 9999, after which there are no dates.
_LATEST_S = 253_402_300_799

#: Of a delivery that is over; RabbitMQ before 4.0 would even read its own counts again.
_OF_THE_DELIVERY = ("x-death", "x-delivery-count", "x-acquired-count", HEADER)
_OF_THE_DELIVERY_PREFIXES = ("x-first-death-", "x-last-death-")


@dataclass(frozen=True, slots=True)
class Death:
    """How a message died.

    Times are seconds since 1970 by the clock of who wrote them; None is unknown.
    `attempts` counts runs, `deliveries` hand-overs by the broker, `replays` how often
    a person sent it back, `ttl_ms` is the time to live that was taken off the letter.
    """

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
class Letter:
    """A message that lies in a dead-letter queue, and how it got there."""

    message: Message
    death: Death
    #: The queue it lies in.
    lies_in: str

    @property
    def id(self) -> str:
        """The task's id; for a message without one a fingerprint of it."""
        found = self.message.headers.get("id") or self.message.properties.get("correlation_id")
        if found:
            return str(found)
        seen = hashlib.sha256(self.message.body)
        seen.update(repr(sorted(self.message.headers.items(), key=str)).encode())
        return f"m-{seen.hexdigest()[:16]}"

    @property
    def task(self) -> str:
        """The task's name; empty if the headers name none."""
        return str(self.message.headers.get("task") or "")

    @property
    def is_task(self) -> bool:
        """Whether a worker could run it at all."""
        # protocol 1 names its task in the body, which nobody reads here
        return self.death.reason not in UNREADABLE and bool(self.task or self.message.content_type)

    @property
    def expires_at(self) -> datetime | None:
        """When the task itself expires: from then on a worker drops it without a word."""
        stated = self.message.headers.get("expires")
        try:
            moment = stated if isinstance(stated, datetime) else datetime.fromisoformat(str(stated))
        except ValueError:
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def age_s(self, now: float) -> float | None:
        """Seconds since it died; None if nobody wrote that down."""
        return None if self.death.died_at is None else max(now - self.death.died_at, 0)


def write(message: Message, death: Death) -> Message:
    """The letter for a message: the same but for a header more and its time to live, which is only remembered.

    It outlives a restart of the broker, whatever its sender wanted.
    """
    properties = {name: value for name, value in message.properties.items() if name != "expiration"}
    kept = replace(
        death,
        message=death.message[:_LONGEST_MESSAGE],
        traceback=death.traceback[-_LONGEST_TRACEBACK:],
        ttl_ms=message.properties.get("expiration"),
        replays=_number(message.headers.get(REPLAYS_HEADER)),
        sent_at=_seconds(message.properties.get("timestamp")),
        deliveries=_deliveries(message.headers),
    )
    said = {name: value for name, value in asdict(kept).items() if value not in (None, "")}
    return replace(
        message,
        headers={**message.headers, HEADER: json.dumps(said)},
        properties={**properties, "delivery_mode": 2},
    )


def read(message: Message, lies_in: str, belongs_to: str = "") -> Letter:
    """Read a letter, whoever wrote it; `belongs_to` is the queue it is taken to come from if it does not say."""
    death = _ours(message) or _of_rabbitmq(message) or Death(UNKNOWN, "")
    if not death.queue:
        death = replace(death, queue=belongs_to)
    return Letter(message, death, lies_in)


def to_replay(letter: Letter, *, forget_expiry: bool = False) -> Message:
    """The message to send again: the same id and body, its retries from the beginning, and one replay more."""
    headers = {
        name: value
        for name, value in letter.message.headers.items()
        if name not in _OF_THE_DELIVERY and not name.startswith(_OF_THE_DELIVERY_PREFIXES)
    }
    headers[REPLAYS_HEADER] = letter.death.replays + 1
    # clocks differ, and are set back
    headers[REPLAY_HEADER] = max(int(time() * 1000), _number(headers.get(REPLAY_HEADER)) + 1)
    if "retries" in headers:
        headers["retries"] = 0
    if forget_expiry and "expires" in headers:
        headers["expires"] = None
    properties = {name: value for name, value in letter.message.properties.items() if name != "expiration"}
    return replace(letter.message, headers=headers, properties=properties)


def _ours(message: Message) -> Death | None:
    """What repot wrote; whoever can write to the queue can write anything there, and the odd is unknown."""
    try:
        said = json.loads(message.headers.get(HEADER, ""))
    except (TypeError, ValueError, RecursionError):
        # somebody else's header, or none
        return None
    if not isinstance(said, dict) or "reason" not in said:
        return None
    return Death(
        reason=_text(said["reason"]) or UNKNOWN,
        queue=_text(said.get("queue")),
        died_at=_seconds(said.get("died_at")),
        exception=_text(said.get("exception")),
        message=_text(said.get("message")),
        traceback=_text(said.get("traceback")),
        attempts=_count(said.get("attempts")),
        deliveries=_count(said.get("deliveries")),
        worker=_text(said.get("worker")),
        sent_at=_seconds(said.get("sent_at")),
        replays=_number(said.get("replays")),
        ttl_ms=_text(said.get("ttl_ms")) or None,
    )


def _of_rabbitmq(message: Message) -> Death | None:
    deaths = message.headers.get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], dict):
        return None
    last = deaths[0]
    moment = last.get("time")
    if isinstance(moment, datetime) and moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Death(
        reason=_text(last.get("reason")) or UNKNOWN,
        queue=_text(last.get("queue")),
        died_at=_seconds(moment.timestamp()) if isinstance(moment, datetime) else None,
        attempts=_number(message.headers.get("retries")) + 1,
        deliveries=_deliveries(message.headers),
        sent_at=_seconds(message.properties.get("timestamp")),
        replays=_number(message.headers.get(REPLAYS_HEADER)),
        ttl_ms=_text(last.get("original-expiration")) or None,
    )


def _deliveries(headers: Mapping[str, Any]) -> int | None:
    """RabbitMQ counts the returns: one less than the deliveries."""
    counted = _count(headers.get("x-delivery-count"))
    return None if counted is None else counted + 1


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return _count(value) or 0


def _count(value: object) -> int | None:
    """A number that every broker and every JSON reader has exactly; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_LARGE else None


def _seconds(value: object) -> float | None:
    """A moment that a date can be made of, which NaN, the infinite and the milliseconds of others are not."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST_S:
        return None
    return float(value)
