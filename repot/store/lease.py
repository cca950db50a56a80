"""The lease of one process at a time, with a fencing token: who leads a rollout, moves a backlog, relays an outbox.

The lease of a guarded task is a part of what is known of a run, and has rules of its own
(`repot.idempotency.transitions`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repot.store.shapes import Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repot.store.rules import Rule


@dataclass(frozen=True, slots=True)
class Lease:
    """Who has the lease until when, and the fencing token of its last owner. Instants are seconds since 1970."""

    owner: str = ""
    token: int = 0
    ends_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """The answer to who asks for a lease.

    Attributes:
        token: its fencing token; None if another owner has it.
        owner: who has it.
        remaining_s: for how long another owner has it, unless it renews it.
    """

    token: int | None
    owner: str
    remaining_s: float = 0.0


def acquiring(owner: str, lease_s: float, ended: str = "", *, keeps_token: bool = True) -> Rule[Lease, Held]:
    """Return the rule by which an owner acquires or renews the lease, also from one that is known to have `ended`.

    The fencing token is larger with each new owner; with `keeps_token=False` also when its owner acquires it again.
    """

    def rule(found: Lease | None, now: float) -> tuple[Lease | None, Held]:
        lease = found or Lease()
        if lease.owner not in (owner, ended, "") and lease.ends_at > now:
            return None, Held(None, lease.owner, lease.ends_at - now)
        token = lease.token if keeps_token and lease.owner == owner else lease.token + 1
        return Lease(owner, token, now + lease_s), Held(token, owner)

    return rule


def renewing(token: int, lease_s: float) -> Rule[Lease, bool]:
    """Return the rule by which the owner with this token renews the lease; its answer is whether it has it.

    A lease that has expired, and that no other owner wanted, is its last owner's still.
    """

    def rule(found: Lease | None, now: float) -> tuple[Lease | None, bool]:
        if found is None or found.token != token or not found.owner:
            return None, False
        return replace(found, ends_at=now + lease_s), True

    return rule


def releasing(holder: str | int) -> Rule[Lease, None]:
    """Return the rule by which a lease ends if this is its owner, or its fencing token."""

    def rule(found: Lease | None, _now: float) -> tuple[Lease | None, None]:
        if found is None or holder not in (found.owner, found.token):
            return None, None
        return Lease(token=found.token), None

    return rule


class LeaseFields:
    """A lease as named values, in a hash or in rows; instants are milliseconds."""

    def __init__(self, ends_at: str) -> None:
        """Take the name of the value that has its end."""
        self.names: Sequence[str] = ["owner", "token", ends_at]

    def read(self, found: Mapping[str, str]) -> Lease:
        """Return the lease that some values are; a number that another program wrote is 0."""
        owner, token, ends_at = (found.get(name, "") for name in self.names)
        return Lease(owner, int(_number(token)), _number(ends_at) / 1000)

    def change(self, before: Lease | None, after: Lease, now: float) -> Change:
        """Return what changes from one lease to another."""
        del before
        change, (owner, token, ends_at) = Change(), self.names
        change.put += (owner, after.owner, token, str(after.token))
        if after.ends_at:
            change.later += (ends_at, round((after.ends_at - now) * 1000))
        else:
            change.put += (ends_at, "0")
        return change


def _number(text: str) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0
