"""Everything repot raises, in one tree.

    RepotError                 exit 1
    ├── ConfigInvalid          exit 2   a setting is wrong; nothing was started
    ├── AppUnusable            exit 2   the Celery application cannot be used as it is
    │   ├── AppNotFound        exit 6   there is no such module or name
    │   └── AppFailed          exit 7   it raises while it is imported
    ├── ProgramMissing         exit 1   a server program is not installed
    ├── ServerFailed           exit 1   a private server did not come up or died
    ├── BrokerUnreachable      exit 3   a broker did not answer
    │   ├── DepthUnknown       exit 3   it answered, but has not counted its messages yet
    │   ├── AccessRefused      exit 8   it refuses the user, the password or the virtual host
    │   └── TlsFailed          exit 9   no trusted TLS connection came about
    ├── FactUnknown            exit 1   something a check needs could not be had
    ├── RuleUnknown            exit 2   there is no such rule, or it cannot be loaded
    ├── FindingsFound          exit 4   the doctor found what it was told to fail on
    ├── PulseUnreadable        exit 1   a worker's pulse is there and cannot be read
    ├── AddressTaken           exit 2   nothing can listen on an address
    ├── WorkerUnhealthy        exit 4   a probe said no
    ├── DeadlineExceeded       exit 1   something awaited did not happen in time
    ├── ReportUnwritable       exit 2   a report's file cannot be written
    ├── ReportUnreadable       exit 2   a report's file cannot be read, or is none
    ├── FilesExist             exit 2   files that would be written are there already
    ├── FolderUnusable         exit 2   a folder, or a file in it, cannot be read or written
    ├── KeyUnusable            exit 2   no idempotency key can be made of a call's arguments
    ├── StoreUnreachable       exit 3   the lease store did not answer
    │   └── StoreRefused       exit 8   it refuses the user, the password or a key
    ├── StoreMisconfigured     exit 2   the lease store that the settings name cannot serve
    ├── AlreadyRunning         exit 5   another run holds the claim on a key
    ├── LeaseLost              exit 5   a run's claim is not its own any more
    ├── OutcomeUnknown         exit 5   nobody knows whether an earlier run had its effect
    ├── PayloadMismatch        exit 5   a key came again with another payload
    ├── FailedBefore           exit 5   an earlier run with this key failed for good
    ├── ResultExpired          exit 1   the effect is done, its result is not kept any more
    ├── ClaimNotFound          exit 1   nobody has claimed this key
    ├── ClaimUnreadable        exit 1   what stands at a claim's name is none
    ├── MessageUnusable        exit 1   a message names a task that cannot be handed to a process
    ├── DeliveryLimitReached   exit 1   a message was delivered too often to workers that died with it
    ├── LetterNotFound         exit 1   there is no such dead letter
    ├── Unroutable             exit 1   there is no queue to send a message to, or it is full
    ├── PublishUnconfirmed     exit 3   the broker refused tasks of a confirm window, or did not confirm them
    ├── ScopeTaken             exit 5   a scope has an active job already
    ├── JobNotFound            exit 1   there is no such job, or it is another tenant's
    ├── NotJobOwner            exit 8   a job is another owner's to cancel
    ├── JobEnded               exit 5   a job that has ended cannot be cancelled
    ├── SubmissionFailed       exit 3   a job could not be sent, and its scope is free again
    ├── ExperimentFailed       exit 1   an experiment could not be carried out
    ├── Inapplicable           exit 2   an experiment means nothing on this broker, or for this task
    ├── VerdictUnexpected      exit 4   an experiment found something else than expected
    └── Interrupted            exit 130 somebody asked to stop

Exit codes of the command: 0 done, 1 failed, 2 usage, 3 broker unreachable,
4 a check or a verdict said no, 5 a claim or a job stands against it, 6 application not found, 7 application fails on
import, 8 access refused, 9 TLS failed, 130 interrupted, 141 the reader of a pipe left.

Names say what happened and carry no `Error` suffix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class RepotError(Exception):
    """Something repot can explain: a message, and what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep `message` for the person, and `hint`, the next step to take."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Message and hint, for whoever prints the exception itself."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigInvalid(RepotError):
    """A setting is wrong; nothing was started."""

    exit_code = 2


class AppUnusable(RepotError):
    """The Celery application cannot be imported, or does not use repot's settings."""

    exit_code = 2


class AppNotFound(AppUnusable):
    """There is no such module, or no such name in it."""

    exit_code = 6


class AppFailed(AppUnusable):
    """The application raises while it is imported."""

    exit_code = 7


class ProgramMissing(RepotError):
    """A server program is not installed."""


class ServerFailed(RepotError):
    """A private server did not come up, or died."""


class BrokerUnreachable(RepotError):
    """A broker did not answer in time."""

    exit_code = 3


class DepthUnknown(BrokerUnreachable):
    """The broker answered, but has not counted its messages yet."""


class AccessRefused(BrokerUnreachable):
    """The broker refuses the user, the password or the virtual host."""

    exit_code = 8


class TlsFailed(BrokerUnreachable):
    """No trusted TLS connection to the broker came about."""

    exit_code = 9


class FactUnknown(RepotError):
    """Something that a check needs could not be had; the hint says how it could."""


class RuleUnknown(RepotError):
    """There is no such rule, or one that a plugin names cannot be loaded."""

    exit_code = 2


class FindingsFound(RepotError):
    """The doctor found what it was told to fail on."""

    exit_code = 4


class PulseUnreadable(RepotError):
    """A worker's pulse is there and cannot be read."""


class AddressTaken(RepotError):
    """Nothing can listen on an address: it is taken, or none of this machine's."""

    exit_code = 2


class WorkerUnhealthy(RepotError):
    """A probe of a worker said no."""

    exit_code = 4


class DeadlineExceeded(RepotError):
    """Something that was waited for did not happen in time."""


class ReportUnwritable(RepotError):
    """A report's file cannot be written."""

    exit_code = 2


class ReportUnreadable(RepotError):
    """A report's file cannot be read, or holds something else."""

    exit_code = 2


class FilesExist(RepotError):
    """Files that would be written are there already; nothing was written."""

    exit_code = 2


class FolderUnusable(RepotError):
    """A folder that files should go into, or a file in it, cannot be read or written."""

    exit_code = 2


class KeyUnusable(RepotError):
    """No idempotency key can be made of the arguments of a call."""

    exit_code = 2


class StoreUnreachable(RepotError):
    """The lease store did not answer in time."""

    exit_code = 3


class StoreRefused(StoreUnreachable):
    """The lease store refuses the user, the password or a key."""

    exit_code = 8


class StoreMisconfigured(RepotError):
    """The server that the settings name as the lease store cannot serve: no retry helps."""

    exit_code = 2


class AlreadyRunning(RepotError):
    """Another run holds the claim on this key; `retry_after_s` says when it could be free."""

    exit_code = 5
    retry_after_s: float = 0


class LeaseLost(RepotError):
    """The claim of this run is not its own any more: its lease ran out."""

    exit_code = 5


class OutcomeUnknown(RepotError):
    """An earlier run died or was cut short; nobody knows whether it had its effect."""

    exit_code = 5


class PayloadMismatch(RepotError):
    """A key that was used before came again with another payload."""

    exit_code = 5


class FailedBefore(RepotError):
    """An earlier run with this key failed for good, by the policy of its task."""

    exit_code = 5


class ResultExpired(RepotError):
    """The effect is done; its result was too large to keep, or is not kept any more.

    `own` if it was the very message that had the effect: what should follow it has not been sent.
    """

    own: bool = False


class ClaimNotFound(RepotError):
    """Nobody has claimed this key, or it is forgotten."""


class ClaimUnreadable(RepotError):
    """What stands at a claim's name in the store is none."""


class MessageUnusable(RepotError):
    """A message names a task, and cannot be handed to the process that would run it."""


class DeliveryLimitReached(RepotError):
    """A message was delivered too often to workers that died with it."""


class LetterNotFound(RepotError):
    """There is no such dead letter."""


class Unroutable(RepotError):
    """There is no queue to send a message to, or it takes no more."""


class PublishUnconfirmed(RepotError):
    """The broker refused tasks of a confirm window, or did not confirm them."""

    exit_code = 3

    def __init__(self, refused: Sequence[str], unknown: Sequence[str]) -> None:
        """Keep the ids of tasks that no queue took, and of those that a queue may hold or not."""
        super().__init__(
            f"of the tasks sent, the broker refused {len(refused)} and did not confirm {len(unknown)}",
            hint="Send those in `refused` once a queue takes them; those in `unknown` again under the same task_id, "
            "where their tasks may run twice.",
        )
        self.refused = tuple(refused)
        self.unknown = tuple(unknown)

    def __reduce__(self) -> tuple[type[PublishUnconfirmed], tuple[tuple[str, ...], tuple[str, ...]]]:
        """Pickle it by its ids: it may be what a task fails with."""
        return type(self), (self.refused, self.unknown)


class ScopeTaken(RepotError):
    """A scope has an active job already: `job`, in a `status` and perhaps a `stage`, accepted `age_s` ago.

    After `retry_after_s` its scope can be free: that is when its lease runs out if its worker died.
    """

    exit_code = 5
    job: str = ""
    status: str = ""
    stage: str = ""
    age_s: float = 0
    retry_after_s: float = 0


class JobNotFound(RepotError):
    """There is no such job, or it is another tenant's."""


class NotJobOwner(RepotError):
    """A job was submitted by another owner, or by none that is on record, and is not this one's to cancel."""

    exit_code = 8


class JobEnded(RepotError):
    """A job that has ended cannot be cancelled."""

    exit_code = 5


class SubmissionFailed(RepotError):
    """A job could not be sent; its scope is free again."""

    exit_code = 3


class ExperimentFailed(RepotError):
    """An experiment could not be carried out, so it has no verdict."""


class Inapplicable(RepotError):
    """An experiment means nothing here: this broker has no such thing, or this task never comes to that point."""

    exit_code = 2


class VerdictUnexpected(RepotError):
    """An experiment found something else than its table expects."""

    exit_code = 4


class Interrupted(RepotError):
    """Somebody asked to stop."""

    exit_code = 130
