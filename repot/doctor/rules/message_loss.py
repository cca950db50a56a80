"""RPT2xx, message loss: settings and calls that lose a task or the record of its failure."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from repot.brokers.facts import known
from repot.config.capabilities import capabilities_of
from repot.doctor.rule import ERROR, INFO, RABBITMQ, REDIS, WARNING, Finding, rule
from repot.doctor.rules.fixes import QUORUM_BEHIND_TOPIC, dead_letter_policy, declare_queue, setting_of, vhost_of
from repot.queues import queues_in_routes, queues_in_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts, QueueFacts, TaskFacts

#: The exchanges where delayed tasks enter and leave (`kombu/transport/native_delayed_delivery.py`).
_DELAYED_ENTRY = "celery_delayed_27"
_DELAYED_EXIT = "celery_delayed_delivery"

#: The one setting for failures and timeouts that later releases have two for.
_ACKS_BEFORE_5_7 = "task_acks_on_failure_or_timeout"
#: What a Celery needs to run as repot's worker.
_WITH_REPOT = """
# repot's workers need Celery 5.4 or newer: pip install 'celery>=5.4' repot
import repot
repot.configure(app)  # in every worker; WORKER_REDIS_CLAIM=atomic is the default
""".strip()
#: What keeps a task whose process was killed, before Celery 5.7.
_REQUEUE = "app.conf.task_reject_on_worker_lost = True  # on a quorum queue with a delivery limit: else without an end"
_RETRY = "pip install 'celery>=5.7'  # for task_retry_on_worker_lost; what is requeued on this broker has no limit"

#: RabbitMQ 4's default `max_message_size`.
_LARGEST_MESSAGE_BYTES = 16 << 20


@rule(
    "RPT201",
    "A late-ack task is lost when its process is killed",
    ERROR,
    fix="""
    app.conf.task_retry_on_worker_lost = True  # Celery 5.7: at most max_retries times, after default_retry_delay
    # before 5.7: task_reject_on_worker_lost = True, on a quorum queue with a delivery limit
    """,
    evidence=(
        "celery/worker/request.py: Request.on_failure",
        "https://docs.celeryq.dev/en/stable/userguide/configuration.html",
    ),
)
def worker_lost_is_acknowledged(facts: Facts) -> Iterator[Finding]:
    """If the kernel kills a task's process, Celery acknowledges the message, even with late acks.

    The task is recorded as failed and never runs again. With the setting it does, also where it had its effect, such as
    the first mails of a loop: guard a task whose effect must not happen twice (docs/idempotency.md).
    """
    for task in facts.late_tasks():
        if not task.retry_on_worker_lost and not task.reject_on_worker_lost:
            can_retry = facts.has_setting("task_retry_on_worker_lost")
            yield Finding(
                "is neither retried nor requeued when its process is killed",
                "task_retry_on_worker_lost" if can_retry else "task_reject_on_worker_lost",
                task.name,
                fix="" if can_retry else _REQUEUE if facts.broker.limits_deliveries else _RETRY,
            )


@rule(
    "RPT202",
    "A failed task leaves no record",
    WARNING,
    fix="""
    app.conf.result_backend = 'redis://localhost:6379/1'
    app.conf.task_store_errors_even_if_ignored = True
    # or on RabbitMQ, with a dead-letter queue: app.conf.task_acks_on_failure = False
    """,
    evidence="celery/worker/request.py: Request.on_failure",
)
def failure_leaves_no_trace(facts: Facts) -> Iterator[Finding]:
    """A late-ack task that raises is acknowledged all the same, so the message is gone.

    If its failure is not stored either, only a log line records it. repot's workers write a dead letter.
    """
    if facts.keeps_failures:
        return
    dead_letters = facts.broker.has_dead_letter_exchanges
    for task in facts.late_tasks():
        queue = facts.queue_of(task)
        kept = dead_letters and not task.acks_on_failure and queue is not None and _has_dead_letters(facts, queue)
        stored = facts.keeps_results and (not task.ignore_result or task.store_errors)
        if not kept and not stored:
            what = "is acknowledged when it fails" if task.acks_on_failure else "is rejected when it fails, and dropped"
            key = "task_acks_on_failure" if facts.has_setting("task_acks_on_failure") else _ACKS_BEFORE_5_7
            yield Finding(f"{what}; its failure is not stored", key, task.name, _store_failures(key))


@rule(
    "RPT203",
    "A task is acknowledged before it runs",
    WARNING,
    fix="""
    app.conf.task_acks_late = True
    # and for a task that may be lost: [tool.repot.doctor] may-be-lost = ["shop.metrics.*"] in pyproject.toml
    """,
    evidence="https://docs.celeryq.dev/en/stable/userguide/tasks.html",
)
def acknowledged_early(facts: Facts) -> Iterator[Finding]:
    """If the worker ends while such a task runs, by a deployment, full memory or a power cut, the task is lost.

    The broker has deleted the message, and no worker runs it again. With late acks one does, also where the task had
    its effect: guard a task whose effect must not happen twice (docs/idempotency.md).
    """
    for task in facts.tasks:
        if not task.acks_late and not any(fnmatch.fnmatch(task.name, one) for one in facts.bounds.may_be_lost):
            yield Finding("is acknowledged before it runs", "task_acks_late", task.name)


@rule(
    "RPT204",
    "Publisher confirms are off",
    ERROR,
    brokers=RABBITMQ,
    publishing=True,
    fix="app.conf.broker_transport_options |= {'confirm_publish': True, 'read_timeout': 15, 'write_timeout': 15}",
    evidence=(
        "https://github.com/celery/celery/issues/5410",
        "measured: 52 of 104 messages of short-lived producers to a quorum queue were lost",
    ),
)
def publisher_confirms_off(facts: Facts) -> Iterator[Finding]:
    """Without confirms a task counts as sent when its bytes are written.

    A lost connection, a broker that closes or a process that exits at once loses it without an error.
    """
    if not facts.option("confirm_publish"):
        yield Finding("is not set", setting="broker_transport_options.confirm_publish")


@rule(
    "RPT205",
    "A quorum queue has no dead-letter target",
    ERROR,
    brokers=RABBITMQ,
    versions="RabbitMQ 4.0 and newer",
    fix="""
    # first, for RabbitMQ drops a dead letter whose queue does not exist:
    rabbitmqadmin declare queue name=celery.dead arguments='{"x-queue-type": "quorum"}'
    Queue('celery', queue_arguments={'x-queue-type': 'quorum',
          'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': 'celery.dead'})
    # or for an existing queue, in its only policy:
    # rabbitmqctl set_policy celery '^celery$' \\
    #   '{"dead-letter-exchange": "", "dead-letter-routing-key": "celery.dead"}' --apply-to queues
    """,
    evidence=(
        "https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling",
        "measured on 4.0.5 and 4.3.6: gone after the 21st delivery",
    ),
)
def quorum_without_dead_letters(facts: Facts) -> Iterator[Finding]:
    """A quorum queue drops a message after its delivery limit, by default 20; a worker's restart counts.

    Without a dead-letter target nothing remains of it.
    """
    if facts.is_before_rabbitmq_4:
        return
    for queue in facts.queues:
        limits = [queue.arguments.get("x-delivery-limit"), *facts.set_by_known_policy(queue, "delivery-limit")]
        if not queue.is_quorum or -1 in limits or _has_dead_letters(facts, queue):
            continue
        yield Finding(
            f"the quorum queue {queue.name!r} drops a message after its delivery limit",
            setting=setting_of(facts, queue),
            fix=_with_dead_letters(queue, vhost_of(facts)),
        )


@rule(
    "RPT206",
    "Reject(requeue=False) deletes the task on Redis",
    ERROR,
    brokers=REDIS,
    fix="raise  # and store the failure: a result backend, or your own dead-letter queue",
    evidence="kombu/transport/redis.py: QoS.reject",
)
def reject_deletes_on_redis(facts: Facts) -> Iterator[Finding]:
    """On RabbitMQ a rejected message goes to the queue's dead-letter target.

    Redis has none: kombu deletes the message.
    """
    for location in facts.source.each(facts.source.rejects):
        yield Finding("Reject without requeue", location=location)


@rule(
    "RPT207",
    "Messages are larger than RabbitMQ 4 accepts",
    ERROR,
    brokers=RABBITMQ,
    versions="RabbitMQ 4.0 and newer",
    live=True,
    fix="""
    # pass a reference (an id, an object-store key) instead of the data, or
    max_message_size = 134217728  # in rabbitmq.conf, bytes
    """,
    evidence=(
        "https://www.rabbitmq.com/docs/configure",
        "measured: a 17 MiB message without confirms was sent without an error and lost",
    ),
)
def messages_too_large(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ 4 accepts messages up to 16 MiB; older releases accept 128 MiB, and Redis has no such limit.

    A larger message closes the channel; without confirms it is lost without an error.
    """
    if facts.source_live is None or facts.is_before_rabbitmq_4:
        return
    measured = getattr(facts.source_live, "largest_message_bytes", 0)
    largest = known(measured)
    if largest > _LARGEST_MESSAGE_BYTES:
        yield Finding(f"a message of {largest} bytes waits in Redis; the limit is {_LARGEST_MESSAGE_BYTES}")


@rule(
    "RPT208",
    "Quorum queues behind a direct exchange do not delay tasks",
    WARNING,
    brokers=RABBITMQ,
    versions="Celery 5.5 and newer",
    fix=QUORUM_BEHIND_TOPIC,
    evidence=("kombu/transport/native_delayed_delivery.py", "celery/worker/consumer/delayed_delivery.py"),
)
def no_native_delay(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ delays the ETA tasks of quorum queues itself, but behind a direct exchange the worker holds them.

    They block the prefetch on RabbitMQ 4, count a delivery at each restart and reach the consumer timeout.
    """
    quorum = facts.delays_in_broker and any(queue.is_quorum for queue in facts.queues)
    delays = {delay.queue for delay in facts.delays()} | {task.queue for task in facts.tasks if task.retries_itself}
    for queue in facts.queues:
        if quorum and not facts.delays_natively(queue.name) and not delays.isdisjoint({"", queue.name}):
            kind = queue.exchange_type
            yield Finding(f"{queue.name!r} is bound to the {kind} exchange {queue.exchange!r}, and tasks are delayed")
    if quorum:
        facts.source.require_all()


@rule(
    "RPT209",
    "Delayed tasks are sent before the delay queues exist",
    WARNING,
    brokers=RABBITMQ,
    live=True,
    fix="celery -A shop worker  # once, before any process calls apply_async(countdown=...)",
    evidence=(
        "celery/worker/consumer/delayed_delivery.py",
        "measured: a delayed task sent before that was lost, with a 404 on the next publish",
    ),
)
def delay_queues_missing(facts: Facts) -> Iterator[Finding]:
    """Only a worker declares the exchanges and queues in which RabbitMQ delays ETA tasks.

    Until the first worker has started on this virtual host, a delayed task or a retry is lost. A process that repot
    configured declares them itself.
    """
    own = all(queue.delayed is None for queue in facts.queues)
    if own and facts.delays_natively() and _DELAYED_ENTRY not in known(facts.rabbitmq.exchanges):
        yield Finding(f"the exchange {_DELAYED_ENTRY!r} does not exist on this virtual host")


@rule(
    "RPT210",
    "Delayed tasks do not arrive",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="celery -A shop worker -Q {queue}  # a worker of this queue binds it on its start",
    evidence="kombu/transport/native_delayed_delivery.py: bind_queue_to_native_delayed_delivery_exchange",
)
def delayed_tasks_stranded(facts: Facts) -> Iterator[Finding]:
    """A delayed task leaves the delay queues through a binding for its own queue.

    Without the binding it stays there, where no message count includes it, or is dropped.
    """
    exchanges = known(facts.rabbitmq.exchanges)
    if not facts.delays_natively() or _DELAYED_EXIT not in exchanges:
        return
    bindings = known(facts.rabbitmq.bindings)
    arrived_at = {binding.destination for binding in bindings if binding.source == _DELAYED_EXIT}
    for queue in facts.queues:
        if not facts.delays_natively(queue.name):
            continue
        if queue.exchange not in arrived_at and queue.name not in arrived_at:
            yield Finding(
                f"{queue.name!r} is not bound to {_DELAYED_EXIT!r}",
                fix=f"celery -A {facts.app} worker -Q {queue.name}  # a worker of this queue binds it on its start",
            )
    stuck = [
        one
        for one in known(facts.rabbitmq.queues).values()
        if one.name.startswith("celery_delayed") and one.held_for_dead_letter
    ]
    for one in stuck:
        yield Finding(f"{one.held_for_dead_letter} delayed messages in {one.name!r} have no route")


@rule(
    "RPT211",
    "Acknowledgements are switched off on Redis",
    ERROR,
    brokers=REDIS,
    fix="app.conf.broker_transport_options.pop('ack_emulation')",
    evidence="kombu/transport/redis.py: Channel.ack_emulation",
)
def ack_emulation_off(facts: Facts) -> Iterator[Finding]:
    """Without `ack_emulation` kombu keeps no copy of a message that it delivers to a worker.

    Every message that a worker holds when it ends is lost, with late acks as well.
    """
    if facts.option("ack_emulation") is False:
        yield Finding("is False", setting="broker_transport_options.ack_emulation")


@rule(
    "RPT212",
    "Results never expire",
    WARNING,
    fix="app.conf.result_expires = 86400  # seconds",
    evidence=(
        "https://docs.celeryq.dev/en/stable/userguide/configuration.html",
        "celery/backends/redis.py: RedisBackend.set",
    ),
)
def results_never_expire(facts: Facts) -> Iterator[Finding]:
    """Every result stays in Redis until its memory is full.

    Then every write fails: results and, on the same server, the messages of tasks.
    """
    kept = any(capabilities_of(server.kind).keeps_results_in_memory for server in facts.result_servers)
    if kept and not facts.is_default("result_expires") and not facts.number("result_expires"):
        yield Finding(f"is {facts['result_expires']!r}", setting="result_expires")


@rule(
    "RPT213",
    "Results expire while other tasks wait for them",
    WARNING,
    fix="app.conf.result_expires = 86400  # seconds; above the longest chain, chord or wait",
    evidence="celery/backends/redis.py: RedisBackend.on_chord_part_return",
)
def results_expire_while_awaited(facts: Facts) -> Iterator[Finding]:
    """A chord counts its parts with keys that expire like results, and `get` reads one result.

    If they expire first, the chord never calls back, and the wait never ends.
    """
    expires = facts.number("result_expires")
    needed = facts.longest_run_s + facts.longest_countdown_s()
    if facts.keeps_results and expires and expires < needed:
        yield Finding(f"results expire after {expires:g} s, tasks take up to {needed:g} s", setting="result_expires")
    facts.source.require_all()


@rule(
    "RPT214",
    "Classic delay queues drop messages without a route",
    WARNING,
    brokers=RABBITMQ,
    fix="app.conf.broker_native_delayed_delivery_queue_type = 'quorum'  # existing ones keep their type",
    evidence="measured on 4.0.5 and 4.3.6: without a binding quorum delay queues keep a message, classic ones drop it",
)
def classic_delay_queues(facts: Facts) -> Iterator[Finding]:
    """A classic delay queue drops a task whose own queue is not bound at the moment when the task is due.

    A quorum delay queue keeps it and delivers it when the binding exists again.
    """
    if facts.delays_natively() and facts["broker_native_delayed_delivery_queue_type"] == "classic":
        yield Finding("is 'classic'", setting="broker_native_delayed_delivery_queue_type")


@rule(
    "RPT215",
    "Messages or queues do not survive a restart of RabbitMQ",
    ERROR,
    brokers=RABBITMQ,
    fix="""
    app.conf.task_default_delivery_mode = 2  # persistent
    Queue('celery', durable=True)
    """,
    evidence="https://www.rabbitmq.com/docs/queues#durability",
)
def not_durable(facts: Facts) -> Iterator[Finding]:
    """A transient message, or one in a queue that is not durable, is lost when RabbitMQ restarts.

    Both are slightly faster, and neither is meant for work that matters.
    """
    if facts["task_default_delivery_mode"] in (1, "1", "transient"):
        yield Finding("messages are transient", setting="task_default_delivery_mode")
    for queue in facts.queues:
        if not queue.durable:
            yield Finding(
                f"the queue {queue.name!r} is not durable", "task_queues", fix=f"Queue({queue.name!r}, durable=True)"
            )
        if not queue.exchange_durable:
            yield Finding(
                f"the exchange {queue.exchange!r} is not durable",
                "task_queues",
                fix=f"Exchange({queue.exchange!r}, durable=True)",
            )


@rule(
    "RPT216",
    "A task queue expires",
    ERROR,
    fix="Queue('shop')  # without expires, x-expires",
    evidence=(
        "https://www.rabbitmq.com/docs/ttl#queue-ttl",
        "measured on Redis: the list was gone, with a task in it",
    ),
)
def queue_expires(facts: Facts) -> Iterator[Finding]:
    """Both brokers delete a queue with `x-expires` and the tasks in it after that time without a consumer.

    An outage of the workers, or a long move, can last that long.
    """
    for queue in facts.queues:
        if queue.arguments.get("x-expires"):
            yield Finding(f"{queue.name!r} is deleted after {queue.arguments['x-expires']} ms", setting="task_queues")


@rule(
    "RPT217",
    "Revocations are lost when a worker restarts",
    INFO,
    fix="celery -A shop worker --statedb /var/lib/shop/worker.state  # a file of its own for each worker",
    evidence="https://docs.celeryq.dev/en/stable/userguide/workers.html",
)
def revocations_forgotten(facts: Facts) -> Iterator[Finding]:
    """Workers keep the ids of revoked tasks in memory.

    If all of them restart, a task that was revoked while it waited runs.
    """
    if not any(facts.source.each(facts.source.revokes)):
        return
    for worker in facts.workers():
        if not worker.has("statedb"):
            yield Finding("tasks are revoked, and a worker starts without --statedb", location=worker.location)


@rule(
    "RPT218",
    "A periodic task is treated as a duplicate of its last run",
    ERROR,
    fix="@app.task(base=IdempotentTask, idempotency=Policy(key=TASK_ID))  # each message is new work",
    evidence="docs/idempotency.md: Choosing the key",
)
def periodic_task_is_the_same_each_time(facts: Facts) -> Iterator[Finding]:
    """A guarded task with the arguments of an earlier run gets that run's result and does not run.

    A schedule sends the same arguments each time, so the task runs again only after WORKER_IDEMPOTENCY_RETENTION (7
    days), when the record of its first run expires.
    """
    same = {task.name for task in facts.tasks if task.keyed_by_arguments}
    for name, entry in (facts["beat_schedule"] or {}).items():
        task = entry.get("task") if isinstance(entry, Mapping) else getattr(entry, "task", None)
        if task in same:
            yield Finding(f"{name!r} in beat_schedule sends it with the same arguments each time", task=task)


@rule(
    "RPT219",
    "A message is lost if its worker dies while it takes it",
    WARNING,
    brokers=REDIS,
    fix="""
    import repot
    repot.configure(app)  # in every worker; WORKER_REDIS_CLAIM=atomic is the default
    """,
    evidence=(
        "kombu/transport/redis.py: Channel._brpop_read, QoS.append",
        "docs/redis-claims.md",
    ),
)
def taken_by_brpop(facts: Facts) -> Iterator[Finding]:
    """A stock worker pops a message with BRPOP and records it in `unacked` afterwards.

    If the worker or its link dies in between, the message is in neither place, and late acks do not help. repot's
    workers pop and record in one step.
    """
    if facts.is_configured and facts.option("claim") is None:
        yield Finding(
            "workers take messages with BRPOP: the options were replaced after repot.configure(app)",
            setting="broker_transport_options.claim",
            fix="app.conf.broker_transport_options |= {...}  # adds to those that repot.configure(app) has set",
        )
    elif not facts.claims_messages:
        how = facts.option("claim")
        yield Finding(
            "workers take messages with BRPOP" + (f": claim is {how!r}" if how else ""),
            setting="broker_transport_options.claim",
            fix="WORKER_REDIS_CLAIM=atomic" if how else "" if facts.has_version("celery", 5, 4) else _WITH_REPOT,
        )


@rule(
    "RPT220",
    "A task is sent before its transaction is committed",
    WARNING,
    fix="""
    outbox.send(session, charge, (order.id,))  # from repot import outbox: leaves with the commit, whatever dies
    charge.delay_on_commit(order.id)  # Django; it is not sent if the process dies after the commit
    """,
    evidence=("docs/outbox.md", "https://docs.celeryq.dev/en/stable/userguide/tasks.html#database-transactions"),
)
def sent_before_the_commit(facts: Facts) -> Iterator[Finding]:
    """A worker may take the message before the commit, and looks for a row that is not there yet.

    If the transaction is rolled back, the task runs for rows that never were. A task that is sent after the commit is
    lost if the process dies in between; one that is sent with the commit is not.
    """
    for sent in facts.source.each(facts.source.early_sends):
        yield Finding(f"{sent.name} is sent {sent.where}", location=sent.location)


@rule(
    "RPT221",
    "Messages wait where the application does not look",
    WARNING,
    live=True,
    fix="""
    celery -A shop worker -Q celery,forgotten  # or, if they are another application's, leave them
    """,
    evidence="docs/move-a-backlog.md#which-queues",
)
def waits_unread(facts: Facts) -> Iterator[Finding]:
    """A queue that no task is sent to and no start command reads keeps its messages, and a move leaves them behind.

    So does a list on Redis under another prefix, separator or step of priority than the transport options state.
    """
    found = known(facts.broker_queues)
    if found is None:
        return
    stated = (*queues_in_routes(facts["task_routes"]), *queues_in_schedule(facts["beat_schedule"]))
    names = {queue.name for queue in facts.queues} | {task.queue for task in facts.tasks} | {name for name, _ in stated}
    names |= {
        name for worker in facts.deployment.workers for name in str(worker.options.get("queues") or "").split(",")
    }
    for one in found.queues.values():
        if one.holds_messages and not one.is_certain and one.name not in names:
            yield Finding(f"{one.name!r} holds {one.counts}, and neither the application nor a start command names it")
    for beside in found.unreached(names, on_purpose=False):
        yield Finding(
            f"{beside.text}, which the transport options do not reach",
            setting="broker_transport_options",
            fix=f"app.conf.broker_transport_options |= {dict(beside.options)!r}",
        )


@rule(
    "RPT222",
    "A second retry stays in a queue of its delay",
    ERROR,
    brokers=RABBITMQ,
    versions="Celery 5.5 to 5.6.2 on RabbitMQ before 4.0",
    live=True,
    fix="""
    pip install 'celery>=5.6.3'  # or, from Celery 5.4 on: repot.configure(app) in each worker; or RabbitMQ 4
    """,
    evidence=(
        "https://github.com/celery/celery/issues/9867",
        "celery/app/task.py: Context.as_execution_options, which sends request.headers once more",
        "measured with Celery 5.5.3: a retry after 3 s stays there after one of 1 or 3 s on RabbitMQ 3.10.8",
        "measured: the same two retries after 3 s ran on RabbitMQ 4.0.5",
        "measured on 3.10.8: the first retry after 5 s stays there if the task was sent with 5 s; 1, 2, 4, 8 s do not",
    ),
)
def retry_stays_in_its_delay(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ delays a message in a queue for each bit of its seconds: three seconds are two and then one.

    Celery sends a retry with RabbitMQ's note of the queues of the delays before it, `x-death`. One that would come to
    such a queue from another one looks like a message in a circle. RabbitMQ keeps it there for ever, and the task is
    never run again; its state stays RETRY.
    """
    if facts.is_configured or facts.has_version("celery", 5, 6, 3) or not facts.is_before_rabbitmq_4:
        return
    for task in facts.tasks:
        delay = _returning_delay(task)
        if delay and facts.delays_natively(task.queue):
            yield Finding(
                f"a retry after {delay} s comes to a queue that it was in before, and stays there", task=task.name
            )


def _returning_delay(task: TaskFacts) -> int:
    """Return a delay after which a message comes back to a queue of its delays; 0 if none does.

    It is published to the queue of the highest bit, and only from there dead-lettered to those of the others.
    """
    been = 0
    for delays in task.delays:
        for delay in delays:
            if been & (delay ^ (1 << delay.bit_length() >> 1)):
                return delay
        been |= reduce(or_, delays, 0)
    return 0


def _store_failures(key: str) -> str:
    """Return the rule's own lines, with the setting of a Celery before 5.7; empty for the others."""
    return failure_leaves_no_trace.fix.replace("task_acks_on_failure", key) if key == _ACKS_BEFORE_5_7 else ""


def _has_dead_letters(facts: Facts, queue: QueueFacts) -> bool:
    """Return whether a queue's arguments or its known policies name a dead-letter target."""
    return queue.has_dead_letter_target or bool(facts.set_by_known_policy(queue, "dead-letter-exchange"))


def _with_dead_letters(queue: QueueFacts, vhost: str) -> str:
    target = f"'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': '{queue.name}.dead'"
    return f"""# first, for RabbitMQ drops a dead letter whose queue does not exist:
{declare_queue(f"{queue.name}.dead", vhost)}
Queue({queue.name!r}, queue_arguments={{'x-queue-type': 'quorum', {target}}})
# or for an existing queue, in its only policy:
{dead_letter_policy(queue.name, vhost)}"""
