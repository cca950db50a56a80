"""All errors of repot, in one tree, which docs/exit-codes.md shows.

Exit codes of the command: 0 success, 1 failure, 2 usage or settings, 3 broker unreachable, 4 check failed, 5 conflict,
6 application not found, 7 application fails on import, 8 access refused, 9 TLS failed, 10 rollout aborted,
130 interrupted, 141 output pipe closed.

A name says what happened; it has no `Error` suffix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Sequence


class RepotError(Exception):
    """An error that repot can explain: a message, and what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep the message, and a hint: the next step to take; secrets in them, as in a server's text, are masked."""
        self.message, self.hint = str(masked(message)), str(masked(hint))
        super().__init__(self.message)

    def __str__(self) -> str:
        """Return message and hint, for programs that print the exception itself."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigInvalid(RepotError):
    """A setting is invalid; nothing was started."""

    exit_code = 2


class AppUnusable(RepotError):
    """The Celery application cannot be imported, or does not use repot's settings."""

    exit_code = 2


class AppNotFound(AppUnusable):
    """The application's module does not exist, or has no such name."""

    exit_code = 6


class AppFailed(AppUnusable):
    """The application raises while it is imported."""

    exit_code = 7


class ProgramMissing(RepotError):
    """A server program is not installed."""


class ServerFailed(RepotError):
    """A private server did not start, or died."""


class BrokerUnreachable(RepotError):
    """The broker did not answer in time, or hands out none of the messages that wait."""

    exit_code = 3


class SendingStopped(BrokerUnreachable):
    """The sender stopped while the broker took nothing; what was on its way may arrive."""


class DepthUnknown(BrokerUnreachable):
    """The broker answered, but has not counted its messages yet."""


class ManagementUnreachable(BrokerUnreachable):
    """RabbitMQ's management API did not answer; messages do not go through it."""


class BrokerUnsupported(BrokerUnreachable):
    """The broker answers, but Celery has no transport for its kind."""

    exit_code = 2


class AccessRefused(BrokerUnreachable):
    """The broker refuses the user, the password or the virtual host."""

    exit_code = 8


class TlsFailed(BrokerUnreachable):
    """A trusted TLS connection to the broker could not be established."""

    exit_code = 9


class CheckFailed(RepotError):
    """A check was made, and its answer is no: findings, an unhealthy worker, an unexpected verdict, messages left."""

    exit_code = 4


class FactUnknown(RepotError):
    """A fact that a check needs is not available; the hint says how to provide it."""


class RuleUnknown(RepotError):
    """A rule does not exist, or a plugin's rule cannot be loaded."""

    exit_code = 2


class StatusFileUnreadable(RepotError):
    """A worker's status file exists but cannot be read."""


class AddressTaken(RepotError):
    """An address cannot be listened on: it is in use, or not one of this machine."""

    exit_code = 2


class DeadlineExceeded(RepotError):
    """A condition was not met before its deadline."""


class FileUnusable(RepotError):
    """A file cannot be read or written, is not a report, or exists already; nothing was written."""

    exit_code = 2


class DirectoryUnusable(RepotError):
    """A directory for files, or a file in it, cannot be read or written."""

    exit_code = 2


class InvalidIdempotencyKey(RepotError):
    """An idempotency key cannot be made from the arguments of a call."""

    exit_code = 2


class StoreUnreachable(RepotError):
    """The lease store did not answer in time."""

    exit_code = 3
    #: The owner of the request for a lease that was not answered; empty for other requests.
    owner: str = ""


class StoreRefused(StoreUnreachable):
    """The lease store refuses the user, the password or a key."""

    exit_code = 8


class StoreMisconfigured(RepotError):
    """The configured lease store cannot serve; a retry does not help."""

    exit_code = 2


class AlreadyRunning(RepotError):
    """Another run holds the lease on this key; `retry_after_s` says when it may be free."""

    exit_code = 5
    retry_after_s: float = 0


class LeaseLost(RepotError):
    """This run no longer holds its lease: it has expired."""

    exit_code = 5

    @classmethod
    def of_move(cls, what: str) -> LeaseLost:
        """Return the error of a mover whose lease another one has acquired."""
        message = f"another mover has acquired {what}; this one has changed nothing since"
        return cls(message, hint="`repot move status` says who; the other one goes on from where this one was.")


class OutcomeUnknown(RepotError):
    """An earlier run died or was interrupted; whether its effect happened is unknown."""

    exit_code = 5


class PayloadMismatch(RepotError):
    """A key was used again with a different payload."""

    exit_code = 5


class PreviousRunFailed(RepotError):
    """An earlier run with this key failed for good, by the policy of its task."""

    exit_code = 5


class ResultExpired(RepotError):
    """The effect has happened, but there is no result: it was too large to store, or an operator recorded the outcome.

    `own` if it was the very message that had the effect: what should follow it has not been sent.
    """

    own: bool = False


class RecordNotFound(RepotError):
    """There is no idempotency record for this key, or it has expired."""


class RecordUnreadable(RepotError):
    """The value stored under this key is not an idempotency record."""


class InvalidMessage(RepotError):
    """A message names a task but cannot be handed to the process that would run it."""


class DeliveryLimitReached(RepotError):
    """A message was delivered too often to workers that died with it."""


class DeadLetterNotFound(RepotError):
    """There is no such dead letter."""


class Unroutable(RepotError):
    """A message has no queue to go to, or its queue is full."""


class ReturnUnrecognised(RepotError):
    """RabbitMQ returned a message that is not one of those that were sent, so which of them it has is unknown."""

    @classmethod
    def to(cls, key: str) -> ReturnUnrecognised:
        """Return the error for a message with this routing key."""
        message = f"RabbitMQ returned a message for {key!r} that is not one of those that were sent"
        return cls(
            message, hint="Something between here and the queue changes messages; nothing was removed from the source."
        )


class ReservationLost(RepotError):
    """A reservation of messages has ended; they are in their queue again."""

    exit_code = 5

    @classmethod
    def of(cls, count: int) -> ReservationLost:
        """Return the error for so many messages."""
        message = f"the reservation of {count} messages has ended before they were committed"
        return cls(message, hint="They are in the queue again, and may be delivered a second time.")


class AlreadyMoving(RepotError):
    """Another mover, `holder`, holds the queue or the move."""

    exit_code = 5
    holder: str = ""

    @classmethod
    def by(cls, holder: str, remaining_s: float | None = None) -> AlreadyMoving:
        """Return the error with who holds it, and for how long if that is known."""
        message = f"another mover is at work: {holder or 'an unknown process'}"
        rest = "" if remaining_s is None else f" Its lease ends in {remaining_s:.0f} s unless it renews it."
        found = cls(message, hint=f"`repot move status` shows what it does; `repot move stop` ends it.{rest}")
        found.holder = holder
        return found


class MoveNotFound(RepotError):
    """There is no journal of a move with this name."""


class MoveConflict(RepotError):
    """A move of this name goes another way, or cannot do this now."""

    exit_code = 5


class MoveRefused(RepotError):
    """A move would lose or strand messages."""

    exit_code = 4


class MoveStopped(RepotError):
    """A move ended before its queues were empty; what is left waits on the source broker."""

    @classmethod
    def on_request(cls) -> MoveStopped:
        """Return the error of a move that a signal ended."""
        return cls("the move was interrupted; nothing is lost", hint="`repot move resume` goes on from here.")


class HoldersUnknown(RepotError):
    """A worker may be alive that did not say what it holds, so its messages cannot be given back."""

    exit_code = 4


class PublishUnconfirmed(RepotError):
    """The broker refused tasks of a confirm window, or did not confirm them."""

    exit_code = 3

    def __init__(self, refused: Sequence[str], unknown: Sequence[str]) -> None:
        """Keep the ids of refused tasks, and of tasks that a queue may or may not hold."""
        super().__init__(
            f"of the tasks sent, the broker refused {len(refused)} and did not confirm {len(unknown)}",
            hint="Send those in `refused` once a queue takes them; those in `unknown` again under the same task_id, "
            "where their tasks may run twice.",
        )
        self.refused = tuple(refused)
        self.unknown = tuple(unknown)

    def __reduce__(self) -> tuple[type[PublishUnconfirmed], tuple[tuple[str, ...], tuple[str, ...]]]:
        """Pickle it by its ids: a task may fail with it."""
        return type(self), (self.refused, self.unknown)


class RolloutNotFound(RepotError):
    """There is no record of a rollout with this name."""


class RolloutConflict(RepotError):
    """A rollout was changed meanwhile, or exists already."""

    exit_code = 5


class RolloutRefused(RepotError):
    """A rollout cannot begin: the target lacks something."""

    exit_code = 4


class RolloutAborted(RepotError):
    """A rollout ended with all work on its source again."""

    exit_code = 10


class AlreadyControlled(RepotError):
    """Another controller leads the rollout."""

    exit_code = 5


class ScopeConflict(RepotError):
    """A scope has an active job already: `job_id`, with `status` and `stage`, accepted `age_s` seconds ago.

    After `retry_after_s` its scope can be free: that is when its lease runs out if its worker died.
    """

    exit_code = 5
    job_id: str = ""
    status: str = ""
    stage: str = ""
    age_s: float = 0
    retry_after_s: float = 0


class JobNotFound(RepotError):
    """The job does not exist, or belongs to another tenant."""


class NotJobOwner(RepotError):
    """A job cannot be cancelled: another owner submitted it, or its owner is not recorded."""

    exit_code = 8


class JobEnded(RepotError):
    """A job that has ended cannot be cancelled."""

    exit_code = 5


class SubmissionFailed(RepotError):
    """A job could not be sent; its scope is free again."""

    exit_code = 3


class ExperimentFailed(RepotError):
    """An experiment could not be carried out, so it has no verdict."""


class Inconclusive(ExperimentFailed):
    """The fault did not meet the task as the scenario has it, so the experiment has no verdict."""

    def __init__(self, why: str, *, hint: str = "") -> None:
        """Take the reason."""
        super().__init__(f"inconclusive: {why}", hint=hint)


class NotApplicable(RepotError):
    """An experiment does not apply to this broker or this task."""

    exit_code = 2


class Interrupted(RepotError):
    """The user asked to stop."""

    exit_code = 130
