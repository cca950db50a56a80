"""How the sidecar listens."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from repot.healthcheck import http_limits
from repot.healthcheck.serve import listen, server_config


def test_a_client_that_comes_before_the_server_accepts_waits() -> None:
    """Its address is announced by then."""
    with listen("127.0.0.1", 0, "the sidecar", ("HOST", "PORT")) as listening:
        socket.create_connection(listening.getsockname(), timeout=5).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_answer_does_not_wait_for_the_receipt_of_its_first_part(host: str) -> None:
    """Nagle's algorithm is off on a connection as asyncio serves it."""

    async def serve() -> int:
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with listen(host, 0, "the sidecar", ("HOST", "PORT")) as listening:
            port = listening.getsockname()[1]
            async with await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listening):
                _, ours = await asyncio.open_connection(host, port)
                theirs = await accepted
                found = theirs.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                for one in (ours, theirs):
                    one.close()
                    await one.wait_closed()
                return int(found)

    assert 1 == asyncio.run(serve())


def test_one_connection_too_many_closes_the_oldest_that_has_sent_no_whole_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not after the time limit of a request, by when its descriptors would be gone."""
    monkeypatch.setattr(http_limits, "_MAX_CONNECTIONS", 3)
    monkeypatch.setattr(http_limits, "_REQUEST_WITHIN_S", 600)

    async def status_line(reader: asyncio.StreamReader) -> bytes:
        with suppress(ConnectionResetError):
            return await asyncio.wait_for(reader.readline(), 30)
        return b""

    async def serve() -> list[bytes]:
        with listen("127.0.0.1", 0, "the sidecar", ("HOST", "PORT")) as listening:
            server = uvicorn.Server(server_config(FastAPI()))
            serving = asyncio.create_task(server.serve([listening]))
            clients = []
            for _ in range(4):
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
                clients.append((reader, writer))
            found = [await status_line(clients[0][0])]
            for reader, writer in clients[1:]:
                writer.write(b"\r\n")
                found.append(await status_line(reader))
            for _, writer in clients:
                writer.close()
            server.should_exit = True
            await serving
            return found

    assert [b"", *[b"HTTP/1.1 404 Not Found\r\n"] * 3] == asyncio.run(serve())
