"""The shapes of a timeline, in pixels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A bar with a duration; `open` if its end was not observed."""

    kind: str
    x: float
    y: float
    width: float
    hint: str
    open: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark at an instant."""

    x: float
    y: float
    hint: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text; `hint` is the whole of a shortened one."""

    text: str
    x: float
    y: float
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """The lane of a worker, the sender or the log; a task's name ends at its label's `x`."""

    y: float
    height: float
    name: Label
    tasks: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing; `text` describes it for readers who cannot see it."""

    top: float
    height: float
    margin: float
    lanes: tuple[Lane, ...]
    spans: tuple[Span, ...]
    marks: dict[str, tuple[Mark, ...]]
    faults: tuple[Span, ...]
    fault_labels: tuple[Label, ...]
    ticks: tuple[Label, ...]
    axis_y: float
    text: str
