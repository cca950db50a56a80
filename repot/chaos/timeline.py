"""A run laid out in time, ready to be drawn: lanes of rows, marks, fault bands and a time axis, all in one unit.

The unit is a pixel of a drawing `WIDTH` wide. Labels stand in a margin, one a row,
or are packed into rows of their own, so that no two of them meet.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from repot.chaos.drawing import Label, Lane, Mark, Picture, Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.chaos.result import Account, Result
    from repot.chaos.verdict import Delivery, Effect, Run

WIDTH = 960
ROW = 20
#: Between two lanes.
GAP = 8
#: Of a row of labels above the lanes, and of the axis below them.
LABEL = 16
_BASELINE = 14
_RIGHT = 20
#: Longer names of workers and tasks are cut, and told in full when pointed at.
_LONGEST_NAME = 22
_LONGEST_HINT = 160
#: A character of the drawing's font is at most this wide, on the average of a label.
_CHARACTER = 6.6
#: What happens in no time must still be seen.
_NARROWEST = 3
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_MOST_TICKS = 14


def picture(result: Result) -> Picture:
    """Lay out a run."""
    return _Drawing(result).drawn()


def names(accounts: Sequence[Account]) -> tuple[str, ...]:
    """A name for each account: its role, with a number where several share it."""
    total, seen = Counter(account.role for account in accounts), Counter[str]()
    found = []
    for account in accounts:
        seen[account.role] += 1
        found.append(f"{account.role} {seen[account.role]}" if total[account.role] > 1 else account.role)
    return tuple(found)


def worker_name(worker: str) -> str:
    """A worker's name without that of its machine, which all of them share."""
    return worker.partition("@")[0] or worker


class _Drawing:
    """Filled from top to bottom."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.tasks = tuple(zip(names(result.accounts), result.accounts, strict=True))
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
        """Stacked where they would meet."""
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

    def _task(self, name: str, task: Account, worker: str, y: float) -> int:
        """Draw what a worker had of a task; how many rows it took, more than one if its runs overlap."""
        runs = [one for one in task.story.runs if worker_name(one.worker) == worker]
        deliveries = [one for one in task.story.deliveries if worker_name(one.worker) == worker]
        effects = [one for one in task.story.effects if worker_name(one.worker) == worker]
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

    def _run(self, name: str, task: Account, run: Run, y: float) -> Span:
        kind = "run subject" if task.role == "subject" else "run"
        if run.state not in ("SUCCESS", ""):
            kind += " broken"
        ended = self.ends if run.ended is None else run.ended
        state = run.state or "no end seen"
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
                f"log, {notice.at:.2f} s: {_shortened(notice.text, _LONGEST_HINT)}",
            )
        self._lane("log", [])

    def _lane(self, name: str, labels: list[tuple[str, int]], rows: int = 1) -> None:
        """End a lane, and name it and the tasks in its rows."""
        named = Label(_shortened(name), 0, self.y + _BASELINE, name)
        tasks = (Label(_shortened(task), self.margin, self.y + row * ROW + _BASELINE, task) for task, row in labels)
        self.lanes.append(Lane(self.y, rows * ROW, named, tuple(tasks)))
        self.y += rows * ROW + GAP

    def _span(self, kind: str, begun: float, ended: float, y: float, hint: str, *, is_open: bool = False) -> Span:
        x = self._x(begun)
        return Span(kind, x, y, max(self._x(ended) - x, _NARROWEST), hint, is_open)

    def _mark(self, kind: str, at: float, y: float, hint: str) -> None:
        self.marks.setdefault(kind, []).append(Mark(self._x(at), y, hint))

    def _ticks(self) -> Iterator[Label]:
        length = self.ends - self.begins
        step = next((step for step in _STEPS_S if length / step <= _MOST_TICKS), length)
        for number in range(-int(-self.begins // step), int(self.ends // step) + 1):
            yield Label(f"{number * step:g} s", self._x(number * step), self.y + 13)

    def _x(self, at: float) -> int:
        share = (min(max(at, self.begins), self.ends) - self.begins) / (self.ends - self.begins)
        return round(self.margin + GAP + share * (WIDTH - self.margin - GAP - _RIGHT))


def _shortened(text: str, most: int = _LONGEST_NAME) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _period(begun: float, ended: float | None) -> str:
    return f"from {begun:.2f} s" if ended is None else f"{begun:.2f} to {ended:.2f} s"


def _within(effect: Effect, run: Run) -> bool:
    return run.started <= effect.at and (run.ended is None or effect.at <= run.ended)


def _of_workers(task: Account) -> Iterator[Delivery | Run | Effect]:
    yield from task.story.deliveries
    yield from task.story.runs
    yield from task.story.effects


def _instants(result: Result) -> Iterator[float]:
    """Every one that is drawn."""
    yield from (at for window in result.windows for at in (window.begun, window.ended))
    yield from (notice.at for notice in result.notices)
    for account in result.accounts:
        yield account.sent_at
        yield from (one.at for one in account.story.deliveries)
        yield from (one.at for one in account.story.effects)
        yield from (at for run in account.story.runs for at in (run.started, run.ended) if at is not None)


def _text(result: Result, workers: Sequence[str]) -> str:
    """What the drawing is of; the table beside it tells the rest in words."""
    faults = "; ".join(f"{one.what} from {one.begun:.1f} to {one.ended:.1f} s" for one in result.windows)
    return f"Timeline of {', '.join(workers)}. Fault: {faults or 'none'}. The table that follows has every instant."
