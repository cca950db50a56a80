"""RPT6xx, migration: settings and calls that change their meaning or break on another broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.facts import known
from repot.doctor.rule import ERROR, INFO, RABBITMQ, WARNING, Finding, rule
from repot.doctor.rules.fixes import dead_letter_policy, declare_queue, renamed, setting_of, vhost_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers.facts import DeclaredQueue
    from repot.doctor.facts import Facts, QueueFacts

#: The strategy of kombu's that serves queues as RabbitMQ does.
_IN_TURN = "round_robin"
_DEAD_LETTERS = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy")
#: Arguments of a queue that RabbitMQ compares on each declaration; another value is 406. Measured on 3.10.8 and 4.3.6.
_COMPARED = (
    *_DEAD_LETTERS,
    "x-delivery-limit",
    "x-expires",
    "x-max-in-memory-length",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-message-ttl",
    "x-overflow",
    "x-queue-leader-locator",
    "x-queue-mode",
    "x-queue-version",
    "x-quorum-initial-group-size",
    "x-single-active-consumer",
)
#: The release from which RabbitMQ compares this argument; earlier ones ignore it.
_CONSUMER_TIMEOUT, _COMPARED_SINCE = "x-consumer-timeout", (4, 3)


@rule(
    "RPT601",
    "Priorities are inverted on the other broker",
    ERROR,
    fix="task.apply_async(priority=9)  # instead of 0 on Redis; 0 is first there, 9 on RabbitMQ; default 0 on both",
    evidence=(
        "kombu/transport/redis.py: Channel._q_for_pri",
        "https://docs.celeryq.dev/en/stable/userguide/routing.html",
    ),
)
def priorities_turn_round(facts: Facts) -> Iterator[Finding]:
    """On Redis 0 is the highest priority, on RabbitMQ the lowest, and Celery does not convert them.

    After the move the urgent tasks wait behind all others.
    """
    if not _changes_broker(facts):
        return
    if facts["task_default_priority"] is not None:
        yield Finding(f"is {facts['task_default_priority']}", setting="task_default_priority")
    for task in facts.tasks:
        if task.priority is not None and task.priority != facts["task_default_priority"]:
            yield Finding(f"has the priority {task.priority}", task=task.name)
    for call in facts.source.each(facts.source.calls):
        if call.priority is not None:
            yield Finding(f"sends with the priority {call.priority}", location=call.location)


@rule(
    "RPT602",
    "RabbitMQ ignores the priorities",
    WARNING,
    brokers=RABBITMQ,
    fix="Queue('celery', max_priority=10)  # a classic queue, and a new one: the argument cannot be added later",
    evidence="https://www.rabbitmq.com/docs/priority",
)
def priorities_ignored(facts: Facts) -> Iterator[Finding]:
    """A classic queue supports priorities only if it was declared with `x-max-priority`.

    Without it, urgent tasks wait in line like all others.
    """
    plain = {queue.name for queue in facts.queues if not queue.is_quorum and "x-max-priority" not in queue.arguments}
    for task in facts.tasks:
        priority = task.priority or max((call.priority or 0 for call in task.calls), default=0)
        if priority and task.queue in plain:
            yield Finding(f"has the priority {priority}, but {task.queue!r} has no x-max-priority", task=task.name)


@rule(
    "RPT603",
    "Two beats would send the schedule",
    WARNING,
    fix="""
    # stop the source's beat before the target's starts; one beat in all
    celery -A shop beat  # a process of its own, not celery worker -B in each worker
    """,
    evidence="https://docs.celeryq.dev/en/stable/userguide/periodic-tasks.html",
)
def two_beats(facts: Facts) -> Iterator[Finding]:
    """Each beat process sends the whole schedule, and Celery does not coordinate two of them.

    If both sides of a move run one, every periodic task runs twice.
    """
    embedded = [worker for worker in facts.deployment.workers if worker.has("beat")]
    if _changes_broker(facts) and (facts["beat_schedule"] or facts.deployment.beats):
        number = len(facts["beat_schedule"] or {})
        yield Finding(f"{number} periodic tasks, and a move runs workers on both sides", setting="beat_schedule")
    for worker in embedded:
        yield Finding("a worker starts with -B: a second one sends the schedule again", location=worker.location)


@rule(
    "RPT604",
    "A queue or exchange exists with other properties",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="""
    # a queue cannot change its type and arguments: rename it where its name is set, for example
    WORKER_QUEUE_NAMES=celery,reports.v2
    # or declare it as it exists, and set the missing arguments by a policy
    """,
    evidence=("https://www.rabbitmq.com/docs/queues#property-equivalence", "measured: 406, exit 1 after about 3 s"),
)
def declared_differently(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ refuses to declare an existing queue or exchange with another type or other arguments.

    The worker exits with 406 on its start. One such case: a name is added to WORKER_QUEUE_NAMES although the queue
    was made without repot's arguments. Its type and its dead-letter target were decided when it was made.
    """
    queues, exchanges = known(facts.rabbitmq.queues), known(facts.rabbitmq.exchanges)
    for queue in facts.queues:
        found = queues.get(queue.name)
        differences = list(_differences(facts, queue, found)) if found else []
        if found and differences:
            yield Finding(
                f"{queue.name!r} {'; '.join(differences)}",
                setting=setting_of(facts, queue),
                fix=_fixes(facts, queue, found),
            )
        kind = exchanges.get(queue.exchange)
        if queue.exchange and kind and kind != queue.exchange_type:
            yield Finding(f"the exchange {queue.exchange!r} exists as {kind}, but is declared as {queue.exchange_type}")


def _differences(facts: Facts, queue: QueueFacts, declared: DeclaredQueue) -> Iterator[str]:
    """Yield why RabbitMQ refuses this declaration of an existing queue."""
    if declared.kind != queue.kind:
        # without a type, the virtual host's default gives it the same type again
        if "x-queue-type" in queue.arguments or facts.rabbitmq.default_queue_type != declared.kind:
            yield f"exists as a {declared.kind} queue, but is declared as {queue.kind}"
        return
    if declared.durable != queue.durable:
        yield "exists as durable, but is declared as transient" if declared.durable else "exists as transient"
    late = (_CONSUMER_TIMEOUT,) if facts.rabbitmq.release >= _COMPARED_SINCE else ()
    for name in (*_COMPARED, *late):
        there, here = declared.arguments.get(name), queue.arguments.get(name)
        if there != here:
            was = f"without {name}" if there is None else f"with {name} {there!r}"
            yield f"exists {was}, but is declared " + ("without" if here is None else f"with {here!r}")


def _fixes(facts: Facts, queue: QueueFacts, declared: DeclaredQueue) -> str:
    kept = {"x-queue-type": declared.kind} | dict(declared.arguments)
    lines = [
        "# a new name; a worker started with -Q empties the old queue",
        renamed(facts, queue),
        "# or the queue as it exists, declared by the application itself",
        f"app.conf.task_queues = [Queue({queue.name!r}, queue_arguments={kept!r}), ...]",
    ]
    if not any(name in declared.arguments for name in _DEAD_LETTERS):
        lines += [
            "# with its dead-letter target, which has to exist, in its only policy",
            declare_queue(f"{queue.name}.dead", vhost_of(facts)),
            dead_letter_policy(queue.name, vhost_of(facts)),
        ]
    return "\n".join(lines)


@rule(
    "RPT605",
    "A bridge worker does not answer pings",
    ERROR,
    fix="# probe a bridge worker by its own heartbeat, not by celery inspect ping",
    evidence=(
        "celery/app/control.py: Control",
        "measured: with broker_read_url and broker_write_url apart, ping returns nothing",
    ),
)
def ping_of_a_bridge(facts: Facts) -> Iterator[Finding]:
    """Control messages go to the broker that is written to, and a bridge worker listens on the one it reads from.

    Every ping fails, and a probe that uses it restarts a healthy worker.
    """
    if facts.is_bridge:
        for location in facts.deployment.ping_probes:
            yield Finding("a probe pings a worker that reads from one broker and writes to another", location=location)


@rule(
    "RPT606",
    "Results stay on the old broker",
    WARNING,
    fix="app.conf.result_backend = 'redis://localhost:6379/1'  # a store that does not move",
    evidence="celery/backends/rpc.py: RPCBackend",
)
def results_on_the_broker(facts: Facts) -> Iterator[Finding]:
    """`rpc://` sends each result to a queue of the requesting process, on the broker itself.

    A process that waits on one broker for a task that ran on the other waits for ever.
    """
    backend = str(facts["result_backend"] or "")
    if _changes_broker(facts) and backend.startswith(("rpc", "amqp")):
        yield Finding(f"is {backend.partition(':')[0]}", setting="result_backend")


@rule(
    "RPT607",
    "The order of the queues does not move",
    WARNING,
    fix="celery -A shop worker -Q urgent  # workers of its own for the queue that went first",
    evidence="kombu/transport/redis.py: Channel.queue_order_strategy, Channel._brpop_start",
)
def queue_order_stays(facts: Facts) -> Iterator[Finding]:
    """With `queue_order_strategy` a worker on Redis empties the first of its queues before it takes from the next.

    RabbitMQ serves all queues of a worker in turn. After the move a backlog in one queue delays the tasks of the
    others.
    """
    name = "queue_order_strategy"
    strategy = facts.option(name)
    if not _changes_broker(facts) or strategy in (None, _IN_TURN) or len(facts.queues) == 1:
        return
    if name not in facts.broker_options:
        yield Finding(f"is {strategy!r}, and {facts.kind.name} does not read it", _option_key(name))


@rule(
    "RPT610",
    "Names of queues lose their prefix",
    WARNING,
    fix="""
    rabbitmqctl add_vhost stage  # a virtual host for each prefix, which the path of the address names
    app.conf.broker_url = 'amqp://user:password@host:5672/stage'
    """,
    evidence="kombu/transport/redis.py: GlobalKeyPrefixMixin",
)
def prefix_stays(facts: Facts) -> Iterator[Finding]:
    """`global_keyprefix` keeps deployments apart that share one Redis. RabbitMQ knows no prefix.

    On one virtual host their queues are one, and the workers of each run the tasks of all.
    """
    name = "global_keyprefix"
    if _changes_broker(facts) and facts.option(name) and name not in facts.broker_options:
        yield Finding(f"is {facts.option(name)!r}, and {facts.kind.name} does not read it", _option_key(name))


@rule(
    "RPT611",
    "RedBeat looks for its schedule at the broker's address",
    ERROR,
    brokers=RABBITMQ,
    fix="app.conf.redbeat_redis_url = 'redis://localhost:6379/0'  # the Redis that has the schedule today; keep it",
    evidence=(
        "redbeat/schedulers.py: RedBeatConfig.__init__",
        "measured with celery-redbeat 2.4.2: ValueError: Redis URL must specify one of the following schemes, exit 1",
    ),
)
def redbeat_follows_the_broker(facts: Facts) -> Iterator[Finding]:
    """celery-redbeat keeps the schedule in a Redis. Without `redbeat_redis_url` it takes the broker's address for it.

    On RabbitMQ beat then ends when it starts, and no periodic task is sent. The schedule, with the entries that the
    application added, is still in the old broker's Redis, so that Redis has to stay.
    """
    if "redbeat_redis_url" in facts.redbeat_settings:
        return
    scheduler = str(facts["beat_scheduler"])
    started = next((one for one in facts.deployment.schedulers if _is_redbeat(one)), "")
    if _is_redbeat(scheduler):
        why = f"beat_scheduler is {scheduler!r}, and redbeat_redis_url is not set"
    elif started:
        why = f"beat starts with -S {started!r}, and redbeat_redis_url is not set"
    elif facts.redbeat_settings and facts.is_default("beat_scheduler"):
        why = f"{min(facts.redbeat_settings)} is set, and redbeat_redis_url is not"
    else:
        return
    yield Finding(why, setting="beat_scheduler")


def _is_redbeat(scheduler: str) -> bool:
    return scheduler.lower().startswith("redbeat")


def _option_key(name: str) -> str:
    return f"broker_transport_options.{name}"


@rule(
    "RPT608",
    "Messages may be larger than RabbitMQ takes",
    INFO,
    brokers=RABBITMQ,
    fix="""
    repot doctor -A shop --target amqp://... --live  # measures what waits; repot move plan looks at each message
    max_message_size = 134217728  # in rabbitmq.conf, bytes
    """,
    evidence=("https://www.rabbitmq.com/docs/configure", "tests/servers/test_move_size_limit.py"),
)
def messages_not_measured(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ refuses a message above `max_message_size`: 16 MiB from 4.0 on, 128 MiB before, unless it is set.

    Redis has no such limit. The send of a larger task fails after the move, and `repot move` leaves its message on the
    source.
    """
    # RPT207 judges what was measured
    if facts.source_live is None and facts.moved_from is not None and facts.moved_from is not facts.kind:
        yield Finding("the size of messages is not known, and RabbitMQ limits it")


@rule(
    "RPT609",
    "A batch has no time limit, and RabbitMQ has one",
    WARNING,
    brokers=RABBITMQ,
    versions="all queues up to RabbitMQ 4.2, quorum queues only from 4.3",
    fix="""
    [tool.repot.doctor]
    longest-run = 600  # what you know of the longest batch, in seconds; RPT113 judges it
    consumer-timeout = 7200  # as in rabbitmq.conf
    """,
    evidence=("https://celery-batches.readthedocs.io", "celery_batches/__init__.py: Batches.flush"),
)
def batch_without_limit(facts: Facts) -> Iterator[Finding]:
    """A message of a batch stays unacknowledged for `flush_interval`, and with late acks until the whole batch has run.

    celery-batches hands no time limit of the task to the pool. On Redis a claim is renewed for as long as that takes;
    RabbitMQ takes all messages of the batch back after its consumer timeout, by default 30 minutes.
    """
    for task in facts.tasks:
        if _changes_broker(facts) and task.batch and task.acks_late and facts.run_s(task) is None:
            yield Finding(
                f"is run in batches of {task.batch}, each of no known length, after up to {task.batch_interval_s:g} s",
                task=task.name,
            )


def _changes_broker(facts: Facts) -> bool:
    """Return whether the application is judged on another broker than today's, or bridges two."""
    kinds = {server.kind for server in (*facts.servers, *facts.write_servers)}
    return len(kinds) > 1 or (facts.moved_from is not None and facts.moved_from is not facts.kind)
