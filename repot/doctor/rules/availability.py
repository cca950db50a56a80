"""RPT3xx, availability: settings that make a worker or a producer stop, hang or exit."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from repot.brokers.facts import known
from repot.doctor.rule import ERROR, INFO, RABBITMQ, REDIS, WARNING, Finding, few, rule
from repot.doctor.rules.fixes import KEEPALIVE, QUORUM_BEHIND_TOPIC
from repot.errors import FactUnknown
from repot.worker.effective_config import NOT_STATED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts, StartCommand, TaskFacts

#: What a Celery that always asks for a global prefetch needs.
_DETECTS_QUORUM = "pip install 'celery>=5.5'  # the first that detects quorum queues; until then, classic queues"


@rule(
    "RPT301",
    "Redis connections have no socket timeout",
    ERROR,
    brokers=REDIS,
    fix="app.conf.broker_transport_options |= {'socket_timeout': 15, 'socket_connect_timeout': 5}",
    evidence=(
        "kombu/transport/redis.py: Channel._connparams",
        "measured: one acknowledgement into a dead link blocked the worker for 65 s",
    ),
)
def no_socket_timeout(facts: Facts) -> Iterator[Finding]:
    """Kombu passes None, which turns redis-py's own timeout off, and acknowledges in the worker's only event loop.

    One acknowledgement into a dead connection freezes the whole worker without a log line.
    """
    for name in ("socket_timeout", "socket_connect_timeout"):
        # redis-py uses the general timeout to connect unless another is given
        if not facts.option(name) and not (name == "socket_connect_timeout" and facts.option("socket_timeout")):
            yield Finding("is not set", setting=f"broker_transport_options.{name}")


@rule(
    "RPT302",
    "Redis connections have no TCP keepalive",
    WARNING,
    brokers=REDIS,
    fix=KEEPALIVE,
    evidence="kombu/transport/redis.py: Channel._connparams",
)
def no_keepalive(facts: Facts) -> Iterator[Finding]:
    """A firewall or load balancer can drop an idle connection without informing either side.

    Without keepalive the worker waits on it for tasks that never arrive.
    """
    if not facts.option("socket_keepalive"):
        yield Finding("is not set", setting="broker_transport_options.socket_keepalive")


@rule(
    "RPT303",
    "TCP keepalive starts after two hours",
    WARNING,
    brokers=REDIS,
    fix=KEEPALIVE,
    evidence="redis/connection.py: Connection._connect; tcp(7): tcp_keepalive_time is 7200 s",
)
def keepalive_without_options(facts: Facts) -> Iterator[Finding]:
    """`socket_keepalive` alone leaves the first probe to the system, which sends it after two hours on Linux.

    kombu passes no options of its own, which turns redis-py's 30 s off.
    """
    if facts.option("socket_keepalive") and not facts.option("socket_keepalive_options"):
        yield Finding("has no socket_keepalive_options", setting="broker_transport_options.socket_keepalive")


@rule(
    "RPT304",
    "Socket options have text keys",
    ERROR,
    fix="import socket\n{socket.TCP_KEEPIDLE: 30}  # the integer, not the text 'TCP_KEEPIDLE'",
    evidence=("redis/connection.py: Connection._connect", "amqp/transport.py: _set_socket_options"),
)
def socket_options_by_name(facts: Facts) -> Iterator[Finding]:
    """redis-py and py-amqp pass the keys to the system, which accepts integers only.

    A text key, for example from JSON or a variable, raises TypeError on every connection.
    """
    name = facts.broker.socket_options
    given = facts.option(name)
    texts = [key for key in given if not isinstance(key, int)] if isinstance(given, dict) else []
    if texts:
        yield Finding(f"has the key {texts[0]!r}", setting=f"broker_transport_options.{name}")


@rule(
    "RPT305",
    "Publisher confirms have no read timeout",
    ERROR,
    brokers=RABBITMQ,
    publishing=True,
    fix="app.conf.broker_transport_options |= {'confirm_publish': True, 'read_timeout': 15, 'write_timeout': 15}",
    evidence=(
        "amqp/channel.py: Channel.basic_publish_confirm",
        "measured: with read_timeout=2 a dead link raised after 18.6 s, without it never",
    ),
)
def confirms_without_read_timeout(facts: Facts) -> Iterator[Finding]:
    """A publish with confirms waits for the broker's answer, by default for ever.

    On a dead connection `delay()` never returns, in a web request as in a task.
    """
    if facts.option("confirm_publish") and not facts.option("read_timeout"):
        yield Finding("is not set while confirm_publish is on", setting="broker_transport_options.read_timeout")


@rule(
    "RPT306",
    "The control queue is exclusive to one connection",
    WARNING,
    brokers=RABBITMQ,
    versions="Celery 5.6 and newer; the default of 5.7",
    fix="""
    app.conf.control_queue_exclusive = False
    app.conf.control_queue_durable = True
    """,
    evidence=(
        "celery/app/control.py: Control.__init__",
        "measured on 3.10 to 4.3: exit 1.2 s after a half-open drop",
    ),
)
def exclusive_control_queue(facts: Facts) -> Iterator[Finding]:
    """After a half-open connection loss RabbitMQ keeps the dead connection and its control queue.

    The reconnecting worker receives 405 RESOURCE_LOCKED and exits; so does a replacement pod with the same name.
    """
    if facts["control_queue_exclusive"] and facts["worker_enable_remote_control"]:
        yield Finding("is on", setting="control_queue_exclusive")


@rule(
    "RPT307",
    "Channel errors are retried",
    WARNING,
    brokers=RABBITMQ,
    fix="app.conf.broker_channel_error_retry = False  # and a supervisor that starts the worker again",
    evidence=("celery/worker/consumer/consumer.py: Consumer.start", "measured: about 5 reconnects a second"),
)
def channel_errors_retried(facts: Facts) -> Iterator[Finding]:
    """A channel error (404, 405 or 406) has a cause that reconnecting does not fix.

    With the retry the worker reconnects several times a second, and all messages it holds are delivered again each
    time.
    """
    if facts["broker_channel_error_retry"]:
        yield Finding("is on", setting="broker_channel_error_retry")


@rule(
    "RPT308",
    "The worker gives up after a long outage",
    WARNING,
    fix="""
    app.conf.broker_connection_max_retries = None  # for ever
    app.conf.broker_connection_retry = True
    app.conf.broker_connection_retry_on_startup = True
    """,
    evidence=(
        "celery/worker/consumer/consumer.py: Consumer.connection_for_read",
        "measured: 100 retries take about 46 minutes",
    ),
)
def retry_budget(facts: Facts) -> Iterator[Finding]:
    """By default a worker tries 100 times, about 46 minutes, and then exits with 1.

    After a longer outage no worker runs when the broker is back.
    """
    attempts = facts["broker_connection_max_retries"]
    if attempts is not None:
        yield Finding(f"is {attempts}", setting="broker_connection_max_retries")
    if facts["broker_connection_retry"] is False:
        yield Finding("is off: the first lost connection ends the worker", setting="broker_connection_retry")
    if facts["broker_connection_retry_on_startup"] is False:
        yield Finding(
            "is off: a worker that starts before its broker exits", setting="broker_connection_retry_on_startup"
        )


@rule(
    "RPT309",
    "Delayed tasks block a worker on RabbitMQ 4",
    WARNING,
    brokers=RABBITMQ,
    versions="RabbitMQ 4.0 and newer with kombu 5.7 and newer, or with repot",
    fix="""
    # a quorum queue behind a topic exchange lets the broker delay the tasks itself: see RPT114
    # or give delayed tasks a queue and a worker of their own with a large worker_prefetch_multiplier
    """,
    evidence=("https://github.com/celery/kombu/pull/2481", "https://github.com/rabbitmq/rabbitmq-server/issues/11948"),
)
def delayed_tasks_block(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ 4 fixes a consumer's prefetch at its start; a worker cannot raise it for the delayed tasks it holds.

    With prefetch times concurrency of them, it takes no other task until the first is due.
    """
    if facts.is_before_rabbitmq_4 or not facts.asks_rabbitmq_4:
        return
    queues = {task.name: task.queue for task in facts.tasks}
    for call in facts.source.each(facts.source.calls):
        if call.is_timed and call.name != "retry" and not facts.delays_natively(queues.get(call.task, "")):
            until = "until its ETA" if call.countdown_s is None else f"for {call.countdown_s:g} s"
            prefix = "" if call.task else "a task "
            yield Finding(f"{prefix}is held by a worker {until}", task=call.task, location=call.location)
    if facts.bounds.longest_countdown_s and not facts.delays_natively():
        yield Finding(f"a task is held by a worker for {facts.bounds.longest_countdown_s:g} s")
    retried = {
        task.name: task.retry_s for task in facts.tasks if task.retry_s and not facts.delays_natively(task.queue)
    }
    if retried:
        longest = max(retried.values())
        yield Finding(f"a worker holds each retry, for up to {longest:g} s, of {few(retried)}")


@rule(
    "RPT310",
    "The prefetch does not grow with autoscale",
    ERROR,
    brokers=RABBITMQ,
    versions="quorum queues on any RabbitMQ; every queue on RabbitMQ 4.0 and newer with kombu 5.7, or with repot",
    fix="celery -A shop worker --concurrency 8  # instead of --autoscale; --autoscale=8,8 also keeps the pool's size",
    evidence=(
        "https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/rabbitmq.html",
        "https://github.com/rabbitmq/rabbitmq-server/issues/11948",
    ),
)
def autoscale_with_static_prefetch(facts: Facts) -> Iterator[Finding]:
    """Autoscale grows the pool and then the prefetch, which quorum queues and RabbitMQ 4 fix at the start.

    The new processes receive no tasks.
    """
    quorum = [queue.name for queue in facts.queues if queue.is_quorum]
    if not quorum and (not facts.asks_rabbitmq_4 or facts.is_before_rabbitmq_4):
        return
    for worker in facts.workers():
        if _grows(worker):
            if not quorum:
                # only a live server shows whether it is 4.0 or newer
                known(facts.rabbitmq.mechanisms)
            because = f"{quorum[0]!r} is a quorum queue" if quorum else "this is RabbitMQ 4"
            yield Finding(f"a worker starts with --autoscale, and {because}", location=worker.location)


def _grows(worker: StartCommand) -> bool:
    """Return whether --autoscale names two different numbers.

    Raises:
        FactUnknown: the numbers come from a variable.
    """
    given = str(worker.options.get("autoscale") or "")
    if any(sign in given for sign in "%$"):
        message = "a start command takes --autoscale from a variable"
        raise FactUnknown(message, hint='State it: [tool.repot.doctor] worker = "celery ..." in pyproject.toml')
    most, _, fewest = (part.strip() for part in given.partition(","))
    return most != fewest


@rule(
    "RPT311",
    "RabbitMQ denies the queues that this Celery declares",
    ERROR,
    brokers=RABBITMQ,
    versions="servers that deny transient_nonexcl_queues: RabbitMQ 4.3 as published",
    live=True,
    fix="""
    pip install 'celery>=5.7' 'kombu>=5.7'  # or, from Celery 5.4 on: repot.configure(app)
    app.conf.control_queue_exclusive = False
    app.conf.control_queue_durable = True
    """,
    evidence=("https://github.com/celery/kombu/issues/2531", "https://github.com/celery/celery/issues/10290"),
)
def transient_queues_denied(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ 4.3 denies queues that are neither durable nor exclusive; Celery before 5.7 uses them for control.

    The worker never becomes ready: it loops on 541 INTERNAL_ERROR while its supervisor reports it as running. A worker
    that repot configures declares queues that are exclusive or durable.
    """
    states = known(facts.rabbitmq.deprecated)
    if states.get("transient_nonexcl_queues", "permitted") in ("permitted", "permitted_by_default"):
        return
    if not facts.has_version("celery", 5, 7) or not facts.has_version("kombu", 5, 7):
        if facts.is_configured:
            return
        yield Finding(
            f"Celery {facts.versions.celery} with kombu {facts.versions.kombu}; the server denies transient queues"
        )
        return
    for kind in ("control", "event"):
        if not facts[f"{kind}_queue_exclusive"] and not facts[f"{kind}_queue_durable"]:
            yield Finding(f"is off, and {kind}_queue_durable is off as well", setting=f"{kind}_queue_exclusive")


@rule(
    "RPT312",
    "A quorum queue has x-max-priority",
    ERROR,
    brokers=RABBITMQ,
    fix="Queue('celery', queue_arguments={'x-queue-type': 'quorum'})  # without max_priority",
    evidence="measured on 3.10, 4.0 and 4.3.6: 406 PRECONDITION_FAILED, the worker exits",
)
def max_priority_on_quorum(facts: Facts) -> Iterator[Finding]:
    """Quorum queues refuse the argument on every version, and the worker that declares it exits.

    They have two priorities of their own up to 4.2 and 32 from 4.3, without an argument.
    """
    for queue in facts.queues:
        if queue.is_quorum and "x-max-priority" in queue.arguments:
            key = "task_queues" if facts["task_queue_max_priority"] is None else "task_queue_max_priority"
            yield Finding(f"{queue.name!r} is a quorum queue with x-max-priority", setting=key)


@rule(
    "RPT313",
    "The broker connection pool is off or too small",
    WARNING,
    fix="app.conf.broker_pool_limit = 10  # at least the threads that publish at the same time",
    evidence=("https://docs.celeryq.dev/en/stable/userguide/configuration.html", "celery/app/base.py: Celery.pool"),
)
def pool_limit(facts: Facts) -> Iterator[Finding]:
    """Without a pool every `delay()` opens and closes its own connection.

    If the pool has fewer connections than there are publishing threads, the others wait for one, by default for
    ever.
    """
    limit = facts.number("broker_pool_limit")
    if not limit:
        yield Finding(
            f"is {facts['broker_pool_limit']!r}: every publish opens a connection", setting="broker_pool_limit"
        )
        return
    for worker in facts.deployment.workers:
        threads = str(worker.options.get("concurrency") or "")
        pool = str(worker.options.get("pool") or facts["worker_pool"])
        if pool in ("threads", "gevent", "eventlet") and threads.isdecimal() and int(threads) > limit:
            yield Finding(
                f"is {limit:g}, and a worker runs {threads} {pool}",
                setting="broker_pool_limit",
                fix=f"app.conf.broker_pool_limit = {threads}",
            )


@rule(
    "RPT314",
    "Redis health checks are off",
    WARNING,
    brokers=REDIS,
    fix="app.conf.broker_transport_options |= {'health_check_interval': 10}",
    evidence=(
        "kombu/transport/redis.py: Transport.register_with_event_loop",
        "https://github.com/celery/kombu/pull/2590",
    ),
)
def health_checks_off(facts: Facts) -> Iterator[Finding]:
    """The interval also drives kombu's own checks of a connection that waits for tasks or control messages.

    With 0 a half-open connection is never noticed: the worker stays idle and answers no ping.
    """
    if not facts.option_number("health_check_interval"):
        yield Finding("is 0", setting="broker_transport_options.health_check_interval")


@rule(
    "RPT315",
    "polling_interval slows pings down",
    INFO,
    brokers=REDIS,
    fix="app.conf.broker_transport_options.pop('polling_interval')",
    evidence="kombu/transport/virtual/base.py: Transport.drain_events",
)
def polling_interval(facts: Facts) -> Iterator[Finding]:
    """It becomes a sleep between empty polls of all code that waits for replies.

    Pings and results take that much longer, and tasks arrive no sooner.
    """
    if facts.option("polling_interval") is not None:
        yield Finding(f"is {facts.option('polling_interval')}", setting="broker_transport_options.polling_interval")


@rule(
    "RPT316",
    "A probe pings workers whose remote control is off",
    ERROR,
    fix="app.conf.worker_enable_remote_control = True  # or a probe that asks no worker",
    evidence="https://github.com/celery/celery/issues/4079",
)
def probe_without_remote_control(facts: Facts) -> Iterator[Finding]:
    """Only the remote control answers `celery inspect ping`.

    With remote control off every probe fails, and the orchestrator restarts healthy workers for ever.
    """
    if facts["worker_enable_remote_control"]:
        return
    for location in facts.deployment.ping_probes:
        yield Finding(
            "a probe pings workers, which cannot answer", setting="worker_enable_remote_control", location=location
        )


@rule(
    "RPT317",
    "A monitor reads events that no worker sends",
    WARNING,
    fix="app.conf.worker_send_task_events = True  # or celery worker -E",
    evidence="https://docs.celeryq.dev/en/stable/userguide/monitoring.html",
)
def events_off(facts: Facts) -> Iterator[Finding]:
    """Exporters and Flower count tasks by events, which a worker sends only if it is configured or asked to.

    Without events a dashboard shows no tasks, which looks like an idle system.
    """
    if facts["worker_send_task_events"]:
        return
    silent = [worker for worker in facts.deployment.workers if not worker.has("task_events")]
    if facts.deployment.workers and not silent:
        return
    for location in facts.deployment.event_readers:
        yield Finding("reads events, but workers send none", setting="worker_send_task_events", location=location)


@rule(
    "RPT318",
    "A classic queue has x-consumer-timeout",
    WARNING,
    brokers=RABBITMQ,
    fix="""
    # take the argument out; on RabbitMQ 3.12 to 4.2 a policy does it:
    rabbitmqctl set_policy long-tasks '^celery' '{"consumer-timeout": 7200000}' --apply-to queues
    """,
    evidence="measured: no effect on 3.10; on 4.3.6 406 PRECONDITION_FAILED, the worker exits",
)
def consumer_timeout_on_classic(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ 4.3 refuses the argument on classic queues, and the worker that declares it exits.

    3.10 accepts it without an effect.
    """
    for queue in facts.queues:
        if not queue.is_quorum and "x-consumer-timeout" in {**queue.arguments, **queue.consumer_arguments}:
            yield Finding(f"{queue.name!r} is classic", setting="task_queues")


@rule(
    "RPT319",
    "Celery does not know that queues are quorum queues",
    WARNING,
    brokers=RABBITMQ,
    live=True,
    fix=QUORUM_BEHIND_TOPIC,
    evidence=("https://github.com/celery/kombu/issues/2469", "celery/utils/quorum_queues.py: detect_quorum_queues"),
)
def quorum_unknown_to_celery(facts: Facts) -> Iterator[Finding]:
    """Celery reads its own declarations; it does not see a virtual host's default queue type.

    It then delays no ETA task in the broker and, before RabbitMQ 4, requests a global prefetch, which they refuse
    (540).
    """
    declared = {queue.name: queue for queue in facts.queues if not queue.is_quorum}
    found = {name for name, queue in known(facts.rabbitmq.queues).items() if queue.kind == "quorum"}
    fix = "" if facts.has_setting("worker_detect_quorum_queues") else _DETECTS_QUORUM
    for name in sorted(declared.keys() & found):
        yield Finding(f"{name!r} is a quorum queue on the broker, but declared without a type", fix=fix)
    try:
        default = known(facts.rabbitmq.default_queue_type)
    except FactUnknown:
        # a user without access to the virtual host still sees its queues
        return
    for name in sorted(declared.keys() - found - known(facts.rabbitmq.queues).keys()) if default == "quorum" else ():
        yield Finding(f"{name!r} will become a quorum queue: the virtual host's default is quorum", fix=fix)


@rule(
    "RPT320",
    "The soft time limit never takes effect",
    WARNING,
    fix="app.conf.task_soft_time_limit = 1740  # below task_time_limit",
    evidence="https://docs.celeryq.dev/en/stable/userguide/workers.html",
)
def soft_limit_too_late(facts: Facts) -> Iterator[Finding]:
    """The hard limit kills the process at once.

    A soft limit that is not below it never gives the task time to clean up.
    """
    for task in facts.tasks:
        for soft, hard in facts.limits_s(task):
            if soft and hard and soft >= hard:
                yield Finding(
                    f"soft limit {soft:g} s, hard limit {hard:g} s",
                    task=task.name,
                    fix=f"app.conf.task_soft_time_limit = {hard * 0.9:g}",
                )
                break


@rule(
    "RPT321",
    "Quorum queues are used with a global prefetch",
    ERROR,
    brokers=RABBITMQ,
    versions="RabbitMQ before 4.0, and later ones with kombu before 5.7",
    fix="app.conf.worker_detect_quorum_queues = True  # Celery's default",
    evidence=("celery/worker/consumer/tasks.py: Tasks.qos_global", "https://github.com/celery/kombu/issues/2469"),
)
def global_prefetch_on_quorum(facts: Facts) -> Iterator[Finding]:
    """Celery requests a prefetch for the whole channel unless it detects quorum queues, which it does from 5.5 on.

    They refuse it with 540 NOT_IMPLEMENTED, and the worker loops without consuming. A worker that repot configures
    asks for none where Celery does not detect it.
    """
    quorum = [queue.name for queue in facts.queues if queue.is_quorum]
    not_needed = facts.asks_rabbitmq_4 and (facts.rabbitmq_release or (0, 0)) >= (4, 0)
    is_supplied = facts.is_configured and not facts.has_version("celery", 5, 7)
    if not quorum or not_needed or is_supplied:
        return
    if not facts.has_setting("worker_detect_quorum_queues"):
        yield Finding(
            f"Celery {facts.versions.celery} does not detect that {quorum[0]!r} is a quorum queue", fix=_DETECTS_QUORUM
        )
    elif not facts["worker_detect_quorum_queues"]:
        yield Finding(f"is off, and {quorum[0]!r} is a quorum queue", setting="worker_detect_quorum_queues")


@rule(
    "RPT322",
    "No worker consumes a queue that tasks go to",
    ERROR,
    fix="celery -A shop worker -Q celery,reports  # or name the queue in task_queues",
    evidence="https://docs.celeryq.dev/en/stable/userguide/routing.html",
)
def queue_without_worker(facts: Facts) -> Iterator[Finding]:
    """Celery creates a missing queue when a message is sent to it, so a misspelt name raises no error.

    The tasks wait there, and no worker takes them.
    """
    used = {task.queue for task in facts.tasks if task.queue}
    consumed = {queue.name for queue in facts.queues if queue.configured}
    if used <= consumed and not any(worker.has("queues") for worker in facts.deployment.workers):
        return
    workers = facts.workers()
    given = [str(worker.options.get("queues") or "") for worker in workers]
    if any(sign in text for text in given for sign in "%$"):
        message = "a start command takes its queues from a variable"
        raise FactUnknown(message, hint='State it: [tool.repot.doctor] worker = "celery ... -Q ..." in pyproject.toml')
    named = {name.strip() for text in given for name in text.split(",") if name.strip()}
    if not all(given):
        named |= consumed
    for task in facts.tasks:
        if task.queue and task.queue not in named:
            yield Finding(f"goes to {task.queue!r}, which no start command consumes", task=task.name)


@rule(
    "RPT323",
    "Sentinel has no master name",
    ERROR,
    brokers=REDIS,
    fix="app.conf.broker_transport_options |= {'master_name': 'mymaster'}",
    evidence="kombu/transport/redis.py: SentinelChannel._sentinel_managed_pool",
)
def sentinel_without_master(facts: Facts) -> Iterator[Finding]:
    """Sentinels watch several masters and answer for the one that a client names.

    Without `master_name` every connection raises ValueError.
    """
    if any(server.scheme == "sentinel" for server in facts.servers) and not facts.option("master_name"):
        yield Finding("is not set", setting="broker_transport_options.master_name")


@rule(
    "RPT324",
    "A task of celery-batches never gets a full batch",
    WARNING,
    fix="""
    celery -A shop worker -Q batches  # a queue of its own: repot then reserves flush_every for each process, or
    celery -A shop worker --prefetch-multiplier 100  # of the workers that run it
    """,
    evidence=("https://celery-batches.readthedocs.io", "celery/worker/consumer/consumer.py: Consumer"),
)
def batch_beyond_prefetch(facts: Facts) -> Iterator[Finding]:
    """A batch is made of what one worker has reserved, the prefetch multiplier times its processes.

    A worker that reserves less waits for `flush_interval` before each batch. The multiplier is 4 by Celery's default,
    and 1 by repot's. A worker of repot's whose queues bring batches alone reserves full ones, unless a multiplier is
    stated.
    """
    multiplier = facts.prefetch_multiplier
    given = [str(one) for one in facts.common_worker_option("concurrency")]
    processes = min(map(int, given)) if given and all(map(str.isdecimal, given)) else 0
    for task in facts.tasks:
        if multiplier and multiplier * max(processes, 1) < task.batch and not _reserves_by_itself(facts, task):
            reserved = f"{multiplier} x {processes}" if processes else f"{multiplier} for each process"
            yield Finding(
                f"flush_every is {task.batch}, and a worker reserves {reserved}",
                "worker_prefetch_multiplier",
                task.name,
                fix=f"celery -A shop worker --prefetch-multiplier {ceil(task.batch / max(processes, 1))}"
                "  # of the workers that run it",
            )


def _reserves_by_itself(facts: Facts, task: TaskFacts) -> bool:
    """Return whether a worker of repot's reserves full batches of a task (`repot/worker/batches.py`)."""
    setting = facts.settings.get("worker_prefetch_multiplier")
    stated = any(worker.has("prefetch_multiplier") for worker in facts.deployment.workers)
    if not facts.is_configured or stated or setting is None or not setting.origin.endswith(NOT_STATED):
        return False
    apart = bool(facts.common_worker_option("queues"))
    return all(one.batch or (apart and one.queue != task.queue) for one in facts.tasks)


@rule(
    "RPT325",
    "A task sends others one by one",
    INFO,
    brokers=RABBITMQ,
    publishing=True,
    fix="""
    group(mail.s(one) for one in customers).apply_async()
    # or, for whatever is sent in a block:
    with repot.confirm_window(app):
        for one in customers: mail.delay(one)
    """,
    evidence=("docs/deploy.md: Many sends in a row", "benchmarks/canvases.py"),
)
def sent_one_by_one(facts: Facts) -> Iterator[Finding]:
    """Each message waits for its publisher confirm, a round trip and a write to the broker's disk.

    A group sends its messages together and waits once, and so does a confirm window.
    """
    if not facts.option("confirm_publish"):
        return
    for sent in facts.source.each(facts.source.looped_sends):
        yield Finding("sends a task in a loop", task=sent.task, location=sent.location)
