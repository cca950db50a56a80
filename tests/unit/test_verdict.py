"""The verdict follows from the journal alone."""

from __future__ import annotations

from repot.chaos.verdict import judge, redelivered_after, story
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


def test_once() -> None:
    found = judge(story("t", [delivered(1), *ran(1, 2)]), left=0)
    assert "ran once" == found.summary
    assert (1, 1, 1, False, None, False) == (
        found.deliveries,
        found.executed,
        found.effects,
        found.redelivered,
        found.marked,
        found.lost,
    )


def test_two_runs_in_turn_do_not_overlap() -> None:
    told = story("t", [delivered(1), *ran(1, 2), delivered(5, B, redelivered=True), *ran(5, 6, B, 3)])
    found = judge(told, left=0)
    assert "ran twice" == found.summary
    assert found.marked is True
    assert 3.5 == redelivered_after(told, since=1.5)


def test_a_run_that_begins_before_the_first_ended_overlaps() -> None:
    happenings = sorted(
        [delivered(1), *ran(1, 6), delivered(3, B, redelivered=True), *ran(3, 8, B, 3)], key=lambda line: line.at
    )
    assert "ran twice, overlapping" == judge(story("t", happenings), left=0).summary


def test_a_redelivery_without_the_mark_is_told_apart() -> None:
    told = story("t", [delivered(1), *ran(1, 2), delivered(5, B), *ran(5, 6, B, 3)])
    assert judge(told, left=0).marked is False


def test_a_skipped_redelivery_is_no_run() -> None:
    found = judge(story("t", [delivered(1), *ran(1, 2), delivered(5, B, redelivered=True)]), left=0)
    assert (2, 1, 1) == (found.deliveries, found.executed, found.effects)


def test_lost_means_never_completed_and_nowhere() -> None:
    nothing = story("t", [])
    assert judge(nothing, left=0).lost
    assert not judge(nothing, left=1).lost
    assert "not run" == judge(nothing, left=1).summary
    killed = story("t", [delivered(1), *ran(1, None)])
    assert killed.goes_on
    assert judge(killed, left=0).lost
    failed = story("t", [delivered(1), *ran(1, 2, state="FAILURE")])
    assert judge(failed, left=0).lost


def test_other_tasks_do_not_count() -> None:
    other = Happening(1, STARTED, A, 2, "other", {})
    assert () == story("t", [other]).runs
