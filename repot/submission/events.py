"""What becomes of submissions, for metrics and logs of the application that accepts them.

A Celery signal, sent in the thread of the submission::

    @submitted.connect
    def note(sender, outcome, scope, **_): ...

`sender` is the task's name, `scope` the names of the arguments that say what a job is for (`project`), never their
values, `outcome` one of the words below. Receivers must be quick; what they raise is logged.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery.utils.dispatch import Signal

from repot.errors import KeyUnusable, PayloadMismatch, ScopeTaken

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.submission.job import Accepted

#: A new job; an idempotency key that came again and got the job it had.
ACCEPTED, REPEATED = "accepted", "repeated"
#: Another job has the scope; a key came again with other arguments; the arguments are wrong.
REFUSED, MISMATCHED, INVALID = "refused", "mismatched", "invalid"
#: The broker or the lease store was away.
FAILED = "failed"

_BY_ERROR = ((ScopeTaken, REFUSED), (PayloadMismatch, MISMATCHED), ((KeyUnusable, TypeError), INVALID))

submitted = Signal(name="repot_submitted", providing_args=["outcome", "scope"])


@contextmanager
def reported(task: str, fields: Sequence[str]) -> Iterator[list[Accepted]]:
    """Send the signal for the submission in this block, which puts its answer into the list."""
    answers: list[Accepted] = []
    outcome = FAILED
    try:
        yield answers
        outcome = REPEATED if answers[0].repeated else ACCEPTED
    except Exception as error:
        outcome = next((known for kind, known in _BY_ERROR if isinstance(error, kind)), FAILED)
        raise
    finally:
        submitted.send(sender=task, outcome=outcome, scope=",".join(fields))
