"""Represent dead letters as data and as text, with secrets masked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from repot.masking import masked

if TYPE_CHECKING:
    from repot.deadletter.dead_letter import DeadLetter
    from repot.deadletter.query import DlqHandle
    from repot.deadletter.redaction import Redaction

#: Never show the values of these headers; they may hold arguments.
_HIDDEN_HEADERS = ("argsrepr", "kwargsrepr", "repot-dead")

HEADS = ("id", "task", "reason", "exception", "attempts", "died", "queue")


def summary(dead_letter: DeadLetter, dlq: DlqHandle, redaction: Redaction) -> dict[str, Any]:
    """Return a dead letter as data, without headers, traceback and payload."""
    death = dead_letter.death
    found = {
        "id": dead_letter.id,
        "task": dead_letter.task,
        "reason": death.reason,
        "exception": death.exception,
        "message": redaction.text(dead_letter.message, death.message),
        "attempts": death.attempts,
        "deliveries": death.deliveries,
        "replays": death.replays,
        "worker": death.worker,
        "queue": death.queue,
        "dead_queue": dead_letter.dead_queue,
        "broker": dlq.address,
        "sent_at": _iso(death.sent_at),
        "died_at": _iso(death.died_at),
        "expires_at": dead_letter.expires_at.isoformat() if dead_letter.expires_at else None,
        "content_type": _plain(dead_letter.message.content_type),
        "bytes": len(dead_letter.message.body),
    }
    return cast("dict[str, Any]", masked(redaction.scrubbed(dead_letter.message, found)))


def details(dead_letter: DeadLetter, dlq: DlqHandle, redaction: Redaction, *, payload: bool) -> dict[str, Any]:
    """Return a dead letter as data, with headers and traceback, and with the payload on request."""
    message = dead_letter.message
    headers = {name: _plain(value) for name, value in message.headers.items() if name not in _HIDDEN_HEADERS}
    found = {
        **summary(dead_letter, dlq, redaction),
        "ttl_ms": dead_letter.death.ttl_ms,
        "content_encoding": _plain(message.content_encoding),
        "properties": {name: _plain(value) for name, value in message.properties.items()},
        "headers": headers,
        "traceback": redaction.text(message, dead_letter.death.traceback),
    }
    if payload:
        found["payload"] = redaction.payload(message)
    return cast("dict[str, Any]", masked(redaction.scrubbed(dead_letter.message, found)))


def row(dead_letter: dict[str, Any], now: float) -> tuple[str, ...]:
    """Return the columns of `HEADS` for a summary."""
    died_at = dead_letter["died_at"]
    age = f"{duration(now - datetime.fromisoformat(died_at).timestamp())} ago" if died_at else "?"
    attempts = "" if dead_letter["attempts"] is None else str(dead_letter["attempts"])
    exception = (
        f"{dead_letter['exception'].rpartition('.')[2]}: {dead_letter['message']}" if dead_letter["exception"] else ""
    )
    return (
        dead_letter["id"],
        dead_letter["task"],
        dead_letter["reason"],
        _one_line(exception),
        attempts,
        age,
        dead_letter["queue"],
    )


def duration(seconds: float) -> str:
    """Return a duration in its largest unit: 45s, 12m, 5h, 3d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _one_line(text: str, max_length: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[: max_length - 3]}..."


def _plain(value: object) -> object:
    """Return a header's value as JSON data."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
