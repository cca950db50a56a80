"""Read what Redis itself lost from its append-only file, which survives its death.

kombu takes a message (BRPOP) and then records it (HSET unacked). A worker, or a Redis, that dies in between loses it,
with any settings; no application can tell.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Options of a Redis that promises durability, and writes its file from the start to the end without a summary.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")


def vanished(directory: Path) -> list[str]:
    """Return the task ids of messages that were taken from a list and never recorded as in hand."""
    found = _Lists()
    for words in _commands(directory):
        found.apply(words[0].upper(), words[1:])
    return sorted(found.taken.values())


class _Lists:
    """What the lists hold, and what was taken from them."""

    def __init__(self) -> None:
        self._lists: dict[bytes, deque[bytes]] = defaultdict(deque)
        #: Delivery tag -> task id, of messages that are not recorded as in hand.
        self.taken: dict[str, str] = {}

    def apply(self, command: bytes, words: list[bytes]) -> None:
        """Do what a command did."""
        match command:
            case b"LPUSH":
                self._lists[words[0]].extendleft(words[1:])
            case b"RPUSH":
                self._lists[words[0]].extend(words[1:])
            case b"RPOP" | b"LPOP":
                self._take(self._lists[words[0]], from_the_left=command == b"LPOP")
            case b"DEL" | b"UNLINK":
                for key in words:
                    self._lists.pop(key, None)
            case b"HSET" if words[0].endswith(b"unacked"):
                self.taken.pop(words[1].decode(), None)

    def _take(self, messages: deque[bytes], *, from_the_left: bool) -> None:
        if messages and (found := _tag_and_id(messages.popleft() if from_the_left else messages.pop())):
            self.taken[found[0]] = found[1]


def _tag_and_id(value: bytes) -> tuple[str, str] | None:
    try:
        found = json.loads(value)
        return found["properties"]["delivery_tag"], found["headers"]["id"]
    except (ValueError, KeyError, TypeError):
        # not a task: an answer to a control command, for example
        return None


def _commands(directory: Path) -> Iterator[list[bytes]]:
    """Yield the commands of the files that were written one after the other; the last one may end in the middle."""
    for path in sorted(directory.glob("appendonlydir/*.incr.aof"), key=lambda one: int(one.name.split(".")[2])):
        data, place = path.read_bytes(), 0
        while place < len(data):
            end = data.find(b"\r\n", place)
            line = data[place:end]
            if end < 0:
                break
            place = end + 2
            if not line.startswith(b"*"):
                # an annotation
                continue
            words = []
            for _ in range(int(line[1:])):
                end = data.find(b"\r\n", place)
                if end < 0:
                    return
                size = int(data[place + 1 : end])
                words.append(data[end + 2 : end + 2 + size])
                place = end + 2 + size + 2
            yield words
