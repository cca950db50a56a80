"""RPT2xx: what loses a task, or the trace of it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import TYPE_CHECKING

from repot.brokers.facts import known
from repot.config.endpoints import BrokerKind
from repot.doctor.rule import ERROR, INFO, RABBITMQ, REDIS, WARNING, Finding, rule
from repot.doctor.rules.fixes import QUORUM_BEHIND_TOPIC, dead_letter_policy, setting_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts, QueueFacts

#: Where kombu sends delayed tasks, and where they arrive (`kombu/transport/native_delayed_delivery.py`).
_DELAYED_ENTRY = "celery_delayed_27"
_DELAYED_EXIT = "celery_delayed_delivery"

#: RabbitMQ 4's `max_message_size` unless somebody raised it.
_LARGEST_MESSAGE_BYTES = 16 << 20


@rule(
    "RPT201",
    "A late-ack task whose process is killed is lost",
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
    """When the kernel kills a task's process for its memory, Celery acknowledges the message although it is late-ack.

    The task is recorded as failed and never runs again.
    """
    for task in facts.late_tasks():
        if not task.retry_on_worker_lost and not task.reject_on_worker_lost:
            yield Finding(
                "neither retries nor is put back when its process is killed", "task_retry_on_worker_lost", task.name
            )


@rule(
    "RPT202",
    "A failed task leaves no trace",
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

    Where its failure is not stored either, only a log line says that it ever was.
    """
    dead_letters = facts.kind is BrokerKind.RABBITMQ
    for task in facts.late_tasks():
        queue = facts.queue_of(task)
        kept = dead_letters and not task.acks_on_failure and queue is not None and _has_dead_letters(facts, queue)
        stored = facts.keeps_results and (not task.ignore_result or task.store_errors)
        if not kept and not stored:
            what = "is acknowledged when it fails" if task.acks_on_failure else "is rejected when it fails, and dropped"
            yield Finding(f"{what}; its failure is not stored", "task_acks_on_failure", task.name)


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
    """Whatever ends the worker while such a task runs, a deployment, a full memory, a power cut, loses it.

    The broker has forgotten it, and nobody runs it again.
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

    A link that drops, a broker that closes or a process that exits at once loses it, and nobody is told.
    """
    if not facts.option("confirm_publish"):
        yield Finding("is not set", setting="broker_transport_options.confirm_publish")


@rule(
    "RPT205",
    "A quorum queue without a dead-letter target",
    ERROR,
    brokers=RABBITMQ,
    versions="RabbitMQ 4.0 and newer",
    fix="""
    Queue('celery', queue_arguments={'x-queue-type': 'quorum',
          'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': 'celery.dead'})
    # or for a queue that exists, in its one policy:
    # rabbitmqctl set_policy celery '^celery$' \\
    #   '{"dead-letter-exchange": "", "dead-letter-routing-key": "celery.dead"}' --apply-to queues
    """,
    evidence=(
        "https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling",
        "measured on 4.0.5 and 4.3.6: gone after the 21st delivery",
    ),
)
def quorum_without_dead_letters(facts: Facts) -> Iterator[Finding]:
    """A quorum queue drops a message after its delivery limit, 20 unless set; a restart of the worker counts, too.

    Without a dead-letter target nothing of it remains.
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
            fix=_with_dead_letters(queue),
        )


@rule(
    "RPT206",
    "Reject(requeue=False) deletes the task on Redis",
    ERROR,
    brokers=REDIS,
    fix="raise  # and keep the failure: a result backend, or a dead-letter queue of your own",
    evidence="kombu/transport/redis.py: QoS.reject",
)
def reject_deletes_on_redis(facts: Facts) -> Iterator[Finding]:
    """On RabbitMQ a rejected message goes to the queue's dead letters.

    Redis has none: kombu deletes it.
    """
    for place in facts.source.rejects:
        yield Finding("Reject without requeue", place=place)


@rule(
    "RPT207",
    "Messages that RabbitMQ 4 refuses",
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
    """RabbitMQ 4 takes messages up to 16 MiB; before it was 128 MiB, and Redis has no such limit.

    A larger one closes the channel, and without confirms it vanishes in silence.
    """
    if facts.source_live is None or facts.is_before_rabbitmq_4:
        return
    measured = getattr(facts.source_live, "largest_message_bytes", 0)
    largest = known(measured)
    if largest > _LARGEST_MESSAGE_BYTES:
        yield Finding(f"a message of {largest} bytes waits in Redis; the limit is {_LARGEST_MESSAGE_BYTES}")


@rule(
    "RPT208",
    "Quorum queues behind a direct exchange delay nothing",
    WARNING,
    brokers=RABBITMQ,
    fix=QUORUM_BEHIND_TOPIC,
    evidence=("kombu/transport/native_delayed_delivery.py", "celery/worker/consumer/delayed_delivery.py"),
)
def no_native_delay(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ delays ETA tasks of quorum queues itself, but behind a direct exchange the worker holds them.

    They block the prefetch on RabbitMQ 4, count a delivery at each restart and run into the consumer timeout.
    """
    quorum = any(queue.is_quorum for queue in facts.queues)
    delays = {delay.queue for delay in facts.delays()} | {task.queue for task in facts.tasks if task.retries_itself}
    for queue in facts.queues:
        if quorum and not facts.delays_natively(queue.name) and not delays.isdisjoint({"", queue.name}):
            kind = queue.exchange_type
            yield Finding(f"{queue.name!r} is bound to the {kind} exchange {queue.exchange!r}, and tasks are delayed")


@rule(
    "RPT209",
    "Delayed tasks are sent before a worker made the delay queues",
    WARNING,
    brokers=RABBITMQ,
    live=True,
    fix="celery -A shop worker  # once, before any process calls apply_async(countdown=...)",
    evidence=(
        "celery/worker/consumer/delayed_delivery.py",
        "measured: a delayed task sent before was lost, with a 404 on the next publish",
    ),
)
def delay_queues_missing(facts: Facts) -> Iterator[Finding]:
    """Only a worker declares the exchanges and queues in which RabbitMQ delays ETA tasks.

    Until the first one has started on this virtual host, a delayed task or a retry is lost. A process that repot
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
    """A delayed task leaves the delay queues by a binding for its own queue.

    Without it the task stays there, where no count of messages shows it, or is dropped.
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
        yield Finding(f"{one.held_for_dead_letter} delayed messages in {one.name!r} find no way on")


@rule(
    "RPT211",
    "Acknowledgements are switched off on Redis",
    ERROR,
    brokers=REDIS,
    fix="app.conf.broker_transport_options.pop('ack_emulation')",
    evidence="kombu/transport/redis.py: Channel.ack_emulation",
)
def ack_emulation_off(facts: Facts) -> Iterator[Finding]:
    """Without `ack_emulation` kombu keeps no copy of a message it hands to a worker.

    Whatever a worker holds when it ends is lost, late acks or not.
    """
    if facts.option("ack_emulation") is False:
        yield Finding("is False", setting="broker_transport_options.ack_emulation")


@rule(
    "RPT212",
    "Results are kept for ever",
    WARNING,
    fix="app.conf.result_expires = 86400  # seconds",
    evidence=(
        "https://docs.celeryq.dev/en/stable/userguide/configuration.html",
        "celery/backends/redis.py: RedisBackend.set",
    ),
)
def results_never_expire(facts: Facts) -> Iterator[Finding]:
    """Every result stays in Redis until its memory is full.

    Then every write fails: results, and on the same server the tasks' own messages.
    """
    kept = any(server.kind is BrokerKind.REDIS for server in facts.result_servers)
    if kept and not facts.is_default("result_expires") and not facts.number("result_expires"):
        yield Finding(f"is {facts['result_expires']!r}", setting="result_expires")


@rule(
    "RPT213",
    "Results expire while the work that waits for them runs",
    WARNING,
    fix="app.conf.result_expires = 86400  # seconds; above the longest chain, chord or wait",
    evidence="celery/backends/redis.py: RedisBackend.on_chord_part_return",
)
def results_expire_while_awaited(facts: Facts) -> Iterator[Finding]:
    """A chord counts its parts with keys that expire like results, and `get` reads one result.

    When they are gone first, the chord never calls back, and the wait never ends.
    """
    expires = facts.number("result_expires")
    needed = facts.longest_run_s + facts.longest_countdown_s()
    if facts.keeps_results and expires and expires < needed:
        yield Finding(f"results expire after {expires:g} s, tasks take up to {needed:g} s", setting="result_expires")


@rule(
    "RPT214",
    "Classic delay queues drop what finds no queue",
    WARNING,
    brokers=RABBITMQ,
    fix="app.conf.broker_native_delayed_delivery_queue_type = 'quorum'  # existing ones keep their type",
    evidence="measured on 4.0.5 and 4.3.6: without a binding quorum delay queues keep a message, classic ones drop it",
)
def classic_delay_queues(facts: Facts) -> Iterator[Finding]:
    """A delayed task whose queue is not bound at the moment it is due is dropped by a classic delay queue.

    A quorum delay queue keeps it and delivers it when the binding is back.
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
    """A transient message, or one in a queue that is not durable, is gone when RabbitMQ restarts.

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
    "A task queue that expires",
    ERROR,
    fix="Queue('shop')  # without expires, x-expires",
    evidence=(
        "https://www.rabbitmq.com/docs/ttl#queue-ttl",
        "measured on Redis: the list was gone, with a task in it",
    ),
)
def queue_expires(facts: Facts) -> Iterator[Finding]:
    """Both brokers delete a queue with `x-expires` when nobody has used it for so long, and the tasks in it.

    An outage of the workers, or a move that takes a while, is such a time.
    """
    for queue in facts.queues:
        if queue.arguments.get("x-expires"):
            yield Finding(f"{queue.name!r} is deleted after {queue.arguments['x-expires']} ms", setting="task_queues")


@rule(
    "RPT217",
    "Revocations are forgotten with the worker",
    INFO,
    fix="celery -A shop worker --statedb /var/lib/shop/worker.state  # a file of its own for each worker",
    evidence="https://docs.celeryq.dev/en/stable/userguide/workers.html",
)
def revocations_forgotten(facts: Facts) -> Iterator[Finding]:
    """Workers keep the ids of revoked tasks in memory.

    When all of them restart, a task that was revoked while it waited runs after all.
    """
    if not facts.source.revokes:
        return
    for worker in facts.workers():
        if not worker.has("statedb"):
            yield Finding("tasks are revoked, and a worker starts without --statedb", place=worker.place)


@rule(
    "RPT218",
    "A periodic task that runs once a week",
    ERROR,
    fix="@app.task(base=IdempotentTask, idempotency=Policy(key=TASK_ID))  # each sending is work of its own",
    evidence="docs/idempotency.md: Choosing the key",
)
def periodic_task_is_the_same_each_time(facts: Facts) -> Iterator[Finding]:
    """A guarded task whose arguments are those of an earlier run gets that run's result and does not run.

    A schedule sends the same arguments each time, so that the task runs again only
    when its first run is forgotten, after WORKER_LEASE_KEPT: 7 days.
    """
    same = {task.name for task in facts.tasks if task.same_if_equal}
    for name, entry in (facts["beat_schedule"] or {}).items():
        task = entry.get("task") if isinstance(entry, Mapping) else getattr(entry, "task", None)
        if task in same:
            yield Finding(f"{name!r} in beat_schedule sends it with the same arguments each time", task=task)


def _has_dead_letters(facts: Facts, queue: QueueFacts) -> bool:
    """Whether a queue's arguments, or what is known of its policies, say where dead letters go."""
    return queue.has_dead_letter_target or bool(facts.set_by_known_policy(queue, "dead-letter-exchange"))


def _with_dead_letters(queue: QueueFacts) -> str:
    target = f"'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': '{queue.name}.dead'"
    return f"""Queue({queue.name!r}, queue_arguments={{'x-queue-type': 'quorum', {target}}})
# or for a queue that exists, in its one policy:
{dead_letter_policy(queue.name)}"""
