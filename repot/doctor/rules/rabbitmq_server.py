"""RPT8xx: how the RabbitMQ itself is set up. All of them need --live."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from repot.brokers.facts import known
from repot.doctor.rule import ERROR, RABBITMQ, WARNING, Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts

#: What a policy may cut short without anybody being told.
_SHORTENING = {
    "message-ttl": "drops tasks that wait longer than {} ms",
    "expires": "deletes the queue when nobody consumes for {} ms",
    "max-length": "drops or refuses tasks beyond {}",
    "max-length-bytes": "drops or refuses tasks beyond {} bytes",
}
#: Deprecated features whose denial stops a Celery worker, or changes what it does.
_CONCERNING = frozenset({"transient_nonexcl_queues", "global_qos", "queue_master_locator"})


@rule(
    "RPT801",
    "RabbitMQ is under an alarm",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="rabbitmq-diagnostics alarms; rabbitmq-diagnostics memory_breakdown; df -h",
    evidence=(
        "https://www.rabbitmq.com/docs/alarms",
        "measured: workers went on, pings heard nothing, publishers hung",
    ),
)
def alarms(facts: Facts) -> Iterator[Finding]:
    """Under a memory or disk alarm RabbitMQ stops reading from every connection that publishes.

    Workers finish what they have, pings time out, and a probe that restarts on them makes an outage of it.
    """
    for alarm in known(facts.rabbitmq.alarms):
        yield Finding(alarm)


@rule(
    "RPT802",
    "A policy cuts queues short",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="rabbitmqctl list_policies; rabbitmqctl clear_policy NAME  # or a pattern that leaves task queues out",
    evidence=("https://www.rabbitmq.com/docs/ttl", "https://www.rabbitmq.com/docs/maxlength"),
)
def shortening_policy(facts: Facts) -> Iterator[Finding]:
    """A policy with a TTL, an expiry or a maximum length applies to every queue its pattern matches.

    Tasks that wait through an outage, or through your move, are gone without a trace.
    """
    for policy in known(facts.rabbitmq.policies):
        for queue in facts.queues:
            for key, what in _SHORTENING.items():
                if key in policy.definition and policy.concerns(queue.name, queue.kind):
                    yield Finding(f"{policy.name!r} {what.format(policy.definition[key])} from {queue.name!r}")


@rule(
    "RPT803",
    "The user may not do what Celery does",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="""
    # with your queues and exchanges for the first `celery`
    NAMES='celery|.*\\.pidbox|celeryev(\\..*)?|celery_delayed_.*|[0-9a-f-]{36}'
    rabbitmqctl set_permissions -p VHOST USER "^($NAMES)$" "^(amq\\.default|$NAMES)$" "^($NAMES)$"
    """,
    evidence=("https://www.rabbitmq.com/docs/access-control", "tested with Celery 5.7 on 4.0.5 and 4.3.6"),
)
def permissions(facts: Facts) -> Iterator[Finding]:
    """A missing right to declare ends the worker with 403.

    A missing right to write is silent: `delay()` returns, and the task is gone unless confirms are on.
    """
    granted = known(facts.rabbitmq.permissions)
    control, event = str(facts["control_exchange"] or "celery"), str(facts["event_exchange"] or "celeryev")
    queues = {queue.name for queue in facts.queues}
    exchanges = {queue.exchange for queue in facts.queues if queue.exchange}
    own = queues | exchanges | {f"{control}.pidbox", f"reply.{control}.pidbox", f"host.{control}.pidbox", event}
    if facts.delays_natively():
        own |= {"celery_delayed_27", "celery_delayed_delivery"}
    needed = {"configure": own, "write": own | ({"amq.default"} if _by_default_exchange(facts) else set()), "read": own}
    for right, names in needed.items():
        missing = sorted(name for name in names if not _matches(getattr(granted, right), name))
        if missing:
            yield Finding(f"{right} {getattr(granted, right)!r} leaves out {', '.join(map(repr, missing[:4]))}")


@rule(
    "RPT804",
    "Deprecated features of RabbitMQ are in use",
    WARNING,
    brokers=RABBITMQ,
    versions="RabbitMQ 3.13 and newer",
    live=True,
    fix="rabbitmq-diagnostics list_deprecated_features --formatter=pretty_table",
    evidence="https://www.rabbitmq.com/docs/deprecated-features",
)
def deprecated_in_use(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ 4.3 denies what is deprecated today: a worker that declares such a queue loses its connection.

    Rehearse it: `deprecated_features.permit.NAME = false` in rabbitmq.conf.
    """
    for name in known(facts.rabbitmq.deprecated_in_use):
        if name in _CONCERNING:
            yield Finding(f"{name} is in use on this server")


@rule(
    "RPT805",
    "Dead letters have nowhere to go",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix='rabbitmqadmin declare queue name=celery.dead arguments=\'{"x-queue-type": "quorum"}\'',
    evidence=(
        "https://www.rabbitmq.com/docs/dlx",
        "measured: at-least-once keeps the message unseen, at-most-once drops it",
    ),
)
def dead_letter_target_missing(facts: Facts) -> Iterator[Finding]:
    """A queue may name a dead-letter exchange or queue that does not exist.

    What should become a dead letter is dropped, or stays in memory where no count shows it.
    """
    exchanges, queues = known(facts.rabbitmq.exchanges), known(facts.rabbitmq.queues)
    for queue in facts.queues:
        if queue.name not in queues:
            # it is not declared yet, and its dead-letter queue neither
            continue
        policy = facts.set_by_policy(queue, "dead-letter-exchange")
        exchange = queue.arguments.get("x-dead-letter-exchange", policy[0] if policy else None)
        if exchange is None:
            continue
        by_policy = facts.set_by_policy(queue, "dead-letter-routing-key")
        key = queue.arguments.get("x-dead-letter-routing-key", by_policy[0] if by_policy else queue.routing_key)
        if exchange and exchange not in exchanges:
            yield Finding(f"{queue.name!r} sends dead letters to the exchange {exchange!r}, which does not exist")
        elif not exchange and key not in queues:
            yield Finding(f"{queue.name!r} sends dead letters to the queue {key!r}, which does not exist")


def _by_default_exchange(facts: Facts) -> bool:
    """Whether Celery publishes through the default exchange: direct queues, and rpc results."""
    direct = any(queue.exchange_type == "direct" for queue in facts.queues)
    return direct or str(facts["result_backend"] or "").startswith("rpc")


def _matches(pattern: str, name: str) -> bool:
    """As RabbitMQ does: anywhere in the name; the empty pattern matches the empty name only."""
    if not pattern:
        return False
    try:
        return re.search(pattern, name) is not None
    except re.error:
        # a dialect that Python does not read: no claim
        return True
