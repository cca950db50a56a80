"""A Redis that is demoted to a replica, alive: its worker goes on with the new primary, and does not end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.transport.redis import Channel, SentinelChannel
from redis import Connection, Redis
from redis.sentinel import SentinelManagedConnection

from repot.brokers.primary import _OfPrimary, follow_the_primary
from repot.chaos.instruments.journal import EFFECT, ENDED, READY, STARTED, Journal
from repot.chaos.runner.worker_process import READY_WITHIN_S
from repot.chaos.runner.workers import start_worker
from repot.config import BrokerUrl, ExplicitSettings, Role
from repot.testbed import redis_server
from repot.testbed.redis_errors import answering
from repot.waiting import wait_until
from repot.worker.configure import configure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from repot.testbed import Server
    from support.shop import Shop


def _demote(old: Server, new: Server) -> None:
    """As Sentinel or an operator does it: the replica first, so that there is a primary at any time."""
    Redis.from_url(new.url).execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
    Redis.from_url(old.url).execute_command("REPLICAOF", "127.0.0.1", new.port)  # type: ignore[no-untyped-call]


def test_a_worker_goes_on_with_the_next_server_of_its_list(redis: Server, tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = stack.enter_context(redis_server()), stack.enter_context(redis_server())
        follower = Redis.from_url(second.url)
        follower.execute_command("REPLICAOF", "127.0.0.1", first.port)  # type: ignore[no-untyped-call]
        wait_until(lambda: follower.info("replication")["master_link_status"] == "up", within_s=20, what="it follows")
        settings = ExplicitSettings(
            broker_url=f"{first.url};{second.url}",
            result_backend=redis.results_url,
            queue_names=("q",),
            journal=tmp_path / "journal",
            status_dir=tmp_path / "status",
            redis_claim_lease=1.5,
            restore_interval=1,
        )
        worker = stack.enter_context(start_worker("w", "q", settings, tmp_path, processes=2))
        journal = Journal(tmp_path / "journal")

        def said(what: str, task: str = "") -> int:
            assert worker.exit_code is None, worker.log_tail(40)
            return sum((line.kind, line.task) == (what, task) for line in journal.read())

        wait_until(lambda: said(READY), within_s=READY_WITHIN_S, what="it consumes")
        client = Celery("test", set_as_current=False)
        configure(client, settings, Role.CLIENT)
        stack.callback(client.close)
        before = str(client.send_task("repot.run", (6,)).id)
        wait_until(lambda: said(STARTED, before), within_s=30, what="a task runs")
        _demote(first, second)
        # over the connection that the client keeps to the first
        after = str(client.send_task("repot.run", (0,)).id)
        wait_until(lambda: said(ENDED, after), within_s=20, what="a task sent after it runs")
        # the worker has the task in hand there as well, for several leases, and acknowledges it
        wait_until(lambda: second.open().depth("q").is_drained, within_s=30, what="nothing is left", poll_s=0.2)
        assert (said(STARTED, before), said(ENDED, before)) == (1, 1)


def test_a_result_waits_until_its_store_takes_writes(redis: Server, opened: Callable[..., Shop]) -> None:
    """A result backend that takes no writes is away for its worker, and not a task's failure."""
    with redis_server() as results:
        shop = opened(redis, results, app="support.expiring_app", lease_store=redis.url)
        shop.start(1)
        store = Redis.from_url(results.url)

        def connections() -> set[Any]:
            return {one["id"] for one in store.client_list() if one["cmd"] in ("exec", "publish")}

        assert shop.get(shop.send("hold")) == "ran"
        for reply in ("READONLY", "MISCONF", "NOREPLICAS", "OOM"):

            def refused(reply: str = reply) -> int:
                return int(store.info("errorstats").get(f"errorstat_{reply}", {}).get("count", 0))

            file = shop.file()
            task = shop.send("hold", str(file))
            shop.await_lines(EFFECT, task.id)
            before = connections()
            with answering(results, reply):
                file.touch()
                wait_until(lambda: refused() > 6, within_s=15, what="the worker tries again")
            assert shop.get(task) == "ran"
            # a name may lead elsewhere by now
            assert before
            assert not before & connections()


def test_threads_may_configure_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes are changed once, however often they are asked to be."""
    for kind, plain in ((Channel, Connection), (SentinelChannel, SentinelManagedConnection)):
        monkeypatch.setattr(kind, "connection_class", plain)
    url = BrokerUrl.parse("redis://127.0.0.1/0")
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(follow_the_primary, url) for _ in range(64)]:
            done.result()
    for kind, plain in ((Channel, Connection), (SentinelChannel, SentinelManagedConnection)):
        changed: Any = kind.connection_class
        assert (_OfPrimary, plain) == changed.__bases__
