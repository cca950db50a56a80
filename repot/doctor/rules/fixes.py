"""Fixes that several rules share."""

from __future__ import annotations

import json
import shlex
from re import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.doctor.facts import Facts, QueueFacts

#: A quorum queue behind a topic exchange: RabbitMQ delays its ETA tasks, limits deliveries and keeps dead letters.
QUORUM_BEHIND_TOPIC = """
    # new names: an existing queue or exchange cannot change its type
    arguments = {'x-queue-type': 'quorum', 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': 'shop.dead'}
    exchange = Exchange('shop', type='topic')
    app.conf.task_queues = [Queue('shop', exchange, routing_key='shop', queue_arguments=arguments)]
    app.conf.task_default_queue = 'shop'
    # before that, for RabbitMQ drops a dead letter whose queue does not exist:
    rabbitmqadmin declare queue name=shop.dead arguments='{"x-queue-type": "quorum"}'
"""
#: TCP keepalive on a Redis connection, with options: without them Linux sends the first probe after two hours.
KEEPALIVE = """
    app.conf.broker_transport_options |= {'socket_keepalive': True, 'socket_keepalive_options':
        {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}}
"""
#: A Redis, the broker's or the lease store's, that keeps what it has in a crash.
APPEND_ONLY = """
    CONFIG SET appendonly yes  # and in redis.conf
    CONFIG SET appendfsync everysec
"""
#: A Redis, the broker's or the lease store's, that drops no key when its memory is full.
NO_EVICTION = "CONFIG SET maxmemory-policy noeviction  # and in redis.conf; keep caches on another server"


def declare_queue(queue: str, vhost: str = "") -> str:
    """Return the command that declares a quorum queue."""
    where = f" --vhost {shlex.quote(vhost)}" if vhost else ""
    arguments = shlex.quote(json.dumps({"x-queue-type": "quorum"}))
    return f"rabbitmqadmin{where} declare queue {shlex.quote(f'name={queue}')} arguments={arguments}"


def policy(queue: str, definition: Mapping[str, object], vhost: str = "") -> str:
    """Return the command that sets the policy of a queue."""
    where = ("-p", vhost) if vhost else ()
    words = ("rabbitmqctl", "set_policy", *where, queue, f"^{escape(queue)}$", json.dumps(definition))
    return shlex.join((*words, "--apply-to", "queues"))


def dead_letter_policy(queue: str, vhost: str) -> str:
    """Return the command that sets a queue's dead-letter target by a policy."""
    return policy(queue, {"dead-letter-exchange": "", "dead-letter-routing-key": f"{queue}.dead"}, vhost)


def vhost_of(facts: Facts) -> str:
    """Return the virtual host that the commands of RabbitMQ have to name; empty for their default."""
    path = facts.servers[0].path if facts.servers else ""
    return "" if path == "/" else path


def setting_of(facts: Facts, queue: QueueFacts) -> str:
    """Return the setting that declares a queue."""
    if not queue.configured:
        return "task_routes"
    return "task_queues" if facts["task_queues"] else "task_default_queue"


def renamed(facts: Facts, queue: QueueFacts) -> str:
    """Return the line that renames a queue where its name is set."""
    setting, new = setting_of(facts, queue), f"{queue.name}.v2"
    found = facts.settings.get("task_queues")
    if setting == "task_queues" and found and found.origin.startswith("WORKER_QUEUE_NAMES"):
        names = ",".join(new if one.name == queue.name else one.name for one in facts.queues if one.configured)
        return f"WORKER_QUEUE_NAMES={names}"
    if setting == "task_queues":
        return f"app.conf.task_queues = [Queue({new!r}, ...), ...]  # instead of {queue.name!r}"
    if setting == "task_routes":
        return f"app.conf.task_routes = {{'...': {{'queue': {new!r}}}}}  # instead of {queue.name!r}"
    return f"app.conf.task_default_queue = {new!r}"
