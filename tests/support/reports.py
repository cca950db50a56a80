"""Rollouts without workers: reports as workers send them, and what a controller needs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from repot.config import ExplicitSettings, WorkerSettings
from repot.rollout.judge import Criteria
from repot.rollout.phases import Plan
from repot.routing.side import Side
from repot.routing.tally import Reporter, WorkerState
from repot.worker.task_outcomes import TaskDuration
from support.moves import declare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.rollout.rollout import Rollout
    from repot.testbed import Server
    from support.databases import PrivateDatabase


#: What each side reports three times a second, if all is well.
HEALTHY = {"source": {"succeeded": 60}, "target": {"succeeded": 60}}


@dataclass(slots=True)
class Reports:
    """Reports, as a worker of each side sends them each second."""

    rollout: Rollout
    queue: str
    totals: dict[Side, dict[str, int]] = field(default_factory=lambda: {side: {} for side in Side})
    reporters: dict[Side, Reporter] = field(default_factory=dict)

    def count(self, side: Side, *, succeeded: int = 0, failed: int = 0, bucket: int = 0) -> None:
        added = {"received": succeeded + failed, "succeeded": succeeded, "failed": failed}
        fields = {f"outcome:{name}:shop.charge": count for name, count in added.items()}
        fields |= {f"runtime:{bucket}:shop.charge": succeeded + failed, "queue_wait:0:shop.charge": succeeded + failed}
        # each of them is the task of a root of its own
        roots = {
            "delivered": succeeded + failed,
            "tried": succeeded + failed,
            "ended": succeeded + failed,
            "failed": failed,
        }
        fields |= {f"units:{unit}:{task}": count for unit, count in roots.items() for task in ("", "shop.charge")}
        fields |= {f"units_{kind}:{bucket}:shop.charge": succeeded + failed for kind in TaskDuration}
        for name, count in fields.items():
            self.totals[side][name] = self.totals[side].get(name, 0) + count

    def send(self) -> None:
        for side in Side:
            reporter = self.reporters.get(side) or Reporter(
                self.rollout.tally, side, uuid4().hex, partial(self.totals.__getitem__, side)
            )
            self.reporters[side] = reporter
            reporter.report(WorkerState(f"celery@{side}", side, "running", (self.queue,)))

    @contextmanager
    def each_second(self, **counts: dict[str, int]) -> Iterator[None]:
        """Report in the background until the end of the block."""
        ended = Event()

        def report() -> None:
            while not ended.is_set():
                for side, added in counts.items():
                    self.count(Side(side), **added)
                self.send()
                ended.wait(0.3)

        thread = Thread(target=report)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


HEALTHY = {"source": {"succeeded": 60}, "target": {"succeeded": 60}}


def between(source: Server, target: Server, store: Server | PrivateDatabase) -> ExplicitSettings:
    queue = f"orders-{uuid4()}"
    for server in (source, target):
        declare(server, queue)
    addresses: dict[str, Any] = {"broker_url": source.url, "rollout_target": target.url, "lease_store": store.url}
    if management := source.management_url or target.management_url:
        addresses["management_url"] = management
    return ExplicitSettings(rollout=f"r-{uuid4().hex}", queue_names=(queue,), socket_timeout=5, **addresses)


def plan_of(rollout: Rollout, **changes: Any) -> Plan:
    return replace(
        Plan(
            steps=(0.5, 1.0),
            bake_s=0.5,
            patience_s=60.0,
            criteria=Criteria(samples=50),
            queues=rollout.settings.queue_names,
            # what is reported here goes on in a drain
            quiet_s=0.0,
        ),
        **changes,
    )


def environment(settings: WorkerSettings) -> dict[str, str]:
    target, store = settings.rollout_target, settings.lease_store
    assert target is not None
    assert store is not None
    management = {"WORKER_MANAGEMENT_URL": settings.management_url.reveal()} if settings.management_url else {}
    return management | {
        "WORKER_BROKER_URL": settings.broker_url.reveal(),
        "WORKER_ROLLOUT": settings.rollout,
        "WORKER_ROLLOUT_TARGET": target.reveal(),
        "WORKER_LEASE_STORE": store.reveal(),
        "WORKER_QUEUE_NAMES": ",".join(settings.queue_names),
    }
