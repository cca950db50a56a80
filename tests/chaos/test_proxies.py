"""Orders for Toxiproxy while it waits for a server that stands still."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING

from repot.chaos.runner.proxies import Proxy
from repot.testbed.startup import LOOPBACK
from repot.waiting import wait_until

if TYPE_CHECKING:
    from repot.testbed import Server


def test_an_order_that_takes_longer_than_toxiproxy_gives_a_request(toxiproxy: Server) -> None:
    """It opens a connection that the kernel asks for again after 31 s, and ends a request after 25 s."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((LOOPBACK, 0), backlog=0))
        port = server.getsockname()[1]
        for _ in range(4):
            # more than it has place for
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex((LOOPBACK, port))
        link = Proxy.create(toxiproxy.url, "full", port)
        stack.callback(link.delete)
        stack.enter_context(socket.create_connection((LOOPBACK, link.port)))
        begun = monotonic()
        closing = stack.enter_context(ThreadPoolExecutor()).submit(link.enable, enabled=False)
        # after the fifth request of the kernel's for a connection, at 15 s, and before the sixth
        wait_until(lambda: monotonic() - begun > 20, within_s=30, what="the server accepts again", poll_s=0.5)
        for _ in range(2):
            server.accept()[0].close()
        closing.result(60)
        assert monotonic() - begun > 25
        with stack.enter_context(socket.socket()) as refused:
            assert refused.connect_ex((LOOPBACK, link.port))
        link.enable(enabled=True)
