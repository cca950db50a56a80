"""The events of a journal by task and by root id: a load has thousands of tasks, looked at again and again."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from repot.chaos.runner.tree import Tree, tree_of
from repot.chaos.runner.verdict import TaskHistory, task_history

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repot.chaos.instruments.journal import JournalEvent


class TaskEvents:
    """Groups a growing list of events; what was made of a task is kept until there are further events of it."""

    def __init__(self) -> None:
        """Begin without an event."""
        self._seen = 0
        self._by_task: dict[str, list[JournalEvent]] = defaultdict(list)
        self._tasks_of: dict[str, dict[str, None]] = defaultdict(dict)
        self._histories: dict[str, tuple[tuple[int, int], TaskHistory]] = {}
        self._trees: dict[str, tuple[int, Tree]] = {}

    def add(self, events: Sequence[JournalEvent]) -> None:
        """Take the events that were added to a list since the last call."""
        for one in events[self._seen :]:
            self._by_task[one.task].append(one)
            if root := one.details.get("root"):
                self._tasks_of[root][one.task] = None
        self._seen = len(events)

    def of(self, task: str) -> Sequence[JournalEvent]:
        """Return the events of a task, in the order in which they were written."""
        return self._by_task.get(task, ())

    def history(self, task: str, died: Mapping[int, float]) -> TaskHistory:
        """Return the history of a task; `died` as for `task_history`, where deaths are only added."""
        mine = self.of(task)
        state = len(mine), len(died)
        known = self._histories.get(task)
        if known is None or known[0] != state:
            known = self._histories[task] = state, task_history(task, mine, died)
        return known[1]

    def tree(self, root: str) -> Tree:
        """Return the tree of a task that the experiment has sent."""
        tasks = self._tasks_of.get(root, ())
        size = sum(len(self.of(task)) for task in tasks)
        known = self._trees.get(root)
        if known is None or known[0] != size:
            mine = sorted((one for task in tasks for one in self.of(task)), key=lambda one: one.at)
            known = self._trees[root] = size, tree_of(root, mine)
        return known[1]
