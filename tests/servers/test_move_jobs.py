"""A move of several queues at the same time, each job in a process of its own."""

from __future__ import annotations

import signal
import sys
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from repot.brokers.headers import MAYBE_TWICE_HEADER
from repot.brokers.journal import Direction
from repot.config import inherited_environment
from repot.errors import AlreadyMoving, ConfigInvalid, MoveStopped
from repot.migrate.control import Limits, Until
from repot.migrate.move import Move, Order, open_move
from repot.migrate.status import find_record
from repot.migrate.verify import verify
from repot.waiting import wait_until
from support import forked
from support.moves import IN_A_DATABASE, Way, places, read, task, way, way_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from repot.brokers.message import Message
    from repot.testbed import Server

COUNT = 60


@dataclass(frozen=True, slots=True)
class Ways:
    """Several queues of one move."""

    each: list[Way]

    @property
    def first(self) -> Way:
        return self.each[0]

    @property
    def name(self) -> str:
        return self.first.name

    def fill(self, count: int = COUNT) -> None:
        for one in self.each:
            one.fill([task(place) for place in range(count)])

    def order(self, limits: Limits, direction: Direction = Direction.FORTH) -> Order:
        order = self.first.order(limits, direction)
        queues = {one.queue: one.goal for one in self.each}
        return replace(order, queues=queues, rules=replace(order.rules, queues=queues))

    @contextmanager
    def opened(self, limits: Limits, direction: Direction = Direction.FORTH) -> Iterator[Move]:
        with open_move(self.order(limits, direction), self.first.settings) as found:
            yield found

    def run(self, limits: Limits, progress: Callable[..., None] = lambda *_: None) -> Any:
        with self.opened(limits) as found:
            return found.run(Event(), progress)

    @contextmanager
    def started(self, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
        """Run `repot move start --execute` in a process of its own, until each queue has moved something."""
        path = self.first
        brokers = ["--from", path.source.url, "--to", path.target.url]
        brokers += ["--from-management", path.source.management_url, "--to-management", path.target.management_url]
        maps = [word for one in self.each for word in ("--map", f"{one.queue}={one.goal}", "--queue", one.queue)]
        command = [sys.executable, "-m", "repot", "move", "start", "--name", self.name, "--execute", *brokers, *maps]
        environment = inherited_environment(without=("WORKER_",)) | {
            "WORKER_LEASE_STORE": path.store.url,
            "WORKER_MOVE_DIR": str(path.source.directory),
        }
        jobs: list[psutil.Process] = []
        with forked.start([*command, *words], env=environment, stdout=-1, stderr=-1) as mover:
            try:
                wait_until(lambda: all(self.arrived()), within_s=60, what="all jobs move")
                jobs += jobs_of(psutil.Process(mover.pid))
                yield mover, jobs
            finally:
                mover.kill()
                for job in jobs:
                    with suppress(psutil.NoSuchProcess):
                        job.kill()

    def arrived(self) -> list[list[Message]]:
        return [read(one.target, one.goal) for one in self.each]

    def problems(self) -> list[str]:
        """What verify says of all queues."""
        with self.opened(Limits()) as found:
            record = find_record(found.journal, self.name)
            checks = verify(found, record, {one.queue: one.goal for one in self.each})
        return [problem for check in checks for problem in check.problems]


@pytest.fixture(params=["redis-rabbitmq", "rabbitmq-redis", IN_A_DATABASE])
def ways(request: pytest.FixtureRequest) -> Ways:
    return Ways([way_of(request) for _ in range(3)])


@pytest.fixture
def across(redis: Server, rabbitmq: Server) -> Ways:
    return Ways([way(redis, rabbitmq, redis) for _ in range(3)])


def jobs_of(process: psutil.Process) -> list[psutil.Process]:
    return [one for one in process.children() if one.status() != psutil.STATUS_ZOMBIE]


def test_jobs_move_all_queues_and_the_account_closes(ways: Ways) -> None:
    ways.fill()
    seen: list[int] = []
    before = {one.pid for one in psutil.Process().children()}

    def look(*_: object) -> None:
        seen.append(len({one.pid for one in jobs_of(psutil.Process())} - before))

    account = ways.run(Limits(window=10, jobs=2, rate=120), look)
    assert (account.delivered, account.closes) == (3 * COUNT, True)
    assert max(seen) == 2
    assert [list(range(COUNT))] * 3 == [places(found) for found in ways.arrived()]
    assert ways.problems() == []
    assert before >= {one.pid for one in psutil.Process().children()}


def test_what_jobs_have_moved_comes_back(across: Ways) -> None:
    across.fill()
    across.run(Limits(window=10, jobs=3))
    with across.opened(Limits(window=10, jobs=3), Direction.BACK) as found:
        assert found.run(Event()).delivered == 3 * COUNT
    assert [len(one.left()) for one in across.each] == [COUNT] * 3


def test_a_killed_job_ends_the_move_and_the_next_one_goes_on(across: Ways) -> None:
    across.fill(400)
    with across.started("--jobs", "3", "--window", "5", "--rate", "60") as (mover, jobs):
        jobs[0].kill()
        _, said = mover.communicate(timeout=60)
    assert mover.returncode == 1, said
    assert b"a job of the move ended with exit code -9" in said
    assert b"resume" in said
    across.run(Limits(window=50))
    assert all_arrived(across, 400)


def test_jobs_end_with_a_killed_mover_and_the_next_one_goes_on(across: Ways) -> None:
    across.fill(400)
    # alone they would go on for 40 s
    with across.started("--jobs", "3", "--window", "5", "--rate", "30") as (mover, jobs):
        assert len(jobs) == 3
        mover.kill()
        wait_until(lambda: not any(map(psutil.Process.is_running, jobs)), within_s=20, what="the jobs have ended")
    across.run(Limits(window=50))
    assert all_arrived(across, 400)


def test_a_signal_ends_all_jobs_after_their_windows(across: Ways) -> None:
    across.fill(400)
    with across.started("--jobs", "3", "--window", "5", "--rate", "60") as (mover, _):
        mover.send_signal(signal.SIGTERM)
        _, said = mover.communicate(timeout=60)
    assert mover.returncode == 1
    assert b"the move was interrupted; nothing is lost" in said
    assert b"Traceback" not in said
    assert across.problems() == []
    across.run(Limits())
    assert [list(range(400))] * 3 == [sorted(places(found)) for found in across.arrived()]


def all_arrived(ways: Ways, count: int) -> bool:
    """Whether each message arrived, in the target's queue of its source; copies have a mark."""
    for found in ways.arrived():
        first = [one for one in found if not one.headers.get(MAYBE_TWICE_HEADER)]
        assert sorted({*places(found)}) == list(range(count))
        assert len({*places(first)}) == len(first)
    return ways.problems() == []


def test_a_queue_of_another_mover_stops_the_other_jobs(across: Ways) -> None:
    across.fill(400)
    held = across.each[1].queue
    with closing(across.first.source.open()) as source:
        hold = source.hold(held, "another one", 30, lambda _: False)  # type: ignore[attr-defined]
        with pytest.raises(AlreadyMoving, match="another one"):
            across.run(Limits(window=5, jobs=3, rate=300))
        hold.release()
    across.run(Limits(jobs=3))
    assert all_arrived(across, 400)


def test_a_move_that_follows_moves_every_queue(across: Ways) -> None:
    across.fill(5)
    stop = Event()
    later: list[Way] = []

    def send_more(_: str, doing: str, __: int) -> None:
        if doing == "following" and not later:
            later.extend(across.each)
            for one in later:
                one.fill([task(place) for place in range(5, 9)])
        if later and all(len(found) == 9 for found in across.arrived()):
            stop.set()

    with across.opened(Limits(until=Until.FOLLOW)) as found, pytest.raises(MoveStopped, match="interrupted"):
        found.run(stop, send_more)
    # looking gave them back, and RabbitMQ 4 does not keep their order then
    assert [list(range(9))] * 3 == [sorted(places(found)) for found in across.arrived()]
    assert across.problems() == []


def test_a_limit_counts_all_queues_and_needs_one_process(across: Ways) -> None:
    across.fill(20)
    assert across.run(Limits(window=7, limit=30)).delivered == 30
    assert [len(found) for found in across.arrived()] == [20, 10, 0]
    with pytest.raises(ConfigInvalid, match="--limit counts the messages of one process"):
        across.run(Limits(limit=30, jobs=2))
    assert [len(one.left()) for one in across.each] == [0, 10, 20]
