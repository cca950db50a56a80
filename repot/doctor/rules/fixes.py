"""Lines to write that several rules give."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.doctor.facts import Facts, QueueFacts

#: A quorum queue behind a topic exchange: RabbitMQ delays its ETA tasks, counts deliveries, keeps dead letters.
QUORUM_BEHIND_TOPIC = """
    # new names: a queue or exchange that exists cannot change its type
    arguments = {'x-queue-type': 'quorum', 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': 'shop.dead'}
    exchange = Exchange('shop', type='topic')
    app.conf.task_queues = [Queue('shop', exchange, routing_key='shop', queue_arguments=arguments)]
    app.conf.task_default_queue = 'shop'
"""


def dead_letter_policy(queue: str) -> str:
    """The command that gives a queue its dead letters without an argument of its own."""
    definition = json.dumps({"dead-letter-exchange": "", "dead-letter-routing-key": f"{queue}.dead"})
    return f"rabbitmqctl set_policy {queue} '^{re.escape(queue)}$' '{definition}' --apply-to queues"


def setting_of(facts: Facts, queue: QueueFacts) -> str:
    """The setting that declares a queue."""
    if not queue.configured:
        return "task_routes"
    return "task_queues" if facts["task_queues"] else "task_default_queue"


def renamed(facts: Facts, queue: QueueFacts) -> str:
    """How to give a queue another name, where it got the one it has."""
    setting, new = setting_of(facts, queue), f"{queue.name}.v2"
    found = facts.settings.get("task_queues")
    if setting == "task_queues" and found and found.origin.startswith("WORKER_QUEUE_NAMES"):
        names = ",".join(new if one.name == queue.name else one.name for one in facts.queues if one.configured)
        return f"WORKER_QUEUE_NAMES={names}"
    if setting == "task_queues":
        return f"app.conf.task_queues = [Queue({new!r}, ...), ...]  # in the place of {queue.name!r}"
    if setting == "task_routes":
        return f"app.conf.task_routes = {{'...': {{'queue': {new!r}}}}}  # in the place of {queue.name!r}"
    return f"app.conf.task_default_queue = {new!r}"
