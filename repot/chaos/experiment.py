"""One experiment: two workers, one task, one fault, followed to the end.

The *cut-off* worker reaches its broker through Toxiproxy, the *healthy* one
directly. Nothing waits for a time to pass: each step waits for what the journal
or the broker says.

1. The cut-off worker alone consumes; the task is published, so that worker has it.
2. The healthy worker starts to consume too, and proves it by running a beacon task.
3. The fault strikes at the scenario's moment. A task that has had its effect is
   held until then, so its ACK always meets the fault.
4. The task is followed until no run goes on and the broker holds nothing of it.
5. The link is mended, the healthy worker leaves, and a new task shows whether the
   cut-off worker consumes again without being restarted.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

from celery import Celery
from kombu.exceptions import OperationalError
from redis import RedisError

from repot.chaos.proxies import Proxy
from repot.chaos.scenarios import SCALED, Expected, Healing, Moment, Scenario
from repot.chaos.verdict import Story, Verdict, judge, redelivered_after, story
from repot.chaos.workers import start_worker
from repot.config import ExplicitSettings, Role, celery_config
from repot.errors import BrokerUnreachable, DeadlineExceeded, DepthUnknown, ExperimentFailed, Interrupted
from repot.waiting import wait_until
from repot.worker.journal import EFFECT, ENDED, READY, STARTED, Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from threading import Event, Lock

    from repot.brokers.local import GuardedProcess, Server
    from repot.config import WorkerSettings

CUT_OFF = "cut-off"
HEALTHY = "healthy"

#: Longer than anything takes here; a step that needs more has failed.
_READY_WITHIN_S = 90
_STEP_WITHIN_S = 45
_SETTLED_WITHIN_S = 90
#: "Drained" must hold this long beyond the age of the broker's counts: on Redis a
#: message is nowhere for a moment between BRPOP and the note in `unacked`.
_QUIET_S = 0.5


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a scenario on one broker."""

    scenario: Scenario
    broker: str
    deduplicate: bool
    number: int = 1

    @property
    def name(self) -> str:
        """Unique among the cases of a campaign; also the name of its queue."""
        return f"{self.scenario.name}-{self.broker}-{'dedup' if self.deduplicate else 'plain'}-{self.number}"

    @property
    def expected(self) -> Expected:
        """What the scenario's table says of this broker and setting."""
        return self.scenario.expected[self.broker, self.deduplicate]


@dataclass(frozen=True, slots=True)
class Window:
    """A fault, from its first to its last second; the journal's clock."""

    what: str
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class Result:
    """What a case found. Instants are of the journal's clock, `published` being the first."""

    case: Case
    product: str
    version: str
    verdict: Verdict
    redelivered_after_s: float | None
    consumed_again: bool
    consumed_again_after_s: float | None
    others_lost: int
    published: float
    subject: Story
    beacon: Story
    follow_up: Story
    windows: tuple[Window, ...]

    @property
    def as_expected(self) -> bool:
        """Whether all that the scenario's table names came true, marks included, and nothing was lost."""
        found, expected = self.verdict, self.case.expected
        return (
            self.others_lost == 0
            and found.marked is not False
            and Expected(
                executed=found.executed,
                effects=found.effects,
                redelivered=found.redelivered,
                overlapped=found.overlapped,
                consumed_again=self.consumed_again,
                lost=found.lost,
            )
            == expected
        )


@dataclass(frozen=True, slots=True)
class Laboratory:
    """The servers an experiment uses, and how it tells of its steps."""

    broker: Server
    results_url: str
    toxiproxy_url: str
    folder: Path
    app: str
    say: Callable[[Case, str], None]
    stop: Event
    #: Held while two workers start. A start takes a core for a second, and a worker
    #: starved of it sends no heartbeats: several at once would add faults of their own.
    starting: Lock


def perform(case: Case, laboratory: Laboratory) -> Result:
    """Carry out one case.

    Raises:
        ExperimentFailed: a step did not happen; there is no verdict.
        Interrupted: `laboratory.stop` was set.
    """
    with ExitStack() as stack:
        try:
            return _Experiment(case, laboratory, stack).perform()
        except (DeadlineExceeded, BrokerUnreachable) as error:
            message = f"{case.name}: {error.message}"
            raise ExperimentFailed(message, hint=error.hint) from error
        except (OperationalError, RedisError) as error:
            message = f"{case.name}: a private server did not take a message: {error}"
            raise ExperimentFailed(message) from error


@dataclass
class _Experiment:
    case: Case
    laboratory: Laboratory
    stack: ExitStack
    windows: list[Window] = field(default_factory=list)

    def __post_init__(self) -> None:
        folder = self.laboratory.folder / self.case.name
        folder.mkdir(parents=True)
        self.folder = folder
        self.journal = Journal(folder / "journal")
        self.release = folder / "release"
        self.queue = self.case.name
        self.idle_queue = f"{self.case.name}-idle"
        server = self.laboratory.broker
        self.broker = self.stack.enter_context(closing(server.open()))
        self.proxy = Proxy.create(self.laboratory.toxiproxy_url, self.case.name, server.port)
        self.stack.callback(self.proxy.delete)
        self.settings = ExplicitSettings(
            app=self.laboratory.app,
            broker_url=server.url,
            result_backend=self.laboratory.results_url,
            queue_names=(self.queue, self.idle_queue),
            dead_letter_queue=f"{self.queue}-dead",
            deduplicate_successful_tasks=self.case.deduplicate,
            journal=self.journal.path,
            **SCALED,
        )
        # patient, unlike the workers: the experiment's own messages must not fail or be sent twice
        self.client = Celery("repot-chaos", set_as_current=False)
        self.client.conf.update(celery_config(self.settings.replace(socket_timeout=30), Role.CLIENT))
        self.stack.callback(self.client.close)

    def perform(self) -> Result:
        scenario = self.case.scenario
        self._say("waiting to start")
        with self.laboratory.starting:
            cut_off, healthy = self._start_both()

        self._say("the cut-off worker takes the task")
        holds = scenario.moment is Moment.EFFECT_WRITTEN
        published = monotonic()
        subject = self._publish(scenario.task_s, hold=str(self.release) if holds else "")
        self._await_happening(STARTED, CUT_OFF, subject)
        beacon = self._let_healthy_worker_in()
        # counts lag: only after they have shown the task does "drained" mean that it is gone
        self._await(self._is_counted, _STEP_WITHIN_S, "the broker counts the task as unacknowledged")
        self._require_still_running(subject)

        with self._fault(subject, cut_off) as struck:
            self.release.touch()
            self._say("following the task to its end")
            self._await_settled((subject, beacon))

        follow_up, sent = self._try_cut_off_worker(healthy)
        happenings = self.journal.read()
        told, beacon_told, follow_up_told = (story(task, happenings) for task in (subject, beacon, follow_up))
        consumed_again = bool(follow_up_told.runs) and cut_off.exit_code is None
        # task and beacon have settled, so the broker holds nothing of them
        others = (judge(beacon_told, left=0), judge(follow_up_told, left=self._left_over()))
        return Result(
            self.case,
            self.broker.product,
            self.broker.version,
            judge(told, left=0),
            redelivered_after(told, since=struck or told.deliveries[0].at),
            consumed_again,
            follow_up_told.deliveries[0].at - sent if consumed_again else None,
            sum(other.lost for other in others),
            published,
            told,
            beacon_told,
            follow_up_told,
            tuple(self.windows),
        )

    def _say(self, text: str) -> None:
        self.laboratory.say(self.case, text)

    def _start_both(self) -> tuple[GuardedProcess, GuardedProcess]:
        if self.laboratory.stop.is_set():
            message = "interrupted before the workers were started"
            raise Interrupted(message)
        self._say("starting two workers")
        through = self.settings.replace(broker_url=self.laboratory.broker.url_at(self.proxy.port))
        cut_off = self._start(CUT_OFF, self.queue, through, processes=1)
        # with room for the task while the beacon's ACK is under way
        healthy = self._start(HEALTHY, self.idle_queue, self.settings, processes=2)
        self._await_ready(CUT_OFF, cut_off)
        self._await_ready(HEALTHY, healthy)
        return cut_off, healthy

    def _start(self, role: str, queue: str, settings: WorkerSettings, processes: int) -> GuardedProcess:
        return self.stack.enter_context(start_worker(self._node(role), queue, settings, self.folder, processes))

    def _node(self, role: str) -> str:
        return f"{role}@{self.case.name}"

    def _publish(self, seconds: float, hold: str = "") -> str:
        task = str(uuid4())
        # the result object is dropped at once: kept until the interpreter's exit, redis-py complains
        self.client.send_task("repot.run", (seconds, hold), task_id=task, queue=self.queue)
        return task

    def _let_healthy_worker_in(self) -> str:
        """Make the healthy worker consume, and see it do so: the other one is busy."""
        node = self._node(HEALTHY)
        replies = self.client.control.add_consumer(self.queue, destination=[node], reply=True, timeout=_STEP_WITHIN_S)
        if not replies:
            message = f"{self.case.name}: the healthy worker did not answer"
            raise ExperimentFailed(message)
        beacon = self._publish(0)
        self._await_happening(ENDED, HEALTHY, beacon)
        return beacon

    def _require_still_running(self, subject: str) -> None:
        """A fault after the end of the task would prove nothing."""
        told = story(subject, self.journal.read())
        if not told.goes_on or len(told.deliveries) > 1:
            message = f"{self.case.name}: the task was over before the fault could strike"
            raise ExperimentFailed(message, hint="This machine is too busy for the scaled times; try --jobs 1.")

    @contextmanager
    def _fault(self, subject: str, cut_off: GuardedProcess) -> Iterator[float | None]:
        """Break the link at the scenario's moment, and mend it when the scenario says; give the instant."""
        scenario = self.case.scenario
        if scenario.fault is None:
            yield None
            return
        if scenario.moment is Moment.EFFECT_WRITTEN:
            self._await_happening(EFFECT, CUT_OFF, subject)
        self._say(f"fault: {scenario.fault.what}")
        struck = monotonic()
        if scenario.healing is Healing.AT_ONCE:
            # the worker must not meet the closed door between two calls to Toxiproxy
            with cut_off.frozen(), scenario.fault.injected(self.proxy):
                pass
            self.windows.append(Window(scenario.fault.what, struck, monotonic()))
            yield struck
        else:
            with scenario.fault.injected(self.proxy):
                yield struck
            self.windows.append(Window(scenario.fault.what, struck, monotonic()))

    def _try_cut_off_worker(self, healthy: GuardedProcess) -> tuple[str, float]:
        """Send a task that only the cut-off worker can take; give its id and when it was sent."""
        self._say("does the cut-off worker consume again?")
        healthy.signal(signal.SIGTERM)
        self._await(lambda: healthy.exit_code is not None, _STEP_WITHIN_S, "the healthy worker leaves")
        sent = monotonic()
        task = self._publish(0)
        # a worker that never consumes again is a finding, not a failure of the experiment
        with suppress(DeadlineExceeded):
            self._await_happening(STARTED, CUT_OFF, task)
            self._await_settled((task,))
        return task, sent

    def _left_over(self) -> int:
        depth = self.broker.depth(self.queue)
        return depth.ready + depth.unacked

    def _await(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        wait_until(condition, within_s=within_s, what=what, stop=self.laboratory.stop)

    def _has_happened(self, what: str, role: str, task: str = "") -> bool:
        wanted = (what, self._node(role), task)
        return any((found.what, found.worker, found.task) == wanted for found in self.journal.read())

    def _await_happening(self, what: str, role: str, task: str) -> None:
        self._await(lambda: self._has_happened(what, role, task), _STEP_WITHIN_S, f"{role} worker: {what} {task}")

    def _await_ready(self, role: str, worker: GuardedProcess) -> None:
        def ready() -> bool:
            if worker.exit_code is not None:
                message = f"{self.case.name}: the {role} worker exited with {worker.exit_code} while starting"
                raise ExperimentFailed(message, hint=f"Its last lines were:\n{worker.log_tail()}")
            return self._has_happened(READY, role)

        self._await(ready, _READY_WITHIN_S, f"the {role} worker is ready")

    def _await_settled(self, tasks: tuple[str, ...]) -> None:
        """Wait until no run goes on and the broker holds nothing, for longer than its counts may lag."""
        quiet_since: float | None = None

        def settled() -> bool:
            nonlocal quiet_since
            if not (self._all_ended(tasks) and self._is_drained()):
                quiet_since = None
                return False
            quiet_since = quiet_since or monotonic()
            return monotonic() - quiet_since > self.broker.depth_lag_s + _QUIET_S

        wait_until(
            settled,
            within_s=_SETTLED_WITHIN_S,
            what=f"{self.case.name} comes to its end",
            poll_s=0.1,
            stop=self.laboratory.stop,
        )

    def _all_ended(self, tasks: tuple[str, ...]) -> bool:
        happenings = self.journal.read()
        told = [story(task, happenings) for task in tasks]
        return not any(one.goes_on for one in told)

    def _is_counted(self) -> bool:
        try:
            return self.broker.depth(self.queue).unacked > 0
        except DepthUnknown:
            return False

    def _is_drained(self) -> bool:
        try:
            return self.broker.depth(self.queue).is_drained
        except DepthUnknown:
            return False
