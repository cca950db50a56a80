"""RPT5xx, misconfiguration: settings, options and calls without the effect that they name."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from repot.config.backends import require_backend
from repot.config.capabilities import FAILOVER_OPTIONS, verified_tls_examples
from repot.doctor.rule import ERROR, INFO, WARNING, Finding, rule
from repot.masking import masked
from repot.queues import routes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts

#: Python types that fit an option's type (`celery/app/defaults.py`); Celery converts no value.
_KINDS: dict[str | None, tuple[type, ...]] = {
    "bool": (bool, int),
    "float": (int, float, timedelta),
    "int": (int, float),
}
#: Transport options that kombu and redis-py calculate with.
_NUMERIC_OPTIONS = frozenset(
    {
        "claim_lease",
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

#: Celery's own pools (`celery/concurrency/__init__.py`); none of them awaits a coroutine.
_POOLS = frozenset({"eventlet", "gevent", "prefork", "processes", "solo", "threads"})


#: How much two parts of a name resemble each other, from 0 to 1, if one is a slip of the pen for the other.
_ALIKE = 0.7

#: Files with the settings of tests: `settings/test.py`, `test_settings.py`, `tests/settings.py`.
_OF_TESTS = re.compile(r"(^|[/_])tests?([/_.]|$)")


@rule(
    "RPT501",
    "A CELERY_* variable overrides the configuration",
    WARNING,
    fix='app.conf.broker_url = os.environ["CELERY_BROKER_URL"]  # one source for the address',
    evidence="celery/app/utils.py: Settings.broker_url",
)
def variable_overrides(facts: Facts) -> Iterator[Finding]:
    """Celery reads these variables before any configuration, even where your code sets another address.

    That address has no effect here, without an error, and counts again in a process that lacks the variable. An
    application that repot configures takes the variable for its setting, and refuses two addresses.
    """
    for key, variable in facts.overriding.items():
        problem = f"{variable} is set in this environment, and the configuration's own value has no effect"
        yield Finding(problem, setting=key, fix=f'app.conf.{key} = os.environ["{variable}"]')


@rule(
    "RPT502",
    "Celery does not know the setting",
    ERROR,
    fix="celery -A shop report  # lists the configuration as Celery reads it",
    evidence="celery/app/defaults.py: NAMESPACES",
)
def unknown_setting(facts: Facts) -> Iterator[Finding]:
    """Celery accepts any name without an error and reads only the names it knows.

    A misspelt name leaves the default in effect: the task is not late-ack, the limit is not set.
    """
    for name, meant in facts.unread.unknown.items():
        if meant:
            yield Finding(f"{name} is not read; meant: {meant}", setting=name)


@rule(
    "RPT503",
    "The setting has an old name",
    WARNING,
    fix="celery upgrade settings celeryconfig.py  # --django for a Django project",
    evidence="https://docs.celeryq.dev/en/stable/userguide/configuration.html",
)
def old_setting_name(facts: Facts) -> Iterator[Finding]:
    """Celery 6 drops the names from before 4.0.

    Until then, a new name among old ones stops the application, or silently overrides them.
    In a namespace (`config_from_object(..., namespace="CELERY")`) Celery before 5.7 does not read them at all.
    """
    for name, new in facts.unread.old.items():
        yield Finding(f"{name} is called {new} now", setting=name, fix=f"{new} = ...")
    for name, new in facts.unread.outside.items():
        yield Finding(f"{name} is an old name and not read; {new} is", setting=name, fix=f"{new} = ...")
    for name, new in facts.unread.shadowed.items():
        yield Finding(
            f"{name} is an old name and not read; {new} is also set", setting=name, fix=f"{new} = ...  # alone"
        )


@rule(
    "RPT504",
    "The broker ignores the transport option",
    WARNING,
    fix="app.conf.broker_transport_options.pop('visibility_timout')  # what this broker does not read",
    evidence=("kombu/transport/redis.py: Channel.from_transport_options", "amqp/connection.py: Connection.__init__"),
)
def ignored_option(facts: Facts) -> Iterator[Finding]:
    """Kombu's Redis transport reads a fixed list, py-amqp its own arguments; both ignore all other options.

    The option has no effect, or its name is misspelt. What another broker reads may stay for the way back.
    """
    # one dictionary serves both sides
    taken = facts.read_options if facts.is_bridge or facts.moved_from else facts.broker_options
    for name in facts.options():
        if name not in taken | FAILOVER_OPTIONS:
            near = _closest(name, taken)
            is_read = name in facts.read_options
            yield Finding(
                f"{facts.kind.name} does not read {name!r}"
                + (", another broker does" if is_read else f"; meant: {near}" if near else ""),
                setting=f"broker_transport_options.{name}",
                fix=f"# keep {name!r} for the way back to the broker that reads it"
                if is_read
                else f"app.conf.broker_transport_options.pop({name!r})",
            )


@rule(
    "RPT505",
    "The setting has no effect on this broker",
    WARNING,
    fix="Queue('shop')  # without RabbitMQ's arguments; a result backend stores failures",
    evidence=("celery/worker/consumer/tasks.py: Tasks.start", "kombu/transport/virtual/base.py: Channel.queue_declare"),
)
def setting_without_effect(facts: Facts) -> Iterator[Finding]:
    """Queue arguments work on RabbitMQ only: Redis ignores dead-letter targets, TTLs, length limits and priorities.

    Only Redis reads `worker_disable_prefetch`.
    """
    if facts.is_bridge:
        return
    if facts["worker_disable_prefetch"] and not facts.broker.can_disable_prefetch:
        yield Finding(f"has no effect on {facts.kind.name}", setting="worker_disable_prefetch")
    if facts.broker.reads_queue_arguments:
        return
    if facts["task_queue_max_priority"] is not None:
        yield Finding(f"has no effect on {facts.kind.name}", setting="task_queue_max_priority")
    for queue in facts.queues:
        # x-expires has an effect on Redis: RPT216; a missing queue type does no harm there
        for name in sorted(queue.arguments.keys() - {"x-expires", "x-queue-type"}):
            yield Finding(f"{queue.name!r}: {name} has no effect on {facts.kind.name}", setting="task_queues")


@rule(
    "RPT506",
    "The broker URL has an invalid option",
    ERROR,
    fix="redis://host:6379/0  # and instead: app.conf.broker_transport_options |= {'socket_timeout': 15}",
    evidence=("kombu/utils/url.py: parse_url", "measured: TypeError at connect"),
)
def option_in_address(facts: Facts) -> Iterator[Finding]:
    """Kombu passes the options after the ? of a URL to its connection as Python arguments.

    An unknown name raises TypeError when a worker or a producer connects.
    """
    known = facts.release.address_options
    for server in {server.url: server for server in (*facts.servers, *facts.write_servers)}.values():
        for name in sorted(server.options.keys() - known):
            yield Finding(f"{server} holds ?{name}=", setting="broker_url")


@rule(
    "RPT507",
    "The TLS options belong to the other broker",
    ERROR,
    fix=verified_tls_examples(),
    evidence=("kombu/transport/redis.py: Channel._connparams", "amqp/transport.py: SSLTransport"),
)
def tls_options_of_the_other(facts: Facts) -> Iterator[Finding]:
    """The keys of `broker_use_ssl` start with `ssl_` on Redis and do not on RabbitMQ.

    With the keys of the other broker, the connection fails or verifies nothing.
    """
    options = facts["broker_use_ssl"]
    if not isinstance(options, dict) or facts.is_bridge:
        return
    wrong = facts.broker.unread_tls_options(options, facts.release.tls_options)
    if wrong:
        yield Finding(
            f"holds {wrong[0]!r}, which {facts.kind.name} does not know",
            "broker_use_ssl",
            fix=facts.broker.verified_tls,
        )


@rule(
    "RPT508",
    "A failover list mixes brokers",
    ERROR,
    fix="""
    WORKER_BROKER_READ_URL=redis://...  # a bridge reads from one
    WORKER_BROKER_WRITE_URL=amqp://...  # and writes to the other
    """,
    evidence=("kombu/connection.py: Connection.__init__", "measured: redis://dead;amqp://ok publishes to RabbitMQ"),
)
def mixed_failover(facts: Facts) -> Iterator[Finding]:
    """Each process takes the first server that answers, so producers and workers end up on different brokers.

    Tasks wait on a broker that no worker reads.
    """
    for servers in (facts.servers, facts.write_servers):
        if len({server.kind for server in servers}) > 1:
            yield Finding("lists " + " and ".join(sorted({server.scheme for server in servers})), setting="broker_url")
            return


@rule(
    "RPT509",
    "Celery does not know the task option",
    ERROR,
    fix="@app.task(max_retries=5, acks_late=True, time_limit=600)",
    evidence="celery/app/base.py: Celery._task_from_fun",
)
def unknown_task_option(facts: Facts) -> Iterator[Finding]:
    """Celery makes every option an attribute of the task and reads only the options it knows.

    A misspelt one leaves the default in effect, without an error.
    """
    for task in facts.tasks:
        for name, meant in task.unknown_options.items():
            yield Finding(f"{name} is not read; meant: {meant}", task=task.name)


@rule(
    "RPT510",
    "The call does not do what it says",
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
    """The first argument of `retry` is the task's own arguments, not the exception; neither call has an option `delay`.

    The task fails with a TypeError instead of being retried, or runs at another time than written.
    """
    for misuse in facts.source.each(facts.source.misuses):
        yield Finding(misuse.what, location=misuse.location)


@rule(
    "RPT511",
    "The deprecated setting has two meanings",
    INFO,
    versions="Celery 5.7 and newer",
    fix="""
    app.conf.task_acks_on_failure = True  # both as the old one was
    app.conf.task_acks_on_timeout = True
    """,
    evidence="celery/app/defaults.py: acks_on_failure_or_timeout",
)
def deprecated_setting(facts: Facts) -> Iterator[Finding]:
    """Celery 6 removes `task_acks_on_failure_or_timeout`; two settings replace it.

    They differ: a failed task that is not acknowledged becomes a dead letter, a timed-out one runs again.
    """
    key = "task_acks_on_failure_or_timeout"
    if facts.has_setting("task_acks_on_failure") and not facts.is_default(key):
        yield Finding("is set", setting=key)


@rule(
    "RPT512",
    "The value has the wrong type",
    ERROR,
    fix="int(os.environ['TIMEOUT'])  # json.loads for a dictionary; os.environ['FLAG'] == 'true' for a switch",
    evidence=(
        "celery/app/defaults.py: Option",
        "measured: visibility_timeout='7200' is a TypeError in the sweep",
    ),
)
def value_of_wrong_kind(facts: Facts) -> Iterator[Finding]:
    """Celery does not convert values: a text from the environment stays a text.

    'false' is true, and a number in quotes raises an error in the connection or the sweep that calculates with it.
    """
    for key, setting in facts.settings.items():
        value = setting.value
        kind = (bool, dict) if key == "broker_use_ssl" else _KINDS.get(facts.release.settings.get(key))
        if key.startswith("broker_transport_options.") and setting.key.rpartition(".")[2] in _NUMERIC_OPTIONS:
            kind = (int, float)
        if kind is None or value is None or setting.is_default:
            continue
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
            yield Finding(f"is {masked(value, key)!r}", setting=key)
    for task in facts.tasks:
        for name, shown in task.invalid_options.items():
            yield Finding(f"{name} is {shown}", task=task.name)


@rule(
    "RPT513",
    "The setting may have no effect",
    INFO,
    fix="celery -A shop report  # lists the configuration as Celery reads it",
    evidence="celery/app/defaults.py: NAMESPACES",
)
def name_not_read(facts: Facts) -> Iterator[Finding]:
    """The name is among Celery's settings but is not one; the project or another library may read it.

    If none does, it has no effect.
    """
    for name, meant in facts.unread.unknown.items():
        if not meant:
            yield Finding("is not a Celery setting", setting=name)


@rule(
    "RPT514",
    "Celery does not know the URL scheme",
    ERROR,
    fix="app.conf.broker_url = 'redis://localhost:6379/0'  # Valkey uses Redis' protocol",
    evidence=("kombu/transport/__init__.py: TRANSPORT_ALIASES", "celery/app/backends.py: BACKEND_ALIASES"),
)
def unknown_scheme(facts: Facts) -> Iterator[Finding]:
    """Kombu raises KeyError at the first connection.

    Celery looks a result backend up on its first use only, when workers run and tasks wait.
    """
    for scheme in sorted({server.scheme.partition("+")[0] for server in (*facts.servers, *facts.write_servers)}):
        if scheme not in facts.release.transports:
            yield Finding(f"kombu has no transport {scheme!r}", setting="broker_url")
    backend = facts["result_backend"]
    try:
        require_backend(backend if isinstance(backend, str) else "", facts.release.backends)
    except ValueError as error:
        yield Finding(str(error), setting="result_backend", fix="app.conf.result_backend = 'redis://localhost:6379/1'")


@rule(
    "RPT520",
    "The idempotency policy has no effect",
    ERROR,
    fix="@app.task(base=IdempotentTask, idempotency=Policy(key=('order',)))",
    evidence="docs/idempotency.md: What is refused when it is defined",
)
def policy_without_guard(facts: Facts) -> Iterator[Finding]:
    """Only IdempotentTask reads the option `idempotency`; on any other task it is an ordinary attribute.

    Redeliveries and double submissions of this task run unguarded, without an error.
    """
    for task in facts.tasks:
        if task.unguarded:
            yield Finding("has `idempotency`, but its class is not an IdempotentTask", task=task.name)


@rule(
    "RPT521",
    "The task's body never runs",
    ERROR,
    fix="""
    @app.task
    def charge(order):
        return asyncio.run(charge_async(order))  # of a generator: list(...)
    """,
    evidence="celery/app/trace.py: build_tracer",
)
def body_never_runs(facts: Facts) -> Iterator[Finding]:
    """Celery calls a task and takes the return value as its result.

    A call of an `async def` or a generator runs none of the body: the message is acknowledged and the work is never
    done.
    """
    if facts.pools() - _POOLS:
        # a library's pool may await the value that a task returns
        return
    for task in facts.tasks:
        if task.runs_later:
            yield Finding(f"is {task.runs_later}, and Celery does not run its body", task=task.name)


@rule(
    "RPT522",
    "A schedule repeats one idempotency key",
    ERROR,
    fix="@app.task(base=IdempotentTask, idempotency=Policy(key=TASK_ID))  # and no idempotency_key in beat_schedule",
    evidence="docs/idempotency.md: Choosing the key",
)
def schedule_with_one_key(facts: Facts) -> Iterator[Finding]:
    """Messages with one `idempotency_key` are the same work: the first runs, and the others get its result.

    The task runs again only after WORKER_IDEMPOTENCY_RETENTION (7 days), when the record of its first run expires.
    An empty key is refused.
    """
    for name, entry in (facts["beat_schedule"] or {}).items():
        found = entry if isinstance(entry, Mapping) else vars(entry)
        if (found.get("options") or {}).get("idempotency_key") is not None:
            yield Finding(f"{name!r} in beat_schedule has an idempotency_key", "beat_schedule")


@rule(
    "RPT523",
    "Tasks run in the process that sends them",
    ERROR,
    fix="app.conf.task_always_eager = False  # True in the settings of tests alone",
    evidence="celery/app/task.py: Task.apply_async",
)
def always_eager(facts: Facts) -> Iterator[Finding]:
    """With `task_always_eager` no task reaches the broker: `delay` returns when the task has ended.

    A project that derives it from its broker's variable (`not CELERY_BROKER_URL`) runs every task in its web processes
    once the variable is missing, without an error. Settings in a file of tests are left out.
    """
    setting = facts.settings["task_always_eager"]
    if setting.value and not (setting.location and _OF_TESTS.search(setting.location.file)):
        yield Finding("no task reaches the broker", setting="task_always_eager")


@rule(
    "RPT524",
    "A route matches no task",
    WARNING,
    fix="app.conf.task_routes = {'shop.tasks.render': {'queue': 'long'}}  # the task's whole name",
    evidence="celery/app/routes.py: MapRoute",
)
def route_without_task(facts: Facts) -> Iterator[Finding]:
    """Celery compares the keys of `task_routes` with the names of tasks, and ignores a key that matches none.

    The task goes to the default queue, without an error. Keys of packages without a task of the application are left
    out: they may be for tasks of another one.
    """
    names = {*(task.name for task in facts.tasks), *facts.library_tasks}
    modules = {name.rpartition(".")[0] for name in names} - {""}
    packages = {module.rpartition(".")[0] for module in modules} - {""}
    known_names = frozenset((*names, *(f"{module}.*" for module in modules)))
    for key, _ in routes_of(facts["task_routes"]):
        if not isinstance(key, str) or any(fnmatch.fnmatchcase(name, key) for name in names):
            continue
        near, module = _closest(key, known_names), key.rpartition(".")[0]
        if near or module in modules or module.rpartition(".")[0] in packages:
            yield Finding(f"{key!r} matches no task" + (f"; meant: {near}" if near else ""), setting="task_routes")


@rule(
    "RPT525",
    "No release of Celery has the setting",
    WARNING,
    fix="celery -A shop report  # lists the configuration as Celery reads it",
    evidence="celery/app/defaults.py: NAMESPACES",
)
def setting_of_no_release(facts: Facts) -> Iterator[Finding]:
    """The name has the form of Celery's settings, `task_...`, but no release and no code of the application reads it.

    What it promises, an expiry or a limit for each task, does not exist, without an error.
    """
    for name in facts.unread.of_no_release:
        yield Finding("is not read", setting=name)


@rule(
    "RPT526",
    "The result backend cannot count a chord",
    ERROR,
    fix="app.conf.result_backend = 'redis://localhost:6379/1'  # or a database",
    evidence=(
        "celery/backends/rpc.py: RPCBackend.ensure_chords_allowed",
        "celery/backends/base.py: DisabledBackend.ensure_chords_allowed",
    ),
)
def chord_without_store(facts: Facts) -> Iterator[Finding]:
    """A chord runs its last task when all others have stored their results.

    `rpc://` sends each result to the process that asked for it, and a disabled backend stores none: sending the chord
    raises NotImplementedError, on either broker. A group with a task after it (`group | task`) is a chord as well, but
    none that this rule sees.
    """
    backend = str(facts["result_backend"] or "disabled")
    if not backend.startswith(("rpc", "disabled")):
        return
    which = "rpc://" if backend.startswith("rpc") else "no result backend"
    for location in facts.source.each(facts.source.chords):
        if not _OF_TESTS.search(location.file):
            yield Finding(f"a chord cannot be sent with {which}", setting="result_backend", location=location)


def _closest(name: str, known: frozenset[str]) -> str:
    found = difflib.get_close_matches(name, known, n=3, cutoff=0.8)
    return next((one for one in found if _is_slip(name, one)), "")


def _is_slip(name: str, other: str) -> bool:
    """Return whether two names differ by slips of the pen: long names of one package are alike as a whole."""
    parts, other_parts = name.split("."), other.split(".")
    if len(parts) == len(other_parts):
        return all(
            difflib.SequenceMatcher(None, *pair).ratio() > _ALIKE for pair in zip(parts, other_parts, strict=True)
        )
    # a part too few, or too many
    longer, shorter = sorted((parts, other_parts), key=len, reverse=True)
    return any(longer[:place] + longer[place + 1 :] == shorter for place in range(len(longer)))
