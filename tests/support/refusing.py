"""A proxy before a Redis that refuses one command, as hosted services and proxies do."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Thread
from typing import TYPE_CHECKING, Any

from repot.testbed import LOOPBACK

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Iterator

#: Commands whose first argument tells what they do.
_WITH_SUBCOMMAND = ("CLIENT", "CONFIG", "SCRIPT")
_WITHIN_S = 20


class Refusal(StrEnum):
    """How a command is refused."""

    #: `-ERR unknown command`, of the server itself, to which the proxy gives a name that it does not know.
    ERROR = "error"
    #: The connection is closed.
    CLOSE = "close"


@dataclass
class RefusingProxy:
    """Forwards to a server what it does not refuse.

    Attributes:
        port: of loopback, where it listens.
        seen: the names of all commands that came, as `CLIENT TRACKING`.
        refused: which of them is refused: a name, or the first word of several; empty for none.
    """

    server_port: int
    refused: str = ""
    refusal: Refusal = Refusal.ERROR
    port: int = 0
    seen: list[str] = field(default_factory=list)

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Forward one connection until one end closes it."""
        writers = [to_client]
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            server, to_server = await asyncio.open_connection(LOOPBACK, self.server_port)
            writers.append(to_server)
            answers = asyncio.create_task(_copy(server, to_client))
            await self._forward(client, to_server)
            answers.cancel()
        for writer in writers:
            writer.transport.abort()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _forward(self, client: StreamReader, to_server: StreamWriter) -> None:
        while True:
            parts = await _command(client)
            name = _name(parts)
            self.seen.append(name)
            if self.refused and f"{name} ".startswith(f"{self.refused} "):
                if self.refusal is Refusal.CLOSE:
                    return
                parts = [b"no-" + name.encode(), *parts[1:]]
            to_server.write(_encoded(parts))


@contextmanager
def refusing(server_port: int, refused: str = "", refusal: Refusal = Refusal.ERROR) -> Iterator[RefusingProxy]:
    """Run a proxy before a server for the duration of a `with`."""
    proxy, loop = RefusingProxy(server_port, refused, refusal), asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(_WITHIN_S)

    listener = run(asyncio.start_server(proxy.serve, LOOPBACK, 0))
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        run(_close(listener))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _close(listener: asyncio.Server) -> None:
    listener.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _copy(sender: StreamReader, receiver: StreamWriter) -> None:
    with suppress(OSError, asyncio.CancelledError):
        while data := await sender.read(65536):
            receiver.write(data)
    receiver.transport.abort()


async def _command(client: StreamReader) -> list[bytes]:
    count = int((await client.readuntil(b"\r\n"))[1:])
    parts = []
    for _ in range(count):
        length = int((await client.readuntil(b"\r\n"))[1:])
        parts.append((await client.readexactly(length + 2))[:-2])
    return parts


def _name(parts: list[bytes]) -> str:
    words = [part.decode(errors="replace").upper() for part in parts[:2]]
    return " ".join(words if words[0] in _WITH_SUBCOMMAND else words[:1])


def _encoded(parts: list[bytes]) -> bytes:
    sizes = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), sizes)
