"""The verdict follows from what was sent, what the journal says and what is left."""

from __future__ import annotations

import pytest

from repot.chaos.verdict import Sending, Story, Word, judge, story
from repot.worker.journal import DELIVERED, EFFECT, ENDED, STARTED, Happening

A, B = "a@x", "b@x"


def delivered(at: float, worker: str = A, *, redelivered: bool = False) -> Happening:
    return Happening(at, DELIVERED, worker, 1, "t", {"redelivered": redelivered})


def ran(begun: float, ended: float | None, worker: str = A, pid: int = 2, state: str = "SUCCESS") -> list[Happening]:
    lines = [Happening(begun, STARTED, worker, pid, "t", {})]
    if ended is not None:
        lines.append(Happening(ended, EFFECT, worker, pid, "t", {}))
        lines.append(Happening(ended, ENDED, worker, pid, "t", {"state": state}))
    return lines


def word(
    told: Story,
    sending: Sending = Sending.ACCEPTED,
    *,
    left: bool = False,
    set_aside: bool = False,
    effects: int | None = None,
) -> Word:
    return judge(told, sending=sending, left=left, set_aside=set_aside, effects=effects)


ONCE = story("t", [delivered(1), *ran(1, 2)])
TWICE = story("t", [delivered(1), *ran(1, 2), delivered(5, B, redelivered=True), *ran(5, 6, B, 3)])
SKIPPED = story("t", [delivered(1), *ran(1, 2), delivered(5, B, redelivered=True)])
KILLED = story("t", [delivered(1), *ran(1, None)], {2: 1.5})
FAILED = story(
    "t", [delivered(1), Happening(1, STARTED, A, 2, "t"), Happening(2, ENDED, A, 2, "t", {"state": "FAILURE"})]
)
NEVER_SEEN = story("t", [])


def test_delivered_once_with_one_effect_is_ok() -> None:
    assert Word.OK is word(ONCE)


def test_a_redelivery_that_has_no_effect_is_harmless() -> None:
    assert Word.REDELIVERED is word(SKIPPED)
    assert Word.REDELIVERED.is_harmless


def test_two_effects_are_a_duplicate() -> None:
    assert Word.DUPLICATED is word(TWICE)
    assert not TWICE.overlapped


def test_a_better_count_of_effects_wins() -> None:
    """One that the user's probe has counted."""
    assert Word.DUPLICATED is word(ONCE, effects=2)
    assert Word.REDELIVERED is word(TWICE, effects=1)
    assert Word.LOST is word(ONCE, effects=0)


@pytest.mark.parametrize("told", [KILLED, FAILED, NEVER_SEEN], ids=["killed", "failed", "never seen"])
def test_lost_means_never_completed_and_nowhere(told: Story) -> None:
    assert Word.LOST is word(told)
    assert Word.LEFT is word(told, left=True)
    assert Word.SET_ASIDE is word(told, set_aside=True)
    assert Word.SET_ASIDE is word(told, set_aside=True, left=True)


def test_what_its_sender_was_told_counts() -> None:
    assert Word.RECOVERED is word(ONCE, Sending.UNKNOWN)
    assert Word.REFUSED is word(NEVER_SEEN, Sending.UNKNOWN)
    # somebody had it in hand, so the broker had accepted it
    assert Word.LOST is word(KILLED, Sending.UNKNOWN)
    assert Word.UNEXPECTED is word(ONCE, Sending.NEVER)


def test_an_effect_of_a_run_that_never_ended_well_is_no_completion() -> None:
    half = story("t", [delivered(1), Happening(1, STARTED, A, 2, "t"), Happening(2, EFFECT, A, 2, "t")], {2: 3.0})
    assert Word.LOST is word(half)


def test_a_run_that_begins_before_the_first_ended_overlaps() -> None:
    happenings = [delivered(1), *ran(1, 6)[:1], delivered(3, B, redelivered=True), *ran(3, 8, B, 3), *ran(1, 6)[1:]]
    assert story("t", happenings).overlapped


def test_a_run_ends_with_its_process() -> None:
    told = story("t", [delivered(1), *ran(1, None)])
    assert told.goes_on
    assert not KILLED.goes_on
    assert [1.5] == [run.ended for run in KILLED.runs]


def test_a_redelivery_without_the_mark_is_told_apart() -> None:
    told = story("t", [delivered(1), *ran(1, 2), delivered(5, B), *ran(5, 6, B, 3)])
    assert told.unmarked
    assert not TWICE.unmarked


def test_other_tasks_do_not_count() -> None:
    other = Happening(1, STARTED, A, 2, "other", {})
    assert () == story("t", [other]).runs


def test_instants_can_be_counted_from_another() -> None:
    told = ONCE.since(1)
    assert (0, 0, 1, 1) == (told.deliveries[0].at, told.runs[0].started, told.runs[0].ended, told.effects[0].at)
