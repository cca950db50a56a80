"""A relay for faults that Toxiproxy cannot cause: lose one ACK and nothing else, or forget open connections.

Toxiproxy handles bytes, not requests, and a link as a whole, not the connections of a moment. A
request parser of the broker's protocol finds the requests.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar

from repot.testbed import LOOPBACK

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from repot.chaos.protocol.requests import Request, RequestParser

_CHUNK_BYTES = 65536
#: Seconds for one action of the relay; only an overloaded machine needs more.
_WITHIN_S = 20

Answer = TypeVar("Answer")


class LostAck:
    """The ACK of one delivery, which the relay drops.

    Only the first ACK with the tag is dropped: on RabbitMQ the next one belongs to another channel
    and so to another delivery, on Redis it may be the ACK of a redelivery.

    Attributes:
        dropped: whether the ACK has been dropped.
        joint: the number of earlier ACKs that each cover several deliveries; they pass, as other tasks need them.
    """

    def __init__(self, tag: str) -> None:
        """Drop the ACK of the delivery with this tag."""
        self._tag = tag
        self.dropped = False
        self.joint = 0

    def drops(self, request: Request) -> bool:
        """Return whether to drop this request."""
        if request.multiple:
            self.joint += not self.dropped
            return False
        if self.dropped or request.ack_of != self._tag:
            return False
        self.dropped = True
        return True


class Relay:
    """Forwards connections from `port` on loopback to a server, while a `with` lasts.

    It runs in its own thread. Each direction ends when its sender closes it.
    """

    port: int

    def __init__(self, server_port: int, parser: Callable[[], RequestParser], server_host: str = LOOPBACK) -> None:
        """Forward to `server_port` of a host; `parser` makes the request parser of a connection."""
        self._server_host, self._server_port, self._parser = server_host, server_port, parser
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._lost: LostAck | None = None
        self._carried: dict[asyncio.Task[Any], _Connection] = {}

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
        """Drop the ACK of a delivery; close all connections on leaving, as after a loss of bytes in a stream."""
        self._lost = lost = LostAck(tag)
        try:
            yield lost
        finally:
            self._lost = None
            self._run(self._close_connections())

    @contextmanager
    def forgetting(self, *, closes_client_end: bool = False) -> Iterator[None]:
        """Drop all bytes of the open connections and their close; new connections work.

        A firewall or a load balancer that has lost its table does the same. With `closes_client_end`
        the client's end is closed at once. Both ends are closed on leaving.
        """
        self._run(self._forget(closes_client_end=closes_client_end))
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

    async def _forget(self, *, closes_client_end: bool) -> None:
        for connection in self._carried.values():
            connection.is_forgotten = True
            if closes_client_end:
                connection.client.transport.abort()

    async def _close_connections(self, *, forgotten: bool = False) -> None:
        closing = [task for task, connection in self._carried.items() if connection.is_forgotten or not forgotten]
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)

    async def _carry(self, from_client: StreamReader, to_client: StreamWriter) -> None:
        """Forward one connection until both ends have closed it, one has reset it, or the relay closes it."""
        writers, connection, task = [to_client], _Connection(to_client), asyncio.current_task()
        assert task is not None
        self._carried[task] = connection
        try:
            from_server, to_server = await asyncio.open_connection(self._server_host, self._server_port)
            writers.append(to_server)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._send_requests(_bytes(from_client, connection), to_server))
                ways.create_task(_send(_bytes(from_server, connection), to_client))
            for writer in writers:
                writer.close()
                await writer.wait_closed()
        except* (OSError, asyncio.CancelledError):
            pass  # reset, or closed by the relay: the other end is closed below
        finally:
            del self._carried[task]
            for writer in writers:
                writer.transport.abort()

    async def _send_requests(self, client: AsyncIterator[bytes], server: StreamWriter) -> None:
        parser = self._parser()
        async for data in client:
            passing = [request.data for request in parser.feed(data) if not (self._lost and self._lost.drops(request))]
            server.write(b"".join(passing))
            await server.drain()
        server.write(parser.rest())
        server.write_eof()


@dataclass
class _Connection:
    """The state of one connection: whether the relay has forgotten it, and the client's end."""

    client: StreamWriter
    is_forgotten: bool = False


async def _bytes(sender: StreamReader, connection: _Connection) -> AsyncIterator[bytes]:
    """Yield the bytes of a sender until it closes; no bytes and no end once the connection is forgotten."""
    while True:
        try:
            data = await sender.read(_CHUNK_BYTES)
        except OSError:
            if not connection.is_forgotten:
                raise
            data = b""
        if connection.is_forgotten:
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
