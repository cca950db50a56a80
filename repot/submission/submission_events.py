"""Signal the outcome of submissions, for metrics and logs of the application that accepts them.

A Celery signal, sent in the thread of the submission::

    @submitted.connect
    def record(sender, outcome, scope, **_): ...

`sender` is the task's name, `scope` the names of the arguments that make the scope (`project`), never their values,
`outcome` a `SubmissionOutcome`. Receivers must be quick; their exceptions are logged.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from repot.errors import InvalidIdempotencyKey, PayloadMismatch, ScopeConflict
from repot.upstream.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.submission.job import Accepted


class SubmissionOutcome(StrEnum):
    """The outcome of a submission."""

    #: A new job.
    ACCEPTED = "accepted"
    #: The idempotency key was used before: its earlier job.
    REPEATED = "repeated"
    #: Another job holds the scope.
    REFUSED = "refused"
    #: The idempotency key was used before with other arguments.
    MISMATCHED = "mismatched"
    #: The arguments are invalid.
    INVALID = "invalid"
    #: The broker or the lease store was unavailable.
    FAILED = "failed"


_BY_ERROR = (
    (ScopeConflict, SubmissionOutcome.REFUSED),
    (PayloadMismatch, SubmissionOutcome.MISMATCHED),
    ((InvalidIdempotencyKey, TypeError), SubmissionOutcome.INVALID),
)

submitted = Signal(name="repot_submitted", providing_args=["outcome", "scope"])


@contextmanager
def signal_outcome(task: str, fields: Sequence[str]) -> Iterator[list[Accepted]]:
    """Send the signal for the submission in this block; the block appends its answer to the list."""
    answers: list[Accepted] = []
    outcome = SubmissionOutcome.FAILED
    try:
        yield answers
        outcome = SubmissionOutcome.REPEATED if answers[0].repeated else SubmissionOutcome.ACCEPTED
    except Exception as error:
        outcome = next((known for kind, known in _BY_ERROR if isinstance(error, kind)), SubmissionOutcome.FAILED)
        raise
    finally:
        submitted.send(sender=task, outcome=outcome, scope=",".join(fields))
