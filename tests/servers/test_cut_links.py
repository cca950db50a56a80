"""Workers whose link to the broker is cut: a message runs where it is delivered again, and nowhere beside that."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from redis import Redis, RedisError

from repot.chaos.runner.proxies import Proxy
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import ReapedProcess, Server
    from support.shop import Shop

SHOP = {
    "app": "support.held_app",
    "visibility_timeout": 3600,
    "prefetch_multiplier": 5,
    "dead_letter_queue": "",
    "redis_claim_lease": 4,
}
#: What a worker with one process or thread has reserved, and not begun.
RESERVED = [f"reserved {number}" for number in range(4)]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """A broker."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def link(server: Server, toxiproxy: Server) -> Iterator[Proxy]:
    """One worker's link to it."""
    found = Proxy.create(toxiproxy.url, f"link-{uuid4()}", server.port)
    yield found
    found.delete()


def cut_all(client: Redis) -> None:
    """Close all links to a Redis but the test's own."""
    me = client.client_id()
    for one in client.client_list():
        if int(one["id"]) != me:
            with suppress(RedisError):
                client.client_kill_filter(_id=one["id"])


def fill(shop: Shop, worker: ReapedProcess) -> tuple[Path, Path]:
    """Let a worker with one process or thread run a task, and reserve the others; the files that end the two kinds."""
    first, done = shop.file(), shop.file()
    done.touch()
    shop.send("hold", "first", str(first))
    shop.await_effects("begun first")
    for value in RESERVED:
        shop.send("hold", value, str(done))
    wait_until(lambda: worker.log_tail(100).count("] received") > len(RESERVED), within_s=60, what="all are delivered")
    return first, done


@pytest.mark.parametrize("server", ["redis", "rabbitmq"], indirect=True)
def test_threads_begin_nothing_that_was_given_back_with_its_link(
    server: Server, redis: Server, link: Proxy, opened: Callable[..., Shop]
) -> None:
    """Celery leaves it in the queue of the pool, so it ran there and where it was delivered again."""
    shop = opened(server, redis)
    cut = shop.start(1, "--pool", "threads", broker_url=server.url_at(link.port))
    first, done = fill(shop, cut)
    # RabbitMQ delivers to it also what runs
    second = shop.start(2, "--pool", "threads")
    with link.closed():
        for value in RESERVED:
            shop.await_effects(value, within_s=60)
        first.touch()
        shop.await_effects("first", within_s=60)
        second.stop()
    # by the first worker, behind all that its thread had before
    shop.get(shop.send("hold", "last", str(done)), within_s=60)
    assert [len(shop.effects(f"begun {value}")) for value in RESERVED] == [1] * len(RESERVED)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_was_frozen_begins_nothing_that_was_handed_out_again(
    own: Server, opened: Callable[..., Shop], pool: str
) -> None:
    """What waits in it, behind the one task that it runs, has run elsewhere when it wakes."""
    shop = opened(own, own)
    frozen = shop.start(1, "--pool", pool)
    first, done = fill(shop, frozen)
    os.kill(frozen.pid, signal.SIGSTOP)
    first.touch()
    second = shop.start(1)
    for value in RESERVED:
        shop.await_effects(value, within_s=60)
    second.stop()
    os.kill(frozen.pid, signal.SIGCONT)
    # behind all that it had before
    shop.get(shop.send("hold", "last", str(done)), within_s=60)
    assert [len(shop.effects(f"begun {value}")) for value in RESERVED] == [1] * len(RESERVED)


def test_a_running_task_that_its_pool_cannot_cancel_is_not_given_back(own: Server, opened: Callable[..., Shop]) -> None:
    """Celery is to cancel it when the connection is lost. A thread runs on, so it ran in another one beside that."""
    shop = opened(own, own, cancel_tasks_on_connection_loss=True)
    cut = shop.start(2, "--pool", "threads")
    held, done = shop.file(), shop.file()
    done.touch()
    task = shop.send("hold", "held", str(held))
    shop.await_effects("begun held")
    cut_all(Redis.from_url(own.url))
    wait_until(lambda: cut.log_tail(200).count("Connected to") == 2, within_s=60, what="the worker is back")
    # what was given back stands before it
    shop.send("hold", "later", str(done))
    begun: Any = lambda: len(shop.effects("begun held"))  # noqa: E731
    wait_until(lambda: shop.effects("later") or begun() > 1, within_s=60, what="the other thread runs a task")
    assert begun() == 1
    held.touch()
    shop.get(task, within_s=60)
    wait_until(lambda: Redis.from_url(own.url).hlen("unacked") == 0, within_s=60, what="all are acknowledged")


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet", "solo"])
def test_a_task_runs_once_however_often_the_links_are_cut(own: Server, opened: Callable[..., Shop], pool: str) -> None:
    """The page names what may run twice: of a process of a pool, and of a worker that was cut off for a lease."""
    shop = opened(own, own)
    done, values = shop.file(), [str(number) for number in range(60)]
    done.touch()
    for _ in range(2):
        shop.start(2, "--pool", pool)
    client = Redis.from_url(own.url)
    for value in values:
        shop.send("hold", value, str(done), ignore_result=True)

    def is_cut_and_done() -> bool:
        cut_all(client)
        return all(shop.effects(value) for value in values)

    wait_until(is_cut_and_done, within_s=240, what="all have run", poll_s=1)
    left: Any = lambda: client.llen(shop.name) + client.hlen("unacked")  # noqa: E731
    wait_until(lambda: left() == 0, within_s=60, what="all are acknowledged")
    assert [1] * len(values) == [len(shop.effects(f"begun {value}")) for value in values]
