"""Idempotency records in Redis or Valkey: one hash per key, by the server's clock."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from itertools import compress, islice
from math import inf
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any

from repot.brokers.redis.error_replies import ERRORS, Meaning, meaning_of
from repot.errors import RecordUnreadable
from repot.idempotency.connection import StoreConnection
from repot.idempotency.records import Acquired, FinishMode, FinishResult, Record, RunOutcome, State
from repot.idempotency.transitions import StoredRecord, acquiring, finishing, renewing
from repot.logs import get_logger
from repot.store.hashes import Expected, HashRecords
from repot.store.shapes import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from repot.config import WorkerSettings
    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.records import Answer, Ending, LeaseRequest

log = get_logger(__name__)

#: Records that are read in one round trip.
_PAGE = 500

_READ_CLOCK = "local time = redis.call('TIME') return time[1] .. '.' .. time[2]"

#: What most requests for a lease find: no record.
_ABSENT: Expected[StoredRecord] = Expected(None, ["state"], [""])


class RedisLeaseStore(StoreConnection):
    """The `LeaseStore` on a Redis or Valkey."""

    package = "repot.idempotency"

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the store of the settings; connects on first use."""
        super().__init__(settings)
        self._prefix = f"{settings.lease_prefix}:idempotency:"
        self._records = HashRecords(self.run, RecordFields())

    def name_of(self, key: str) -> str:
        """Return the Redis key of a record; its hash tag keeps what belongs to it on one node of a cluster."""
        return f"{self._prefix}{{{key}}}"

    def acquire(self, fingerprint: Fingerprint, request: LeaseRequest) -> Answer:
        """Acquire the lease of a key for one run."""
        answer, token = self._records.apply(self.name_of(fingerprint.key), acquiring(fingerprint, request), _ABSENT)
        if token and isinstance(answer, Acquired):
            return Acquired(token, answer.runs, answer.after)
        return answer

    def renew(self, key: str, request: LeaseRequest) -> bool:
        """Extend the lease."""
        return self._records.apply(self.name_of(key), renewing(request), _held_by(request.owner))[0]

    def finish(self, key: str, owner: str, ending: Ending, mode: FinishMode = FinishMode.IN_LEASE) -> FinishResult:
        """End a lease, and record how the run ended."""
        # an unknown outcome is one more than those on record, and an operator's lease may be over
        is_known = mode in (FinishMode.IN_LEASE, FinishMode.LATE) and ending.outcome is not RunOutcome.UNKNOWN
        expected = _held_by(owner) if is_known else None
        return self._records.apply(self.name_of(key), finishing(owner, ending, mode), expected)[0]

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


def _key_of(name: str) -> str:
    return name.rpartition("{")[2].removesuffix("}")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _seconds(ms: object) -> float:
    return float(str(ms or 0)) / 1000


def _held_by(owner: str) -> Expected[StoredRecord]:
    """Return what the owner of a lease expects: that it has it. What it does not know of the record is `...`."""
    unknown: Any = ...
    record = StoredRecord(
        key="",
        state=State.RUNNING,
        owner=owner,
        payload=unknown,
        task=unknown,
        task_id=unknown,
        worker=unknown,
        fencing_token=unknown,
        runs=unknown,
        unknown_outcomes=0,
        replay=unknown,
        started_at=unknown,
        expires_at=inf,
        deleted_at=inf,
        ended_at=unknown,
        parked=unknown,
        result=unknown,
        error=unknown,
        held_for=unknown,
    )
    return Expected(record, ["state", "owner", "expires_at"], [State.RUNNING, owner, "live"], live="expires_at")


def _put_token(change: Change, name: str, value: int, _now: float) -> None:
    change.rising, change.least = name, value


def _put_instant(change: Change, name: str, value: float, now: float) -> None:
    change.later += (name, _ms(value - now))


def _put_parked(change: Change, _name: str, _value: object, _now: float) -> None:
    change.later += ("parked_at", 0)


def _put_result(change: Change, name: str, value: str, _now: float) -> None:
    change.put += ("has_result", "1", name, value)


def _keep(change: Change, _name: str, value: float | None, now: float) -> None:
    change.kept_ms = 0 if value is None else _ms(value - now)


#: How an attribute that is more than a text is written.
_WRITERS: dict[str, Callable[[Change, str, Any, float], None]] = {
    "fencing_token": _put_token,
    "started_at": _put_instant,
    "expires_at": _put_instant,
    "deleted_at": _keep,
    "ended_at": _put_instant,
    "parked": _put_parked,
    "result": _put_result,
}
#: The defaults of attributes that have one, and their fields, which are not there then.
_OPTIONAL = {
    "ended_at": (None, ("ended_at",)),
    "parked": (False, ("parked_at",)),
    "result": (None, ("result", "has_result")),
    "error": ("", ("error",)),
    "held_for": ("", ("held_for",)),
}
_ATTRIBUTES = [one.name for one in fields(StoredRecord) if one.name != "key"]
_values = attrgetter(*_ATTRIBUTES)
#: Of each attribute: its name, its default, the fields that are not there then, and how it is written.
_WRITTEN = [(name, *_OPTIONAL.get(name, (..., ())), _WRITERS.get(name)) for name in _ATTRIBUTES]
#: Of a record that is not there: what has no default differs.
_NONE = tuple(default for _, default, _, _ in _WRITTEN)


class RecordFields:
    """An idempotency record as fields of a hash."""

    names: Sequence[str] = [
        *("state", "owner", "payload", "task", "task_id", "worker", "fencing_token", "runs", "unknown_outcomes"),
        *("replay", "started_at", "expires_at", "ended_at", "parked_at", "result", "has_result", "error", "held_for"),
    ]

    def read(self, found: Mapping[str, str]) -> StoredRecord:
        """Return the record that some fields are; no rule asks for its key."""
        return _stored("", found)

    def change(self, before: StoredRecord | None, after: StoredRecord, now: float) -> Change:
        """Return what changes from one record to another."""
        change, values = Change(), _values(after)
        # another object may have the same value, which is written once more then
        differs = map(is_not, values, _NONE if before is None else _values(before))
        for (name, default, absent, write), value in compress(zip(_WRITTEN, values, strict=True), differs):
            if value == default:
                change.gone += absent
            elif write is None:
                change.put += (name, str(value))
            else:
                write(change, name, value, now)
        return change


def _recorded(key: str, found: dict[str, str] | Exception, now: float) -> Record:
    try:
        if isinstance(found, Exception):
            raise found
        return _stored(key, found).as_record(now)
    except (*ERRORS, ValueError, OverflowError) as error:
        message = f"the value stored under key {key} is not an idempotency record: {error}"
        raise RecordUnreadable(message, hint="Another program writes under WORKER_LEASE_PREFIX.") from error


def _stored(key: str, found: Mapping[str, str]) -> StoredRecord:
    return StoredRecord(
        key=key,
        state=State(found.get("state", State.UNKNOWN)),
        owner=found.get("owner", ""),
        payload=found.get("payload", ""),
        task=found.get("task", ""),
        task_id=found.get("task_id", ""),
        worker=found.get("worker", ""),
        fencing_token=int(found.get("fencing_token") or 0),
        runs=int(found.get("runs") or 0),
        unknown_outcomes=int(found.get("unknown_outcomes") or 0),
        replay=int(found.get("replay") or 0),
        started_at=_seconds(found.get("started_at")),
        expires_at=_seconds(found.get("expires_at")),
        # Redis deletes it then, and is not asked when that is
        deleted_at=None if "parked_at" in found else inf,
        ended_at=_seconds(found["ended_at"]) if "ended_at" in found else None,
        parked="parked_at" in found,
        result=found.get("result") if found.get("has_result") == "1" else None,
        error=found.get("error", ""),
        held_for=found.get("held_for", ""),
    )
