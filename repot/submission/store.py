"""Jobs on a Redis or Valkey: each step one script, by the server's clock, in one slot of a cluster for each tenant."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from typing import TYPE_CHECKING, Any

from repot.idempotency.connection import StoreConnection
from repot.idempotency.guard import guard_of
from repot.idempotency.words import words_of
from repot.submission.job import Audit, Job, Refusal, Saved, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

    from repot.config import WorkerSettings

log = logging.getLogger(__name__)

#: What an audit holds of each tenant: so many refusals, and sums for so many scopes, those refused last.
MOST_AUDITED = 1000
MOST_SCOPES = 1000


def digest(text: str | bytes) -> str:
    """How names of tenants, scopes and keys stand in the names of keys: SHA-256, in full, in hexadecimal."""
    return sha256(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text).hexdigest()


def store_of(app: Celery) -> JobStore:
    """The jobs of an application, on the store that it was configured with; made on first use.

    Raises:
        ConfigInvalid: no setting names a store, or the environment is wrong.
    """
    found: JobStore | None = getattr(app, "repot_jobs", None)
    if found is None:
        found = JobStore(guard_of(app).settings)
        app.repot_jobs = found  # type: ignore[attr-defined]
    return found


@dataclass(frozen=True, slots=True)
class Claim:
    """What a submission asks for; digests are SHA-256 in hexadecimal. Durations are seconds."""

    id: str
    #: Digests of the tenant and of the scope, and the scope as people know it.
    tenant: str
    scope: str
    name: str
    task: str
    #: Digest of everything that the caller sent.
    payload: str
    #: Digest of the idempotency key; "" for none.
    key: str
    cost: float
    lease_s: float
    #: Digest of who submits it; "" if not given.
    submitter: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job by a worker."""

    id: str
    #: Digests of the tenant and of the scope.
    tenant: str
    scope: str
    #: New for each run; proves ownership later.
    owner: str
    #: How often the job's task had replaced itself by then.
    hop: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """What the store answered: a word, and the job it is about, if there is one."""

    verdict: str
    job: Job | None


@dataclass(frozen=True, slots=True)
class Stuck:
    """A scope whose job's lease ran out, with the digests that name both; no job if its record is gone."""

    tenant: str
    scope: str
    job: Job | None


class JobStore(StoreConnection):
    """Jobs on the store that the settings name.

    Every method raises StoreUnreachable if the store does not answer; whether it acted is unknown then. Every one but
    `audit` and the iterators is one round trip, and may be repeated: a refusal whose answer was lost is counted twice.
    """

    package = "repot.submission"
    prelude = "job"

    def __init__(self, settings: WorkerSettings) -> None:
        """Connects on first use."""
        super().__init__(settings)
        self._kept = _ms(settings.lease_kept)
        self._prefix = f"{settings.lease_prefix}:jobs:"

    def submit(self, claim: Claim) -> Told:
        """Claim a scope: `accepted`, `repeated`, `mismatch` or `taken`, each with the job that has it."""
        return self._tell(
            "submit",
            claim.tenant,
            claim.id,
            claim.scope,
            claim.name,
            claim.payload,
            claim.key,
            claim.task,
            claim.cost,
            _ms(claim.lease_s),
            self._kept,
            MOST_AUDITED,
            MOST_SCOPES,
            claim.submitter,
        )

    def sent(self, tenant: str, job: str, hold_s: float) -> Told:
        """Hold the scope for so long, as the message is on the broker; the status that the job has now."""
        return self._tell("sent", tenant, job, _ms(hold_s), self._kept)

    def undo(self, tenant: str, job: str, error: BaseException) -> Told:
        """Free the scope, as the message could not be sent; the status that the job has now."""
        return self._tell("undo", tenant, job, *_words(error), self._kept)

    def get(self, tenant: str, job: str) -> Job | None:
        """A job; None if there is none."""
        return self._tell("get", tenant, job).job

    def cancel(self, tenant: str, job: str) -> Told:
        """Cancel a job: `unknown`, `cancelled`, or the status that it has ended with."""
        return self._tell("cancel", tenant, job, self._kept)

    def start(self, run: Run, task: str, lease_s: float) -> Told:
        """Begin a run: `started`, `over`, `done`, `busy` or `superseded`."""
        return self._tell(
            "start", run.tenant, run.id, run.scope, run.owner, _ms(lease_s), self._kept, task, MOST_AUDITED, run.hop
        )

    def renew(self, run: Run, lease_s: float, progress: Sequence[str | float] = ()) -> str:
        """Hold on to the scope, and write down fields and values of progress; `running` if it is held."""
        return self._tell("renew", run.tenant, run.id, run.owner, _ms(lease_s), self._kept, *progress).verdict

    def finish(self, run: Run, status: Status, error: BaseException | None = None, hold_s: float = 0) -> str:
        """End a run; the status that the job has now."""
        return self._tell(
            "finish", run.tenant, run.id, run.owner, status.value, *_words(error), _ms(hold_s), self._kept, run.hop
        ).verdict

    def audit(self, tenant: str, limit: int) -> Audit:
        """The last refusals, and the sums; what of them cannot be read is left out, and said in the log."""
        entries, counts, costs, unreadable = self._run("refused", tenant, limit)
        cost = _paired(costs)
        sums = {name: _saved(number, cost.get(name)) for name, number in _paired(counts).items()}
        unreadable += [f"sum of {name}" for name, one in sums.items() if one is None]
        if unreadable:
            log.warning("unreadable in the audit: %s", ", ".join(unreadable), extra={"action": "audit_unreadable"})
        readable = {name: one for name, one in sums.items() if one}
        total = readable.pop("sum", Saved(0, 0))
        by_scope = {name.removeprefix("="): one for name, one in readable.items()}
        return Audit(tuple(_refusal(number, _paired(flat)) for number, flat in entries), total, by_scope)

    def stuck(self, tenant: str | None = None) -> Iterator[Stuck]:
        """Scopes whose job's lease ran out, of one tenant (its digest) or of all; changes nothing."""
        yield from self._look(tenant, free=False)

    def reap(self, tenant: str | None = None) -> Iterator[Stuck]:
        """Free such scopes, and mark their jobs lost, one by one; never one whose lease lives."""
        yield from self._look(tenant, free=True)

    def _look(self, tenant: str | None, *, free: bool) -> Iterator[Stuck]:
        pattern = f"{self._prefix}{{{tenant or '*'}}}:active:*"
        names = self._ask(lambda: self.client.scan_iter(match=pattern, count=500))
        while name := self._ask(lambda: next(names, None)):
            owner, _, scope = name.removeprefix(f"{self._prefix}{{").partition("}:active:")
            found = self._tell("reap", owner, scope, self._kept, "1" if free else "")
            if found.verdict == ("reaped" if free else "stuck"):
                _warn_of(name, found.job)
                yield Stuck(owner, scope, found.job)

    def _tell(self, name: str, tenant: str, *arguments: str | float) -> Told:
        verdict, now, record = self._run(name, tenant, *arguments)
        found = _paired(record)
        return Told(verdict, Job.from_record(found, now / 1000) if found else None)

    def _run(self, name: str, tenant: str, *arguments: str | float) -> Any:  # noqa: ANN401 - what the script returns
        keys = [f"{self._prefix}{{{tenant}}}"]
        return self._ask(lambda: self._script(name)(keys=keys, args=list(arguments)))


def _words(error: BaseException | None) -> tuple[str, str]:
    """The type of an error and what it says, without passwords."""
    if error is None:
        return ("", "")
    return type(error).__name__, words_of(error) or ""


def _refusal(number: str, entry: dict[str, str]) -> Refusal:
    at = int(number.partition("-")[0]) / 1000
    what = entry.get("what", Status.UNREADABLE.value)
    return Refusal(at, what, *(entry.get(name, "") for name in ("scope", "job", "active", "status")))


def _saved(number: str, cost: str | None) -> Saved | None:
    """A sum; None if it cannot be read."""
    try:
        found = Saved(int(number), float(cost or 0))
    except ValueError:
        return None
    return found if isfinite(found.cost) else None


def _warn_of(index: str, job: Job | None) -> None:
    if job and job.status is Status.UNREADABLE:
        what = f"the record of job {job.id}" if job.id else index
        log.warning("%s cannot be read; its scope is free", what, extra={"action": "job_unreadable"})


def _paired(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
