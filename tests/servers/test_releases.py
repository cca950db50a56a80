"""What docs/celery-releases.md says of each release of Celery, shown by workers of that release on real brokers."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from redis import Redis

from repot.chaos.instruments.journal import DELIVERED, STARTED
from repot.chaos.runner.proxies import Proxy
from repot.config import child_environment
from repot.testbed import redis_server
from repot.waiting import wait_until
from support import forked
from support.applications import MINORS, python_of, workers_of
from support.shared_rabbitmq import ask, vhost_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import ReapedProcess, Server
    from support.shop import Shop


#: Tasks without a guard.
SHOP = {"app": "support.job_app"}


@pytest.fixture(params=MINORS)
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter of each release."""
    return python_of(request.param)


@contextmanager
def linked(server: Server, toxiproxy: Server) -> Iterator[tuple[Proxy, str]]:
    """A link to a server that can be closed, and the address through it."""
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", server.port)
    try:
        yield link, server.url.replace(f":{server.port}", f":{link.port}")
    finally:
        link.delete()


def start(shop: Shop, python: str, processes: int = 1) -> ReapedProcess:
    """A worker of a release."""
    with workers_of(python):
        return shop.start(processes)


def hold(shop: Shop, file: Path) -> str:
    """Send a task that runs until a file is there; return its id."""
    return str(shop.client.send_task("jobs.plain", ("p", str(file))).id)


def test_after_a_lost_connection_each_process_of_a_worker_has_a_task_again(
    rabbitmq: Server, redis: Server, toxiproxy: Server, opened: Callable[..., Shop], python: str
) -> None:
    processes = 3
    with linked(rabbitmq, toxiproxy) as (link, url):
        shop = opened(rabbitmq, redis, broker_url=url)
        worker = start(shop, python, processes)
        files = [shop.file(), shop.file()]
        for one in [hold(shop, files[0]) for _ in range(processes)]:
            shop.await_lines(STARTED, one)
        with link.closed():
            pass
        wait_until(lambda: worker.log_tail(500).count("Connected to amqp") > 1, within_s=60, what="it is connected")
        files[0].touch()
        for one in [hold(shop, files[1]) for _ in range(processes)]:
            shop.await_lines(STARTED, one, within_s=60)
        files[1].touch()


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_task_is_cancelled_with_its_connection_if_the_setting_says_so(
    request: pytest.FixtureRequest,
    redis: Server,
    toxiproxy: Server,
    opened: Callable[..., Shop],
    python: str,
    broker: str,
) -> None:
    """The only process is busy until then, so a second run shows it."""
    server: Server = request.getfixturevalue(broker)
    changes = {"cancel_tasks_on_connection_loss": True}
    with linked(server, toxiproxy) as (link, url):
        shop = opened(server, redis, broker_url=url, **changes)
        start(shop, python)
        file = shop.file()
        task = hold(shop, file)
        shop.await_lines(STARTED, task)
        with link.closed():
            pass
        shop.await_lines(STARTED, task, 2, within_s=60)
        file.touch()


def test_what_a_dead_worker_had_popped_comes_back_with_the_interval_of_the_sweep(
    own: Server, opened: Callable[..., Shop], python: str
) -> None:
    """Before 5.7 kombu looks once when it has begun, and then every 100 s."""
    shop = opened(own, own, redis_claim="brpop", visibility_timeout=3, restore_interval=1)
    dies = start(shop, python)
    file = shop.file()
    task = hold(shop, file)
    shop.await_lines(STARTED, task)
    dies.stop()
    before = looks(own)
    start(shop, python)
    shop.await_lines(STARTED, task, 2, within_s=45)
    wait_until(lambda: looks(own) - before >= 10, within_s=30, what="ten looks for overdue messages")
    file.touch()


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_task_is_retried_more_than_once_with_the_same_delay(
    request: pytest.FixtureRequest, redis: Server, opened: Callable[..., Shop], python: str, broker: str
) -> None:
    """Celery before 5.6.3 sends the second retry with RabbitMQ's note that the first went through the delay."""
    shop = opened(request.getfixturevalue(broker), redis)
    start(shop, python)
    task = str(shop.client.send_task("jobs.thrice").id)
    shop.await_lines(STARTED, task, 3, within_s=60)


def looks(server: Server) -> int:
    """How often workers have looked for overdue messages."""
    with Redis.from_url(server.url) as client:
        stats: Any = client.info("commandstats")
    # kombu before 5.7, and since
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("zrevrangebyscore", "zrange"))


SEND = """
from celery import Celery
from repot.config import Role
from repot.worker.configure import configure
app = Celery("producer", set_as_current=False)
app.conf.task_routes = {{"jobs.plain": {{"queue": {0!r}}}}}
configure(app, role=Role.CLIENT)
app.send_task("jobs.plain", ["p"])
"""


def test_a_queue_that_only_a_route_names_has_the_type_of_the_setting(
    rabbitmq: Server, redis: Server, opened: Callable[..., Shop], python: str
) -> None:
    shop = opened(rabbitmq, redis, queue_type="quorum")
    name = f"routed-{uuid4()}"
    sent = forked.run(
        [python, "-c", SEND.format(name)],
        env=child_environment(shop.settings), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert sent.returncode == 0, sent.stderr
    assert ask(rabbitmq, "GET", f"queues/{vhost_of(rabbitmq)}/{name}")["arguments"]["x-queue-type"] == "quorum"


def test_a_task_that_outlives_its_link_to_redis_is_delivered_once(
    redis: Server, toxiproxy: Server, opened: Callable[..., Shop], python: str
) -> None:
    with linked(redis, toxiproxy) as (link, url):
        shop = opened(redis, redis, broker_url=url)
        worker = start(shop, python)
        file = shop.file()
        task = hold(shop, file)
        shop.await_lines(STARTED, task)
        with link.closed():
            pass
        wait_until(lambda: worker.log_tail(500).count("Connected to redis") > 1, within_s=60, what="it is connected")
        file.touch()
        shop.await_ended(task)
        with closing(redis.open()) as broker:
            try:
                wait_until(lambda: broker.depth(shop.name).is_drained, within_s=60, what="it is acknowledged")
            except Exception as error:
                error.add_note(worker.log_tail(60))
                raise
        assert len(shop.lines(DELIVERED, task)) == 1


def test_a_redis_with_a_password_is_claimed_from(opened: Callable[..., Shop], python: str) -> None:
    """With RESP3, in which redis-py before 5.1 asks for the server's health before it has sent the password."""
    with redis_server() as server:
        with Redis.from_url(server.url) as client:
            client.config_set("requirepass", "planted-1a2b")
        address = server.url.replace("redis://", "redis://:planted-1a2b@")
        urls = {"broker_url": address, "result_backend": f"{address.removesuffix('/0')}/1", "lease_store": address}
        shop = opened(server, server, **urls)
        worker = start(shop, python)
        file = shop.file()
        file.touch()
        shop.await_ended(hold(shop, file))
        with Redis.from_url(address) as client:
            assert [one for one in client.client_list() if one["resp"] == "3"], worker.log_tail(20)
            # the link that waits for a notice
            names = {one["name"] for one in client.client_list() if "t" in one["flags"]}
        assert {"repot"} == names
        assert "planted" not in worker.log_tail(500)
