"""RPT4xx: what lets others in, or their data out."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from repot.brokers.facts import known
from repot.config.endpoints import BrokerKind
from repot.doctor.rule import ERROR, RABBITMQ, WARNING, Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.config.endpoints import Endpoint
    from repot.doctor.facts import Facts

#: What every tutorial and every scanner has.
_WELL_KNOWN = frozenset(
    {
        ("admin", "admin"),
        ("admin", "password"),
        ("guest", "guest"),
        ("rabbitmq", "rabbitmq"),
        ("user", "password"),
        ("root", "root"),
    }
)

_GUESSED = frozenset({"admin", "changeme", "guest", "password", "redis", "secret"})

#: Serializers that run what they read; kombu's YAML is the safe one.
_UNSAFE = frozenset({"pickle", "application/x-python-serialize"})


@rule(
    "RPT401",
    "Default or missing credentials",
    ERROR,
    fix="""
    PASSWORD=$(openssl rand -hex 24); echo "$PASSWORD"
    rabbitmqctl add_user shop "$PASSWORD"; rabbitmqctl set_permissions shop '.*' '.*' '.*'
    rabbitmqctl delete_user guest
    # Redis: ACL SETUSER shop on >PASSWORD ~* &* +@all -@dangerous +info +config|get
    """,
    evidence=(
        "https://www.rabbitmq.com/docs/access-control",
        "https://redis.io/docs/latest/operate/oss_and_stack/management/security",
    ),
)
def default_credentials(facts: Facts) -> Iterator[Finding]:
    """Whoever reaches the broker can read every task's arguments, and send tasks that your workers run.

    Names and passwords of tutorials are the first that anybody tries.
    """
    for key, server, tls in _servers(facts):
        user, password = server.user, server.password
        certificate = tls.get("ssl_certfile") or tls.get("certfile")
        if certificate or facts["broker_login_method"] == "EXTERNAL":
            continue
        if server.kind is BrokerKind.RABBITMQ:
            user, password = user or "guest", password or "guest"
        if (user, password) in _WELL_KNOWN or (user and user == password) or password in _GUESSED:
            yield Finding(f"{server} logs in with well-known credentials", setting=key)
        elif not password and not server.is_local:
            yield Finding(f"{server} logs in without a password", setting=key)


@rule(
    "RPT402",
    "Applications share their credentials",
    WARNING,
    fix="rabbitmqctl add_user billing ...  # a user, a password and a virtual host for each application",
    evidence="https://www.rabbitmq.com/docs/access-control",
)
def shared_credentials(facts: Facts) -> Iterator[Finding]:
    """One application's leaked password opens the other's queues, and neither can be changed alone.

    A user for each also says in the broker's lists who is who.
    """
    mine = {_login(server) for server in facts.servers if server.password}
    for other in facts.siblings:
        if mine & {_login(server) for server in other.servers}:
            yield Finding(f"{facts.app} and {other.app} log in as the same user", setting="broker_url")


@rule(
    "RPT403",
    "No TLS to another machine",
    WARNING,
    fix="app.conf.broker_url = 'amqps://user:password@host:5671/vhost'  # rediss:// for Redis",
    evidence=(
        "https://www.rabbitmq.com/docs/ssl",
        "https://redis.io/docs/latest/operate/oss_and_stack/management/security/encryption",
    ),
)
def no_tls(facts: Facts) -> Iterator[Finding]:
    """The password and every task's arguments cross the network as they are.

    So do the tasks that somebody on the way would like your workers to run.
    """
    for key, server, tls in _servers(facts):
        if not tls and not server.is_encrypted and not server.is_local:
            yield Finding(f"{server} is not encrypted", setting=key)


@rule(
    "RPT404",
    "The broker's certificate is not checked",
    ERROR,
    fix="""
    # Redis, in the address:
    rediss://host:6379/0?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=/etc/ssl/certs/ca-certificates.crt
    # RabbitMQ; server_hostname None lets kombu fill in the host:
    app.conf.broker_use_ssl = {'cert_reqs': ssl.CERT_REQUIRED, 'ca_certs': '/path/ca.crt', 'server_hostname': None}
    """,
    evidence=("kombu/connection.py: Connection._init_params", "amqp/transport.py: SSLTransport._wrap_socket_sni"),
)
def certificate_not_checked(facts: Facts) -> Iterator[Finding]:
    """Encryption without a check of the certificate keeps nobody out who can put himself between.

    kombu checks nothing for rediss:// without options, and not the host name for amqps://.
    """
    for key, server, options in _servers(facts):
        if not server.is_encrypted and not options:
            continue
        required = options.get("ssl_cert_reqs", options.get("cert_reqs"))
        if server.kind is BrokerKind.REDIS and required not in (ssl.CERT_REQUIRED, "required"):
            yield Finding(f"{server} has no ssl_cert_reqs=CERT_REQUIRED", setting=key)
        elif server.kind is BrokerKind.RABBITMQ and required == ssl.CERT_NONE:
            yield Finding(f"{server} with cert_reqs CERT_NONE", setting=key)
        elif server.kind is BrokerKind.RABBITMQ and "server_hostname" not in options:
            yield Finding(f"{server}: the host name in the certificate is not checked", setting=key)


@rule(
    "RPT405",
    "Workers read messages that can run code",
    ERROR,
    fix="""
    app.conf.accept_content = ['json']
    app.conf.task_serializer = 'json'
    app.conf.result_serializer = 'json'
    """,
    evidence="https://docs.celeryq.dev/en/stable/userguide/security.html",
)
def unsafe_content(facts: Facts) -> Iterator[Finding]:
    """Whoever can write to the broker runs any code in a worker that accepts pickle.

    Refuse it where messages are read; what is sent as pickle then fails with a clear error.
    """
    for key in ("accept_content", "result_accept_content"):
        given = facts[key]
        unsafe = (
            sorted(_UNSAFE & {str(one) for one in given}) if isinstance(given, list | tuple | set | frozenset) else []
        )
        if unsafe:
            yield Finding(f"holds {unsafe[0]!r}", setting=key)
    for key in ("task_serializer", "result_serializer"):
        if str(facts[key]) in _UNSAFE:
            yield Finding(f"is {facts[key]!r}", setting=key)
    for task in facts.tasks:
        if str(task.serializer) in _UNSAFE and task.serializer != facts["task_serializer"]:
            yield Finding(f"is sent as {task.serializer!r}", task=task.name, fix="@app.task(serializer='json')")


@rule(
    "RPT406",
    "RabbitMQ lets anybody in as guest",
    ERROR,
    brokers=RABBITMQ,
    versions="RabbitMQ 4.0 and newer offer anonymous logins",
    live=True,
    fix="""
    rabbitmqctl delete_user guest
    # rabbitmq.conf: auth_mechanisms.1 = PLAIN and no other
    """,
    evidence=(
        "measured on 4.0.5 and 4.3.6: connected and declared a queue with no credentials",
        "https://www.rabbitmq.com/docs/access-control",
    ),
)
def guest_login(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ 4 offers ANONYMOUS, which logs in as guest while that user exists; Docker lifts its loopback limit.

    Nobody needs a password then, whatever yours is.
    """
    if facts.servers[0].is_local:
        return
    if known(facts.rabbitmq.guest_exists):
        anonymous = "; ANONYMOUS needs no password" if "ANONYMOUS" in facts.rabbitmq.mechanisms else ""
        yield Finding(f"the user guest exists{anonymous}")


@rule(
    "RPT407",
    "The user of the lease store lacks a right",
    ERROR,
    live=True,
    fix="ACL SETUSER shop ~repot:claim:* +hset  # what is missing; docs/rights.md has the whole line for each part",
    evidence=(
        "tests/servers/test_rights.py",
        "https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl",
    ),
)
def store_rights(facts: Facts) -> Iterator[Finding]:
    """A guarded task that may not write its claim comes back again and again, and a job is answered with 503.

    Nothing runs twice for it, and nothing runs.
    """
    if facts.store_rights is None:
        return
    for right in known(facts.store_rights):
        yield Finding(f"missing: {right}")


def _servers(facts: Facts) -> Iterator[tuple[str, Endpoint, dict[str, Any]]]:
    """Every server once, with the setting that names it and the TLS options of setting and address together."""
    seen = set()
    for key, servers, option in (
        ("broker_url", (*facts.servers, *facts.write_servers), "broker_use_ssl"),
        ("result_backend", facts.result_servers, "redis_backend_use_ssl"),
    ):
        given = facts[option]
        # True is TLS with nothing said about it
        common = given if isinstance(given, dict) else {"ssl": True} if given else {}
        for server in servers:
            if server.url not in seen:
                seen.add(server.url)
                yield key, server, {**common, **(server.tls or {})}


def _login(server: Endpoint) -> tuple[str, str, str]:
    return server.host, server.user, server.password
