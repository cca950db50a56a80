"""The lease of the one beat that sends during a rollout, and when each entry of its schedule ran last.

A standby knows no runs but its own. Each run is stored, and it goes on where the holder was. The stored times only
grow: a beat that was frozen cannot put an older run over a later one.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING
from uuid import NAMESPACE_OID, uuid5

from repot.errors import RepotError
from repot.logs import get_logger
from repot.routing.store import LEASE, key_of
from repot.store.lease import acquiring, releasing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.routing.store import RolloutStore
    from repot.store.lease import Held

log = get_logger(__name__)

#: The part of the lease after which a store that did not answer is asked again: it may take seconds not to answer.
_RETRY_PART = 10
#: The part of the lease for which a standby leaves a store that answers again to the holder.
_GRACE_PART = 2


def boot_time() -> float:
    """Return the seconds since the machine's start, those in which it or this process slept included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class BeatLease:
    """The lease of one rollout's beat, as one process sees it."""

    def __init__(
        self, store: RolloutStore, prefix: str, name: str, owner: str, lease_s: float, has_ended: Callable[[str], bool]
    ) -> None:
        """Ask the store on first use.

        `owner` names this process; `has_ended` tells whether another owner's process is known to have ended.
        """
        self._store, self._owner, self._lease_s, self._has_ended = store, owner, lease_s, has_ended
        self._key = f"{key_of(prefix, name)}:beat"
        self._valid_until = self._ask_at = float("-inf")
        #: The fencing token of the last lease; larger with each new owner, 0 before the first.
        self.token = 0
        #: The owner that refused this process its lease; empty for none.
        self.other = ""
        #: Whether the store answered the last question.
        self.is_answered = True

    def is_held(self) -> bool:
        """Acquire or renew the lease; return whether this process has it.

        While the store does not answer, the lease goes on until its end by this machine's clock, which also runs while
        the process is stopped.
        """
        if boot_time() >= self._ask_at:
            self._ask()
        return boot_time() < self._valid_until

    def release(self) -> None:
        """End the lease, if this process has it.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        self._valid_until = float("-inf")
        self._store.apply(self._key, LEASE, releasing(self._owner))

    def runs(self) -> dict[str, float]:
        """Return when each entry ran last, in seconds since 1970.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        return self._store.scores(f"{self._key}:runs")

    def ran(self, runs: Mapping[str, float]) -> None:
        """Store when entries ran, in seconds since 1970; a run that is earlier than the stored one changes nothing.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        if runs:
            self._store.raise_scores(f"{self._key}:runs", runs)

    def acquire(self) -> None:
        """Acquire or renew the lease, or learn who has it.

        Raises:
            StoreUnreachable: the store is unavailable.
        """
        if not self._had_it:
            # only a look: a server that was frozen still does what it was asked meanwhile, and a lease that is given so
            # would take the schedule from a holder that has sent in the meantime
            owner = live_owner(self._store, self._key)
            if owner and owner != self._owner and not self._has_ended(owner):
                self.other = owner
                return
        now = boot_time()
        held = self._acquired()
        if held.token is None and self._has_ended(held.owner):
            held = self._acquired(held.owner)
        if held.token is None:
            self._valid_until, self.other = float("-inf"), held.owner
        else:
            # from before the question: the server may have answered at once
            self._valid_until, self.other, self.token = now + self._lease_s, "", held.token

    @property
    def _had_it(self) -> bool:
        """Whether this process had the lease when the store last said who has it."""
        return bool(self.token) and not self.other

    def _ask(self) -> None:
        try:
            if self.is_answered or self._had_it:
                self.acquire()
            else:
                # the holder was cut off as well: it comes first, since it alone knows what it has sent meanwhile
                self._store.now()
                self._ask_at = boot_time() + self._lease_s / _GRACE_PART
            self.is_answered = True
        except RepotError as error:
            self._ask_at, self.is_answered = boot_time() + self._lease_s / _RETRY_PART, False
            log.warning("the lease of beat is not renewed: %s", error.message, extra={"action": "beat_unrenewed"})

    def _acquired(self, ended: str = "") -> Held:
        return self._store.apply(self._key, LEASE, acquiring(self._owner, self._lease_s, ended))


def beat_holder(store: RolloutStore, prefix: str, name: str) -> str | None:
    """Return the owner of a rollout's beat lease; None if no process has it.

    Raises:
        StoreUnreachable: the store is unavailable.
    """
    return live_owner(store, f"{key_of(prefix, name)}:beat")


def live_owner(store: RolloutStore, key: str) -> str | None:
    """Return the owner of a lease that has not ended; None without one.

    Raises:
        StoreUnreachable: the store is unavailable.
    """
    found = LEASE.read(store.fields(key))
    return found.owner if found.owner and found.ends_at > store.now() else None


def task_id_of(rollout: str, entry: str, after: float) -> str:
    """Return the id of the task that an entry sends next after its last run, in every beat the same."""
    return str(uuid5(NAMESPACE_OID, json.dumps([rollout, entry, f"{after:.6f}"])))
