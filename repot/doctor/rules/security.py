"""RPT4xx, security: settings that give others access to tasks or their data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.brokers.facts import known
from repot.config.capabilities import capabilities_of
from repot.doctor.rule import ERROR, RABBITMQ, WARNING, Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.config.endpoints import Endpoint
    from repot.doctor.facts import Facts

#: Pairs that every tutorial and every scanner lists.
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

#: Serializers that can run code when they load a message; kombu's YAML cannot.
_UNSAFE = frozenset({"pickle", "application/x-python-serialize"})


@rule(
    "RPT401",
    "Credentials are default or missing",
    ERROR,
    fix="""
    NEW=$(openssl rand -hex 24); echo "$NEW"
    rabbitmqctl add_user shop "$NEW"; rabbitmqctl set_permissions shop '.*' '.*' '.*'
    rabbitmqctl delete_user guest
    # Redis: ACL SETUSER shop on >PASSWORD ~* &* +@all -@dangerous +info +config|get
    """,
    evidence=(
        "https://www.rabbitmq.com/docs/access-control",
        "https://redis.io/docs/latest/operate/oss_and_stack/management/security",
    ),
)
def default_credentials(facts: Facts) -> Iterator[Finding]:
    """With access to the broker an attacker can read every task's arguments and send tasks that your workers run.

    Names and passwords from tutorials are the first that an attacker tries.
    """
    for key, server, tls in _servers(facts):
        user, password = server.user, server.password
        certificate = tls.get("ssl_certfile") or tls.get("certfile")
        if certificate or facts["broker_login_method"] == "EXTERNAL":
            continue
        default_user, default_password = capabilities_of(server.kind).default_login
        user, password = user or default_user, password or default_password
        if (user, password) in _WELL_KNOWN or (user and user == password) or password in _GUESSED:
            yield Finding(f"{server} logs in with well-known credentials", setting=key)
        elif not password and not server.is_local:
            yield Finding(f"{server} logs in without a password", setting=key)


@rule(
    "RPT402",
    "Applications share credentials",
    WARNING,
    fix="rabbitmqctl add_user billing ...  # a user, a password and a virtual host for each application",
    evidence="https://www.rabbitmq.com/docs/access-control",
)
def shared_credentials(facts: Facts) -> Iterator[Finding]:
    """One application's leaked password opens the other's queues, and neither can be changed alone.

    With a user for each application, the broker's lists also show which connection belongs to which.
    """
    mine = {_login(server) for server in facts.servers if server.password}
    for other in facts.siblings:
        if mine & {_login(server) for server in other.servers}:
            yield Finding(f"{facts.app} and {other.app} log in as the same user", setting="broker_url")


@rule(
    "RPT403",
    "A remote connection has no TLS",
    WARNING,
    fix="app.conf.broker_url = 'amqps://user:password@host:5671/vhost'  # rediss:// for Redis",
    evidence=(
        "https://www.rabbitmq.com/docs/ssl",
        "https://redis.io/docs/latest/operate/oss_and_stack/management/security/encryption",
    ),
)
def no_tls(facts: Facts) -> Iterator[Finding]:
    """The password and every task's arguments cross the network unencrypted.

    An attacker on the network can also insert tasks for your workers to run.
    """
    for key, server, tls in _servers(facts):
        if not tls and not server.is_encrypted and not server.is_local:
            yield Finding(f"{server} is not encrypted", setting=key)


@rule(
    "RPT404",
    "The broker's certificate is not verified",
    ERROR,
    fix="""
    # Redis, in the address:
    rediss://host:6379/0?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=/path/ca.crt
    # RabbitMQ; server_hostname None lets kombu fill in the host:
    app.conf.broker_use_ssl = {'cert_reqs': ssl.CERT_REQUIRED, 'ca_certs': '/path/ca.crt', 'server_hostname': None}
    """,
    evidence=("kombu/connection.py: Connection._init_params", "amqp/transport.py: SSLTransport._wrap_socket_sni"),
)
def certificate_not_checked(facts: Facts) -> Iterator[Finding]:
    """Encryption without verification of the certificate does not stop a man in the middle.

    kombu verifies nothing for rediss:// without options, and not the host name for amqps://. The file has the
    certificate of the authority that signed the server's, or a self-signed server's own; without one the system's are
    read, for a server with a public certificate.
    """
    for key, server, options in _servers(facts):
        if not server.is_encrypted and not options:
            continue
        problem = capabilities_of(server.kind).certificate_problem(options)
        if not problem and options.get("server_hostname", "") is None and not facts.has_version("kombu", 5, 2):
            problem = f"has no server_hostname, which kombu {facts.versions.kombu} does not fill in"
        if problem:
            yield Finding(f"{server} {problem}", setting=key)


@rule(
    "RPT405",
    "Workers accept messages that can run code",
    ERROR,
    fix="""
    app.conf.accept_content = ['json']
    app.conf.task_serializer = 'json'
    app.conf.result_serializer = 'json'
    """,
    evidence="https://docs.celeryq.dev/en/stable/userguide/security.html",
)
def unsafe_content(facts: Facts) -> Iterator[Finding]:
    """A client that can write to the broker can run any code in a worker that accepts pickle.

    Refuse it where messages are read; a message sent as pickle then fails with a clear error.
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
    "RabbitMQ accepts the user guest",
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

    A client then needs no password.
    """
    if facts.servers[0].is_local:
        return
    if known(facts.rabbitmq.guest_exists):
        anonymous = "; ANONYMOUS needs no password" if "ANONYMOUS" in facts.rabbitmq.mechanisms else ""
        yield Finding(f"the user guest exists{anonymous}")


@rule(
    "RPT407",
    "The lease store's user lacks a permission",
    ERROR,
    live=True,
    fix="ACL SETUSER shop ~repot:idempotency:* +hset  # the missing right; docs/rights.md has every whole line",
    evidence=(
        "tests/servers/test_rights.py",
        "https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl",
    ),
)
def store_rights(facts: Facts) -> Iterator[Finding]:
    """A guarded task that may not write its lease is delivered again and again, and a job is answered with 503.

    No task runs twice because of it, and none runs.
    """
    if facts.store_rights is None:
        return
    for right in known(facts.store_rights):
        yield Finding(f"missing: {right}")


def _servers(facts: Facts) -> Iterator[tuple[str, Endpoint, dict[str, Any]]]:
    """Yield every server once, with the setting that names it and the TLS options of setting and URL together."""
    seen = set()
    for key, servers, option in (
        ("broker_url", (*facts.servers, *facts.write_servers), "broker_use_ssl"),
        ("result_backend", facts.result_servers, "redis_backend_use_ssl"),
    ):
        given = facts[option]
        # True is TLS without options
        common = given if isinstance(given, dict) else {"ssl": True} if given else {}
        for server in servers:
            if server.url not in seen:
                seen.add(server.url)
                yield key, server, {**common, **(server.tls or {})}


def _login(server: Endpoint) -> tuple[str, str, str]:
    return server.host, server.user, server.password
