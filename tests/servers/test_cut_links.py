"""Workers whose link to the broker is cut: a message runs where it is delivered again, and nowhere beside that."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from redis import Redis, RedisError

from repot.chaos.runner.proxies import Proxy
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.testbed import Server
    from support.shop import Shop

SHOP = {
    "app": "support.held_app",
    "visibility_timeout": 3600,
    "prefetch_multiplier": 5,
    "dead_letter_queue": "",
    "redis_claim_lease": 4,
}
#: Messages that a worker with one thread has reserved, and not begun.
_RESERVED = 4


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


@pytest.mark.parametrize("server", ["redis", "rabbitmq"], indirect=True)
def test_threads_begin_nothing_that_was_given_back_with_its_link(
    server: Server, redis: Server, link: Proxy, opened: Callable[..., Shop]
) -> None:
    """Celery leaves it in the queue of the pool, so it ran there and where it was delivered again."""
    shop = opened(server, redis)
    cut = shop.start(1, "--pool", "threads", broker_url=server.url_at(link.port))
    first, done = shop.file(), shop.file()
    done.touch()
    shop.send("hold", "first", str(first))
    shop.await_effects("begun first")
    reserved = [f"reserved {number}" for number in range(_RESERVED)]
    for value in reserved:
        shop.send("hold", value, str(done))
    wait_until(lambda: cut.log_tail(100).count("] received") > _RESERVED, within_s=60, what="all are delivered")
    # RabbitMQ delivers to it also what runs
    second = shop.start(2, "--pool", "threads")
    with link.closed():
        for value in reserved:
            shop.await_effects(value, within_s=60)
        first.touch()
        shop.await_effects("first", within_s=60)
        second.stop()
    # by the first worker, behind all that its thread had before
    shop.get(shop.send("hold", "last", str(done)), within_s=60)
    assert [len(shop.effects(f"begun {value}")) for value in reserved] == [1] * _RESERVED


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
        me = client.client_id()
        for one in client.client_list():
            if int(one["id"]) != me:
                with suppress(RedisError):
                    client.client_kill_filter(_id=one["id"])
        return all(shop.effects(value) for value in values)

    wait_until(is_cut_and_done, within_s=240, what="all have run", poll_s=1)
    left: Any = lambda: client.llen(shop.name) + client.hlen("unacked")  # noqa: E731
    wait_until(lambda: left() == 0, within_s=60, what="all are acknowledged")
    assert [1] * len(values) == [len(shop.effects(f"begun {value}")) for value in values]
