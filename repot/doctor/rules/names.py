"""RPT5xx: what is written and does not do what it says."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import amqp
from amqp.transport import SSLTransport
from kombu import Connection
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel, SentinelChannel

from repot.config.backends import require_backend
from repot.config.endpoints import BrokerKind
from repot.config.masking import masked
from repot.doctor.rule import ERROR, INFO, WARNING, Finding, rule
from repot.worker.configure import celery_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts

#: What a value of an option's type (`celery/app/defaults.py`) may be; Celery itself converts none.
_KINDS: dict[Any, tuple[type, ...]] = {
    "bool": (bool, int),
    "float": (int, float, timedelta),
    "int": (int, float),
}
#: Transport options that kombu and redis-py calculate with.
_NUMERIC_OPTIONS = frozenset(
    {
        "health_check_interval",
        "max_connections",
        "polling_interval",
        "read_timeout",
        "socket_connect_timeout",
        "socket_timeout",
        "unacked_mutex_expire",
        "unacked_restore_interval",
        "unacked_restore_throttle",
        "visibility_timeout",
        "write_timeout",
    }
)

#: TLS with a check of the certificate, as each broker's transport takes it.
_TLS = {
    BrokerKind.REDIS: "app.conf.broker_use_ssl = "
    "{'ssl_cert_reqs': ssl.CERT_REQUIRED, 'ssl_ca_certs': '/path'}  # Redis",
    BrokerKind.RABBITMQ: "app.conf.broker_use_ssl = "
    "{'cert_reqs': ssl.CERT_REQUIRED, 'ca_certs': '/path', 'server_hostname': None}  # RabbitMQ",
}

#: Celery's own pools (`celery/concurrency/__init__.py`); none of them awaits anything.
_POOLS = frozenset({"eventlet", "gevent", "prefork", "processes", "solo", "threads"})

#: Options of `kombu.Connection` itself (`_extract_failover_opts`), on any transport.
_FAILOVER = frozenset(
    {
        "callback",
        "connect_retries_timeout",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
    }
)


@rule(
    "RPT501",
    "A CELERY_* variable beats the configuration",
    ERROR,
    fix="unset CELERY_BROKER_URL CELERY_BROKER_READ_URL CELERY_BROKER_WRITE_URL CELERY_RESULT_BACKEND",
    evidence="celery/app/utils.py: Settings.broker_url",
)
def variable_overrides(facts: Facts) -> Iterator[Finding]:
    """Celery reads these variables before any configuration, also when your code sets the address itself.

    Changing the address anywhere else then changes nothing, in silence.
    """
    for key, variable in facts.overriding.items():
        yield Finding(f"{variable} is set in this environment", setting=key, fix=f"unset {variable}")


@rule(
    "RPT502",
    "A setting that Celery does not know",
    ERROR,
    fix="celery -A shop report  # lists what Celery made of the configuration",
    evidence="celery/app/defaults.py: NAMESPACES",
)
def unknown_setting(facts: Facts) -> Iterator[Finding]:
    """Celery takes any name without a word and reads only those it knows.

    A misspelt one leaves the default in force: a task that should be late-ack is not, a limit is none.
    """
    for name, meant in facts.unknown_settings.items():
        if meant:
            yield Finding(f"{name} is read by nothing; meant: {meant}", setting=name)


@rule(
    "RPT503",
    "An old name of a setting",
    WARNING,
    fix="celery upgrade settings celeryconfig.py  # --django for a Django project",
    evidence="https://docs.celeryq.dev/en/stable/userguide/configuration.html",
)
def old_setting_name(facts: Facts) -> Iterator[Finding]:
    """Celery 6 drops the names from before 4.0.

    Until then one new name among the old ones stops the application, or the new one wins unseen.
    """
    for name, new in facts.old_names.items():
        yield Finding(f"{name} is called {new} now", setting=name, fix=f"{new} = ...")


@rule(
    "RPT504",
    "A transport option that this broker ignores",
    WARNING,
    fix="app.conf.broker_transport_options.pop('visibility_timout')  # what this broker does not read",
    evidence=("kombu/transport/redis.py: Channel.from_transport_options", "amqp/connection.py: Connection.__init__"),
)
def ignored_option(facts: Facts) -> Iterator[Finding]:
    """Kombu's Redis transport takes a fixed list and py-amqp its own arguments; both pass over anything else.

    Somebody relies on what is not in force, or misspelt it.
    """
    taken = _taken(facts.kind)
    if facts.is_bridge or facts.moved_from:
        # one dictionary serves both sides
        taken = _taken(BrokerKind.REDIS) | _taken(BrokerKind.RABBITMQ)
    for name in facts.options():
        if name not in taken | _FAILOVER:
            near = _near(name, taken)
            yield Finding(
                f"{facts.kind.value} does not read {name!r}" + (f"; meant: {near}" if near else ""),
                setting=f"broker_transport_options.{name}",
                fix=f"app.conf.broker_transport_options.pop({name!r})",
            )


@rule(
    "RPT505",
    "A setting without effect on this broker",
    WARNING,
    fix="Queue('shop')  # without arguments of RabbitMQ's; what fails is kept by a result backend",
    evidence=("celery/worker/consumer/tasks.py: Tasks.start", "kombu/transport/virtual/base.py: Channel.queue_declare"),
)
def setting_without_effect(facts: Facts) -> Iterator[Finding]:
    """Queue arguments are RabbitMQ's: on Redis no dead letters, no TTL, no length limit and no priority come of them.

    And only Redis knows `worker_disable_prefetch`.
    """
    if facts.is_bridge:
        return
    if facts.kind is BrokerKind.RABBITMQ:
        if facts["worker_disable_prefetch"]:
            yield Finding("does nothing on RabbitMQ", setting="worker_disable_prefetch")
        return
    if facts["task_queue_max_priority"] is not None:
        yield Finding("does nothing on Redis", setting="task_queue_max_priority")
    for queue in facts.queues:
        # x-expires does something on Redis, too: RPT216; the kind of queue is nothing that is missed there
        for name in sorted(queue.arguments.keys() - {"x-expires", "x-queue-type"}):
            yield Finding(f"{queue.name!r}: {name} does nothing on Redis", setting="task_queues")


@rule(
    "RPT506",
    "An option in the address that ends every connection",
    ERROR,
    fix="redis://host:6379/0  # and what you meant: app.conf.broker_transport_options |= {'socket_timeout': 15}",
    evidence=("kombu/utils/url.py: parse_url", "measured: TypeError at connect"),
)
def option_in_address(facts: Facts) -> Iterator[Finding]:
    """Kombu hands what stands behind the ? of an address to its connection as Python arguments.

    Any name it does not have raises TypeError when a worker or a producer connects.
    """
    known = inspect.signature(Connection._init_params).parameters  # type: ignore[attr-defined]  # noqa: SLF001
    for server in {server.url: server for server in (*facts.servers, *facts.write_servers)}.values():
        for name in sorted(server.options.keys() - known.keys()):
            yield Finding(f"{server} holds ?{name}=", setting="broker_url")


@rule(
    "RPT507",
    "TLS options of the other broker",
    ERROR,
    fix=f"""
    {_TLS[BrokerKind.REDIS]}
    {_TLS[BrokerKind.RABBITMQ]}
    """,
    evidence=("kombu/transport/redis.py: Channel._connparams", "amqp/transport.py: SSLTransport"),
)
def tls_options_of_the_other(facts: Facts) -> Iterator[Finding]:
    """The keys of `broker_use_ssl` begin with `ssl_` on Redis and do not on RabbitMQ.

    With the other's, the connection fails or checks nothing.
    """
    options = facts["broker_use_ssl"]
    if not isinstance(options, dict) or facts.is_bridge:
        return
    if facts.kind is BrokerKind.REDIS:
        wrong = [key for key in options if not str(key).startswith("ssl")]
    else:
        known = inspect.signature(SSLTransport.__dict__["_wrap_socket_sni"]).parameters
        wrong = [key for key in options if str(key).startswith("ssl_") and key not in known]
    if wrong:
        yield Finding(
            f"holds {wrong[0]!r}, which {facts.kind.value} does not know", "broker_use_ssl", fix=_TLS[facts.kind]
        )


@rule(
    "RPT508",
    "A failover list of both brokers",
    ERROR,
    fix="""
    WORKER_BROKER_READ_URL=redis://...  # a bridge reads from one
    WORKER_BROKER_WRITE_URL=amqp://...  # and writes to the other
    """,
    evidence=("kombu/connection.py: Connection.__init__", "measured: redis://dead;amqp://ok publishes to RabbitMQ"),
)
def mixed_failover(facts: Facts) -> Iterator[Finding]:
    """Each process takes the first server that answers it, so producers and workers end up on different brokers.

    Tasks wait where nobody reads.
    """
    for servers in (facts.servers, facts.write_servers):
        if len({server.kind for server in servers}) > 1:
            yield Finding("lists " + " and ".join(sorted({server.scheme for server in servers})), setting="broker_url")
            return


@rule(
    "RPT509",
    "A task option that Celery does not know",
    ERROR,
    fix="@app.task(max_retries=5, acks_late=True, time_limit=600)",
    evidence="celery/app/base.py: Celery._task_from_fun",
)
def unknown_task_option(facts: Facts) -> Iterator[Finding]:
    """Celery makes every option an attribute of the task and reads only those it knows.

    A misspelt one leaves the default in force, without a word.
    """
    for task in facts.tasks:
        for name, meant in task.strange.items():
            yield Finding(f"{name} is read by nothing; meant: {meant}", task=task.name)


@rule(
    "RPT510",
    "A call that does not do what it says",
    ERROR,
    fix="""
    self.retry(exc=exc, countdown=10)
    task.apply_async(countdown=10)
    """,
    evidence=(
        "celery/app/task.py: Task.retry, Task.apply_async",
        "measured: delay= waits 180 s in retry and nothing in apply_async",
    ),
)
def misused_call(facts: Facts) -> Iterator[Finding]:
    """`retry` takes its first argument for the task's own, not for the exception; `delay` is no option of either call.

    The task fails with a TypeError instead of being retried, or runs at another time than written.
    """
    for misuse in facts.source.misuses:
        yield Finding(misuse.what, place=misuse.place)


@rule(
    "RPT511",
    "A deprecated setting with two meanings",
    INFO,
    fix="""
    app.conf.task_acks_on_failure = True  # both as the old one was
    app.conf.task_acks_on_timeout = True
    """,
    evidence="celery/app/defaults.py: acks_on_failure_or_timeout",
)
def deprecated_setting(facts: Facts) -> Iterator[Finding]:
    """`task_acks_on_failure_or_timeout` goes with Celery 6; two settings replace it.

    They differ: a failed task that is not acknowledged becomes a dead letter, a timed-out one runs again.
    """
    key = "task_acks_on_failure_or_timeout"
    if not facts.is_default(key):
        yield Finding("is set", setting=key)


@rule(
    "RPT512",
    "A value of the wrong kind",
    ERROR,
    fix="int(os.environ['TIMEOUT'])  # json.loads for a dictionary; os.environ['FLAG'] == 'true' for a switch",
    evidence=(
        "celery/app/defaults.py: Option",
        "measured: visibility_timeout='7200' is a TypeError in the sweep",
    ),
)
def value_of_wrong_kind(facts: Facts) -> Iterator[Finding]:
    """Celery takes values as they are, and a text from the environment stays one.

    'false' is true, and a number in quotes ends the connection or the sweep that calculates with it.
    """
    for key, setting in facts.settings.items():
        value = setting.value
        kind = (bool, dict) if key == "broker_use_ssl" else _KINDS.get(getattr(celery_options().get(key), "type", None))
        if key.startswith("broker_transport_options.") and setting.key.rpartition(".")[2] in _NUMERIC_OPTIONS:
            kind = (int, float)
        if kind is None or value is None or setting.is_default:
            continue
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
            yield Finding(f"is {masked(value, key)!r}", setting=key)
    for task in facts.tasks:
        for name, shown in task.wrong.items():
            yield Finding(f"{name} is {shown}", task=task.name)


@rule(
    "RPT513",
    "A name that Celery does not read",
    INFO,
    fix="celery -A shop report  # lists what Celery made of the configuration",
    evidence="celery/app/defaults.py: NAMESPACES",
)
def name_not_read(facts: Facts) -> Iterator[Finding]:
    """It looks like a setting of Celery's and is none; perhaps another library reads it.

    If none does, somebody relies on what is not in force.
    """
    for name, meant in facts.unknown_settings.items():
        if not meant:
            yield Finding("is no setting of Celery's", setting=name)


@rule(
    "RPT514",
    "An address whose scheme Celery does not know",
    ERROR,
    fix="app.conf.broker_url = 'redis://localhost:6379/0'  # a Valkey speaks Redis' protocol",
    evidence=("kombu/transport/__init__.py: TRANSPORT_ALIASES", "celery/app/backends.py: BACKEND_ALIASES"),
)
def unknown_scheme(facts: Facts) -> Iterator[Finding]:
    """Kombu raises KeyError at the first connection.

    A result backend is looked up on its first use only, when processes are running and tasks are waiting.
    """
    for scheme in sorted({server.scheme.partition("+")[0] for server in (*facts.servers, *facts.write_servers)}):
        if scheme not in TRANSPORT_ALIASES:
            yield Finding(f"kombu has no transport {scheme!r}", setting="broker_url")
    backend = facts["result_backend"]
    try:
        require_backend(backend if isinstance(backend, str) else "")
    except ValueError as error:
        yield Finding(str(error), setting="result_backend", fix="app.conf.result_backend = 'redis://localhost:6379/1'")


@rule(
    "RPT520",
    "A policy that guards nothing",
    ERROR,
    fix="@app.task(base=IdempotentTask, idempotency=Policy(key=('order',)))",
    evidence="docs/idempotency.md: What is refused when it is defined",
)
def policy_without_guard(facts: Facts) -> Iterator[Finding]:
    """An option `idempotency` is read by IdempotentTask alone; to any other task it is an attribute like any.

    Its redeliveries and double submissions run unguarded, without a word.
    """
    for task in facts.tasks:
        if task.unguarded:
            yield Finding("has `idempotency`, and its class is no IdempotentTask", task=task.name)


@rule(
    "RPT521",
    "A task whose body never runs",
    ERROR,
    fix="""
    @app.task
    def charge(order):
        return asyncio.run(charge_async(order))  # of a generator: list(...)
    """,
    evidence="celery/app/trace.py: build_tracer",
)
def body_never_runs(facts: Facts) -> Iterator[Finding]:
    """Celery calls a task and takes what it returns for its result.

    A call of an `async def` or a generator runs nothing: the message is acknowledged, and its work never done.
    """
    if facts.pools() - _POOLS:
        # one of a library, which may await what a task returns
        return
    for task in facts.tasks:
        if task.runs_later:
            yield Finding(f"is {task.runs_later}, and Celery runs nothing of it", task=task.name)


@rule(
    "RPT522",
    "A schedule that gives each sending the same key",
    ERROR,
    fix="@app.task(base=IdempotentTask, idempotency=Policy(key=TASK_ID))  # and no idempotency_key in beat_schedule",
    evidence="docs/idempotency.md: Choosing the key",
)
def schedule_with_one_key(facts: Facts) -> Iterator[Finding]:
    """Sendings with one `idempotency_key` are the same work: the first runs, and the others get its result.

    The task runs again only when its first run is forgotten, after WORKER_LEASE_KEPT: 7 days. An empty key is refused.
    """
    for name, entry in (facts["beat_schedule"] or {}).items():
        found = entry if isinstance(entry, Mapping) else vars(entry)
        if (found.get("options") or {}).get("idempotency_key") is not None:
            yield Finding(f"{name!r} in beat_schedule has an idempotency_key", "beat_schedule")


def _taken(kind: BrokerKind) -> frozenset[str]:
    """The options that a transport reads, as the installed libraries have them."""
    if kind is BrokerKind.REDIS:
        # read beside the list: kombu/transport/redis.py, Transport and Channel._connparams
        more = {"polling_interval", "reauth_check_interval"}
        return frozenset(SentinelChannel.from_transport_options) | frozenset(Channel.from_transport_options) | more
    more = {"confirm_publish", "socket_settings", "read_timeout", "write_timeout"}
    return frozenset(inspect.signature(amqp.Connection.__init__).parameters) | more


def _near(name: str, known: frozenset[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return found[0] if found else ""
