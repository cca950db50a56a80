"""How the sidecar listens."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from repot.healthcheck.serve import listen


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
