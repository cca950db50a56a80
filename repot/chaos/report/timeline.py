"""Lay out a run as a timeline: lanes, marks, fault bands and a time axis.

Coordinates are pixels of a drawing `WIDTH` wide. Each label has a row of its own, so no two labels overlap.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from repot.chaos.report.result import UNDER_TEST
from repot.chaos.report.timeline_shapes import Label, Lane, Mark, Picture, Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.chaos.report.result import Result, TaskResult
    from repot.chaos.runner.verdict import Delivery, Effect, Run

WIDTH = 960
ROW = 20
#: Between two lanes.
GAP = 8
#: The height of a row of labels above the lanes, and of the axis below them.
LABEL = 16
_BASELINE = 14
_RIGHT = 20
#: Longer names of workers and tasks are shortened; a tooltip has the whole name.
_MAX_NAME = 22
_MAX_HINT = 160
#: The average width of a character in a label, at most.
_CHARACTER = 6.6
#: The smallest visible width.
_MIN_WIDTH = 3
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_MAX_TICKS = 14


def picture(result: Result) -> Picture:
    """Lay out the timeline of a run."""
    return _Drawing(result).drawn()


def names(task_results: Sequence[TaskResult]) -> tuple[str, ...]:
    """Return a name for each task: its own where it is a child, or its role; with a number where several share it."""
    labels = [f"{task.role} {task.name}".strip() for task in task_results]
    total, seen = Counter(labels), Counter[str]()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(f"{label} {seen[label]}" if total[label] > 1 else label)
    return tuple(found)


def worker_name(worker: str) -> str:
    """Return a worker's name without the host name, which all workers share."""
    return worker.partition("@")[0] or worker


class _Drawing:
    """A drawing that is filled from top to bottom."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.tasks = tuple(zip(names(result.task_results), result.task_results, strict=True))
        used = [worker_name(one.worker) for _, task in self.tasks for one in _of_workers(task)]
        self.workers = tuple(dict.fromkeys([*map(worker_name, result.lanes), *used]))
        instants = [0.0, *_instants(result)]
        self.begins, self.ends = min(instants), max(*instants, min(instants) + 1)
        lane = max(len(_shortened(name)) for name in (*self.workers, "sender"))
        task = max((len(_shortened(name)) for name, _ in self.tasks), default=0)
        self.margin = round((lane + task) * _CHARACTER + 2 * GAP)
        self.spans: list[Span] = []
        self.marks: dict[str, list[Mark]] = {}
        self.lanes: list[Lane] = []
        self.y = 0.0

    def drawn(self) -> Picture:
        fault_labels = tuple(self._fault_labels())
        top = self.y
        self._sender()
        for worker in self.workers:
            self._worker(worker)
        if self.result.notices:
            self._log()
        faults = tuple(
            self._span("fault", one.begun, one.ended, top, f"{one.what}, {_period(one.begun, one.ended)}")
            for one in self.result.windows
        )
        return Picture(
            top=top,
            height=self.y + LABEL + 2,
            margin=self.margin,
            lanes=tuple(self.lanes),
            spans=tuple(self.spans),
            marks={kind: tuple(marks) for kind, marks in self.marks.items()},
            faults=faults,
            fault_labels=fault_labels,
            ticks=tuple(self._ticks()),
            axis_y=self.y,
            text=_text(self.result, self.workers),
        )

    def _fault_labels(self) -> Iterator[Label]:
        """Yield the labels of the faults, stacked where they would overlap."""
        free: list[float] = []
        for window in self.result.windows:
            room = int((WIDTH - self.margin - GAP) / _CHARACTER)
            text = _shortened(window.what, room)
            width = len(text) * _CHARACTER + GAP
            x = min(self._x(window.begun), WIDTH - width)
            row = next((number for number, until in enumerate(free) if until <= x), len(free))
            free[row : row + 1] = [x + width]
            yield Label(text, round(x), row * LABEL + 12, window.what)
        self.y = len(free) * LABEL + GAP / 2

    def _sender(self) -> None:
        for name, task in self.tasks:
            hint = f"{name} sent, {task.sending.value}, {task.sent_at:.2f} s"
            self._mark("sent", task.sent_at, self.y + ROW / 2, hint)
        self._lane("sender", [])

    def _worker(self, worker: str) -> None:
        labels, row = [], 0
        for name, task in self.tasks:
            rows = self._task(name, task, worker, self.y + row * ROW)
            if rows:
                labels.append((name, row))
                row += rows
        self._lane(worker, labels, max(row, 1))

    def _task(self, name: str, task: TaskResult, worker: str, y: float) -> int:
        """Draw what a worker did with a task; return the number of rows, more than one if runs overlap."""
        runs = [one for one in task.history.runs if worker_name(one.worker) == worker]
        deliveries = [one for one in task.history.deliveries if worker_name(one.worker) == worker]
        effects = [one for one in task.history.effects if worker_name(one.worker) == worker]
        free: list[float] = []
        for run in runs:
            row = next((number for number, until in enumerate(free) if until <= run.started), len(free))
            free[row : row + 1] = [self.ends if run.ended is None else run.ended]
            self.spans.append(self._run(name, task, run, y + row * ROW))
        for delivery in deliveries:
            self._delivery(name, delivery, y)
        for effect in effects:
            row = next((n for n, run in enumerate(runs) if _within(effect, run)), 0) if len(free) > 1 else 0
            self._mark(
                "effect", effect.at, y + min(row, len(free)) * ROW + ROW / 2, f"{name}: effect, {effect.at:.2f} s"
            )
        return max(len(free), 1 if deliveries or effects else 0)

    def _run(self, name: str, task: TaskResult, run: Run, y: float) -> Span:
        kind = "run under-test" if task.role == UNDER_TEST else "run"
        if run.state not in ("SUCCESS", ""):
            kind += " broken"
        ended = self.ends if run.ended is None else run.ended
        state = run.state or "end not observed"
        hint = f"{name} runs, {_period(run.started, run.ended)}, {state}"
        return self._span(kind, run.started, ended, y + 4, hint, is_open=run.ended is None)

    def _delivery(self, name: str, delivery: Delivery, y: float) -> None:
        again = ", marked redelivered" if delivery.redelivered else ""
        kind = "again" if delivery.redelivered else "delivery"
        self._mark(kind, delivery.at, y + ROW / 2, f"{name} delivered{again}, {delivery.at:.2f} s")

    def _log(self) -> None:
        for notice in self.result.notices:
            self._mark(
                "notice",
                notice.at,
                self.y + ROW / 2,
                f"log, {notice.at:.2f} s: {_shortened(notice.text, _MAX_HINT)}",
            )
        self._lane("log", [])

    def _lane(self, name: str, labels: list[tuple[str, int]], rows: int = 1) -> None:
        """Complete a lane with its name and the names of the tasks in its rows."""
        named = Label(_shortened(name), 0, self.y + _BASELINE, name)
        tasks = (Label(_shortened(task), self.margin, self.y + row * ROW + _BASELINE, task) for task, row in labels)
        self.lanes.append(Lane(self.y, rows * ROW, named, tuple(tasks)))
        self.y += rows * ROW + GAP

    def _span(self, kind: str, begun: float, ended: float, y: float, hint: str, *, is_open: bool = False) -> Span:
        x = self._x(begun)
        return Span(kind, x, y, max(self._x(ended) - x, _MIN_WIDTH), hint, is_open)

    def _mark(self, kind: str, at: float, y: float, hint: str) -> None:
        self.marks.setdefault(kind, []).append(Mark(self._x(at), y, hint))

    def _ticks(self) -> Iterator[Label]:
        length = self.ends - self.begins
        step = next((step for step in _STEPS_S if length / step <= _MAX_TICKS), length)
        for number in range(-int(-self.begins // step), int(self.ends // step) + 1):
            yield Label(f"{number * step:g} s", self._x(number * step), self.y + 13)

    def _x(self, at: float) -> int:
        share = (min(max(at, self.begins), self.ends) - self.begins) / (self.ends - self.begins)
        return round(self.margin + GAP + share * (WIDTH - self.margin - GAP - _RIGHT))


def _shortened(text: str, most: int = _MAX_NAME) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _period(begun: float, ended: float | None) -> str:
    return f"from {begun:.2f} s" if ended is None else f"{begun:.2f} to {ended:.2f} s"


def _within(effect: Effect, run: Run) -> bool:
    return run.started <= effect.at and (run.ended is None or effect.at <= run.ended)


def _of_workers(task: TaskResult) -> Iterator[Delivery | Run | Effect]:
    yield from task.history.deliveries
    yield from task.history.runs
    yield from task.history.effects


def _instants(result: Result) -> Iterator[float]:
    """Yield every instant that is drawn."""
    yield from (at for window in result.windows for at in (window.begun, window.ended))
    yield from (notice.at for notice in result.notices)
    for task in result.task_results:
        yield task.sent_at
        yield from (one.at for one in task.history.deliveries)
        yield from (one.at for one in task.history.effects)
        yield from (at for run in task.history.runs for at in (run.started, run.ended) if at is not None)


def _text(result: Result, workers: Sequence[str]) -> str:
    """Describe the drawing; the table below it has the details."""
    faults = "; ".join(f"{one.what} from {one.begun:.1f} to {one.ended:.1f} s" for one in result.windows)
    return f"Timeline of {', '.join(workers)}. Fault: {faults or 'none'}. The table that follows has every instant."
