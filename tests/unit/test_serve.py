"""How the sidecar listens."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

import repot
from repot.healthcheck import http_limits
from repot.healthcheck.serve import listen, server_config

REPOT = Path(repot.__file__).parent


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

    assert asyncio.run(serve()) == 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        # what a probe of a container sends: the pod's address, with IPv6 too
        ("10.1.2.3:9000", b"200"),
        ("[fd00::7]:9000", b"200"),
        ("[::1]", b"200"),
        ("127.0.0.1:9000", b"200"),
        ("localhost:9000", b"200"),
        ("LocalHost.", b"200"),
        # of HTTP/1.0
        (None, b"200"),
        ("worker:9000", b"200"),
        ("Worker", b"200"),
        ("evil.com", b"400"),
        ("evil.com:9000", b"400"),
        ("worker.evil.com", b"400"),
        ("127.0.0.1.evil.com", b"400"),
        ("localhost.evil.com", b"400"),
        ("127.0.0.1@evil.com", b"400"),
        ("[::1", b"400"),
        ("2130706433", b"400"),
    ],
    ids=str,
)
def test_a_name_that_is_not_the_servers_own_is_refused(host: str | None, status: bytes) -> None:
    """DNS rebinding: the browser of someone on this machine asks in the name of another site."""
    lines = asyncio.run(_asked(host, ("worker",)))
    assert lines.startswith(b"HTTP/1.1 " + status)
    assert (b"add it to HEALTHCHECK_ALLOWED_HOSTS" in lines) == (status == b"400")
    assert (b"answered" in lines) == (status == b"200")


def test_a_refusal_reflects_no_control_characters_and_names_what_to_set() -> None:
    answer = asyncio.run(_asked("evil\u0085.com", ()))
    assert b"this server has no name 'evil" in answer
    assert b"\x85" not in answer.partition(b"\r\n\r\n")[2]


def test_any_name_is_allowed_on_request() -> None:
    assert asyncio.run(_asked("evil.com", ("*",))).startswith(b"HTTP/1.1 200")


def test_every_http_server_is_configured_in_one_place() -> None:
    """One that makes a configuration of its own would answer under any name."""
    found = {path.name for path in REPOT.rglob("*.py") if "uvicorn.Config(" in path.read_text()}
    assert {"serve.py"} == found


async def _asked(host: str | None, hosts: tuple[str, ...]) -> bytes:
    """Return the whole answer to a request with this header."""
    app = FastAPI()
    app.add_api_route("/", lambda: "answered")
    with listen("127.0.0.1", 0, "the sidecar", ("HOST", "PORT")) as listening:
        server = uvicorn.Server(server_config(app, hosts, "HEALTHCHECK_ALLOWED_HOSTS"))
        serving = asyncio.create_task(server.serve([listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        head = "GET / HTTP/1.0" if host is None else f"GET / HTTP/1.1\r\nHost: {host}"
        writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        server.should_exit = True
        await serving
        return answer


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
            server = uvicorn.Server(server_config(FastAPI(), ("x",), "HOSTS"))
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
