"""The verdict follows from the sender's reply, the journal, and what is left at the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from repot.chaos.instruments.journal import DELIVERED, EFFECT, ENDED, FAILED, PREVENTED, STARTED, JournalEvent
from repot.chaos.runner.verdict import EffectCount, Sending, TaskHistory, Verdict, judge, task_history

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B = "a@x", "b@x"


def delivered(at: float, worker: str = A, *, redelivered: bool = False) -> JournalEvent:
    return JournalEvent(at, DELIVERED, worker, 1, "t", {"redelivered": redelivered})


def ran(begun: float, ended: float | None, worker: str = A, pid: int = 2, state: str = "SUCCESS") -> list[JournalEvent]:
    lines = [JournalEvent(begun, STARTED, worker, pid, "t", {})]
    if ended is not None:
        lines.append(JournalEvent(ended, EFFECT, worker, pid, "t", {}))
        lines.append(JournalEvent(ended, ENDED, worker, pid, "t", {"state": state}))
    return lines


def verdict(
    history: TaskHistory,
    sending: Sending = Sending.ACCEPTED,
    *,
    left: bool = False,
    parked: bool = False,
    postponed: bool = False,
    effects: Sequence[EffectCount] = (),
) -> Verdict:
    return judge(history, sending=sending, left=left, parked=parked, postponed=postponed, effects=effects)


ONCE = task_history("t", [delivered(1), *ran(1, 2)])
TWICE = task_history("t", [delivered(1), *ran(1, 2), delivered(5, B, redelivered=True), *ran(5, 6, B, 3)])
SKIPPED = task_history("t", [delivered(1), *ran(1, 2), delivered(5, B, redelivered=True)])
KILLED = task_history("t", [delivered(1), *ran(1, None)], {2: 1.5})
RAISED = task_history(
    "t", [delivered(1), JournalEvent(1, STARTED, A, 2, "t"), JournalEvent(2, ENDED, A, 2, "t", {"state": "FAILURE"})]
)
NEVER_SEEN = task_history("t", [])


def test_delivered_once_with_one_effect_is_ok() -> None:
    assert Verdict.OK is verdict(ONCE)


def test_a_redelivery_that_has_no_effect_is_harmless() -> None:
    assert Verdict.REDELIVERED is verdict(SKIPPED)
    assert Verdict.REDELIVERED.is_harmless


def test_two_effects_are_a_duplicate() -> None:
    assert Verdict.DUPLICATED is verdict(TWICE)
    assert not TWICE.overlapped


def test_what_is_due_after_the_end_is_postponed() -> None:
    """Also a task whose effects are not all there yet; what ran twice is duplicated all the same."""
    assert Verdict.POSTPONED is verdict(NEVER_SEEN, postponed=True)
    assert Verdict.POSTPONED is verdict(ONCE, postponed=True, effects=[EffectCount("", 0)])
    assert Verdict.OK is verdict(ONCE, postponed=True)
    assert Verdict.DUPLICATED is verdict(TWICE, postponed=True)
    assert Verdict.LEFT is verdict(NEVER_SEEN, postponed=True, left=True)
    assert not Verdict.POSTPONED.is_bad
    assert not Verdict.POSTPONED.is_harmless


def test_the_count_of_a_probe_takes_precedence() -> None:
    """The probe is the user's command."""
    assert Verdict.DUPLICATED is verdict(ONCE, effects=[EffectCount("", 2)])
    assert Verdict.REDELIVERED is verdict(TWICE, effects=[EffectCount("", 1)])
    assert Verdict.LOST is verdict(ONCE, effects=[EffectCount("", 0)])


@pytest.mark.parametrize(
    ("rows", "mails", "expected"),
    [
        (3, 0, Verdict.OK),
        (4, 0, Verdict.DUPLICATED),
        (2, 0, Verdict.LOST),
        (3, 1, Verdict.DUPLICATED),
        (2, 1, Verdict.DUPLICATED),
    ],
)
def test_each_effect_of_a_probe_has_its_own_number(rows: int, mails: int, expected: Verdict) -> None:
    effects = [EffectCount("payments", 1), EffectCount("rows", rows, 3), EffectCount("mails", mails, 0)]
    assert expected is verdict(ONCE, effects=effects)


def test_a_task_whose_last_run_raised_has_failed() -> None:
    assert Verdict.FAILED is verdict(RAISED)
    assert Verdict.LEFT is verdict(RAISED, left=True)
    assert Verdict.PARKED is verdict(RAISED, parked=True)


@pytest.mark.parametrize("history", [KILLED, NEVER_SEEN], ids=["killed", "never seen"])
def test_lost_means_never_completed_and_not_left(history: TaskHistory) -> None:
    assert Verdict.LOST is verdict(history)
    assert Verdict.LEFT is verdict(history, left=True)
    assert Verdict.PARKED is verdict(history, parked=True)
    assert Verdict.PARKED is verdict(history, parked=True, left=True)


def test_the_reply_to_the_sender_counts() -> None:
    assert Verdict.RECOVERED is verdict(ONCE, Sending.UNKNOWN)
    assert Verdict.REFUSED is verdict(NEVER_SEEN, Sending.UNKNOWN)
    # a worker received it, so the broker had accepted it
    assert Verdict.LOST is verdict(KILLED, Sending.UNKNOWN)
    assert Verdict.UNEXPECTED is verdict(ONCE, Sending.NEVER)


def test_an_effect_of_a_run_without_success_is_no_completion() -> None:
    half = task_history(
        "t", [delivered(1), JournalEvent(1, STARTED, A, 2, "t"), JournalEvent(2, EFFECT, A, 2, "t")], {2: 3.0}
    )
    assert Verdict.LOST is verdict(half)


def test_an_effect_that_a_guard_found_done_is_not_lost() -> None:
    """It was done under another id; a probe that counts nothing decides."""
    history = task_history("t", [delivered(1), *ran(1, 2)[::2], JournalEvent(1, PREVENTED, A, 2, "t")])
    assert history.effects == ()
    assert Verdict.OK is verdict(history)
    assert Verdict.LOST is verdict(history, effects=[EffectCount("", 0)])


@pytest.mark.parametrize(("internal", "found"), [(True, Verdict.FAILED), (False, Verdict.OK)])
def test_a_run_whose_result_cannot_be_stored_has_failed(found: Verdict, *, internal: bool) -> None:
    """Celery says so to all that wait for it, and sends neither callbacks nor the rest of a chain."""
    failed = JournalEvent(3, FAILED, A, 2, "t", {"internal": internal, "text": "OSError: no room"})
    assert found is verdict(task_history("t", [delivered(1), *ran(1, 2), failed]))


@pytest.mark.parametrize("threads", [(1, 1), (1, 2)])
def test_two_runs_of_one_process_are_told_apart_by_their_threads(threads: tuple[int, int]) -> None:
    """A pool of threads or greenlets runs a task beside itself."""
    first, second = threads
    begun = [JournalEvent(at, STARTED, A, 2, "t", {"thread": one}) for at, one in ((1, first), (2, second))]
    ended = [
        JournalEvent(at, ENDED, A, 2, "t", {"state": "SUCCESS", "thread": one}) for at, one in ((3, first), (4, second))
    ]
    runs = task_history("t", [*begun, *ended]).runs
    assert ([3, 4] if first != second else [None, 3]) == [run.ended for run in runs]


def test_a_run_that_begins_before_the_first_ended_overlaps() -> None:
    events = [delivered(1), *ran(1, 6)[:1], delivered(3, B, redelivered=True), *ran(3, 8, B, 3), *ran(1, 6)[1:]]
    assert task_history("t", events).overlapped


def test_a_run_ends_with_its_process() -> None:
    history = task_history("t", [delivered(1), *ran(1, None)])
    assert history.is_open
    assert not KILLED.is_open
    assert [run.ended for run in KILLED.runs] == [1.5]


def test_a_redelivery_without_the_flag_is_recognized() -> None:
    history = task_history("t", [delivered(1), *ran(1, 2), delivered(5, B), *ran(5, 6, B, 3)])
    assert history.unmarked
    assert not TWICE.unmarked


def test_other_tasks_do_not_count() -> None:
    other = JournalEvent(1, STARTED, A, 2, "other", {})
    assert task_history("t", [other]).runs == ()


def test_instants_can_be_relative_to_another() -> None:
    history = ONCE.since(1)
    assert (
        history.deliveries[0].at,
        history.runs[0].started,
        history.runs[0].ended,
        history.effects[0].at,
    ) == (0, 0, 1, 1)
