"""Several beats of one rollout: one sends, each slot of the schedule once, whatever becomes of it."""

from __future__ import annotations

import json
import signal
import sys
from itertools import pairwise
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis as redis_client

from repot.config import child_environment
from repot.routing.beat_lease import beat_holder
from repot.routing.side import Side
from repot.routing.store import key_of
from repot.testbed import ReapedProcess, redis_server
from repot.waiting import wait_until
from repot.worker.rollout_store import open_rollout_store
from support.beat_app import INTERVALS, STOP_FILE
from support.rollouts import KEPT_IN_POSTGRESQL, NAME, WITHOUT_REDIS, Rollout, rollout_between

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server

#: WORKER_LEASE; a beat's lease is three of them.
LEASE_S = 2.0
#: What a Redis needs to lose nothing when it is restarted.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Sent(NamedTuple):
    """One message of beat's."""

    entry: str
    at: float
    pid: int
    task_id: str
    side: Side


class Beats:
    """Beats with schedule files of their own, and what they have sent."""

    def __init__(self, rollout: Rollout, directory: Path) -> None:
        self.rollout, self._directory = rollout, directory
        rollout.settings.status_dir.mkdir(exist_ok=True)  # type: ignore[union-attr]
        self._started: list[ReapedProcess] = []
        self._sent: list[Sent] = []

    def start(self, side: Side = Side.SOURCE) -> ReapedProcess:
        """A beat that has seen whether it sends."""
        path = self._directory / f"beat-{len(self._started)}"
        settings = self.rollout.settings.replace(rollout_side=side.value)
        environment = child_environment(settings) | {"PYTHONPATH": ":".join(sys.path)}
        options = ["--schedule", str(path), "--loglevel", "INFO", "--pidfile", ""]
        command = [sys.executable, "-m", "celery", "--app", "support.beat_app", "beat", *options]
        found = ReapedProcess(command, log=path.with_suffix(".log"), environment=environment)
        self._started.append(found)
        wait_until(lambda: "this beat s" in found.log_tail(50), within_s=60, what="beat sends or stands by")
        return found

    def sent(self) -> list[Sent]:
        """What was sent until now."""
        for side in Side:
            for message in self.rollout.waiting(side):
                (entry, at, pid), _, _ = json.loads(message.body)
                self._sent.append(Sent(entry, at, pid, message.headers["id"], side))
        return sorted(self._sent, key=lambda one: one.at)

    def await_sends(self, beat: ReapedProcess, within_s: float = 60) -> None:
        """Wait until a beat sends each entry twice from now on."""
        before = len(self.sent())

        def entries() -> list[str]:
            return [one.entry for one in self.sent()[before:] if one.pid == beat.pid]

        wait_until(lambda: min(map(entries().count, INTERVALS)) >= 2, within_s=within_s, what="it sends all entries")

    def kill(self, beat: ReapedProcess) -> None:
        """Kill one when its last runs are stored: in between, the next one sends the same message again."""
        key = f"{key_of(self.rollout.settings.lease_prefix, NAME)}:beat:runs"

        def stands_with_its_runs_stored() -> bool:
            beat.signal(signal.SIGSTOP)
            last = {one.entry: one.at for one in self.sent() if one.pid == beat.pid}
            runs = self.rollout.store.scores(key)
            if all(runs[entry] > at - INTERVALS[entry] / 2 for entry, at in last.items()):
                return True
            beat.signal(signal.SIGCONT)
            return False

        wait_until(stands_with_its_runs_stored, within_s=30, what="its runs are stored", poll_s=0.1)
        beat.signal(signal.SIGKILL)

    def stop(self) -> None:
        """End all."""
        for one in self._started:
            one.signal(signal.SIGCONT)
            one.stop()


def require_each_slot_once(sent: list[Sent], without_beat_s: float) -> None:
    """No slot was sent twice, no more were sent than the interval says, and none later than a beat was missing."""
    assert len(sent) == len({one.task_id for one in sent})
    for entry, interval_s in INTERVALS.items():
        times = [one.at for one in sent if one.entry == entry]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        # the first one may be late by an interval
        assert len(gaps) <= (times[-1] - times[0]) / interval_s + 1, gaps
        # two cores that other tests share
        assert max(gaps) < interval_s + without_beat_s + 30, gaps


@pytest.fixture(params=["redis to rabbitmq", WITHOUT_REDIS])
def rollout(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rollout]:
    found = rollout_between(request, tmp_path, lease=LEASE_S)
    yield found
    found.stop()


@pytest.fixture
def beats(rollout: Rollout, tmp_path: Path) -> Iterator[Beats]:
    rollout.begin(0.5)
    found = Beats(rollout, tmp_path)
    yield found
    found.stop()


def test_when_the_holder_is_killed_another_goes_on_where_it_was(beats: Beats) -> None:
    first = beats.start()
    second = beats.start(Side.TARGET)
    beats.await_sends(first)
    assert f"process {first.pid} of " in second.log_tail(50)
    assert not [one for one in beats.sent() if one.pid == second.pid]
    beats.kill(first)
    beats.await_sends(second)
    sent = beats.sent()
    require_each_slot_once(sent, without_beat_s=3 * LEASE_S)
    assert {Side.SOURCE, Side.TARGET} == {one.side for one in sent}


@pytest.mark.parametrize("rollout", ["redis to rabbitmq", KEPT_IN_POSTGRESQL], indirect=True)
def test_a_holder_that_was_stopped_does_not_send_what_another_has_sent(beats: Beats) -> None:
    """It stands between its look at the schedule and the message."""
    first, second = beats.start(), beats.start()
    beats.await_sends(first)
    stop_file = beats.rollout.settings.status_dir / STOP_FILE  # type: ignore[operator]
    stop_file.touch()
    wait_until(lambda: not stop_file.exists(), within_s=20, what="the first one stops itself")
    beats.await_sends(second)
    first.signal(signal.SIGCONT)
    wait_until(lambda: "is not sent: the lease" in first.log_tail(50), within_s=60, what="it notices")
    beats.await_sends(second)
    # and back: what it had counted as run and did not send is not left out
    beats.kill(second)
    beats.await_sends(first)
    require_each_slot_once(beats.sent(), without_beat_s=3 * LEASE_S)


@pytest.mark.promise("kept in a postgresql")
@pytest.mark.parametrize("rollout", [KEPT_IN_POSTGRESQL], indirect=True)
def test_a_beat_that_ends_leaves_its_lease_at_once(beats: Beats) -> None:
    first, second = beats.start(), beats.start()
    beats.await_sends(first)
    settings = beats.rollout.settings
    store = open_rollout_store(settings)
    assert f'"pid": {first.pid},' in str(beat_holder(store, settings.lease_prefix, NAME))
    first.signal(signal.SIGTERM)
    beats.await_sends(second)
    assert f'"pid": {second.pid},' in str(beat_holder(store, settings.lease_prefix, NAME))
    second.signal(signal.SIGTERM)
    wait_until(lambda: second.exit_code is not None, within_s=20, what="the second one ends")
    assert beat_holder(store, settings.lease_prefix, NAME) is None
    store.close()
    require_each_slot_once(beats.sent(), without_beat_s=1)


def test_a_store_that_is_away_stops_beat_when_its_lease_ends(redis: Server, rabbitmq: Server, tmp_path: Path) -> None:
    """It is silent, and then restarted. What was due in the gap is sent once."""
    with redis_server(*DURABLE, "--enable-debug-command", "yes") as store:
        rollout = Rollout(redis.url, rabbitmq.url, redis, tmp_path, lease=LEASE_S, lease_store=store.url)
        rollout.begin(0.5)
        beats = Beats(rollout, tmp_path)
        try:
            running = [beats.start(), beats.start()]
            beats.await_sends(running[0])
            with store.process.frozen():
                wait_until(lambda: "is not renewed" in running[0].log_tail(50), within_s=60, what="the store is away")
                wait_until(
                    lambda: beats.sent()[-1].at < time() - 2 * max(INTERVALS.values()),
                    within_s=60,
                    what="no beat sends",
                )
            direct: Any = redis_client.Redis.from_url(store.url)
            with pytest.raises(redis_client.ConnectionError):
                direct.execute_command("DEBUG", "RESTART")
            before = len(beats.sent())
            wait_until(lambda: len(beats.sent()) >= before + 6, within_s=60, what="one sends again")
            require_each_slot_once(beats.sent(), without_beat_s=40)
        finally:
            beats.stop()
            rollout.stop()
