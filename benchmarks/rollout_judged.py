"""Lead rollouts whose target is healthy, worse, or idle, and see how they are judged.

    python benchmarks/rollout_judged.py [--healthy 20] [--planted 3] [--only hang ...]
        [--way redis-rabbitmq ...] [--rate 40] [--json]

Real workers on both sides, whose run times vary and of whose tasks some fail and some retry, on both sides alike. So
many healthy rollouts must be `done`. Then so many rollouts with each regression that begins in the middle of the first
step on the target: `failures`, `slowness`, `redeliveries`, a `hang` of every process of the pool, and an `alarm` of
RabbitMQ. Each must be aborted by itself within 10 s, slowness within 90 s, of the first look that has the minimum of
samples (an alarm: of the alarm). A hang begins with that look, as a pool that hangs earlier never finishes so many
runs. At last a rollout without tasks must not pass. `--healthy 0 --only hang` measures hangs alone. Exits with 4 if
one is judged otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis

from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role
from repot.errors import DeadlineExceeded
from repot.rollout.judge import Criteria, Verdict
from repot.rollout.phases import Phase, Plan
from repot.rollout.rollout import open_rollout
from repot.routing.side import Side
from repot.routing.store import key_of
from repot.testbed import redis_server, standalone_rabbitmq, standalone_redis
from repot.waiting import wait_until
from repot.worker.configure import configure
from repot.worker.rollout import rollout_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.rollout.phases import Observed
    from repot.rollout.rollout import Rollout
    from repot.routing.record import RolloutRecord
    from repot.testbed.nodes import NodeBroker

NAME, QUEUE = "judged", "judged"
REGRESSIONS = ("failures", "slowness", "redeliveries", "hang", "alarm")
_HEALTHY = Plan((0.3, 1.0), bake_s=5, queues=(QUEUE,), criteria=Criteria(samples=50))
_LONG = Plan((0.5, 1.0), bake_s=120, queues=(QUEUE,), criteria=Criteria(samples=50))
_STARVED = Plan((0.5, 1.0), bake_s=1, patience_s=6, queues=(QUEUE,), criteria=Criteria(samples=50))
#: Seconds; run times are counted in windows of ten seconds, each of which is limited evidence.
_WITHIN_S, _SLOW_WITHIN_S = 10, 90
_CLOCK = Event()


@dataclass(slots=True)
class Judged:
    """One rollout: how it ended, and how long after the first minimum of samples."""

    way: str
    what: str
    phase: str
    seconds: float
    aborted_after_s: float | None
    why: str
    load: float

    @property
    def is_good(self) -> bool:
        """Whether it ended as it should."""
        if self.what in REGRESSIONS:
            within_s = _SLOW_WITHIN_S if self.what == "slowness" else _WITHIN_S
            return self.aborted_after_s is not None and self.aborted_after_s <= within_s
        return self.phase == (Phase.PAUSED if self.what == "starved" else Phase.DONE)

    def __str__(self) -> str:
        """Return a line."""
        after = "" if self.aborted_after_s is None else f", aborted {self.aborted_after_s:.1f} s after the first sample"
        mark = "" if self.is_good else "WRONG "
        return (
            f"{mark}{self.way} {self.what}: {self.phase} after {self.seconds:.0f} s{after}; load {self.load:.1f}; "
            f"{self.why[:200]}"
        )


@dataclass(slots=True)
class Course:
    """What a controller's looks showed."""

    stop: Event
    sampled_at: float | None = None
    aborted_at: float | None = None
    why: str = ""
    begun: Event = field(default_factory=Event)
    sampled: Event = field(default_factory=Event)

    def show(self, record: RolloutRecord, seen: Observed) -> None:
        """Note a look."""
        if record.phase == Phase.CANARY:
            self.begun.set()
            findings = seen.judgement.findings if seen.judgement else ()
            if self.sampled_at is None and any(
                (one.criterion, one.verdict) == ("samples", Verdict.PASS) for one in findings
            ):
                self.sampled_at = monotonic()
                self.sampled.set()
        if record.phase in (Phase.ABORT, Phase.PAUSED):
            self.why = self.why or record.why
            if record.phase == Phase.PAUSED:
                self.stop.set()


class Deployment:
    """Workers of both sides, a producer, and what is planted."""

    def __init__(self, brokers: dict[Side, NodeBroker], store: str, directory: Path, rate: float) -> None:
        rabbit = next((one for one in brokers.values() if "amqp" in one.primary.launched.url), None)
        self.brokers, self._rate = brokers, rate
        source, target = (brokers[side].primary.launched.url for side in Side)
        addresses: dict[str, Any] = {"broker_url": source, "rollout_target": target, "lease_store": store}
        self.settings = ExplicitSettings(
            app="rollout_judged_app",
            rollout=NAME,
            result_backend=f"{store.removesuffix('/0')}/1",  # type: ignore[arg-type]
            management_url=rabbit.primary.launched.management_url if rabbit else None,  # type: ignore[arg-type]
            queue_names=(QUEUE,),
            status_dir=directory / "status",
            **addresses,
        )
        self._directory = directory
        self._flags: Any = Redis.from_url(self.settings.result_backend.reveal())
        self._records: Any = Redis.from_url(store)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the workers; stop them at the end."""
        with ExitStack() as stack:
            for side in Side:
                settings = self.settings.replace(rollout_side=side.value)
                worker = stack.enter_context(start_worker(f"{side}-worker", QUEUE, settings, self._directory, 2))
                wait_until(lambda w=worker: " ready." in w.log_tail(100), within_s=60, what=f"the {side} is ready")
            yield

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send until the end of the block."""
        app, ended = Celery("producer", set_as_current=False), Event()
        configure(app, self.settings, Role.CLIENT)

        def send() -> None:
            due = monotonic()
            while not ended.wait(max(0, due - monotonic())):
                due = max(due, monotonic() - 1) + 1 / self._rate
                # during an alarm the target is silent, and the first sender gets an error
                with suppress(OperationalError):
                    app.send_task("rollout_judged_app.work")

        thread = Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            if rollout := rollout_of(app):
                rollout.stop()

    def plant(self, what: str) -> None:
        """Let the target's tasks be worse; empty: not any more."""
        self._flags.set(f"{self.settings.lease_prefix}:planted:{Side.TARGET}", what)

    def forget(self) -> None:
        """Let the next rollout be a new one: its record, plan and first counts."""
        base = key_of(self.settings.lease_prefix, NAME)
        self._records.delete(
            *(f"{base}{end}" for end in ("", ":history", ":plan", ":starts", ":evidence", ":controller"))
        )

    def lead(self, way: str, what: str, plan: Plan) -> Judged:
        """Lead one rollout to its end."""
        self.forget()
        course, begun, load = Course(Event()), monotonic(), os.getloadavg()[0]
        with open_rollout(NAME, self.settings) as opened, ExitStack() as stack:
            opened.begin(plan, "benchmark")
            if what != "starved":
                stack.enter_context(self.sending())
            if what in REGRESSIONS:
                stack.enter_context(self._worse(what, course, opened))
            ended = opened.controller().run(course.stop, course.show)
            aborts = [one for one in opened.records.history(NAME) if one.phase in (Phase.ABORT, Phase.PAUSED)]
        after = None
        if aborts and course.aborted_at is not None:
            # a clear failure needs no minimum of samples
            after = max(0.0, course.aborted_at - (course.sampled_at or course.aborted_at))
        why = aborts[0].why if aborts else ""
        return Judged(way, what, ended.phase, monotonic() - begun, after, why, load)

    @contextmanager
    def _worse(self, what: str, course: Course, opened: Rollout) -> Iterator[None]:
        """Plant a regression once the canary has begun, until it is aborted."""

        def watch() -> None:
            if not (course.sampled if what == "hang" else course.begun).wait(60):
                return
            if what != "hang":
                _CLOCK.wait(1)
            broker = self.brokers[Side.TARGET]
            with broker.out_of_memory() if what == "alarm" else nullcontext():  # type: ignore[attr-defined]
                if what == "alarm":
                    course.sampled_at = monotonic()
                else:
                    self.plant(what)
                try:
                    wait_until(
                        lambda: opened.record().phase in (Phase.ABORT, Phase.ABORTED),
                        within_s=60,
                        what="it is aborted",
                        poll_s=0.05,
                    )
                except DeadlineExceeded:
                    # a rollout that goes on is a result too: it was judged wrongly
                    course.stop.set()
                else:
                    course.aborted_at = monotonic()
            self.plant("")

        thread = Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            thread.join()
            self.plant("")


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = ("redis-rabbitmq", "rabbitmq-redis")
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--planted", type=int, default=3)
    parser.add_argument("--only", choices=REGRESSIONS, action="append", help="plant these alone")
    parser.add_argument("--way", choices=ways, action="append")
    parser.add_argument("--rate", type=float, default=40, help="tasks a second")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: list[Judged] = []
    for way in given.way or ways:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            makers = {"redis": standalone_redis, "rabbitmq": standalone_rabbitmq}
            source, target = way.split("-")
            brokers: dict[Side, NodeBroker] = {
                Side.SOURCE: stack.enter_context(makers[source]()),
                Side.TARGET: stack.enter_context(makers[target]()),
            }
            store = stack.enter_context(redis_server()).url
            deployment = Deployment(brokers, store, directory, given.rate)
            stack.enter_context(deployment.running())
            runs = [("healthy", _HEALTHY)] * given.healthy
            runs += [
                (what, _LONG)
                for what in given.only or REGRESSIONS
                for _ in range(given.planted)
                if what != "alarm" or target == "rabbitmq"
            ]
            for what, plan in [*runs, ("starved", _STARVED)]:
                found.append(deployment.lead(way, what, plan))
                print(found[-1], file=sys.stderr if given.json else sys.stdout, flush=True)
    if given.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    return 0 if all(one.is_good for one in found) else 4


if __name__ == "__main__":
    sys.exit(main())
