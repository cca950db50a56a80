"""Claims on a Redis or Valkey: a hash a key, changed by one script a step, by the server's clock."""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from repot.errors import ClaimUnreadable
from repot.idempotency.claims import (
    Claimed,
    Done,
    Failed,
    Mismatch,
    Outcome,
    Parked,
    Record,
    Running,
    State,
    Verdict,
)
from repot.idempotency.connection import StoreConnection
from repot.idempotency.replies import ERRORS, Meaning, meaning_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.config import WorkerSettings
    from repot.idempotency.claims import Answer, Claimant, Ending
    from repot.idempotency.fingerprint import Fingerprint

log = logging.getLogger(__name__)

#: Records that are looked at together.
_PAGE = 500

_TIME = "local time = redis.call('TIME') return time[1] .. '.' .. time[2]"


class RedisStore(StoreConnection):
    """The `Store` on a Redis."""

    package = "repot.idempotency"

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the store that the settings name; connects on first use."""
        super().__init__(settings)
        self._prefix = f"{settings.lease_prefix}:claim:"

    def name_of(self, key: str) -> str:
        """The name of a key's record; a hash tag, so that what belongs to it can lie beside it on a cluster."""
        return f"{self._prefix}{{{key}}}"

    def claim(self, fingerprint: Fingerprint, claimant: Claimant) -> Answer:
        """Claim a key for a run."""
        verdict, *more = self._run(
            "claim",
            fingerprint.key,
            claimant.owner,
            _ms(claimant.lease_s),
            _ms(claimant.kept_s),
            fingerprint.payload,
            claimant.task,
            claimant.task_id,
            claimant.worker,
            claimant.replay,
            "1" if claimant.parks else "",
            claimant.most_doubts,
        )
        return _ANSWERS[verdict](*more)

    def renew(self, key: str, claimant: Claimant) -> bool:
        """Hold it for longer."""
        return bool(self._run("renew", key, claimant.owner, _ms(claimant.lease_s), _ms(claimant.kept_s)))

    def finish(self, key: str, owner: str, ending: Ending, how: str = "") -> Verdict:
        """End a claim."""
        verdict, _ = self._run(
            "finish",
            key,
            owner,
            ending.outcome.value,
            _ms(ending.kept_s),
            "" if ending.result is None else "1",
            ending.result or "",
            ending.error,
            _ms(ending.hold_s),
            ending.held_for,
            how,
        )
        return Verdict(verdict)

    def inspect(self, key: str) -> Record | None:
        """What is on record of a key."""
        (found,) = self._ask(lambda: self._hashes([self.name_of(key)]))
        return _recorded(key, found, self.now()) if found else None

    def records(self) -> Iterator[Record]:
        """Everything on record, in no order; what changes meanwhile may be missed.

        What is no claim is left out, with a warning.
        """
        seen: set[str] = set()
        names = self.client.scan_iter(match=f"{self._prefix}*", count=_PAGE)
        while page := self._ask(lambda: list(islice(names, _PAGE))):
            # SCAN may give a name twice
            fresh = [name for name in dict.fromkeys(page) if name not in seen]
            seen.update(fresh)
            found = self._ask(partial(self._hashes, fresh))
            # asked for after the records, so that nothing looks live that is not
            now = self.now()
            for name, record in zip(fresh, found, strict=True):
                try:
                    if record:
                        yield _recorded(_key_of(name), record, now)
                except ClaimUnreadable as error:
                    log.warning("left out: %s", error.message, extra={"action": "claim_unreadable"})

    def now(self) -> float:
        """The time by the store's clock, in seconds since 1970."""
        seconds, micro = self._ask(lambda: self.client.eval(_TIME, 1, self._prefix)).split(".")
        return int(seconds) + int(micro) / 1e6

    def _hashes(self, names: list[str]) -> list[dict[str, str] | Exception]:
        """What stands at each name: a hash, or the error of a name that is none."""
        with self.client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.hgetall(name)
            found = list(pipeline.execute(raise_on_error=False))
        errors = (one for one in found if isinstance(one, Exception))
        broken = next((one for one in errors if meaning_of(one).meaning is not Meaning.UNREADABLE), None)
        if broken:
            raise broken
        return found

    def _run(self, script: str, key: str, *arguments: Any) -> Any:  # noqa: ANN401 - what the script returns
        return self._ask(lambda: self._script(script)(keys=[self.name_of(key)], args=list(arguments)))


def _key_of(name: str) -> str:
    return name.rpartition("{")[2].removesuffix("}")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _seconds(ms: object) -> float:
    return float(str(ms or 0)) / 1000


_ANSWERS: dict[str, Callable[..., Answer]] = {
    "claimed": lambda fence, runs, state: Claimed(int(fence), int(runs), State(state) if state else None),
    "done": lambda task_id, kept, result, note: Done(task_id, result if kept else None, note),
    "failed": Failed,
    "running": lambda ms, task_id, worker: Running(_seconds(ms), task_id, worker),
    "unknown": lambda task_id, worker, began, doubts, first: Parked(
        task_id, worker, _seconds(began), int(doubts), bool(first)
    ),
    "mismatch": Mismatch,
}


def _recorded(key: str, found: dict[str, str] | Exception, now: float) -> Record:
    try:
        if isinstance(found, Exception):
            raise found
        return _read(key, found, now)
    except (*ERRORS, ValueError, OverflowError) as error:
        message = f"what stands at the name of claim {key} is none: {error}"
        raise ClaimUnreadable(message, hint="Somebody else writes under WORKER_LEASE_PREFIX.") from error


def _read(key: str, found: dict[str, str], now: float) -> Record:
    state = State(found.get("state", Outcome.UNKNOWN.value))
    remaining_s = max(_seconds(found.get("until")) - now, 0) if state in (State.RUNNING, State.RELEASED) else 0
    if state is State.RUNNING and not remaining_s:
        state = State.UNKNOWN
    return Record(
        key=key,
        state=state,
        owner=found.get("owner", ""),
        fence=int(found.get("fence") or 0),
        task=found.get("task", ""),
        task_id=found.get("id", ""),
        worker=found.get("worker", ""),
        runs=int(found.get("runs") or 0),
        doubts=int(found.get("doubts") or 0),
        replay=int(found.get("replay") or 0),
        began=_seconds(found.get("began")),
        ended=_seconds(found["ended"]) if "ended" in found else None,
        remaining_s=remaining_s,
        parked="parked" in found,
        has_result=found.get("kept") == "1",
        error=found.get("error", ""),
    )
