"""RPT6xx: what changes its meaning, or breaks, with the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.facts import known
from repot.doctor.rule import ERROR, RABBITMQ, WARNING, Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts

#: Arguments of a queue that RabbitMQ compares on each declaration; another value is 406.
_COMPARED = ("x-max-priority", "x-message-ttl", "x-expires", "x-dead-letter-exchange", "x-max-length")


@rule(
    "RPT601",
    "Priorities turn round with the broker",
    ERROR,
    fix="task.apply_async(priority=9)  # what was 0 on Redis; there 0 comes first, on RabbitMQ 9, and none given is 0",
    evidence=(
        "kombu/transport/redis.py: Channel._q_for_pri",
        "https://docs.celeryq.dev/en/stable/userguide/routing.html",
    ),
)
def priorities_turn_round(facts: Facts) -> Iterator[Finding]:
    """On Redis 0 is the highest priority, on RabbitMQ the lowest, and Celery translates nothing.

    After the move the urgent tasks wait behind all others.
    """
    if not _changes_broker(facts):
        return
    if facts["task_default_priority"] is not None:
        yield Finding(f"is {facts['task_default_priority']}", setting="task_default_priority")
    for task in facts.tasks:
        if task.priority is not None and task.priority != facts["task_default_priority"]:
            yield Finding(f"has the priority {task.priority}", task=task.name)
    for call in facts.source.calls:
        if call.priority is not None:
            yield Finding(f"sends with the priority {call.priority}", place=call.place)


@rule(
    "RPT602",
    "Priorities that RabbitMQ ignores",
    WARNING,
    brokers=RABBITMQ,
    fix="Queue('celery', max_priority=10)  # a classic queue, and a new one: the argument cannot be added later",
    evidence="https://www.rabbitmq.com/docs/priority",
)
def priorities_ignored(facts: Facts) -> Iterator[Finding]:
    """A classic queue knows priorities only when it was declared with `x-max-priority`.

    Without it urgent tasks wait in line like all others.
    """
    plain = {queue.name for queue in facts.queues if not queue.is_quorum and "x-max-priority" not in queue.arguments}
    for task in facts.tasks:
        priority = task.priority or max((call.priority or 0 for call in task.calls), default=0)
        if priority and task.queue in plain:
            yield Finding(f"has the priority {priority}, and {task.queue!r} no x-max-priority", task=task.name)


@rule(
    "RPT603",
    "A schedule that two beats would send",
    WARNING,
    fix="""
    # stop the beat of the source before the one of the target starts; one beat in all
    celery -A shop beat  # a process of its own, not celery worker -B in each worker
    """,
    evidence="https://docs.celeryq.dev/en/stable/userguide/periodic-tasks.html",
)
def two_beats(facts: Facts) -> Iterator[Finding]:
    """Each beat sends the whole schedule, and nothing in Celery tells one of another.

    While both sides of a move run one, every periodic task runs twice.
    """
    embedded = [worker for worker in facts.deployment.workers if worker.has("beat")]
    if _changes_broker(facts) and (facts["beat_schedule"] or facts.deployment.beats):
        number = len(facts["beat_schedule"] or {})
        yield Finding(f"{number} periodic tasks, and a move with workers on both sides", setting="beat_schedule")
    for worker in embedded:
        yield Finding("a worker starts with -B: a second one sends everything again", place=worker.place)


@rule(
    "RPT604",
    "A queue or exchange exists otherwise than declared",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="app.conf.task_default_queue = 'celery.v2'  # a new name or a new virtual host; a queue cannot change its type",
    evidence=("https://www.rabbitmq.com/docs/queues#property-equivalence", "measured: 406, exit 1 after about 3 s"),
)
def declared_otherwise(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ refuses to declare a queue or exchange again with another type or other arguments.

    The worker exits with 406 on its start.
    """
    queues, exchanges = known(facts.rabbitmq.queues), known(facts.rabbitmq.exchanges)
    for queue in facts.queues:
        found = queues.get(queue.name)
        if found and found.kind != queue.kind:
            if "x-queue-type" not in queue.arguments and facts.rabbitmq.default_queue_type == found.kind:
                # the virtual host makes it of the same kind again
                continue
            yield Finding(f"{queue.name!r} is a {found.kind} queue there, and declared as {queue.kind}")
        elif found:
            for name in _COMPARED:
                there, here = found.arguments.get(name), queue.arguments.get(name)
                if there != here:
                    yield Finding(f"{queue.name!r} has {name} {there!r} there, and is declared with {here!r}")
        kind = exchanges.get(queue.exchange)
        if queue.exchange and kind and kind != queue.exchange_type:
            yield Finding(f"the exchange {queue.exchange!r} is {kind} there, and declared as {queue.exchange_type}")


@rule(
    "RPT605",
    "A ping that a bridge worker never hears",
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
        for place in facts.deployment.ping_probes:
            yield Finding("a probe pings a worker that reads from one broker and writes to another", place=place)


@rule(
    "RPT606",
    "Results that stay on the old broker",
    WARNING,
    fix="app.conf.result_backend = 'redis://localhost:6379/1'  # a store of its own, which does not move",
    evidence="celery/backends/rpc.py: RPCBackend",
)
def results_on_the_broker(facts: Facts) -> Iterator[Finding]:
    """`rpc://` sends each result to a queue of the process that asked, on the broker itself.

    Whoever waits on one broker for a task that ran on the other waits for ever.
    """
    backend = str(facts["result_backend"] or "")
    if _changes_broker(facts) and backend.startswith(("rpc", "amqp")):
        yield Finding(f"is {backend.partition(':')[0]}", setting="result_backend")


def _changes_broker(facts: Facts) -> bool:
    """Whether it is judged on another broker than it runs on, or runs between two."""
    kinds = {server.kind for server in (*facts.servers, *facts.write_servers)}
    return len(kinds) > 1 or (facts.moved_from is not None and facts.moved_from is not facts.kind)
