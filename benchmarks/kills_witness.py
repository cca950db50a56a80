"""Count messages that Redis lost by itself while `benchmarks/kills.py` killed its clients."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from threading import Event, Thread

from redis import ConnectionError as RedisGone
from redis import Redis


class Witness:
    """Watches Redis with MONITOR for messages that were taken from a list, and never recorded as unacknowledged.

    kombu takes a message (BRPOP) and then records it (ZADD, HSET). A worker that dies in between loses it, with any
    settings; no guard sees that message.
    """

    _TAG = re.compile(r'delivery_tag[\\"]+:\s*[\\"]+([0-9a-f-]{36})')
    _ID = re.compile(r'correlation_id[\\"]+:\s*[\\"]+([0-9a-f-]{36})')

    def __init__(self, url: str, queue: str) -> None:
        self._client = Redis.from_url(url, decode_responses=True, socket_timeout=None)
        self._queue = queue
        self._began = Event()
        self._in_lists: Counter[str] = Counter()
        self._task_of: dict[str, str] = {}
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()
        self._began.wait(10)

    def vanished(self) -> Counter[str]:
        """Return the number of lost messages by task id; call it when the lists are empty."""
        # lets MONITOR catch up: it reports commands in order
        self._client.echo("the end")
        self._thread.join(10)
        return Counter(self._task_of[tag] for tag, number in self._in_lists.items() for _ in range(number))

    def _listen(self) -> None:
        with suppress(RedisGone), self._client.monitor() as monitor:
            self._began.set()
            for entry in monitor.listen():
                command, _, rest = entry["command"].partition(" ")
                if command == "ECHO":
                    return
                self._count(command.upper(), rest)

    def _count(self, command: str, rest: str) -> None:
        # a list of a priority has a suffix; no worker consumes `queue.dead`
        if command in ("LPUSH", "RPUSH") and re.split(r"[ \x06\\]", rest, maxsplit=1)[0] == self._queue:
            tag, task_id = self._TAG.search(rest), self._ID.search(rest)
            if tag and task_id:
                self._in_lists[tag[1]] += 1
                self._task_of[tag[1]] = task_id[1]
        elif command == "ZADD" and rest.startswith("unacked_index"):
            self._in_lists[rest.split()[2]] -= 1
