"""Lines to write that several rules give."""

from __future__ import annotations

#: A quorum queue behind a topic exchange: RabbitMQ delays its ETA tasks, counts deliveries, keeps dead letters.
QUORUM_BEHIND_TOPIC = """
    # new names: a queue or exchange that exists cannot change its type
    arguments = {'x-queue-type': 'quorum', 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': 'shop.dead'}
    exchange = Exchange('shop', type='topic')
    app.conf.task_queues = [Queue('shop', exchange, routing_key='shop', queue_arguments=arguments)]
    app.conf.task_default_queue = 'shop'
"""
