"""The last look of a rollout's controller, in the lease store: for the page, the command line, and metrics."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from repot.errors import RecordUnreadable
from repot.routing.store import key_of

if TYPE_CHECKING:
    from repot.routing.store import RolloutStore


@dataclass(frozen=True, slots=True)
class LastLook:
    """The controller's last look.

    Attributes:
        at: in seconds since 1970, by the store's clock.
        findings: criterion, verdict and reason of each comparison.
        obstacles, faults, left: as in `Observed`.
    """

    at: float
    generation: int
    findings: tuple[tuple[str, str, str], ...] = ()
    obstacles: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Looks:
    """Keeps the last look of one rollout's controller.

    Methods raise StoreUnreachable, StoreMisconfigured or StoreRefused.
    """

    def __init__(self, store: RolloutStore, prefix: str, name: str) -> None:
        """Take the store, the prefix of its keys (WORKER_LEASE_PREFIX), and the rollout's name."""
        base = key_of(prefix, name)
        self._store, self._last, self._judged = store, f"{base}:look", f"{base}:judged"

    def put(self, look: LastLook) -> None:
        """Keep the last look; one that judged stays also when later ones compare nothing."""
        text = json.dumps(asdict(look))
        self._store.put_text(self._last, text)
        if look.findings:
            self._store.put_text(self._judged, text)

    def last(self) -> LastLook | None:
        """Return the last look; None before the first.

        Raises:
            RecordUnreadable: the value is of another program.
        """
        return self._read(self._last)

    def judged(self) -> LastLook | None:
        """Return the last look that compared the sides; None before the first.

        Raises:
            RecordUnreadable: the value is of another program.
        """
        return self._read(self._judged)

    def _read(self, key: str) -> LastLook | None:
        text = self._store.text(key)
        if text is None:
            return None
        try:
            found = json.loads(text)
            found["findings"] = tuple((str(name), str(verdict), str(why)) for name, verdict, why in found["findings"])
            return LastLook(**found | {name: tuple(found[name]) for name in ("obstacles", "faults", "left")})
        except (ValueError, TypeError, KeyError) as error:
            message = f"the last look of a rollout's controller cannot be read: {error}"
            raise RecordUnreadable(message, hint="Another program writes under WORKER_LEASE_PREFIX.") from error
