"""RPT1xx, duplicates: settings and calls that make a task run twice."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

from repot.brokers.facts import known
from repot.config.capabilities import capabilities_of
from repot.doctor.durations import seconds
from repot.doctor.facts import CONSUMER_TIMEOUT_S
from repot.doctor.rule import ERROR, INFO, RABBITMQ, REDIS, WARNING, Finding, rule
from repot.doctor.rules.fixes import QUORUM_BEHIND_TOPIC, policy, vhost_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.config.endpoints import Endpoint
    from repot.doctor.effects import Effect
    from repot.doctor.facts import Delay, Facts, QueueFacts, TaskFacts
    from repot.doctor.transactions import DatabaseWrite

#: A task that runs this long or longer makes the tasks behind it wait too long.
LONG_S = 60

#: Options that decide under which keys messages are stored; all clients of one database need the same.
_STRUCTURAL = ("sep", "priority_steps", "fanout_prefix", "fanout_patterns", "unacked_key", "unacked_index_key")

_PY_AMQP_USER_TIMEOUT_MS = 1000
#: The interval that RabbitMQ proposes; the smaller of the two proposals applies.
_RABBITMQ_HEARTBEAT_S = 60.0

#: What limits the redeliveries of a task that kills its process, before Celery 5.7.
_LIMITED_REQUEUE = """
# a quorum queue, of which RabbitMQ 4 counts the deliveries; on any other queue the task is lost instead:
app.conf.task_reject_on_worker_lost = False
""".strip()
#: What lets a worker hold a delayed task; {} is the consumer timeout in milliseconds.
_HELD_LONGER = """
# RabbitMQ delays tasks itself with Celery 5.5 and newer; until then, in rabbitmq.conf:
consumer_timeout = {}
""".strip()

#: From here on only quorum queues have a consumer timeout.
_RABBITMQ_4_3 = (4, 3)

#: For a task whose decorator says that its result is ignored.
_STORES = "@app.task(ignore_result=False)  # or waive it, if a second run does no harm"


def _consumer_timeout_of(timeout_s: int, queue: str = "celery", vhost: str = "") -> str:
    """Return the lines that raise RabbitMQ's consumer timeout to so many seconds."""
    return cleandoc(f"""
    consumer_timeout = {timeout_s * 1000}  # in rabbitmq.conf, milliseconds; before workers start
    # which the doctor does not see: [tool.repot.doctor] consumer-timeout = {timeout_s}
    # or from 3.12 on, in the only policy of the queue (only one applies, so dead-letter keys belong there as well):
    {policy(queue, {"consumer-timeout": timeout_s * 1000}, vhost)}
    """)


@rule(
    "RPT101",
    "A task can take longer than the visibility timeout",
    ERROR,
    brokers=REDIS,
    fix="app.conf.broker_transport_options |= {'visibility_timeout': 7200}  # the same in every process on that Redis",
    evidence=("docs/scenarios.md: visibility-timeout", "https://github.com/celery/celery/issues/5935"),
)
def visibility_timeout_too_short(facts: Facts) -> Iterator[Finding]:
    """Redis gives a message to another worker if it is not acknowledged within the visibility timeout.

    The first worker goes on, so the task runs twice at the same time. The clock starts when a worker receives the
    message: the time it waits there, behind other tasks or for its countdown, counts. Raise the timeout in every
    process on that Redis, or let repot configure the workers: they renew their claims while a task runs, and no timeout
    limits it (WORKER_REDIS_CLAIM=atomic). A guarded task waits until the first run has ended.
    """
    if facts.claims_messages:
        return
    timeout = facts.option_number("visibility_timeout")
    if facts.wait_s is not None and facts.wait_s >= timeout:
        longest = max(facts.tasks, key=lambda task: facts.run_s(task) or 0)
        yield Finding(
            f"may run {facts.run_s(longest):g} s, and any task prefetched behind it waits up to {facts.wait_s:g} s; "
            f"the visibility timeout is {timeout:g} s",
            setting=_VISIBILITY,
            task=longest.name,
            fix=f"app.conf.broker_transport_options |= {{'visibility_timeout': {_above(2 * facts.wait_s)}}}",
        )
        return
    held_s = {task.name: held for task in facts.tasks if (held := facts.held_s(task)) is not None}
    needed = max(
        (held_s[task.name] + facts.countdown_s(task) for task in facts.tasks if task.name in held_s), default=0
    )
    for task in facts.tasks:
        held = held_s.get(task.name)
        countdown = facts.countdown_s(task)
        if held is None or countdown >= timeout or held + countdown < timeout:
            continue
        waits = facts.wait_s
        parts = [f"may run {facts.run_s(task):g} s"] if task.acks_late else []
        parts += [f"waits up to {waits:g} s behind others"] if waits else []
        parts += [f"waits up to {task.batch_interval_s:g} s for its batch"] if task.batch_interval_s else []
        parts += [f"is delayed up to {countdown:g} s"] if countdown else []
        yield Finding(
            f"{', '.join(parts)}; the visibility timeout is {timeout:g} s",
            setting=_VISIBILITY,
            task=task.name,
            fix=f"app.conf.broker_transport_options |= {{'visibility_timeout': {_above(needed)}}}",
        )


@rule(
    "RPT102",
    "A delay exceeds the visibility timeout",
    ERROR,
    brokers=REDIS,
    fix="""
    app.conf.broker_transport_options |= {'visibility_timeout': 43200}  # above the longest countdown, or
    # send the task when it is due: store the due time in your database and let beat look it up
    """,
    evidence=("https://github.com/celery/kombu/issues/337", "kombu/transport/redis.py: QoS.restore_visible"),
)
def countdown_beyond_visibility_timeout(facts: Facts) -> Iterator[Finding]:
    """A worker receives a delayed task at once and holds it unacknowledged until it is due.

    Redis delivers another copy each time the visibility timeout passes, and every copy runs. A worker that repot
    configures claims its messages and renews the claims until they are due (WORKER_REDIS_CLAIM=atomic).
    """
    if facts.claims_messages:
        return
    timeout = facts.option_number("visibility_timeout")
    held = max((facts.held_s(task) or 0 for task in facts.tasks), default=0)
    fix = f"app.conf.broker_transport_options |= {{'visibility_timeout': {_above(facts.longest_countdown_s() + held)}}}"
    for delay in facts.source.each(facts.delays()):
        if delay.seconds >= timeout:
            yield Finding(
                f"{_delayed(delay)}; the visibility timeout is {timeout:g} s",
                setting="" if delay.task else _VISIBILITY,
                task=delay.task,
                fix=fix,
                location=None if delay.task else delay.location,
            )


@rule(
    "RPT103",
    "A task has no time limit",
    WARNING,
    fix="""
    app.conf.task_time_limit = 1800       # seconds; a task that hangs is killed, not waited for
    app.conf.task_soft_time_limit = 1740  # lets the task clean up before
    """,
    evidence=("docs/scenarios.md: visibility-timeout", "https://docs.celeryq.dev/en/stable/userguide/workers.html"),
)
def no_time_limit(facts: Facts) -> Iterator[Finding]:
    """Redis delivers a task again after its visibility timeout, RabbitMQ after its consumer timeout.

    Without a hard time limit no run is certain to end before that. A worker that claims messages on Redis keeps them as
    long as it lives, so a task that hangs is not run again at all.
    """
    for task in facts.tasks:
        is_ignored = task.batch or facts.limits_are_ignored()
        if facts.run_s(task) is None and not (facts.limit_s(task) and is_ignored):
            yield Finding("has no hard time limit", setting="task_time_limit", task=task.name)


@rule(
    "RPT104",
    "Applications on one Redis use different visibility timeouts",
    ERROR,
    brokers=REDIS,
    fix="app.conf.broker_transport_options |= {'visibility_timeout': 7200}  # the same in each application and script",
    evidence=(
        "kombu/transport/redis.py: QoS.restore_visible",
        "https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html",
    ),
)
def visibility_timeouts_differ(facts: Facts) -> Iterator[Finding]:
    """The visibility timeout is not stored in Redis: the process that sweeps applies its own to the messages of all.

    The process with the shortest timeout makes the tasks of the others run a second time. Claims are renewed, so no
    timeout above their lease concerns them (WORKER_REDIS_CLAIM=atomic).
    """
    mine = facts.option_number("visibility_timeout")
    for other in facts.siblings:
        others_timeout = other.option_number("visibility_timeout")
        if _share_keys(facts, other) and others_timeout != mine and not _renews_in_time(facts, other):
            yield Finding(f"{facts.app} uses {mine:g} s, {other.app} uses {others_timeout:g} s", setting=_VISIBILITY)
    results = facts["result_backend_transport_options.visibility_timeout"]
    shared = {_database(server) for server in facts.result_servers} & {_database(server) for server in facts.servers}
    if shared and not facts.claims_messages and results is not None and seconds(results) != mine:
        yield Finding(
            f"the broker has {mine:g} s, the result backend on the same database {results} s",
            setting=_VISIBILITY,
            fix=f"app.conf.result_backend_transport_options |= {{'visibility_timeout': {mine:g}}}",
        )


@rule(
    "RPT105",
    "Clients of one Redis use different transport options",
    ERROR,
    brokers=REDIS,
    fix="from shop_settings import TRANSPORT_OPTIONS  # one place that every application imports",
    evidence="kombu/transport/redis.py: Channel._q_for_pri, Channel.from_transport_options",
)
def transport_options_differ(facts: Facts) -> Iterator[Finding]:
    """Separator, priority steps and key names decide which lists and hashes hold the messages.

    Two clients that disagree do not see each other's messages, or restore them under other names.
    """
    for other in facts.siblings:
        if not _share_keys(facts, other):
            continue
        for name in _STRUCTURAL:
            if facts.option(name) != other.option(name):
                yield Finding(
                    f"{name} is {facts.option(name)!r} in {facts.app}, {other.option(name)!r} in {other.app}",
                    setting=f"broker_transport_options.{name}",
                )


@rule(
    "RPT106",
    "Long late-ack tasks are prefetched",
    WARNING,
    fix="app.conf.worker_prefetch_multiplier = 1",
    evidence="https://docs.celeryq.dev/en/stable/userguide/optimizing.html",
)
def prefetch_with_long_tasks(facts: Facts) -> Iterator[Finding]:
    """A worker reserves several messages for each of its processes, and a process runs one at a time.

    While it runs a long task, no idle worker can take the messages behind it, and the broker's timeout runs for them as
    well. If the connection is lost, all of them are delivered again. With a multiplier of 1 a process reserves nothing
    beside the late-ack task that it runs.
    """
    multiplier = facts.prefetch_multiplier
    if multiplier == 1 or not facts.prefetches:
        return
    limit = "messages without limit" if multiplier == 0 else f"{multiplier} messages for each process"
    by_command = any(worker.has("prefetch_multiplier") for worker in facts.deployment.workers)
    fix = "celery -A shop worker --prefetch-multiplier 1" if by_command else ""
    for task in facts.late_tasks():
        run = facts.run_s(task)
        if run is None or run >= LONG_S:
            length = "has no time limit" if run is None else f"may run {run:g} s"
            yield Finding(f"{length}, and a worker reserves {limit}", "worker_prefetch_multiplier", task.name, fix)


@rule(
    "RPT107",
    "The behaviour on connection loss is not set",
    INFO,
    versions="Celery 5.1 and newer",
    fix="""
    app.conf.worker_cancel_long_running_tasks_on_connection_loss = True   # kill them: they run again anyway, or
    app.conf.worker_cancel_long_running_tasks_on_connection_loss = False  # let them finish, beside their second run
    """,
    evidence=("docs/scenarios.md: connection-reset", "https://github.com/celery/celery/issues/3430"),
)
def connection_loss_undecided(facts: Facts) -> Iterator[Finding]:
    """A late-ack task that runs while the connection is lost is delivered again, and both runs overlap.

    Celery 6 changes the default: instead of letting the first run finish, it kills it. Set the behaviour
    explicitly.
    """
    key = "worker_cancel_long_running_tasks_on_connection_loss"
    if facts.has_setting(key) and facts.is_default(key) and any(facts.late_tasks()):
        yield Finding("is not set, and tasks are acknowledged late", setting=key)


@rule(
    "RPT108",
    "Deduplication has no stored results",
    ERROR,
    fix="""
    app.conf.result_backend = 'redis://localhost:6379/1'
    app.conf.task_ignore_result = False
    """,
    evidence=("celery/app/trace.py: build_tracer", "docs/scenarios.md: dropped-ack"),
)
def deduplication_without_results(facts: Facts) -> Iterator[Finding]:
    """`worker_deduplicate_successful_tasks` looks a redelivered task up in the result backend.

    Where no success is stored it finds none, and the task runs again.
    """
    if not facts["worker_deduplicate_successful_tasks"]:
        return
    if not facts.keeps_results:
        yield Finding("is on, but no result backend keeps results", setting="worker_deduplicate_successful_tasks")
        return
    by_setting = bool(facts["task_ignore_result"])
    for task in facts.late_tasks():
        if task.ignore_result:
            yield Finding(
                "ignores its result, so its success is not stored",
                task=task.name,
                fix="app.conf.task_ignore_result = False" if by_setting else _STORES,
            )


@rule(
    "RPT109",
    "Results expire before a redelivery can arrive",
    WARNING,
    fix="app.conf.result_expires = 172800  # above visibility timeout plus the longest countdown",
    evidence="celery/app/trace.py: build_tracer",
)
def results_expire_too_early(facts: Facts) -> Iterator[Finding]:
    """Deduplication works only while the stored success exists.

    A redelivery comes after a countdown and, on Redis, up to a visibility timeout later.
    """
    expires = facts.number("result_expires")
    if not facts["worker_deduplicate_successful_tasks"] or not expires:
        return
    horizon = facts.redelivery_horizon_s()
    if expires < horizon:
        yield Finding(
            f"results expire after {expires:g} s, a redelivery can come after {horizon:g} s",
            setting="result_expires",
            fix=f"app.conf.result_expires = {_above(horizon)}",
        )


@rule(
    "RPT110",
    "The soft shutdown is shorter than the tasks",
    INFO,
    versions="Celery 5.5 and newer",
    fix="""
    app.conf.worker_soft_shutdown_timeout = 15  # seconds; below two heartbeats on RabbitMQ, and below the grace period
    # and REMAP_SIGTERM=SIGQUIT in the worker's environment, so that SIGTERM starts it
    """,
    evidence="https://docs.celeryq.dev/en/stable/userguide/workers.html",
)
def soft_shutdown_too_short(facts: Facts) -> Iterator[Finding]:
    """A worker that receives SIGQUIT waits for its tasks as long as its soft shutdown lasts, and then ends them.

    A task that is acknowledged late goes back to its queue and starts from the beginning; one that is acknowledged
    early is lost. After SIGTERM a worker waits for its tasks until the orchestrator kills it. Raise the timeout above
    your longest task, and let the orchestrator wait longer than that. On RabbitMQ it has to stay below two heartbeats,
    so a longer task starts again there, unless repot configures the worker.
    """
    timeout = facts.number("worker_soft_shutdown_timeout")
    if not facts.has_setting("worker_soft_shutdown_timeout") or (timeout and facts.broker.has_heartbeats):
        # longer than two heartbeats does more harm: RPT123
        return
    enough = int(facts.longest_run_s) + 1
    fix = "" if facts.broker.has_heartbeats else f"app.conf.worker_soft_shutdown_timeout = {enough}"
    for task in facts.tasks:
        run = facts.run_s(task)
        if run is not None and run > timeout:
            then = "it starts again" if task.acks_late else "it is lost"
            lasts = f"lasts {timeout:g} s" if timeout else "is off"
            yield Finding(
                f"may run {run:g} s, but the soft shutdown {lasts}: after SIGQUIT the worker ends it, and {then}",
                "worker_soft_shutdown_timeout",
                task.name,
                fix,
            )


@rule(
    "RPT111",
    "A solo worker misses heartbeats",
    ERROR,
    brokers=RABBITMQ,
    fix="celery -A shop worker --pool prefork --concurrency 1",
    evidence=(
        "celery/worker/loops.py: asynloop",
        "measured on RabbitMQ 3.10 and 4.0: a 40 s task with a heartbeat of 10 s ran again without end",
    ),
)
def solo_pool_misses_heartbeats(facts: Facts) -> Iterator[Finding]:
    """A solo worker sends no heartbeat while a task runs, so RabbitMQ closes its connection after two to three.

    The acknowledgement is lost and the task is delivered again, without end. A worker that repot configures sends them
    from a thread.
    """
    heartbeat = facts.number("broker_heartbeat")
    if facts.is_configured or not heartbeat or not any("solo" in pool for pool in facts.pools()):
        return
    heartbeat = min(heartbeat, _RABBITMQ_HEARTBEAT_S)
    for task in facts.late_tasks():
        run = facts.bounds.longest_run_s or facts.limit_s(task)
        if run is None or run > 2 * heartbeat:
            length = "without a time limit" if run is None else f"up to {run:g} s"
            yield Finding(f"runs {length} in a solo pool; two heartbeats are {2 * heartbeat:g} s", task=task.name)


@rule(
    "RPT112",
    "One second of packet loss closes the connection",
    WARNING,
    brokers=RABBITMQ,
    fix="app.conf.broker_transport_options |= {'socket_settings': {socket.TCP_USER_TIMEOUT: 15000}}  # milliseconds",
    evidence="amqp/transport.py: KNOWN_TCP_OPTS, DEFAULT_SOCKET_SETTINGS",
)
def tcp_user_timeout_of_one_second(facts: Facts) -> Iterator[Finding]:
    """py-amqp closes a connection after 1000 ms without an answer from TCP.

    All its unacknowledged messages are delivered again, so a moment of packet loss runs every running task twice.
    """
    given = facts.option("socket_settings")
    # socket.TCP_USER_TIMEOUT is 18, and not every system has the name; 0 is the system's default
    value = given.get(18) if isinstance(given, dict) else None
    if value is None or 0 < seconds(value, "TCP_USER_TIMEOUT") <= _PY_AMQP_USER_TIMEOUT_MS:
        shown = "is not set" if value is None else f"is {value} ms"
        yield Finding(f"TCP_USER_TIMEOUT {shown}", setting="broker_transport_options.socket_settings")


@rule(
    "RPT113",
    "A task can exceed RabbitMQ's consumer timeout",
    ERROR,
    brokers=RABBITMQ,
    versions="all queues up to RabbitMQ 4.2, quorum queues only from 4.3",
    fix=_consumer_timeout_of(7200),
    evidence=("https://github.com/celery/celery/issues/6760", "https://www.rabbitmq.com/docs/consumers"),
)
def run_beyond_consumer_timeout(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ takes a delivery back if it is not acknowledged within the consumer timeout, by default 30 minutes.

    Up to 4.2 the worker exits. From 4.3 the task runs again beside itself each time, and no delivery limit stops
    it.
    """
    longest = max((facts.held_s(task) or 0 for task in facts.tasks), default=0)
    for task, queue in _consumed(facts):
        held = facts.held_s(task)
        timeout = _consumer_timeout_s(facts, queue)
        if held is not None and timeout is not None and held >= timeout:
            yield Finding(
                f"may stay unacknowledged for {held:g} s; {_describe_timeout(facts, queue, timeout)}",
                task=task.name,
                fix=_consumer_timeout_of(max(_above(longest), 7200), queue.name, vhost_of(facts)),
            )


@rule(
    "RPT114",
    "A delay exceeds RabbitMQ's consumer timeout",
    ERROR,
    brokers=RABBITMQ,
    versions="all queues up to RabbitMQ 4.2, quorum queues only from 4.3",
    fix=QUORUM_BEHIND_TOPIC,
    evidence=("https://github.com/celery/celery/issues/6760", "kombu/transport/native_delayed_delivery.py"),
)
def countdown_beyond_consumer_timeout(facts: Facts) -> Iterator[Finding]:
    """A worker holds a delayed task unacknowledged until it is due, while RabbitMQ's consumer timeout runs.

    If the timeout ends first, the worker exits (up to 4.2) or receives the task again (4.3).
    """
    queues = {queue.name: queue for queue in facts.queues}
    for delay in facts.source.each(facts.delays()):
        for queue in [queues[delay.queue]] if delay.queue in queues else queues.values():
            timeout = _consumer_timeout_s(facts, queue)
            if timeout is not None and delay.seconds >= timeout and not facts.delays_natively(queue.name):
                yield Finding(
                    f"{_delayed(delay)}; {_describe_timeout(facts, queue, timeout)}",
                    task=delay.task,
                    fix="" if facts.delays_in_broker else _HELD_LONGER.format(int(_above(delay.seconds)) * 1000),
                    location=None if delay.task else delay.location,
                )
                break


@rule(
    "RPT115",
    "Heartbeats are off",
    ERROR,
    brokers=RABBITMQ,
    fix="app.conf.broker_heartbeat = 10",
    evidence=("https://www.rabbitmq.com/docs/heartbeats", "measured: a silent peer was not noticed within 150 s"),
)
def heartbeat_off(facts: Facts) -> Iterator[Finding]:
    """Without heartbeats neither side notices that the other is gone.

    The tasks of a dead worker stay reserved for it, and a worker whose connection died waits for ever.
    """
    if not facts.number("broker_heartbeat"):
        yield Finding(f"is {facts['broker_heartbeat']!r}", setting="broker_heartbeat")


@rule(
    "RPT116",
    "The heartbeat interval is out of range",
    INFO,
    brokers=RABBITMQ,
    fix="app.conf.broker_heartbeat = 10  # a dead peer is noticed after 20 to 30 s",
    evidence=("https://www.rabbitmq.com/docs/heartbeats", "measured: 60 s means 140 to 175 s, 10 s means 18 to 23 s"),
)
def heartbeat_out_of_range(facts: Facts) -> Iterator[Finding]:
    """A dead peer is noticed after two to three intervals: with 60 s and more, redelivery takes minutes.

    Below 5 s a short pause counts as death, and all unacknowledged tasks run twice.
    """
    heartbeat = facts.number("broker_heartbeat")
    if heartbeat and not 5 <= heartbeat <= 30:  # noqa: PLR2004 - the range of the title
        used = ", which RabbitMQ lowers to 60" if heartbeat > 60 else ""  # noqa: PLR2004
        yield Finding(f"is {heartbeat:g} s{used}; 5 to 30 s is useful", setting="broker_heartbeat")


@rule(
    "RPT117",
    "The broker URL contains a heartbeat",
    WARNING,
    brokers=RABBITMQ,
    fix="amqp://user:password@host//  # without ?heartbeat=, and app.conf.broker_heartbeat = 10",
    evidence=("celery/app/base.py: Celery.connection_for_write", "https://github.com/celery/celery/issues/7820"),
)
def heartbeat_in_url(facts: Facts) -> Iterator[Finding]:
    """Options of the URL also apply to producers, and no code sends their heartbeats.

    RabbitMQ closes an idle producer's connection, and its next publish fails.
    """
    for server in (*facts.servers, *facts.write_servers):
        if "heartbeat" in server.options:
            yield Finding(f"{server} holds ?heartbeat=", setting="broker_url")
            return


@rule(
    "RPT118",
    "The restore sweep is too rare for the visibility timeout",
    INFO,
    brokers=REDIS,
    versions="kombu 5.7 and newer",
    fix="app.conf.broker_transport_options |= {'unacked_restore_interval': 10, 'unacked_restore_throttle': 1}",
    evidence=("https://github.com/celery/celery/issues/9339", "https://github.com/celery/kombu/pull/2558"),
)
def restore_sweep_too_rare(facts: Facts) -> Iterator[Finding]:
    """Kombu looks for overdue messages every interval times throttle seconds, by default 100.

    With a short visibility timeout, that is most of the time until the tasks of a lost worker run again. Claims return
    after their lease instead (WORKER_REDIS_CLAIM=atomic).
    """
    if facts.claims_messages or "unacked_restore_throttle" not in facts.read_options:
        return
    timeout = facts.option_number("visibility_timeout")
    sweep = facts.option_number("unacked_restore_interval") * facts.option_number("unacked_restore_throttle")
    if timeout < 10 * sweep:
        interval = max(1, int(timeout // 10))
        yield Finding(
            f"a sweep every {sweep:g} s with a visibility timeout of {timeout:g} s",
            setting="broker_transport_options.unacked_restore_throttle",
            fix="app.conf.broker_transport_options |= "
            f"{{'unacked_restore_interval': {min(interval, 10)}, 'unacked_restore_throttle': 1}}",
        )


@rule(
    "RPT119",
    "retry_on_timeout can send a task twice",
    WARNING,
    brokers=REDIS,
    fix="app.conf.broker_transport_options.pop('retry_on_timeout')  # task_publish_retry covers publishing",
    evidence=(
        "redis/connection.py: AbstractConnection.__init__",
        "measured: a publish into a dead link took 36.7 s instead of 10.6 s",
    ),
)
def retry_on_timeout(facts: Facts) -> Iterator[Finding]:
    """It repeats a command whose reply did not arrive in time, although Redis may have executed it.

    A repeated LPUSH puts the same task into the queue twice.
    """
    if facts.option("retry_on_timeout"):
        yield Finding("is on", setting="broker_transport_options.retry_on_timeout")


@rule(
    "RPT120",
    "A task that kills its process is requeued without limit",
    ERROR,
    versions="Celery 5.7 and newer have task_retry_on_worker_lost",
    fix="""
    app.conf.task_reject_on_worker_lost = False
    app.conf.task_retry_on_worker_lost = True  # at most max_retries times, after default_retry_delay
    """,
    evidence=("https://github.com/celery/celery/issues/9082", "measured: 58 runs in 3 s"),
)
def reject_on_worker_lost_spins(facts: Facts) -> Iterator[Finding]:
    """`reject_on_worker_lost` requeues the message each time the process dies, without a limit or a pause.

    A task that runs out of memory ends worker after worker; only a quorum queue's delivery limit stops it.
    """
    for task in facts.late_tasks():
        if task.reject_on_worker_lost and not task.retry_on_worker_lost and not _counts_deliveries(facts, task):
            fix = "" if facts.has_setting("task_retry_on_worker_lost") else _LIMITED_REQUEUE
            yield Finding(
                "reject_on_worker_lost is on, and its queue does not limit deliveries", task=task.name, fix=fix
            )


@rule(
    "RPT121",
    "A task that times out is requeued without limit",
    ERROR,
    versions="Celery 5.5 and newer; before, it is rejected, not requeued",
    fix="app.conf.task_acks_on_timeout = True",
    evidence="celery/worker/request.py: Request.on_timeout",
)
def timed_out_task_spins(facts: Facts) -> Iterator[Finding]:
    """With `acks_on_timeout` off, a task killed at its hard limit is requeued and starts again.

    It reaches the limit again, and only a quorum queue on RabbitMQ 4 or newer counts the deliveries.
    """
    for task in facts.late_tasks() if facts.has_version("celery", 5, 5) else ():
        limit = facts.limit_s(task)
        if not task.acks_on_timeout and limit and not _counts_deliveries(facts, task):
            yield Finding(f"is requeued each time it reaches {limit:g} s", task=task.name)


@rule(
    "RPT122",
    "The pool ignores hard time limits",
    WARNING,
    fix="celery -A shop worker --pool prefork",
    evidence=(
        "https://docs.celeryq.dev/en/stable/userguide/workers.html",
        "celery/concurrency/thread.py, solo.py, eventlet.py",
    ),
)
def pool_ignores_time_limits(facts: Facts) -> Iterator[Finding]:
    """Thread, solo and eventlet pools cannot interrupt a task, so its time limit has no effect.

    A run that hangs outlasts every timeout of the broker.
    """
    if facts.limits_are_ignored():
        for task in facts.tasks:
            limit = facts.limit_s(task)
            if limit:
                yield Finding(f"has a limit of {limit:g} s that {_list(facts.pools())} ignores", task=task.name)


@rule(
    "RPT123",
    "The soft shutdown is longer than two heartbeats",
    WARNING,
    brokers=RABBITMQ,
    versions="Celery 5.5 and newer",
    fix="app.conf.worker_soft_shutdown_timeout = 15  # seconds; below two heartbeats",
    evidence=(
        "celery/worker/worker.py: WorkController.wait_for_soft_shutdown",
        "measured: heartbeat 5 s, soft shutdown 25 s; a task that ended after 20 s was delivered again",
    ),
)
def soft_shutdown_misses_heartbeats(facts: Facts) -> Iterator[Finding]:
    """A worker sends no heartbeats during its soft shutdown, and RabbitMQ closes a connection that misses two.

    A task that ends after that cannot be acknowledged any more. RabbitMQ gives it to another worker, and it runs a
    second time. Keep the soft shutdown below two heartbeats: what runs longer goes back to its queue at the end. A
    worker that repot configures sends them from a thread.
    """
    if facts.is_configured:
        return
    timeout = facts.number("worker_soft_shutdown_timeout")
    heartbeat = min(facts.number("broker_heartbeat"), _RABBITMQ_HEARTBEAT_S)
    if heartbeat and timeout >= 2 * heartbeat and any(facts.late_tasks()):
        yield Finding(
            f"lasts {timeout:g} s, and RabbitMQ closes a connection that is silent for two heartbeats, "
            f"{2 * heartbeat:g} s",
            setting="worker_soft_shutdown_timeout",
        )


@rule(
    "RPT124",
    "A topic exchange routes one message to several queues",
    WARNING,
    fix="""
        # one queue, one key
        exchange = Exchange('shop', type='topic')
        app.conf.task_queues = [Queue(name, exchange, routing_key=name) for name in ('orders', 'reports')]
    """,
    evidence=(
        "celery/app/amqp.py: Queues.__setitem__ gives a queue without a key the default one",
        "kombu/transport/native_delayed_delivery.py: bind_queue_to_native_delayed_delivery_exchange",
        "docs/routing.md",
    ),
)
def queues_share_a_key(facts: Facts) -> Iterator[Finding]:
    """Celery publishes to a topic exchange with a queue's routing key; each queue bound with that key runs the task.

    A queue declared without a key gets that of the default queue. Where quorum queues delay ETA tasks, kombu binds
    each of them a second time as `#.<key>`, which also matches any longer key with that suffix.
    """
    bound = [queue for queue in facts.queues if queue.exchange_type == "topic" and queue.routing_key]
    every_broker_delays = all(capabilities_of(kind).delays_messages for kind in facts.kinds)
    native = every_broker_delays and facts.delays_in_broker and any(queue.is_quorum for queue in facts.queues)
    for index, one in enumerate(bound):
        if native and one.delayed is None and one.routing_key.startswith("#"):
            yield Finding(f"{one.name!r} receives every delayed message of its virtual host", setting="task_queues")
        for other in [queue for queue in bound[index + 1 :] if queue.exchange == one.exchange]:
            keys = sorted((one.routing_key, other.routing_key), key=len)
            if keys[0] == keys[1] or (native and keys[1].endswith(f".{keys[0]}")):
                yield Finding(
                    f"{one.name!r} and {other.name!r} both receive what is sent to {one.exchange!r} as {keys[1]!r}",
                    setting="task_queues",
                )


@rule(
    "RPT125",
    "The visibility timeout is not above the lease of claims",
    WARNING,
    brokers=REDIS,
    fix="app.conf.broker_transport_options |= {'visibility_timeout': 7200}  # above WORKER_REDIS_CLAIM_LEASE",
    evidence=("kombu/transport/redis.py: QoS.restore_visible", "docs/redis-claims.md"),
)
def lease_beyond_visibility_timeout(facts: Facts) -> Iterator[Finding]:
    """Every worker on that Redis, also one without repot, restores what was not renewed for the visibility timeout.

    If that is not above the lease, it takes a claim from a worker that is slow to renew it, although the lease still
    runs, and the task runs twice. The timeout costs nothing: what dead workers claimed returns after the lease.
    """
    timeout, lease = facts.option_number("visibility_timeout"), facts.claim_lease_s
    if facts.claims_messages and timeout <= lease:
        yield Finding(
            f"is {timeout:g} s; the lease of claims is {lease:g} s",
            setting=_VISIBILITY,
            fix=f"app.conf.broker_transport_options |= {{'visibility_timeout': {max(7200, _above(lease))}}}",
        )


_VISIBILITY = "broker_transport_options.visibility_timeout"


@rule(
    "RPT126",
    "A task's rows and its outcome are two commits",
    WARNING,
    fix="""
    @app.task(base=IdempotentTask, bind=True, idempotency=Policy(key=('order',)))
    def charge(self, order):
        with self.transaction(Session) as session:  # or Django's connection; docs/database.md
            session.add(Payment(order=order))
    """,
    evidence=("docs/database.md: Which guarantee you get", "tests/servers/test_transaction_workers.py"),
)
def two_commits(facts: Facts) -> Iterator[Finding]:
    """If the worker dies between the two, the rows are there and the outcome is unknown: the task runs again.

    The lease store is in a database, so `self.transaction()` commits both together, if it is that of the rows.
    """
    if facts.has_database_store:
        for task, write in _guarded_writes(facts):
            yield Finding(f"{write.name} is outside self.transaction()", task=task.name, location=write.location)


@rule(
    "RPT127",
    "A lease store in the database would commit a task's rows with its outcome",
    INFO,
    fix="""
    WORKER_LEASE_STORE=postgresql+psycopg://shop:password@db.internal/shop  # and repot store migrate --execute
    with self.transaction(Session) as session: ...  # in the task; docs/database.md
    """,
    evidence=("docs/database.md: Which guarantee you get",),
)
def store_elsewhere(facts: Facts) -> Iterator[Finding]:
    """If a worker dies between the rows' commit and the record, which is in Redis, the outcome is unknown.

    Then the task runs again, or waits for a person, by its policy.
    """
    if known(facts.store) is None or facts.has_database_store:
        return
    for task, write in _guarded_writes(facts):
        yield Finding(
            f"{write.name} commits to a database, the outcome is in Redis", task=task.name, location=write.location
        )


@rule(
    "RPT128",
    "A module sends a task when it is imported",
    WARNING,
    fix="""
    @worker_ready.connect  # of celery.signals: once for each worker; or in a command of a deployment, once
    def warm_up(**_): refresh.delay()
    """,
    evidence=("docs/deploy.md: Producers that fork", "tests/servers/test_forked_producers.py"),
)
def sent_at_import(facts: Facts) -> Iterator[Finding]:
    """Each process that imports the module sends the task: every worker, beat, web process, test and `repot doctor`.

    A web server that loads the application before it forks has a connection to the broker then. Without repot its
    children share it: on RabbitMQ messages are sent twice, get lost, or `delay` hangs.
    """
    for location in facts.source.each(facts.source.import_sends):
        yield Finding("a task is sent when the module is imported", location=location)


@rule(
    "RPT129",
    "A retry repeats an effect outside",
    WARNING,
    fix="""
    # the same key in each try, if the other side has such keys:
    requests.post(url, json=order, headers={"Idempotency-Key": f"charge-{order['id']}"}, timeout=10)
    # or retry only where nothing was sent:
    @app.task(autoretry_for=(requests.ConnectTimeout,))
    """,
    evidence=(
        "celery/app/autoretry.py: add_autoretry_behaviour",
        "https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2",
        "https://docs.stripe.com/api/idempotent_requests",
    ),
)
def retry_repeats_effect(facts: Facts) -> Iterator[Finding]:
    """A request that gets no answer may have had its effect all the same, and the retry makes it again.

    A time-out or a lost connection does not tell what the other side did. So each try may charge the customer or send
    the mail once more, on any broker. Only the other side can recognise the repetition, by a key that all tries share.
    """
    for task in facts.tasks:
        if task.guarded:
            # its policy says what an open outcome means: Policy.uncertain
            continue
        found = (_repetition(task, one) for one in facts.source.each(facts.source.effects) if one.task == task.name)
        repeated = next((one for one in found if one), None)
        if repeated:
            yield repeated


@rule(
    "RPT130",
    "The pool cannot cancel a task when the connection is lost",
    WARNING,
    versions="Celery 5.1 and newer",
    fix="""
    app.conf.worker_cancel_long_running_tasks_on_connection_loss = False  # or:
    celery -A shop worker --pool prefork
    """,
    evidence=(
        "celery/concurrency/base.py: BasePool.terminate_job",
        "celery/worker/consumer/consumer.py: Consumer.on_connection_error_after_connected",
    ),
)
def pool_cannot_cancel(facts: Facts) -> Iterator[Finding]:
    """A thread cannot be ended, nor a greenlet of gevent before Celery 5.5.

    A worker before Celery 5.7 that is to cancel a late-ack task ends with `NotImplementedError` when the connection is
    lost for a moment, and its other tasks end with it. A later one writes a warning, and the task runs on. Its message
    went back to the broker, so both runs overlap; a worker of repot's keeps it on Redis.
    """
    key = "worker_cancel_long_running_tasks_on_connection_loss"
    if not facts.has_setting(key) or not facts[key] or not any(facts.late_tasks()):
        return
    for pool in sorted(facts.pools()):
        if "thread" in pool or ("gevent" in pool and not facts.has_version("celery", 5, 5)):
            then = "a task runs on beside its second run" if facts.has_version("celery", 5, 7) else "the worker ends"
            yield Finding(f"is on, and {pool} cannot end a task: {then}", setting=key)


def _repetition(task: TaskFacts, effect: Effect) -> Finding | None:
    """Return the finding, if a retry of the task repeats the effect where no answer arrives."""
    retried = sorted(effect.raised & task.retried_for)
    if effect.retried_at and task.may_retry:
        by = f"self.retry() in line {effect.retried_at.line}"
    elif effect.escapes and retried and not effect.raised & task.never_retried_for:
        by = f"autoretry_for={retried[0].partition(':')[2]}"
    else:
        return None
    return Finding(f"{by} repeats {effect.name} when no answer arrives", task=task.name, location=effect.location)


def _guarded_writes(facts: Facts) -> Iterator[tuple[TaskFacts, DatabaseWrite]]:
    """Yield the guarded tasks that write rows outside `self.transaction()`, with the first such call."""
    for task in (one for one in facts.tasks if one.guarded):
        write = next((one for one in facts.source.each(facts.source.writes) if one.task == task.name), None)
        if write:
            yield task, write


def _above(seconds: float) -> int:
    """Return a round number of seconds with a margin of 20 %."""
    return int(-(-(seconds * 1.2) // 300) * 300)


def _delayed(delay: Delay) -> str:
    """Describe a delay."""
    if delay.task:
        return f"is delayed up to {delay.seconds:g} s" + (f" at {delay.location}" if delay.location else "")
    return (
        f"a task is sent with a delay of {delay.seconds:g} s" if delay.location else f"delays reach {delay.seconds:g} s"
    )


def _database(server: Endpoint) -> tuple[str, int, str]:
    """Return the identity of a Redis database: host, port, database."""
    return "localhost" if server.is_local else server.host, server.port or 6379, server.path or "0"


def _share_keys(facts: Facts, other: Facts) -> bool:
    """Return whether two applications store their messages under the same keys of one database."""
    mine = {_database(server) for server in facts.servers}
    same = other.kind is facts.kind and bool(mine & {_database(server) for server in other.servers})
    return same and facts.option("global_keyprefix") == other.option("global_keyprefix")


def _renews_in_time(facts: Facts, other: Facts) -> bool:
    """Return whether the shorter visibility timeout of two applications concerns no message of the other one."""
    shorter, longer = sorted((facts, other), key=lambda one: one.option_number("visibility_timeout"))
    return longer.claims_messages and shorter.option_number("visibility_timeout") > longer.claim_lease_s


def _counts_deliveries(facts: Facts, task: TaskFacts) -> bool:
    """Return whether the queue limits the deliveries of a message: a quorum queue from RabbitMQ 4 on."""
    queue = facts.queue_of(task)
    quorum = facts.broker.limits_deliveries and queue is not None and queue.is_quorum
    return quorum and not facts.is_before_rabbitmq_4


def _consumed(facts: Facts) -> Iterator[tuple[TaskFacts, QueueFacts]]:
    """Yield each task with the queue it waits in; leave out tasks whose queue is unknown."""
    for task in facts.tasks:
        queue = facts.queue_of(task)
        if queue is not None:
            yield task, queue


def _consumer_timeout_s(facts: Facts, queue: QueueFacts) -> float | None:
    """Return the consumer timeout of a queue in seconds; None if it has none."""
    release = facts.rabbitmq_release
    if release and release >= _RABBITMQ_4_3 and not queue.is_quorum:
        return None
    # RabbitMQ applies the smallest of arguments and policies
    given = [one.get("x-consumer-timeout") for one in (queue.arguments, queue.consumer_arguments)]
    given += facts.set_by_known_policy(queue, "consumer-timeout")
    milliseconds = [seconds(value, "x-consumer-timeout") for value in given if value is not None]
    return min(milliseconds) / 1000 if milliseconds else facts.bounds.consumer_timeout_s or CONSUMER_TIMEOUT_S


def _describe_timeout(facts: Facts, queue: QueueFacts, timeout: float) -> str:
    """Describe the consumer timeout; RabbitMQ's API does not show the value of rabbitmq.conf."""
    unless = ", unless raised" if timeout == CONSUMER_TIMEOUT_S and not facts.bounds.consumer_timeout_s else ""
    return f"the consumer timeout of {queue.name!r} is {timeout:g} s{unless}"


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))
