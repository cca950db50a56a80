"""The tree of a task, from what its processes have recorded."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from repot.chaos.instruments.journal import EFFECT, ENDED, SENDING, SENT, STARTED, JournalEvent
from repot.chaos.instruments.recorder import _following
from repot.chaos.runner.tree import strangers, tree_of
from repot.chaos.runner.verdict import Sending

ROOT = "root"


class History:
    """Events in the order of the calls, a second apart."""

    def __init__(self) -> None:
        self.events: list[JournalEvent] = []
        self._clock = count()

    def add(self, kind: str, task: str, pid: int = 1, **details: Any) -> None:
        self.events.append(JournalEvent(float(next(self._clock)), kind, "w", pid, task, details))

    def runs(self, task: str, name: str = "shop.t", pid: int = 1, root: str = ROOT, **details: Any) -> History:
        """A task starts."""
        self.add(STARTED, task, pid, name=name, root=root, follows=details.get("follows", []))
        return self

    def sends(
        self, by: str, task: str, name: str = "shop.t", arguments: str = "a", *, pid: int = 1, arrives: bool = True
    ) -> History:
        """A task that runs sends another."""
        self.add(SENDING, task, pid, name=name, root=ROOT, by=by, queues=["q"], arguments=arguments)
        if arrives:
            self.add(SENT, task, pid)
        return self

    def ends(self, task: str, pid: int = 1, *, effect: bool = True) -> History:
        """A task ends, with an effect."""
        if effect:
            self.add(EFFECT, task, pid)
        self.add(ENDED, task, pid, state="SUCCESS")
        return self


def test_all_that_a_task_and_its_children_send_belongs_to_it() -> None:
    found = tree_of(ROOT, History().runs(ROOT).sends(ROOT, "a").runs("a").sends("a", "b").sends("a", "c").events)
    assert [one.task for one in found.children] == ["a", "b", "c"]
    assert {Sending.ACCEPTED} == {one.sending for one in found.children}
    assert {("q",)} == {one.queues for one in found.children}


def test_a_retry_is_no_child() -> None:
    assert tree_of(ROOT, History().runs(ROOT).sends(ROOT, ROOT).runs(ROOT).events).children == ()


def test_celerys_own_tasks_have_no_verdict_and_are_no_strangers() -> None:
    history = History().runs(ROOT).sends(ROOT, "unlock", "celery.chord_unlock").runs("unlock", "celery.chord_unlock")
    found = tree_of(ROOT, history.events)
    assert found.children == ()
    assert strangers({ROOT}, {ROOT, *found.ids}, history.events) == []


def test_what_has_no_root_here_is_a_stranger() -> None:
    history = History().runs(ROOT).runs("x", root="x").runs("y", root="x")
    assert strangers({ROOT}, {ROOT}, history.events) == ["x", "y"]


def test_a_message_that_was_not_accepted_is_unknown() -> None:
    (child,) = tree_of(ROOT, History().runs(ROOT).sends(ROOT, "a", arrives=False).events).children
    assert Sending.UNKNOWN is child.sending


def test_what_was_to_follow_and_was_not_sent_is_due() -> None:
    history = History().runs(ROOT, follows=[["a", "shop.a"], ["b", "shop.b"]]).ends(ROOT).sends(ROOT, "a")
    found = tree_of(ROOT, history.events).children
    assert {one.task: one.sending for one in found} == {"a": Sending.ACCEPTED, "b": Sending.DUE}
    assert {one.task: one.name for one in found} | {"a": "shop.a"} == {"a": "shop.a", "b": "shop.b"}


def twice(*, pid: int, arguments: str, effect: bool, second: bool = True) -> History:
    """Send a task, which runs, from each of two runs of the root."""
    history = History().runs(ROOT).sends(ROOT, "a").runs("a", pid=9).ends("a", pid=9)
    history.runs(ROOT, pid=pid).sends(ROOT, "b", arguments=arguments, pid=pid)
    return history.runs("b", pid=9).ends("b", pid=9, effect=effect) if second else history


@pytest.mark.parametrize("pid", [1, 2], ids=["retried in one process", "delivered again to another"])
@pytest.mark.parametrize(
    ("arguments", "effect", "second", "repeats"),
    [
        ("a", True, True, ["b"]),
        # other work; a guard that skips the second; a second that never ran
        ("b", True, True, []),
        ("a", False, True, []),
        ("a", True, False, []),
    ],
)
def test_work_that_two_runs_have_sent_is_done_twice(
    pid: int, arguments: str, repeats: list[str], *, effect: bool, second: bool
) -> None:
    history = twice(pid=pid, arguments=arguments, effect=effect, second=second)
    assert repeats == [one.task for one in tree_of(ROOT, history.events).children if one.repeats]


def test_equal_work_that_one_run_sends_more_than_once_is_not_done_twice() -> None:
    history = History().runs(ROOT)
    for name in ("a", "b", "c"):
        history.sends(ROOT, name).runs(name, pid=9).ends(name, pid=9)
    assert not any(one.repeats for one in tree_of(ROOT, history.events).children)


class Request:
    """What Celery has of a task that runs; `chain` comes with the last one first."""

    def __init__(self, **given: Any) -> None:
        self.chain, self.callbacks, self.chord = None, None, None
        vars(self).update(given)


def signature(name: str, task: str | None, kind: str | None = None, **kwargs: Any) -> dict[str, Any]:
    return {"task": name, "options": {"task_id": task} if task else {}, "subtask_type": kind, "kwargs": kwargs}


@pytest.mark.parametrize(
    ("request_", "follows"),
    [
        (Request(), []),
        (Request(chain=[signature("b", "2"), signature("a", "1")]), [["2", "b"], ["1", "a"]]),
        (Request(callbacks=[signature("a", "1"), signature("b", None)]), [["1", "a"]]),
        (Request(chord=signature("a", "1")), [["1", "a"]]),
        (Request(chain=[signature("celery.chord", None, "chord", body=signature("a", "1"))]), [["1", "a"]]),
        (Request(chain=[signature("celery.group", "7", "group")]), []),
    ],
)
def test_what_follows_is_known_by_its_id(request_: Request, follows: list[list[str]]) -> None:
    assert follows == _following(request_)
