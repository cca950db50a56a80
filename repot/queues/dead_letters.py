"""Tell dead-letter queues from queues of tasks, by the name that the settings give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.config import WorkerSettings


def is_dead_letters(name: str, settings: WorkerSettings) -> bool:
    """Return whether the settings would name a dead-letter queue so."""
    pattern = settings.dead_letter_queue
    if "{queue}" not in pattern:
        return bool(pattern) and name == pattern
    return bool(queue_of_dead_letters(name, settings))


def queue_of_dead_letters(name: str, settings: WorkerSettings) -> str:
    """Return the queue whose dead letters a queue of this name takes; '' if several share it, or it is not one."""
    before, found, after = settings.dead_letter_queue.partition("{queue}")
    if not found or not name.startswith(before) or not name.endswith(after):
        return ""
    queue = name[len(before) : len(name) - len(after)]
    return queue if settings.dead_letters_of(queue) == name else ""
