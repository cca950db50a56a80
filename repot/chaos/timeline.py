"""A run laid out in time, ready to be drawn: lanes, marks and the same in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.experiment import CUT_OFF, HEALTHY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.chaos.experiment import Result, Window
    from repot.chaos.verdict import Delivery, Effect, Run, Story

#: From top to bottom.
LANES = (CUT_OFF, HEALTHY)

#: Distances between two labels of a time axis, in seconds.
_TICK_STEPS_S = (1, 2, 5, 10, 20, 30, 60)
_MOST_TICKS = 12
#: What happens in no time must still be seen; in percent of the width.
_NARROWEST = 0.4


@dataclass(frozen=True, slots=True)
class Mark:
    """Something on a lane; `at` and `length` are in percent of its width."""

    kind: str
    lane: int
    at: float
    length: float
    hint: str
    label: str = ""


@dataclass
class Picture:
    """A run as it is drawn, on an axis of `length_s` that begins when its task was published."""

    result: Result
    length_s: float
    marks: list[Mark] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Broker, version and setting."""
        result = self.result
        deduplication = "on" if result.case.deduplicate else "off"
        number = f", run {result.case.number}" if result.case.number > 1 else ""
        return f"{result.product} {result.version}, deduplication {deduplication}{number}"

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Labels of the time axis and where they stand."""
        step = next((step for step in _TICK_STEPS_S if self.length_s / step <= _MOST_TICKS), _TICK_STEPS_S[-1])
        return [(self._share(second), f"{second} s") for second in range(0, int(self.length_s) + 1, step)]

    def draw(self) -> None:
        """Fill in marks and events."""
        self.events.append((0.0, "the task is published"))
        for window in self.result.windows:
            self._fault(window)
        for name, told in _stories(self.result):
            for run in told.runs:
                self._run(name, run)
            for delivery in told.deliveries:
                self._delivery(name, delivery)
        for effect in self.result.subject.effects:
            self._effect(effect)
        self.events.sort()

    def _fault(self, window: Window) -> None:
        begun, ended = self._since(window.begun), self._since(window.ended)
        self._span("fault", CUT_OFF, begun, ended, f"{window.what}: {begun:.2f} s to {ended:.2f} s")
        self.events += [(begun, f"fault: {window.what}"), (ended, "the link is mended")]

    def _run(self, name: str, run: Run) -> None:
        begun = self._since(run.started)
        ended = self.length_s if run.ended is None else self._since(run.ended)
        end = run.state or "never ended"
        self._span(f"run {name}", run.worker, begun, ended, f"{name}: {begun:.2f} s to {ended:.2f} s, {end}", name)
        self.events.append((begun, f"{name} starts on {_role(run.worker)}"))
        self.events.append((ended, f"{name} on {_role(run.worker)}: {end}"))

    def _delivery(self, name: str, delivery: Delivery) -> None:
        at = self._since(delivery.at)
        again, kind = (", marked redelivered", "delivery repeated") if delivery.redelivered else ("", "delivery")
        self._point(kind, delivery.worker, at, f"{name} is delivered{again}: {at:.2f} s")
        self.events.append((at, f"{name} is delivered to {_role(delivery.worker)}{again}"))

    def _effect(self, effect: Effect) -> None:
        at = self._since(effect.at)
        self._point("effect", effect.worker, at, f"effect: {at:.2f} s")
        self.events.append((at, f"the task has its effect on {_role(effect.worker)}"))

    def _span(self, kind: str, worker: str, begun: float, ended: float, hint: str, label: str = "") -> None:
        width = max(_NARROWEST, self._share(ended - begun))
        self.marks.append(Mark(kind, LANES.index(_role(worker)), self._share(begun), width, hint, label))

    def _point(self, kind: str, worker: str, at: float, hint: str) -> None:
        self.marks.append(Mark(kind, LANES.index(_role(worker)), self._share(at), 0, hint))

    def _since(self, at: float) -> float:
        return at - self.result.published

    def _share(self, seconds: float) -> float:
        return round(100 * seconds / self.length_s, 3)


def pictures(results: Sequence[Result]) -> list[Picture]:
    """Draw runs on one scale, so that they can be compared."""
    length_s = max(at - result.published for result in results for at in _instants(result)) + 0.5
    drawn = [Picture(result, length_s) for result in results]
    for picture in drawn:
        picture.draw()
    return drawn


def _stories(result: Result) -> Iterator[tuple[str, Story]]:
    yield from (("task", result.subject), ("beacon", result.beacon), ("follow-up", result.follow_up))


def _instants(result: Result) -> Iterator[float]:
    yield result.published
    yield from (window.ended for window in result.windows)
    for _, told in _stories(result):
        yield from (delivery.at for delivery in told.deliveries)
        yield from (at for run in told.runs for at in (run.started, run.ended) if at is not None)


def _role(worker: str) -> str:
    return worker.partition("@")[0]
