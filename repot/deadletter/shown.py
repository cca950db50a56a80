"""Letters as data and as text for people; secrets hidden."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from repot.config.masking import masked

if TYPE_CHECKING:
    from repot.deadletter.letter import Letter
    from repot.deadletter.redaction import Redaction
    from repot.deadletter.search import Box

#: Of these headers only their presence is nobody's business: they may hold what arguments hold.
_HIDDEN_HEADERS = ("argsrepr", "kwargsrepr", "repot-dead")

HEADS = ("id", "task", "reason", "exception", "attempts", "died", "queue")


def summary(letter: Letter, box: Box, redaction: Redaction) -> dict[str, Any]:
    """A letter in one line of JSON, without its payload."""
    death = letter.death
    found = {
        "id": letter.id,
        "task": letter.task,
        "reason": death.reason,
        "exception": death.exception,
        "message": redaction.text(letter.message, death.message),
        "attempts": death.attempts,
        "deliveries": death.deliveries,
        "replays": death.replays,
        "worker": death.worker,
        "queue": death.queue,
        "dead_queue": letter.lies_in,
        "broker": box.address,
        "sent_at": _moment(death.sent_at),
        "died_at": _moment(death.died_at),
        "expires": letter.expires_at.isoformat() if letter.expires_at else None,
        "content_type": _plain(letter.message.content_type),
        "bytes": len(letter.message.body),
    }
    return cast("dict[str, Any]", masked(redaction.scrubbed(letter.message, found)))


def whole(letter: Letter, box: Box, redaction: Redaction, *, payload: bool) -> dict[str, Any]:
    """A letter with its headers and traceback, and its payload if that is asked for."""
    message = letter.message
    headers = {name: _plain(value) for name, value in message.headers.items() if name not in _HIDDEN_HEADERS}
    found = {
        **summary(letter, box, redaction),
        "ttl_ms": letter.death.ttl_ms,
        "content_encoding": _plain(message.content_encoding),
        "properties": {name: _plain(value) for name, value in message.properties.items()},
        "headers": headers,
        "traceback": redaction.text(message, letter.death.traceback),
    }
    if payload:
        found["payload"] = redaction.payload(message)
    return cast("dict[str, Any]", masked(redaction.scrubbed(letter.message, found)))


def row(found: dict[str, Any], now: float) -> tuple[str, ...]:
    """The columns of `HEADS` for a summary."""
    died_at = found["died_at"]
    age = f"{duration(now - datetime.fromisoformat(died_at).timestamp())} ago" if died_at else "?"
    attempts = "" if found["attempts"] is None else str(found["attempts"])
    said = f"{found['exception'].rpartition('.')[2]}: {found['message']}" if found["exception"] else ""
    return (found["id"], found["task"], found["reason"], _one_line(said), attempts, age, found["queue"])


def duration(seconds: float) -> str:
    """A length of time in its largest unit: 45s, 12m, 5h, 3d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def _moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _one_line(text: str, longest: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def _plain(value: object) -> object:
    """A header's value as JSON has it."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
