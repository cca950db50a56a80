"""Who consumes on RabbitMQ, by its management API, and what workers say they hold."""

from __future__ import annotations

import socket
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from repot.brokers.in_hand import ARGUMENTS, CONSUMED, OF_TASKS, QueueConsumer, answers_of, releases_of
from repot.brokers.rabbitmq.management import segment
from repot.errors import BrokerUnreachable
from repot.upstream.bug_report import REPORT
from repot.upstream.pidbox import CommandMailbox, mailbox_exchange

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from repot.brokers.in_hand import Answers, WorkerRelease
    from repot.brokers.rabbitmq.management import ManagementApi


def consumers(api: ManagementApi, vhost: str, queues: Collection[str]) -> tuple[QueueConsumer, ...]:
    """Return the consumers of these queues, or of all, each with what its channel holds.

    Raises:
        BrokerUnreachable: the management API did not answer.
    """
    path = f"/api/vhosts/{segment(vhost)}"
    unacked = {channel["name"]: channel.get("messages_unacknowledged") for channel in api.get(f"{path}/channels") or []}
    connections = {connection["name"]: connection for connection in api.get(f"{path}/connections") or []}
    found = []
    for consumer in api.get(f"/api/consumers/{segment(vhost)}") or []:
        channel, queue = consumer.get("channel_details") or {}, str(consumer["queue"]["name"])
        if queues and queue not in queues:
            continue
        name = str(channel.get("connection_name", ""))
        connection = connections.get(name, {})
        client = connection.get("client_properties") or {}
        found.append(
            QueueConsumer(
                queue,
                str(client.get("connection_name") or name),
                str(channel.get("peer_host", "")),
                f"{client.get('product', '')} {client.get('product_version') or client.get('version') or ''}".strip(),
                int(consumer.get("prefetch_count") or 0),
                unacked.get(str(channel.get("name", ""))),
                connection["connected_at"] / 1000 if connection.get("connected_at") else None,
            )
        )
    return tuple(sorted(found, key=lambda consumer: (consumer.queue, consumer.connection)))


def mailboxes(api: ManagementApi, vhost: str, control_exchange: str) -> frozenset[str] | None:
    """Return the names of the workers that listen for commands; None if the management API does not say."""
    exchange = mailbox_exchange(control_exchange)
    ending = f".{exchange}"
    try:
        found = api.get(f"/api/exchanges/{segment(vhost)}/{segment(exchange)}/bindings/source") or []
    except BrokerUnreachable:
        return None
    return frozenset(str(one["destination"]).removesuffix(ending) for one in found)


def ask(connection: Any, control_exchange: str, listening: frozenset[str] | None, within_s: float) -> Answers:  # noqa: ANN401 - kombu's Connection
    """Ask what workers hold and consume."""
    replies = _replies(connection, control_exchange, OF_TASKS, listening, within_s)
    silent = sorted((listening or frozenset()) - {node for node, _ in replies[CONSUMED]})
    return answers_of(replies, None if listening is None else len(listening), silent)


def ask_releases(
    connection: Any,  # noqa: ANN401 - kombu's Connection
    control_exchange: str,
    listening: frozenset[str] | None,
    within_s: float,
) -> dict[str, WorkerRelease]:
    """Ask workers for their software."""
    return releases_of(_replies(connection, control_exchange, (REPORT,), listening, within_s))


def _replies(
    connection: Any,  # noqa: ANN401 - kombu's Connection
    control_exchange: str,
    questions: Sequence[str],
    listening: frozenset[str] | None,
    within_s: float,
) -> dict[str, list[tuple[str, Any]]]:
    """Ask, and wait until all workers that listen have replied, or the time has passed."""
    tickets = {str(uuid4()): question for question in questions}
    replies: dict[str, list[tuple[str, Any]]] = {question: [] for question in tickets.values()}

    def receive(ticket: str, body: Any) -> None:  # noqa: ANN401 - what was sent
        if ticket in tickets and isinstance(body, dict):
            replies[tickets[ticket]] += body.items()

    mailbox = CommandMailbox(connection, control_exchange, receive)
    for ticket, question in tickets.items():
        mailbox.broadcast(question, ARGUMENTS.get(question, {}), ticket, within_s)
    deadline = monotonic() + within_s
    with suppress(socket.timeout):
        while (left := deadline - monotonic()) > 0 and not _is_complete(replies, listening):
            connection.drain_events(timeout=left)
    return replies


def _is_complete(replies: dict[str, list[tuple[str, Any]]], listening: frozenset[str] | None) -> bool:
    return listening is not None and all(listening <= {node for node, _ in one} for one in replies.values())
