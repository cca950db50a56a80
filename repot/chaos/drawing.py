"""The parts of a timeline as it is drawn, in pixels of a drawing of its width."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasts, `open` if nobody saw its end."""

    kind: str
    x: float
    y: float
    width: float
    hint: str
    open: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happens at an instant."""

    x: float
    y: float
    hint: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text, and the whole of it if it is shortened."""

    text: str
    x: float
    y: float
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """What one worker did, or the sender, or what the log said; a task's name ends at its label's `x`."""

    y: float
    height: float
    name: Label
    tasks: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing; `text` is it in words."""

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
