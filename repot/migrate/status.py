"""What the journal of a move says: its account, who moves, and lines of its audit."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from repot.brokers.journal import Direction
from repot.errors import MoveNotFound
from repot.migrate.account import account_of, total
from repot.migrate.control import Request
from repot.worker.holder import described, has_ended, who

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.brokers.journal import Journal
    from repot.migrate.account import Account

#: The journal has a field for each further target queue that the application's routing has named.
ROUTED = "routed:"


def find_record(journal: Journal, name: str, where: str = "these brokers") -> dict[str, str]:
    """Return the fields of a move's journal; `where` names what was looked through.

    Raises:
        MoveNotFound: they keep no such journal.
    """
    record = journal.read()
    if not record.get("name"):
        message = f"there is no journal of a move {name!r} on {where}"
        raise MoveNotFound(message, hint="`repot move start --name ...` begins one.")
    return record


def routed_queues(record: Mapping[str, str]) -> list[str]:
    """Return the further target queues that the application's routing has named."""
    return sorted(name.removeprefix(ROUTED) for name in record if name.startswith(ROUTED))


def dead_of(record: Mapping[str, str]) -> frozenset[str]:
    """Return which of the queues are dead-letter queues."""
    return frozenset(json.loads(record.get("dead") or "[]"))


def remembered(record: Mapping[str, str]) -> dict[str, Any]:
    """Return how a move went on, by the names of `repot move`'s options: what a journal of an older release lacks."""
    return {"priority": record["priority"], **json.loads(record.get("pace") or "{}")} if "priority" in record else {}


def status(record: Mapping[str, str], now: float) -> dict[str, Any]:
    """Return what is known about a move, for people and programs; `now` is the time of the journal's broker."""
    queues: dict[str, str] = json.loads(record["queues"])
    owner = record.get("owner") or ""
    account, back = total(record, queues), total(record, queues, Direction.BACK)
    return {
        "name": record["name"],
        "source": record["source"],
        "target": record["target"],
        "state": record.get("state", "new"),
        "direction": Direction(record.get("direction") or Direction.FORTH).name.lower(),
        "wanted": record.get("wanted") or Request.RUN.value,
        "created_at": record["created_at"],
        "in_hand": record.get("in_hand"),
        "revoked": record.get("revoked"),
        "owner": described(owner) if owner else None,
        # a mover that was killed leaves its lease
        "is_alive": float(record.get("lease_until") or 0) / 1000 > now and not has_ended(owner),
        "fencing_token": int(record.get("token") or 0),
        **counts(account),
        "given_back": counts(back),
        "closes": account.closes and back.closes,
        "routed": routed_queues(record),
        "queues": [{"queue": queue, "to": goal, **counts(account_of(record, queue))} for queue, goal in queues.items()],
    }


def counts(account: Account) -> dict[str, int]:
    """Return an account as fields."""
    return {
        "reserved": account.reserved,
        "delivered": account.delivered,
        "returned": account.returned,
        "quarantined": account.quarantined,
        "still_reserved": account.open,
        "maybe_twice": account.maybe_twice,
        "recognised": account.recognised,
    }


def audit_line(what: str) -> str:
    """Return a line of the audit: when, who, what."""
    return json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **who(), "what": what})
