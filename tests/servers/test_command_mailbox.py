"""Pings on a connection that stays: sent once, answered by kombu's own mailbox, and not for ever."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from amqp import spec
from kombu import Connection
from kombu.pidbox import Mailbox

from repot.chaos.runner.proxies import Proxy
from repot.upstream.pidbox import CommandMailbox
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

#: Of the node, which needs no worker.
NODE = "node@test"


@pytest.fixture
def exchange(request: pytest.FixtureRequest, server: Server) -> Iterator[str]:
    """The name of an exchange on which a node of kombu's answers `ping`; the test's parameter is its serializer."""
    name = f"control-{uuid4().hex}"
    mailbox: Any = Mailbox(name, type="fanout", accept=["json"], serializer=getattr(request, "param", "json"))
    with Connection(server.url) as connection:
        node = mailbox(connection).Node(NODE, state=None, channel=connection.default_channel)
        node.handlers["ping"] = lambda _: {"ok": "pong"}
        node.listen()
        thread = _Draining(connection)
        thread.start()
        try:
            yield name
        finally:
            thread.stop()


class _Draining(Thread):
    """Handles what a connection receives."""

    def __init__(self, connection: Any) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._stopped = False

    def run(self) -> None:
        while not self._stopped:
            with suppress(TimeoutError):
                self._connection.drain_events(timeout=0.1)

    def stop(self) -> None:
        self._stopped = True
        self.join()


def _ask(connection: Any, mailbox: CommandMailbox, replies: list[tuple[str, Any]]) -> str:
    """Ping, wait for the reply, and return its ticket."""
    ticket = str(uuid4())
    mailbox.send("ping", NODE, ticket, within_s=60)
    known = len(replies)

    def is_answered() -> bool:
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        return len(replies) > known

    wait_until(is_answered, within_s=60, what="the node replies")
    return ticket


def test_a_node_replies_to_each_ping_with_its_ticket(server: Server, exchange: str) -> None:
    replies: list[tuple[str, Any]] = []
    with Connection(server.url) as connection:
        mailbox = CommandMailbox(connection, exchange, lambda ticket, body: replies.append((ticket, body)))
        tickets = [_ask(connection, mailbox, replies) for _ in range(2)]
    assert [(ticket, {NODE: {"ok": "pong"}}) for ticket in tickets] == replies


def test_a_ping_is_one_message(rabbitmq: Server) -> None:
    """Kombu declares, binds, consumes and cancels for each."""
    exchange = f"control-{uuid4().hex}"
    with Connection(rabbitmq.url) as connection:
        mailbox = CommandMailbox(connection, exchange, lambda *_: None)
        channel: Any = connection.default_channel
        sent, send = [], channel.send_method

        def counting(method: object, *rest: Any, **named: Any) -> Any:
            sent.append(method)
            return send(method, *rest, **named)

        channel.send_method = counting
        for _ in range(3):
            mailbox.send("ping", NODE, str(uuid4()), within_s=60)
        assert [spec.Basic.Publish] * 3 == sent


def test_a_ping_over_a_lost_link_fails(server: Server, toxiproxy: Server) -> None:
    """Kombu's mailbox would connect again and again, for ever."""
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", server.port)
    raised: list[BaseException] = []

    def ping() -> None:
        try:
            while True:
                mailbox.send("ping", NODE, str(uuid4()), within_s=60)
        except (*connection.connection_errors, *connection.channel_errors) as error:
            raised.append(error)

    with ExitStack() as stack:
        stack.callback(link.delete)
        connection = Connection(server.url_at(link.port), connect_timeout=5)
        stack.callback(connection.collect, socket_timeout=5)
        mailbox = CommandMailbox(connection, f"control-{uuid4().hex}", lambda *_: None)
        with link.closed():
            Thread(target=ping, daemon=True).start()
            wait_until(lambda: bool(raised), within_s=60, what="the ping has failed")


@pytest.mark.parametrize("exchange", ["pickle", "yaml"], indirect=True)
def test_a_reply_that_is_not_json_is_not_read(server: Server, exchange: str) -> None:
    """A project's workers reply in signed pickles: no command that asks workers may end with that."""
    replies: list[tuple[str, Any]] = []
    with Connection(server.url) as connection:
        mailbox = CommandMailbox(connection, exchange, lambda ticket, body: replies.append((ticket, body)))
        ticket = _ask(connection, mailbox, replies)
        assert (ticket, None) == replies[-1]
