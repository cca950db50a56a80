"""A stretch of the link that does what Toxiproxy cannot: lose one ACK and nothing else, or forget connections.

Toxiproxy knows bytes, not requests, and spoils a link, not the connections of a
moment. What a request is says the broker's adapter.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar

from repot.brokers.local import LOOPBACK

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from repot.brokers.wire import Request, Requests

_CHUNK_BYTES = 65536
#: Nothing it is asked to do takes long; only a machine at its end needs more.
_WITHIN_S = 20

Answer = TypeVar("Answer")


class LostAck:
    """The ACK of one delivery, which is not to arrive.

    The first one alone: on RabbitMQ the next with this tag is of another channel and
    so of another delivery, on Redis it may be that of a redelivery.

    Attributes:
        dropped: whether it has been.
        joint: how many ACKs of several deliveries at once have gone by before; they pass, as others depend on them.
    """

    def __init__(self, tag: str) -> None:
        """Wait for the ACK of the delivery with this tag."""
        self._tag = tag
        self.dropped = False
        self.joint = 0

    def takes(self, request: Request) -> bool:
        """Whether this is it."""
        if request.and_before:
            self.joint += not self.dropped
            return False
        if self.dropped or request.ack_of != self._tag:
            return False
        self.dropped = True
        return True


class Relay:
    """Carries connections from `port` on loopback to a server, while a `with` lasts.

    In a thread of its own; each way ends when its sender has ended it.
    """

    port: int

    def __init__(self, server_port: int, requests: Callable[[], Requests], server_host: str = LOOPBACK) -> None:
        """Lead to `server_port` of a host; `requests` cuts what one client sends into requests."""
        self._server_host, self._server_port, self._requests = server_host, server_port, requests
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._lost: LostAck | None = None
        self._carried: dict[asyncio.Task[Any], _Memory] = {}

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        try:
            self._listener = self._run(asyncio.start_server(self._carry, LOOPBACK, 0))
        except BaseException:
            self._end()
            raise
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        """Close every connection and the port."""
        try:
            self._run(self._close())
        finally:
            self._end()

    @contextmanager
    def losing(self, tag: str) -> Iterator[LostAck]:
        """Drop the ACK of a delivery; close all connections on leaving, as where bytes of a stream were lost."""
        self._lost = lost = LostAck(tag)
        try:
            yield lost
        finally:
            self._lost = None
            self._run(self._close_connections())

    @contextmanager
    def forgetting(self, *, tell_clients: bool = False) -> Iterator[None]:
        """Pass nothing more over the connections there are, not even their end; new ones work.

        So does a firewall or a load balancer that has lost its table. With
        `tell_clients`, they are closed at the client's end. They are closed at both on leaving.
        """
        self._run(self._forget(tell_clients=tell_clients))
        try:
            yield
        finally:
            self._run(self._close_connections(forgotten=True))

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WITHIN_S)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._listener.close()
        await self._close_connections()
        await self._listener.wait_closed()

    async def _forget(self, *, tell_clients: bool) -> None:
        for memory in self._carried.values():
            memory.is_lost = True
            if tell_clients:
                memory.client.transport.abort()

    async def _close_connections(self, *, forgotten: bool = False) -> None:
        closing = [task for task, memory in self._carried.items() if memory.is_lost or not forgotten]
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)

    async def _carry(self, from_client: StreamReader, to_client: StreamWriter) -> None:
        """One connection, until both ends have ended it, one has broken it, or it is closed here."""
        writers, memory, task = [to_client], _Memory(to_client), asyncio.current_task()
        assert task is not None
        self._carried[task] = memory
        try:
            from_server, to_server = await asyncio.open_connection(self._server_host, self._server_port)
            writers.append(to_server)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._send_requests(_bytes(from_client, memory), to_server))
                ways.create_task(_send(_bytes(from_server, memory), to_client))
            for writer in writers:
                writer.close()
                await writer.wait_closed()
        except* (OSError, asyncio.CancelledError):
            pass  # broken or closed here: so is the other one, below
        finally:
            del self._carried[task]
            for writer in writers:
                writer.transport.abort()

    async def _send_requests(self, client: AsyncIterator[bytes], server: StreamWriter) -> None:
        requests = self._requests()
        async for data in client:
            passing = [
                request.data for request in requests.feed(data) if not (self._lost and self._lost.takes(request))
            ]
            server.write(b"".join(passing))
            await server.drain()
        server.write(requests.rest())
        server.write_eof()


@dataclass
class _Memory:
    """Whether somebody on the way still knows of a connection, and its client's end."""

    client: StreamWriter
    is_lost: bool = False


async def _bytes(sender: StreamReader, memory: _Memory) -> AsyncIterator[bytes]:
    """What a sender sends, until it ends; nothing and no end once the connection is forgotten."""
    while True:
        try:
            data = await sender.read(_CHUNK_BYTES)
        except OSError:
            if not memory.is_lost:
                raise
            data = b""
        if memory.is_lost:
            if not data:
                await asyncio.Event().wait()
        elif data:
            yield data
        else:
            return


async def _send(server: AsyncIterator[bytes], client: StreamWriter) -> None:
    async for data in server:
        client.write(data)
        await client.drain()
    client.write_eof()
