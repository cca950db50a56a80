"""RPT8xx: the configuration of the RabbitMQ server. All of these rules need --live."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from repot.brokers.facts import Unknown, known
from repot.config.delays import LEVELS, OF_A_WORKER, entry, queues_needed
from repot.doctor.rule import ERROR, RABBITMQ, WARNING, Finding, rule
from repot.doctor.rules.fixes import declare_queue, vhost_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts

#: Policy keys that drop messages or queues without an error.
_SHORTENING = {
    "message-ttl": "drops tasks that wait longer than {} ms",
    "expires": "deletes the queue after {} ms without a consumer",
    "max-length": "drops or refuses tasks beyond {}",
    "max-length-bytes": "drops or refuses tasks beyond {} bytes",
}
#: Deprecated features whose denial stops a Celery worker, or changes what it does.
_CONCERNING = frozenset({"transient_nonexcl_queues", "global_qos", "queue_master_locator"})


@rule(
    "RPT801",
    "RabbitMQ has raised an alarm",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="rabbitmq-diagnostics alarms; rabbitmq-diagnostics memory_breakdown; df -h",
    evidence=(
        "https://www.rabbitmq.com/docs/alarms",
        "measured: workers continued, pings got no answer, publishers blocked",
    ),
)
def alarms(facts: Facts) -> Iterator[Finding]:
    """Under a memory or disk alarm RabbitMQ stops reading from every connection that publishes.

    Workers finish the tasks they hold, but pings time out; a probe that restarts workers turns the alarm into an
    outage.
    """
    for alarm in known(facts.rabbitmq.alarms):
        yield Finding(alarm)


@rule(
    "RPT802",
    "A policy expires or drops tasks",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="rabbitmqctl list_policies; rabbitmqctl clear_policy NAME  # or a pattern that leaves task queues out",
    evidence=("https://www.rabbitmq.com/docs/ttl", "https://www.rabbitmq.com/docs/maxlength"),
)
def shortening_policy(facts: Facts) -> Iterator[Finding]:
    """A policy with a TTL, an expiry or a maximum length applies to every queue that matches its pattern.

    Tasks that wait through an outage or a move are lost without a record.
    """
    for policy in known(facts.rabbitmq.policies):
        for queue in facts.queues:
            for key, what in _SHORTENING.items():
                if key in policy.definition and policy.concerns(queue.name, queue.kind):
                    yield Finding(f"{policy.name!r} {what.format(policy.definition[key])} from {queue.name!r}")


@rule(
    "RPT803",
    "The RabbitMQ user lacks a permission",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="""
    # replace the first `celery` with your queues and exchanges; docs/rights.md has a line for each part
    NAMES='celery(\\.dead)?|(.*\\.)?celery\\.pidbox|celeryev(\\..*)?|celery_delayed_.*'
    rabbitmqctl set_permissions -p VHOST USER "^($NAMES)$" "^(amq\\.default|$NAMES)$" "^($NAMES)$"
    """,
    evidence=("https://www.rabbitmq.com/docs/access-control", "tests/servers/test_rights.py"),
)
def permissions(facts: Facts) -> Iterator[Finding]:
    """Without the permission to declare, the worker exits with 403.

    Without the permission to write there is no error: `delay()` returns, and unless confirms are on the task is
    lost.
    """
    granted = known(facts.rabbitmq.permissions)
    own = _own_names(facts)
    dead, dead_exchanges = _dead_letter_names(facts)
    write = own | dead_exchanges | ({"amq.default"} if _by_default_exchange(facts) else set())
    for right, names in {"configure": own | dead, "write": write, "read": own}.items():
        missing = sorted(name for name in names if not _matches(getattr(granted, right), name))
        if missing:
            yield Finding(f"{right} {getattr(granted, right)!r} leaves out {', '.join(map(repr, missing[:4]))}")


def _own_names(facts: Facts) -> set[str]:
    """Return the names that a worker declares, binds and consumes, with one example of Celery's random ids."""
    control, event = str(facts["control_exchange"] or "celery"), str(facts["event_exchange"] or "celeryev")
    random_id = "00000000-0000-0000-0000-000000000000"
    names = {name for queue in facts.queues for name in (queue.name, queue.exchange) if name}
    names |= {f"{control}.pidbox", f"host.{control}.pidbox", f"reply.{control}.pidbox"}
    # mingle asks the other workers, gossip listens to their events
    names |= {f"{random_id}.reply.{control}.pidbox", event, f"{facts['event_queue_prefix'] or 'celeryev'}.{random_id}"}
    if facts.delays_natively():
        names |= {"celery_delayed_0", entry(facts.delay_levels), "celery_delayed_delivery"}
    return names


def _dead_letter_names(facts: Facts) -> tuple[set[str], set[str]]:
    """Return the dead-letter queues that a worker still has to declare, and the exchanges that route to them."""
    targets = [queue.arguments for queue in facts.queues if queue.has_dead_letter_target]
    own = {found.get("x-dead-letter-routing-key") for found in targets if not found["x-dead-letter-exchange"]}
    there = facts.rabbitmq.queues
    missing = {str(name) for name in own if name and (isinstance(there, Unknown) or name not in there)}
    return missing, {str(found["x-dead-letter-exchange"] or "amq.default") for found in targets}


@rule(
    "RPT804",
    "Deprecated RabbitMQ features are in use",
    WARNING,
    brokers=RABBITMQ,
    versions="RabbitMQ 3.13 and newer",
    live=True,
    fix="rabbitmq-diagnostics list_deprecated_features --formatter=pretty_table",
    evidence="https://www.rabbitmq.com/docs/deprecated-features",
)
def deprecated_in_use(facts: Facts) -> Iterator[Finding]:
    """RabbitMQ 4.3 denies features that are deprecated today; a worker that declares such a queue loses its connection.

    To test it now, set `deprecated_features.permit.NAME = false` in rabbitmq.conf.
    """
    for name in known(facts.rabbitmq.deprecated_in_use):
        if name in _CONCERNING:
            yield Finding(f"{name} is in use on this server")


@rule(
    "RPT805",
    "The dead-letter target does not exist",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix=declare_queue("celery.dead"),
    evidence=(
        "https://www.rabbitmq.com/docs/dlx",
        "measured: at-least-once keeps the message unseen, at-most-once drops it",
    ),
)
def dead_letter_target_missing(facts: Facts) -> Iterator[Finding]:
    """A queue may name a dead-letter exchange or queue that does not exist.

    A message that should become a dead letter is dropped, or stays in memory where no message count includes it.
    """
    exchanges, queues = known(facts.rabbitmq.exchanges), known(facts.rabbitmq.queues)
    for queue in facts.queues:
        if queue.name not in queues:
            # neither this queue nor its dead-letter queue is declared yet
            continue
        policy = facts.set_by_policy(queue, "dead-letter-exchange")
        exchange = queue.arguments.get("x-dead-letter-exchange", policy[0] if policy else None)
        if exchange is None:
            continue
        by_policy = facts.set_by_policy(queue, "dead-letter-routing-key")
        key = queue.arguments.get("x-dead-letter-routing-key", by_policy[0] if by_policy else queue.routing_key)
        if exchange and exchange not in exchanges:
            yield Finding(
                f"{queue.name!r} sends dead letters to the exchange {exchange!r}, which does not exist",
                fix=f"declare the exchange {exchange!r}, and bind a queue to it for the routing key {key!r}",
            )
        elif not exchange and key not in queues:
            yield Finding(
                f"{queue.name!r} sends dead letters to the queue {key!r}, which does not exist",
                fix=declare_queue(key, vhost_of(facts)),
            )


@rule(
    "RPT806",
    "RabbitMQ has no room for the deployment's queues",
    ERROR,
    brokers=RABBITMQ,
    live=True,
    fix="""
    rabbitmqctl set_vhost_limits -p VHOST '{"max-queues": 64}'  # or the plan of a service
    # or fewer queues for delays, for senders and workers: 12 delay a task for 68 min at a time, and a worker delays a
    # task again that is not due then
    WORKER_DELAY_LEVELS=12
    # or none: workers then hold tasks with an ETA
    WORKER_QUEUE_TYPE=classic
    """,
    evidence=("https://www.rabbitmq.com/docs/vhosts#limits", "tests/servers/test_queue_limit.py"),
)
def queue_limit(facts: Facts) -> Iterator[Finding]:
    """A virtual host, or the plan of a service, may limit its queues; delays in the broker alone need 28 by default.

    A worker that meets the limit ends. Stock Celery's says that it is ready, with a part of the queues for delays, and
    delayed tasks are lost.
    """
    limit = known(facts.rabbitmq.queue_limit)
    if limit is None:
        return
    there, levels = known(facts.rabbitmq.queues), facts.delay_levels if facts.delays_natively() else 0
    needs = queues_needed(facts.queues, levels=levels)
    names = {queue.name for queue in facts.queues} | _dead_letter_queues(facts) | set(LEVELS[:levels])
    room = limit - len(there)
    if len(names - set(there)) + OF_A_WORKER > room:
        stated = ", ".join(f"{number} {what}" for what, number in needs.items() if number)
        yield Finding(
            f"the virtual host may have {limit} queues and has {len(there)}; the deployment needs "
            f"{sum(needs.values())} ({stated}), and {OF_A_WORKER} for each further worker"
        )


def _dead_letter_queues(facts: Facts) -> set[str]:
    targets = [queue.arguments for queue in facts.queues if queue.has_dead_letter_target]
    found = {str(one.get("x-dead-letter-routing-key") or "") for one in targets if not one["x-dead-letter-exchange"]}
    return found - {""}


def _by_default_exchange(facts: Facts) -> bool:
    """Return whether Celery publishes through the default exchange: to direct queues, and results of rpc."""
    direct = any(queue.exchange_type == "direct" for queue in facts.queues)
    return direct or str(facts["result_backend"] or "").startswith("rpc")


def _matches(pattern: str, name: str) -> bool:
    """Match as RabbitMQ does: anywhere in the name; the empty pattern matches the empty name only."""
    if not pattern:
        return False
    try:
        return re.search(pattern, name) is not None
    except re.error:
        # Erlang's syntax, which Python cannot read: assume a match
        return True
