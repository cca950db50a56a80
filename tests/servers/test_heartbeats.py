"""Heartbeats while an event loop is blocked: RabbitMQ keeps the connection, and delivers nothing a second time."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from amqp import AMQPError, Connection

from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.testbed import ReapedProcess, Server
    from support.shop import Shop

#: Seconds; RabbitMQ closes a connection that is silent for two to three of them.
HEARTBEAT_S = 2
GREEN_HEARTBEAT_S = 5
APP = {"app": "support.held_app", "heartbeat": HEARTBEAT_S, "dead_letter_queue": ""}


def await_missed_heartbeats(server: Server, heartbeat_s: int = HEARTBEAT_S) -> None:
    """Wait until RabbitMQ closes a connection that was opened now, and that sends no heartbeat."""
    silent = Connection(f"127.0.0.1:{server.port}", heartbeat=heartbeat_s)
    silent.connect()

    def is_closed() -> bool:
        try:
            silent.drain_events(timeout=0.2)
        except TimeoutError:
            return False
        except (OSError, AMQPError):
            return True
        return False

    wait_until(is_closed, within_s=60, what="RabbitMQ closes a silent connection")


def outlast_heartbeats(shop: Shop, worker: ReapedProcess, server: Server, name: str) -> None:
    """Let a task run until RabbitMQ would have closed the connection; it has run once, on the same one."""
    done = shop.file()
    first = shop.send(name, "first", str(done))
    shop.await_effects("begun first")
    await_missed_heartbeats(server)
    done.touch()
    shop.get(first)
    # behind all that was delivered again
    shop.get(shop.send("hold", "last", str(done)))
    assert len(shop.effects("begun first")) == 1
    assert "onnection to broker lost" not in worker.log_tail(20)


@pytest.mark.parametrize("options", [(), ("--without-gossip", "--without-mingle", "--task-events")])
def test_a_solo_worker_keeps_its_connection_during_a_task(
    rabbitmq: Server, redis: Server, opened: Callable[..., Shop], options: tuple[str, ...]
) -> None:
    """Its task ran where it was delivered again, and again without end."""
    shop = opened(rabbitmq, redis, **APP)
    worker = shop.start(1, "--pool", "solo", *options)
    outlast_heartbeats(shop, worker, rabbitmq, "hold")


def test_a_task_that_waited_for_its_rate_limit_keeps_the_connection(
    rabbitmq: Server, redis: Server, opened: Callable[..., Shop]
) -> None:
    """A timer starts it: nothing was read since the event loop last looked, and the server's heartbeats wait."""
    shop = opened(rabbitmq, redis, **APP)
    worker = shop.start(1, "--pool", "solo")
    ready = shop.file()
    ready.touch()
    shop.get(shop.send("paced", "before", str(ready)))
    outlast_heartbeats(shop, worker, rabbitmq, "paced")


def test_a_soft_shutdown_keeps_the_connection(rabbitmq: Server, redis: Server, opened: Callable[..., Shop]) -> None:
    """A task that ended in it could not be acknowledged, and ran again."""
    shop = opened(rabbitmq, redis, **APP, soft_shutdown_timeout=12)
    worker = shop.start(1)
    done = shop.file()
    shop.send("hold", "first", str(done))
    shop.await_effects("begun first")
    worker.signal(signal.SIGQUIT)
    await_missed_heartbeats(rabbitmq)
    done.touch()
    shop.await_effects("first")
    wait_until(lambda: worker.exit_code is not None, within_s=60, what="the worker ends")
    assert "Couldn't ack" not in worker.log_tail(60)
    other = shop.start(1)
    shop.get(shop.send("hold", "last", str(done)))
    assert other.log_tail(100).count("] received") == 1


@pytest.mark.parametrize("options", [("prefork",), ("threads", "--task-events"), ("gevent",), ("solo",)])
def test_a_warm_shutdown_keeps_the_connection(
    rabbitmq: Server, redis: Server, opened: Callable[..., Shop], options: tuple[str, ...]
) -> None:
    """What it still ran was delivered to another worker meanwhile, by Celery before 5.6, and with a pool of threads."""
    # py-amqp waits for no message with a shorter time limit than the time between two heartbeats of the server
    green = {"heartbeat": GREEN_HEARTBEAT_S} if options[0] == "gevent" else {}
    shop = opened(rabbitmq, redis, **{**APP, **green})
    worker = shop.start(1, "--pool", *options)
    done = shop.file()
    shop.send("hold", "first", str(done))
    shop.await_effects("begun first")
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.log_tail(60), within_s=30, what="it begins to stop")
    await_missed_heartbeats(rabbitmq, shop.settings.heartbeat)
    done.touch()
    wait_until(lambda: worker.exit_code is not None, within_s=60, what="the worker ends")
    assert "Couldn't ack" not in worker.log_tail(60)
    shop.start(1)
    shop.get(shop.send("hold", "last", str(done)))
    assert len(shop.effects("begun first")) == 1
