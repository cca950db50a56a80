"""A link to a store that can be cut between what the store does and its answer, or wholly."""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What a request holds that changes something: a script of Redis, the end of a transaction of PostgreSQL.
CHANGES = (b"EVALSHA", b"COMMIT\0")

_CHUNK = 65536


class LosingLink:
    """Forwards connections from a free port of loopback to another one."""

    def __init__(self, port: int, changes: tuple[bytes, ...] = CHANGES) -> None:
        """Lose answers to requests that hold one of `changes`."""
        self._target, self._changes = port, changes
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._is_losing, self._is_cut, self._is_silent = Event(), Event(), Event()
        #: Set when an answer was lost: what was asked is done.
        self.lost = Event()
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        """Serve."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take no more connections."""
        # a thread that waits in `accept` keeps a socket open that is only closed
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Lose the next answer to a request that changes something; after that let nothing pass."""
        self.lost.clear()
        self._is_losing.set()
        try:
            yield
        finally:
            self._is_losing.clear()
            self._is_cut.clear()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Let nothing pass: a connection ends with its next request, and a new one at once."""
        self._is_cut.set()
        try:
            yield
        finally:
            self._is_cut.clear()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let requests pass, and no answer; every connection stays open."""
        self._is_silent.set()
        try:
            yield
        finally:
            self._is_silent.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut.is_set():
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    # it is not running now
                    client.close()
                    continue
                is_doomed = Event()
                for work in (self._ask, self._answer):
                    Thread(target=work, args=(client, server, is_doomed), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, is_doomed: Event) -> None:
        with suppress(OSError):
            while (asked := client.recv(_CHUNK)) and not self._is_cut.is_set():
                if self._is_losing.is_set() and any(one in asked for one in self._changes):
                    is_doomed.set()
                server.sendall(asked)
        _end(client, server)

    def _answer(self, client: socket.socket, server: socket.socket, is_doomed: Event) -> None:
        with suppress(OSError):
            while answered := server.recv(_CHUNK):
                if is_doomed.is_set():
                    self._is_cut.set()
                    self.lost.set()
                    break
                if not self._is_silent.is_set():
                    client.sendall(answered)
        _end(client, server)


def _end(*both: socket.socket) -> None:
    for one in both:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
