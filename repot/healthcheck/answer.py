"""What a probe answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """Yes or no, the state in one word for machines, and a sentence for people."""

    ok: bool
    state: str
    reason: str
