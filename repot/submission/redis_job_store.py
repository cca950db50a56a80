"""Store jobs in Redis or Valkey: one script per step, by the server's clock, one cluster slot per tenant."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from repot.idempotency.connection import StoreConnection
from repot.logs import get_logger
from repot.submission.job import Audit, Job, Refusal, RefusalKind, Savings
from repot.submission.job_store import (
    MAX_REFUSALS,
    MAX_SCOPES,
    ExpiredScope,
    StoreReply,
    described,
    warn_unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.config import WorkerSettings
    from repot.submission.job import Status
    from repot.submission.job_store import JobAttempt, Submission

log = get_logger(__name__)


class RedisJobStore(StoreConnection):
    """The `JobStore` on a Redis or Valkey; every method except `audit` and the iterators is one round trip."""

    package = "repot.submission"
    prelude = "job"

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the store of the settings; connects on first use."""
        super().__init__(settings)
        self._retention_ms = _ms(settings.idempotency_retention)
        self._prefix = f"{settings.lease_prefix}:jobs:"

    def submit(self, submission: Submission) -> StoreReply:
        """Claim a scope; return a `SubmitResult` with the job that it concerns."""
        return self._reply(
            "submit",
            submission.tenant,
            submission.id,
            submission.scope,
            submission.name,
            submission.payload,
            submission.key,
            submission.task,
            submission.cost,
            _ms(submission.lease_s),
            self._retention_ms,
            MAX_REFUSALS,
            MAX_SCOPES,
            submission.submitter,
            submission.grace_s,
        )

    def sent(self, tenant: str, job: str, hold_s: float) -> StoreReply:
        """Hold the scope for `hold_s`, as the message is on the broker; return the job's status."""
        return self._reply("sent", tenant, job, _ms(hold_s), self._retention_ms)

    def undo(self, tenant: str, job: str, error: BaseException) -> StoreReply:
        """Free the scope, as the message could not be sent; return the job's status."""
        return self._reply("undo", tenant, job, *described(error), self._retention_ms)

    def get(self, tenant: str, job: str) -> Job | None:
        """Return a job; None if there is no such job."""
        return self._reply("get", tenant, job).job

    def cancel(self, tenant: str, job: str) -> StoreReply:
        """Cancel a job; return `unknown`, `cancelled`, or its final status."""
        return self._reply("cancel", tenant, job, self._retention_ms)

    def start(self, attempt: JobAttempt, task: str, lease_s: float, grace_s: float = 0) -> StoreReply:
        """Start an attempt; return a `StartResult`."""
        return self._reply(
            "start",
            attempt.tenant,
            attempt.id,
            attempt.scope,
            attempt.owner,
            _ms(lease_s),
            self._retention_ms,
            task,
            MAX_REFUSALS,
            attempt.replacements,
            grace_s,
        )

    def renew(self, attempt: JobAttempt, lease_s: float, progress: Sequence[str | float] = ()) -> str:
        """Extend the lease, and record fields and values of progress; return `running` if the lease is held."""
        return self._reply(
            "renew", attempt.tenant, attempt.id, attempt.owner, _ms(lease_s), self._retention_ms, *progress
        ).result

    def finish(self, attempt: JobAttempt, status: Status, error: BaseException | None = None, hold_s: float = 0) -> str:
        """End an attempt; return the job's status."""
        return self._reply(
            "finish",
            attempt.tenant,
            attempt.id,
            attempt.owner,
            status.value,
            *described(error),
            _ms(hold_s),
            self._retention_ms,
            attempt.replacements,
        ).result

    def audit(self, tenant: str, limit: int) -> Audit:
        """Return the last refusals, and the sums; values that cannot be read are skipped, and logged."""
        entries, counts, costs, unreadable = self._run("refused", tenant, limit)
        cost = _paired(costs)
        sums = {name: _saved(number, cost.get(name)) for name, number in _paired(counts).items()}
        unreadable += [f"sum of {name}" for name, one in sums.items() if one is None]
        if unreadable:
            log.warning("unreadable in the audit: %s", ", ".join(unreadable), extra={"action": "audit_unreadable"})
        readable = {name: one for name, one in sums.items() if one}
        total = readable.pop("sum", Savings(0, 0))
        by_scope = {name.removeprefix("="): one for name, one in readable.items()}
        return Audit(tuple(_refusal(number, _paired(flat)) for number, flat in entries), total, by_scope)

    def expired(self, tenant: str | None = None) -> Iterator[ExpiredScope]:
        """Return the scopes whose job's lease has expired, of one tenant (its digest) or of all; change nothing."""
        yield from self._scan(tenant, free=False)

    def reap(self, tenant: str | None = None) -> Iterator[ExpiredScope]:
        """Free such scopes, and mark their jobs lost, one by one; never one with a live lease."""
        yield from self._scan(tenant, free=True)

    def _scan(self, tenant: str | None, *, free: bool) -> Iterator[ExpiredScope]:
        pattern = f"{self._prefix}{{{tenant or '*'}}}:active:*"
        names = self._ask(lambda: self.client.scan_iter(match=pattern, count=500))
        while name := self._ask(lambda: next(names, None)):
            owner, _, scope = name.removeprefix(f"{self._prefix}{{").partition("}:active:")
            found = self._reply("reap", owner, scope, self._retention_ms, "1" if free else "")
            if found.result == ("reaped" if free else "expired"):
                warn_unreadable(name, found.job)
                yield ExpiredScope(owner, scope, found.job)

    def _reply(self, name: str, tenant: str, *arguments: str | float) -> StoreReply:
        result, now, record = self._run(name, tenant, *arguments)
        found = _paired(record)
        return StoreReply(result, Job.from_record(found, now / 1000) if found else None)

    def _run(self, name: str, tenant: str, *arguments: str | float) -> Any:  # noqa: ANN401 - what the script returns
        keys = [f"{self._prefix}{{{tenant}}}"]
        return self._ask(lambda: self._script(name)(keys=keys, args=list(arguments)))


def _refusal(number: str, entry: dict[str, str]) -> Refusal:
    refused_at = int(number.partition("-")[0]) / 1000
    kind = entry.get("kind", RefusalKind.UNREADABLE)
    return Refusal(refused_at, kind, *(entry.get(name, "") for name in ("scope", "job", "active", "status")))


def _saved(number: str, cost: str | None) -> Savings | None:
    """Return a sum; None if it cannot be read."""
    try:
        found = Savings(int(number), float(cost or 0))
    except ValueError:
        return None
    return found if isfinite(found.cost) else None


def _paired(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
