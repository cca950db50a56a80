"""Idempotency records in Redis or Valkey: one hash per key, one script per step, by the server's clock."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from repot.brokers.redis.error_replies import ERRORS, Meaning, meaning_of
from repot.errors import RecordUnreadable
from repot.idempotency.connection import StoreConnection
from repot.idempotency.records import (
    Acquired,
    Done,
    Failed,
    FinishMode,
    FinishResult,
    Mismatch,
    Parked,
    Record,
    Running,
    RunOutcome,
    State,
)
from repot.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.config import WorkerSettings
    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.records import Answer, Ending, LeaseRequest

log = get_logger(__name__)

#: Records that are read in one round trip.
_PAGE = 500

_READ_CLOCK = "local time = redis.call('TIME') return time[1] .. '.' .. time[2]"


class RedisLeaseStore(StoreConnection):
    """The `LeaseStore` on a Redis or Valkey."""

    package = "repot.idempotency"

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the store of the settings; connects on first use."""
        super().__init__(settings)
        self._prefix = f"{settings.lease_prefix}:idempotency:"

    def name_of(self, key: str) -> str:
        """Return the Redis key of a record; its hash tag keeps what belongs to it on one node of a cluster."""
        return f"{self._prefix}{{{key}}}"

    def acquire(self, fingerprint: Fingerprint, request: LeaseRequest) -> Answer:
        """Acquire the lease of a key for one run."""
        answer, *more = self._run(
            "acquire",
            fingerprint.key,
            request.owner,
            _ms(request.lease_s),
            _ms(request.retention_s),
            fingerprint.payload,
            request.task,
            request.task_id,
            request.worker,
            request.replay,
            "1" if request.parks else "",
            request.max_unknown_outcomes,
            _ms(request.grace_s),
            *request.unanswered,
        )
        return _ANSWERS[answer](*more)

    def renew(self, key: str, request: LeaseRequest) -> bool:
        """Extend the lease."""
        return bool(self._run("renew", key, request.owner, _ms(request.lease_s), _ms(request.retention_s)))

    def finish(self, key: str, owner: str, ending: Ending, mode: FinishMode = FinishMode.IN_LEASE) -> FinishResult:
        """End a lease, and record how the run ended."""
        result, _ = self._run(
            "finish",
            key,
            owner,
            ending.outcome.value,
            _ms(ending.retention_s),
            "" if ending.result is None else "1",
            ending.result or "",
            ending.error,
            _ms(ending.hold_s),
            ending.held_for,
            mode.value,
        )
        return FinishResult(result)

    def inspect(self, key: str) -> Record | None:
        """Return the record of a key; None if there is no such record."""
        (found,) = self._ask(lambda: self._hashes([self.name_of(key)]))
        return _recorded(key, found, self.now()) if found else None

    def records(self) -> Iterator[Record]:
        """Return all records, in no order; one that changes meanwhile may be missed.

        A value that is not an idempotency record is skipped, with a warning.
        """
        seen: set[str] = set()
        names = self.client.scan_iter(match=f"{self._prefix}*", count=_PAGE)
        while page := self._ask(lambda: list(islice(names, _PAGE))):
            # SCAN may return a name twice
            fresh = [name for name in dict.fromkeys(page) if name not in seen]
            seen.update(fresh)
            found = self._ask(partial(self._hashes, fresh))
            # read after the records: no expired lease may look live
            now = self.now()
            for name, record in zip(fresh, found, strict=True):
                try:
                    if record:
                        yield _recorded(_key_of(name), record, now)
                except RecordUnreadable as error:
                    log.warning("skipped: %s", error.message, extra={"action": "record_unreadable"})

    def now(self) -> float:
        """Return the time by the store's clock, in seconds since 1970."""
        seconds, micro = self._ask(lambda: self.client.eval(_READ_CLOCK, 1, self._prefix)).split(".")
        return int(seconds) + int(micro) / 1e6

    def _hashes(self, names: list[str]) -> list[dict[str, str] | Exception]:
        """Return the hash under each name, or the error where the value is of another type."""
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
    "acquired": lambda fencing_token, runs, state: Acquired(
        int(fencing_token), int(runs), State(state) if state else None
    ),
    "done": lambda task_id, has_result, result, note: Done(task_id, result if has_result else None, note),
    "failed": Failed,
    "running": lambda ms, task_id, worker: Running(_seconds(ms), task_id, worker),
    "parked": lambda task_id, worker, started_at, unknown_outcomes, first: Parked(
        task_id, worker, _seconds(started_at), int(unknown_outcomes), bool(first)
    ),
    "mismatch": Mismatch,
}


def _recorded(key: str, found: dict[str, str] | Exception, now: float) -> Record:
    try:
        if isinstance(found, Exception):
            raise found
        return _read(key, found, now)
    except (*ERRORS, ValueError, OverflowError) as error:
        message = f"the value stored under key {key} is not an idempotency record: {error}"
        raise RecordUnreadable(message, hint="Another program writes under WORKER_LEASE_PREFIX.") from error


def _read(key: str, found: dict[str, str], now: float) -> Record:
    state = State(found.get("state", RunOutcome.UNKNOWN))
    remaining_s = max(_seconds(found.get("expires_at")) - now, 0) if state in (State.RUNNING, State.RELEASED) else 0
    if state is State.RUNNING and not remaining_s:
        state = State.UNKNOWN
    return Record(
        key=key,
        state=state,
        owner=found.get("owner", ""),
        fencing_token=int(found.get("fencing_token") or 0),
        task=found.get("task", ""),
        task_id=found.get("task_id", ""),
        worker=found.get("worker", ""),
        runs=int(found.get("runs") or 0),
        unknown_outcomes=int(found.get("unknown_outcomes") or 0),
        replay=int(found.get("replay") or 0),
        started_at=_seconds(found.get("started_at")),
        ended_at=_seconds(found["ended_at"]) if "ended_at" in found else None,
        remaining_s=remaining_s,
        parked="parked_at" in found,
        has_result=found.get("has_result") == "1",
        error=found.get("error", ""),
    )
