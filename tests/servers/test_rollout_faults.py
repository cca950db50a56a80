"""The target of a rollout fails while tasks are sent: none is lost or sent twice, and no sender waits for long."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from kombu import Connection, Queue
from kombu.exceptions import OperationalError

from repot.chaos.runner.proxies import Proxy
from repot.config import child_environment
from repot.routing import breaker
from repot.routing.counters import SideCounts
from repot.routing.side import Side
from repot.testbed import LOOPBACK, rabbitmq_server, redis_server
from repot.waiting import wait_until
from repot.worker.rollout import rollout_of
from support import forked
from support.rollouts import Rollout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.routing.sender import RolloutSender
    from repot.testbed import Server

SOURCE, TARGET = Side.SOURCE, Side.TARGET
#: Seconds; a quarter is for a connection, on a machine that is busy.
TIMEOUT_S = 12.0
#: What a shared machine may add; a sender without the limit waits for the socket's 30 s.
SLACK_S = 10


class Link:
    """A rollout at weight 1 whose target is behind a proxy."""

    def __init__(self, rollout: Rollout, proxy: Proxy, direct: str) -> None:
        self.rollout = rollout
        self.proxy = proxy
        # looked into past the proxy
        rollout.addresses[TARGET] = direct
        rollout.begin(1)
        self.app = rollout.producer()
        # a new quorum queue may take longer than a send waits
        with Connection(direct) as connection:
            for queue in self.sender.sibling().amqp.queues.values():
                queue(connection.default_channel).declare()

    @property
    def sender(self) -> RolloutSender:
        found = rollout_of(self.app)
        assert found is not None
        return found

    def send(self, **options: Any) -> str:
        """Send a task, and return its id."""
        return str(self.app.send_task("t", ignore_result=True, **options).id)

    def timed(self) -> tuple[str, float]:
        """Send a task; return its id, and how long it took. An error has no id."""
        begin = monotonic()
        sent = ""
        with suppress(OperationalError):
            sent = self.send()
        return sent, monotonic() - begin

    def counts(self, side: Side) -> SideCounts:
        return self.sender.counters.of(side)


@pytest.fixture(params=["rabbitmq", "redis"])
def link(request: pytest.FixtureRequest, redis: Server, toxiproxy: Server, tmp_path: Path) -> Iterator[Link]:
    """A target of each kind; the source is a Redis."""
    server: Server = request.getfixturevalue(request.param)
    proxy = Proxy.create(toxiproxy.url, f"target-{uuid4()}", server.port)
    source = f"{redis.url.removesuffix('/0')}/5"
    rollout = Rollout(source, server.url_at(proxy.port), redis, tmp_path, rollout_send_timeout=TIMEOUT_S)
    yield Link(rollout, proxy, server.url)
    rollout.stop()
    proxy.delete()


def _await_closed(link: Link) -> str:
    """Send until the target takes a task again; return its id."""
    before = link.counts(TARGET).sent
    sent: list[str] = []

    def arrives() -> bool:
        sent.append(link.send())
        return link.counts(TARGET).sent > before

    wait_until(arrives, within_s=30, what="the target is tried again", poll_s=0.2)
    return sent[-1]


def test_a_target_that_refuses_connections_is_passed_by(link: Link) -> None:
    """With an idle connection of before, and without one; the breaker closes when the target is back."""
    first = link.send()
    with link.proxy.closed():
        found = [link.timed() for _ in range(20)]
        assert max(seconds for _, seconds in found) < TIMEOUT_S + SLACK_S
        assert all(sent for sent, _ in found)
        assert SideCounts(sent=20) == link.counts(SOURCE)
        counts = link.counts(TARGET)
        assert (counts.sent, counts.fallbacks) == (1, 20)
        # the breaker: not each of them has tried
        assert 1 <= counts.publish_failures <= 3
    last = _await_closed(link)
    on_target = link.rollout.ids(TARGET)
    assert [first, last] == on_target
    assert {sent for sent, _ in found} <= set(link.rollout.ids(SOURCE))


def test_a_silent_target_costs_a_new_process_one_timeout(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and answers nothing; there is no connection yet."""
    monkeypatch.setattr(breaker, "FIRST_S", 600)
    monkeypatch.setattr(breaker, "LONGEST_S", 600)
    with link.proxy.with_toxic("timeout", ["upstream", "downstream"], {"timeout": 0}):
        sent, seconds = link.timed()
        assert seconds <= TIMEOUT_S + SLACK_S
        # not tried: the breaker is open
        again = link.send()
    assert [again, sent] == sorted(link.rollout.ids(SOURCE), key=[again, sent].index)
    assert SideCounts(fallbacks=2, publish_failures=1) == link.counts(TARGET)


@pytest.mark.promise("rabbitmq")
def test_with_a_silent_target_no_thread_waits_longer(link: Link) -> None:
    """More threads than the pool has connections."""
    found: list[tuple[str, float]] = []
    with link.proxy.with_toxic("timeout", ["upstream", "downstream"], {"timeout": 0}):
        threads = [Thread(target=lambda: found.append(link.timed())) for _ in range(25)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert max(seconds for _, seconds in found) <= TIMEOUT_S + SLACK_S
    assert sorted(sent for sent, _ in found) == sorted(link.rollout.ids(SOURCE))
    assert link.rollout.ids(TARGET) == []


@pytest.mark.promise("rabbitmq")
def test_a_task_that_may_have_arrived_raises_and_is_not_sent_again(link: Link) -> None:
    """The answer is lost: the target has the task, and its sender cannot know."""
    first = link.send()
    task_id = str(uuid4())
    with link.proxy.with_toxic("timeout", ["downstream"], {"timeout": 0}):
        begin = monotonic()
        with pytest.raises(OperationalError):
            link.send(task_id=task_id)
        assert monotonic() - begin <= TIMEOUT_S + SLACK_S
    assert [first, task_id] == link.rollout.ids(TARGET)
    assert link.rollout.ids(SOURCE) == []
    assert _numbers(link.counts(TARGET)) == (1, 0, 1)


def _numbers(counts: SideCounts) -> tuple[int, int, int]:
    return counts.sent, counts.fallbacks, counts.publish_failures


def test_a_connection_that_is_reset_after_sending_raises(link: Link) -> None:
    """Some of these may have arrived, and raise; no id is on both sides, and each that did not raise is on one."""
    outcomes: dict[str, bool] = {}
    for _ in range(4):
        link.send()
        with link.proxy.with_toxic("reset_peer", ["downstream"], {"timeout": 0}):
            for _ in range(3):
                task_id = str(uuid4())
                try:
                    link.send(task_id=task_id)
                    outcomes[task_id] = True
                except OperationalError:
                    outcomes[task_id] = False
        _await_closed(link)
    source, target = link.rollout.ids(SOURCE), link.rollout.ids(TARGET)
    everywhere = [*source, *target]
    assert len(everywhere) == len(set(everywhere))
    assert all(task_id in everywhere for task_id, accepted in outcomes.items() if accepted)


def test_callbacks_of_a_worker_are_not_sent_twice_either(link: Link) -> None:
    """Celery repeats them by itself (`AMQP._retry_publish`), unless `retry` is off."""
    link.send()
    task_id = str(uuid4())
    with link.proxy.with_toxic("timeout", ["downstream"], {"timeout": 0}), pytest.raises(OperationalError):
        link.app.amqp._retry_publish(link.send, task_id=task_id)
    assert link.rollout.ids(TARGET).count(task_id) == 1
    assert link.rollout.ids(SOURCE) == []


def _listens(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex((LOOPBACK, port)) == 0


@pytest.mark.parametrize("kind", ["rabbitmq", "redis"])
def test_the_target_s_server_stops(kind: str, redis: Server, tmp_path: Path) -> None:
    started = rabbitmq_server() if kind == "rabbitmq" else redis_server()
    with started as server:
        rollout = Rollout(f"{redis.url.removesuffix('/0')}/5", server.url, redis, tmp_path)
        rollout.begin(1)
        app = rollout.producer()
        for _ in range(3):
            app.send_task("t", ignore_result=True)
        server.process.stop()
        # its processes end one by one
        wait_until(lambda: not _listens(server.port), within_s=30, what="no process of it listens")
        times = []
        for _ in range(30):
            begin = monotonic()
            app.send_task("t", ignore_result=True)
            times.append(monotonic() - begin)
        found = rollout_of(app)
        assert found is not None
        assert max(times) < SLACK_S
        assert (_numbers(found.counters.of(TARGET))[:2], found.counters.of(SOURCE).sent) == ((3, 30), 30)
        assert len(rollout.ids(SOURCE)) == 30
        rollout.stop()


def test_a_stale_connection_is_made_again(link: Link) -> None:
    """The target was restarted while nothing was sent: nothing is wrong with it."""
    first = link.send()
    with link.proxy.closed():
        pass
    second = link.send()
    assert [first, second] == link.rollout.ids(TARGET)
    assert _numbers(link.counts(TARGET)) == (2, 0, 0)


@pytest.fixture
def to_rabbitmq(redis: Server, rabbitmq: Server, tmp_path: Path) -> Iterator[Rollout]:
    made = Rollout(f"{redis.url.removesuffix('/0')}/5", rabbitmq.url, redis, tmp_path)
    yield made
    made.stop()


def _configured(rollout: Rollout, *queues: Queue, **changes: Any) -> Any:
    own = Celery("own", set_as_current=False)
    own.conf.task_queues, own.conf.task_default_queue = list(queues), queues[0].name
    settings = {name: getattr(rollout.settings, name) for name in rollout.settings.model_fields_set}
    del settings["queue_names"]
    rollout.settings = type(rollout.settings)(**settings)
    rollout.begin(1)
    return rollout.producer(own, **changes)


def test_a_full_queue_refuses_and_the_source_takes_it(to_rabbitmq: Rollout) -> None:
    """basic.nack: the next one may be accepted, so the target is asked each time."""
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    app = _configured(to_rabbitmq, Queue(to_rabbitmq.queue, queue_arguments=full))
    ids = [app.send_task("t", ignore_result=True).id for _ in range(4)]
    found = rollout_of(app)
    assert found is not None
    assert _numbers(found.counters.of(TARGET)) == (1, 3, 3)
    assert (ids[:1], sorted(ids[1:])) == (to_rabbitmq.ids(TARGET), sorted(to_rabbitmq.ids(SOURCE)))


def test_a_queue_with_other_arguments_refuses_and_the_source_takes_it(to_rabbitmq: Rollout) -> None:
    """406 on its declaration; no channel is left in a state in which a later message is lost."""
    to_rabbitmq.begin(1)
    app = to_rabbitmq.producer(queue_names=(to_rabbitmq.queue, f"{to_rabbitmq.queue}-2"))
    with Connection(to_rabbitmq.addresses[TARGET]) as connection:
        Queue(to_rabbitmq.queue, queue_arguments={"x-max-length": 9})(connection.default_channel).declare()
    refused = [app.send_task("t", ignore_result=True).id for _ in range(3)]
    taken = [app.send_task("t", queue=f"{to_rabbitmq.queue}-2", ignore_result=True).id for _ in range(3)]
    assert sorted(refused) == sorted(to_rabbitmq.ids(SOURCE))
    assert taken == to_rabbitmq.ids(TARGET, f"{to_rabbitmq.queue}-2")


def test_a_message_that_reaches_no_queue_goes_to_the_source(to_rabbitmq: Rollout) -> None:
    """RabbitMQ confirms what it drops; asked to return it, it confirms it as well, which is not the next one's."""
    to_rabbitmq.begin(1)
    app = to_rabbitmq.producer()
    first = app.send_task("t", ignore_result=True).id
    assert [first] == to_rabbitmq.ids(TARGET)
    with Connection(to_rabbitmq.addresses[TARGET]) as connection:
        channel: Any = connection.default_channel
        # the sender has declared it, and does not do so again
        channel.queue_delete(to_rabbitmq.queue)
    second, third = (app.send_task("t", ignore_result=True).id for _ in range(2))
    assert [second] == to_rabbitmq.ids(SOURCE)
    assert [third] == to_rabbitmq.ids(TARGET)
    found = rollout_of(app)
    assert found is not None
    assert _numbers(found.counters.of(TARGET)) == (2, 1, 1)


def test_confirms_are_on_whatever_the_setting_says(to_rabbitmq: Rollout) -> None:
    """Without them a fallback would not know what the target has."""
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    app = _configured(to_rabbitmq, Queue(to_rabbitmq.queue, queue_arguments=full), publisher_confirms=False)
    ids = [app.send_task("t", ignore_result=True).id for _ in range(3)]
    assert sorted(ids[1:]) == sorted(to_rabbitmq.ids(SOURCE))


def test_an_error_of_the_caller_is_no_failure_of_the_target(link: Link) -> None:
    with pytest.raises(Exception, match="serializ"):
        link.app.send_task("t", [object()])
    assert _numbers(link.counts(TARGET)) == (0, 0, 0)
    link.send()
    assert _numbers(link.counts(TARGET)) == (1, 0, 0)


_FORKING = """
import os, sys
from celery import Celery
import repot
app = Celery("forking", set_as_current=False)
repot.configure(app)
def send(number):
    for _ in range(number):
        app.send_task("t", ignore_result=True)
send(20)
children = []
for _ in range(2):
    pid = os.fork()
    if not pid:
        send(20)
        from repot.worker.rollout import rollout_of
        from repot.routing.side import Side
        counts = rollout_of(app).counters
        os._exit(0 if counts.of(Side.TARGET).sent + counts.of(Side.SOURCE).sent == 20 else 3)
    children.append(pid)
    send(20)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
send(20)
print(codes)
"""


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_forked_processes_send_by_connections_of_their_own(to_rabbitmq: Rollout, weight: float) -> None:
    """As gunicorn with `preload_app`; the parent's connections go on."""
    to_rabbitmq.begin(weight)
    environment = child_environment(to_rabbitmq.settings) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = forked.run(
        [sys.executable, "-c", _FORKING], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.stdout.strip() == "[0, 0]", done.stderr
    ids = [*to_rabbitmq.ids(SOURCE), *to_rabbitmq.ids(TARGET)]
    assert len(ids) == len(set(ids)) == 120


def test_without_a_rollout_nothing_of_it_is_imported() -> None:
    code = (
        "import sys, repot; from celery import Celery; repot.configure(Celery('x'));"
        "print([name for name in sys.modules if 'rollout' in name or 'repot.routing' in name or 'sibling' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_source_is_gone_and_celery_says_so(redis: Server, rabbitmq: Server, tmp_path: Path) -> None:
    """Nothing goes to the target in its place."""
    with redis_server() as source:
        rollout = Rollout(source.url, rabbitmq.url, redis, tmp_path)
        rollout.begin(0)
        app = rollout.producer()
        app.send_task("t", ignore_result=True)
        source.process.stop()
        with pytest.raises(OperationalError):
            app.send_task("t", ignore_result=True, retry_policy={"max_retries": 1})
    found = rollout_of(app)
    assert found is not None
    assert _numbers(found.counters.of(SOURCE)) == (1, 0, 1)
    assert rollout.ids(TARGET) == []
    rollout.stop()
