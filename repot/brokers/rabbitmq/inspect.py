"""Read the version, the configuration and the state of a RabbitMQ. Nothing is declared or published."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import amqp
from kombu import Connection
from kombu.exceptions import OperationalError

from repot.brokers.errors import no_answer
from repot.brokers.facts import (
    Binding,
    DeclaredPolicy,
    DeclaredQueue,
    Permissions,
    RabbitFacts,
    Unknown,
)
from repot.brokers.rabbitmq.management import ManagementApi, default_management_url, segment
from repot.errors import AccessRefused, BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from repot.brokers.registry import ConnectOptions
    from repot.config.endpoints import Endpoint

Fact = TypeVar("Fact")


def inspect(servers: Sequence[Endpoint], connect: ConnectOptions) -> RabbitFacts:
    """Return the facts of the first server that answers.

    Raises:
        AccessRefused: the user, the password or the virtual host is wrong.
        TlsFailed: no trusted TLS connection.
        BrokerUnreachable: no server answers.
    """
    for server in servers[:-1]:
        try:
            return _inspect_one(server, connect)
        except BrokerUnreachable as error:
            if type(error) is not BrokerUnreachable:
                raise
    return _inspect_one(servers[-1], connect)


def _inspect_one(server: Endpoint, connect: ConnectOptions) -> RabbitFacts:
    """Log in by AMQP, then ask the management API; a fact that the API does not tell is `Unknown`."""
    tls = connect.tls
    mechanisms, properties = _log_in(server, tls, connect.timeout_s)
    vhost = segment(server.path or "/")
    api = ManagementApi(
        connect.management_url or default_management_url(server, encrypted=server.is_encrypted or tls is not None),
        server.user or "guest",
        server.password or "guest",
        tls=tls,
        timeout_s=connect.timeout_s,
    )
    facts = RabbitFacts(str(properties.get("version", "")), mechanisms)
    overview = _fact(api, "/api/overview", dict)
    if isinstance(overview, Unknown):
        # one failure, not one for each question
        unknown: dict[str, Any] = {one.name: overview for one in fields(facts) if isinstance(one.default, Unknown)}
        return replace(facts, **unknown)
    return RabbitFacts(
        version=str(overview["rabbitmq_version"]),
        product=str(overview.get("product_name", "RabbitMQ")),
        mechanisms=mechanisms,
        deprecated=_fact(api, "/api/deprecated-features", _deprecated, {}),
        deprecated_in_use=_fact(
            api, "/api/deprecated-features/used", lambda found: tuple(one["name"] for one in found), ()
        ),
        policies=_policies(api, vhost),
        queues=_fact(api, f"/api/queues/{vhost}", _queues),
        exchanges=_fact(api, f"/api/exchanges/{vhost}", lambda found: {one["name"]: one["type"] for one in found}),
        bindings=_fact(api, f"/api/bindings/{vhost}", _bindings),
        alarms=_fact(api, "/api/health/checks/alarms", _alarms),
        permissions=_fact(api, f"/api/permissions/{vhost}/{segment(server.user or 'guest')}", _permissions),
        guest_exists=_fact(api, "/api/users/guest", lambda _: True, otherwise=False),
        default_queue_type=_fact(
            api, f"/api/vhosts/{vhost}", lambda found: str(found.get("default_queue_type", "undefined"))
        ),
        queue_limit=_fact(api, f"/api/vhost-limits/{vhost}", _queue_limit),
    )


def _log_in(
    server: Endpoint, tls: Mapping[str, Any] | None, timeout_s: float
) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Return the login mechanisms that the server offers, and its properties."""
    connection = Connection(
        server.url, ssl=server.is_encrypted if tls is None else dict(tls) or True, connect_timeout=timeout_s
    )
    try:
        # one attempt; `connect` would try again
        established = connection.transport.establish_connection()
    except (amqp.AccessRefused, amqp.NotAllowed) as error:
        message = f"{server} refuses the login: {error.reply_text or error}"
        raise AccessRefused(message, hint="Check user, password and virtual host of the address.") from error
    except (OSError, OperationalError, amqp.AMQPError) as error:
        raise no_answer(server, error) from error
    with established:
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in established.mechanisms]
        return tuple(names), established.server_properties


def _fact(api: ManagementApi, path: str, read: Callable[[Any], Fact], otherwise: Fact | None = None) -> Fact | Unknown:
    """Return one answer as a fact; `otherwise` if the API answers 404."""
    try:
        found = api.get(path)
    except BrokerUnreachable as error:
        return Unknown(error.message, error.hint)
    if found is None:
        return Unknown(f"{api.address}{path} does not exist") if otherwise is None else otherwise
    try:
        return read(found)
    except (KeyError, TypeError) as error:
        return Unknown(f"{api.address}{path} answered something unexpected: {error!r}")


def _deprecated(answer: Any) -> dict[str, str]:  # noqa: ANN401 - JSON
    # RabbitMQ 4.0 to 4.2 say only what the default is
    return {one["name"]: one.get("state") or one["deprecation_phase"].removesuffix("_by_default") for one in answer}


def _policies(api: ManagementApi, vhost: str) -> tuple[DeclaredPolicy, ...] | Unknown:
    def read(operator: bool) -> Callable[[Any], tuple[DeclaredPolicy, ...]]:  # noqa: FBT001
        return lambda found: tuple(DeclaredPolicy.of_api(one, operator=operator) for one in found)

    users = _fact(api, f"/api/policies/{vhost}", read(False))
    operators = _fact(api, f"/api/operator-policies/{vhost}", read(True))
    for found in (users, operators):
        if isinstance(found, Unknown):
            return found
    return (*users, *operators)  # type: ignore[misc]


def _queues(answer: Any) -> dict[str, DeclaredQueue]:  # noqa: ANN401 - JSON
    return {
        one["name"]: DeclaredQueue(
            name=one["name"],
            kind=str(one.get("type", one.get("arguments", {}).get("x-queue-type", "classic"))),
            arguments=one.get("arguments", {}),
            durable=bool(one.get("durable", True)),
            held_for_dead_letter=int(one.get("messages_dlx", 0)),
        )
        for one in answer
    }


def _bindings(answer: Any) -> tuple[Binding, ...]:  # noqa: ANN401 - JSON
    return tuple(Binding(one["source"], one["destination"]) for one in answer)


def _alarms(answer: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON
    if answer.get("status") == "ok":
        return ()
    return tuple(f"{one['resource']} on {one['node']}" for one in answer["alarms"])


def _queue_limit(answer: Any) -> int | None:  # noqa: ANN401 - JSON
    stated = [one["value"]["max-queues"] for one in answer if "max-queues" in one["value"]]
    # a negative number is not a limit
    return int(stated[0]) if stated and int(stated[0]) >= 0 else None


def _permissions(answer: Any) -> Permissions:  # noqa: ANN401 - JSON
    return Permissions(answer["configure"], answer["write"], answer["read"])
