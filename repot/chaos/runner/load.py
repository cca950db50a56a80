"""A load: the mix of an application at a rate, for some time, with faults at random instants.

Both workers consume from the beginning. The faults happen to the *target* worker, its link or the broker, one at a
time; each is undone, and a worker that ended is started again, as a supervisor does. When nothing more is sent, all
settles, and each id that was sent has a verdict, as in Jepsen's total queue: the verdicts add up to what was sent.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.chaos.faults.context import PREFORK
from repot.chaos.instruments.journal import DELIVERED, STARTED
from repot.chaos.report.load_report import LoadReport
from repot.chaos.report.result import CHILD, LOAD, STRANGER, Notice, Window, untested
from repot.chaos.runner.application import OTHER_TASKS, places_of
from repot.chaos.runner.environment import NOT_SENT, RunEnvironment
from repot.chaos.runner.evaluate import results_of
from repot.chaos.runner.observer import Sent
from repot.chaos.runner.probe import run_command
from repot.chaos.runner.sender import Sender
from repot.chaos.runner.time_scale import with_room
from repot.chaos.scenarios.scenario import LINK_AWAY_S, Needs, Scenario
from repot.errors import (
    BrokerUnreachable,
    DeadlineExceeded,
    ExperimentFailed,
    NotApplicable,
)
from repot.masking import masked
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from repot.chaos.faults.context import FaultContext
    from repot.chaos.report.result import TaskResult
    from repot.chaos.runner.case import Case, Testbed
    from repot.chaos.runner.mix import Call
    from repot.chaos.runner.observer import Observer
    from repot.chaos.runner.time_scale import TimeScale
    from repot.chaos.runner.worker_process import WorkerProcess

NAME = "load"
#: Parts of a second between two looks at what happens.
_LOOK_S = 0.25
#: A fault lasts for between this part of its scenario's time and all of it.
_LEAST = 0.2
#: The pause before a fault is this part of the mean, to twice the mean less this part.
_LEAST_PAUSE = 0.5
_ATTEMPTS = 4
#: A worker that has ended starts again within this time, while nothing else is waited for.
_RESTARTED_WITHIN_S = 600


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A call, the queue that its route leads to, and the options that it is sent with."""

    call: Call
    queue: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """What a load is to do.

    Attributes:
        dispatches: the messages, in the order of sending.
        rate: messages a second; with `for_s` it decides how many are planned.
        faults: scenarios whose faults happen at random instants; each once before any happens again.
        named: whether the user has named them: one that does not apply is an error then.
        every_s: the mean pause between two faults.
        processes: of each worker.
        ledger: a command that prints the id of a task for each effect that the application has noted; empty for none.
        command: runs it again.
    """

    dispatches: tuple[Dispatch, ...]
    rate: float
    for_s: float
    faults: tuple[Scenario, ...]
    named: bool = False
    every_s: float = 5
    processes: int = 2
    ledger: str = ""
    command: str = ""

    @property
    def scenario(self) -> Scenario:
        """Return the scenario of its case, which says which broker it needs."""
        harmful = any(one.needs is not Needs.ANY for one in self.faults)
        return Scenario(NAME, "A load with faults", "", None, None, needs=Needs.OWN if harmful else Needs.ANY)


def perform_load(load: Load, versions: Mapping[str, str], case: Case, testbed: Testbed) -> LoadReport:
    """Run a load.

    Raises:
        ExperimentFailed: a step did not happen, or the verdicts do not add up.
        Interrupted: `testbed.stop` was set.
    """
    perform = partial(_perform, load, versions, case, testbed)
    return with_room(testbed.target.times(case.profile), _ATTEMPTS, perform, partial(testbed.say, case))


def _perform(
    load: Load, versions: Mapping[str, str], case: Case, testbed: Testbed, times: TimeScale, attempt: int
) -> LoadReport:
    with ExitStack() as stack:
        try:
            return _LoadRun(load, RunEnvironment(case, testbed, stack, times, attempt)).perform(versions)
        except (DeadlineExceeded, BrokerUnreachable) as error:
            raise ExperimentFailed(error.message, hint=error.hint) from error
        except NOT_SENT as error:
            message = f"a server refused a message of the experiment: {error}"
            raise ExperimentFailed(message) from error


@dataclass
class _LoadRun:
    load: Load
    environment: RunEnvironment
    windows: list[Window] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    inapplicable: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.observer, self.rng = self.environment.observer, self.environment.rng
        # an application's effects are in the journal
        self.observer.effects = None
        if self.environment.counts_run_time:
            self.observer.check = self._require_room

    def perform(self, versions: Mapping[str, str]) -> LoadReport:
        created, begun, environment = datetime.now().astimezone(), monotonic(), self.environment
        context = environment.fault_context()
        faults = self._prepared(context)
        environment.declare_queues()
        processes = 1 if environment.runs_in_main_thread else self.load.processes
        with environment.testbed.starting:
            environment.start_both((processes, processes), both_consume=True)
        sender = self._sender()
        environment.stack.callback(sender.stop)
        environment.say(f"sending {len(self.load.dispatches)} messages, {self.load.rate:g} a second")
        sender.start()
        self._inject(faults, context, sender)
        sender.end()
        environment.say("following the tasks to their end")
        left = self._settle()
        for queue in environment.queues:
            self.observer.read_dead_letters(environment.settings.dead_letters_of(queue))
        sent = [*self.observer.sent]
        origin = min((one.at for one in sent), default=begun)
        results = tuple(results_of(self.observer, origin, ledger=self._ledger()))
        require_total(self.observer, len(sent), results)
        testbed, cell = environment.testbed, environment.case.cell
        return LoadReport(
            app=testbed.target.app, profile=cell.profile, guard=cell.guard, seed=testbed.seed,
            created=created.isoformat(timespec="seconds"), took_s=monotonic() - begun,
            product=testbed.test_broker.product, version=testbed.test_broker.version, versions=dict(versions),
            rate=self.load.rate, for_s=self.load.for_s, planned=len(self.load.dispatches), sent=len(sent),
            behind_s=sender.behind_s, task_results=results,
            windows=tuple(Window(one.what, one.begun - origin, one.ended - origin) for one in self.windows),
            inapplicable=self.inapplicable,
            notices=tuple(replace(one, at=one.at - origin) for one in self.notices),
            left=left, untested=untested(testbed.target.replaced, environment.shown_times()),
            command=self.load.command, ledger=str(masked(self.load.ledger)), places=places_of(testbed.target.app),
        )  # fmt: skip

    def _ledger(self) -> Counter[str]:
        """Return how many effects the application has noted for each task id.

        Raises:
            ExperimentFailed: the command fails, or has no id of this load.
        """
        if not self.load.ledger:
            return Counter()

        def failed(why: str) -> ExperimentFailed:
            message = f"the ledger {self.load.ledger!r} has no effects of this load: {masked(why)}"
            hint = "It prints a line for each effect: the id of the task that had it, as self.request.id has it."
            return ExperimentFailed(str(masked(message)), hint=hint)

        noted = Counter(map(str.strip, run_command(self.load.ledger, {}, failed).splitlines()))
        if not any(noted[one.task] for one in self.observer.followed):
            why = f"none of its {noted.total()} lines is the id of a task"
            raise failed(why)
        return noted

    def _prepared(self, context: FaultContext) -> list[Scenario]:
        """Prepare the faults, each until the last worker has ended; return those that apply."""
        found = []
        for one in self.load.faults:
            assert one.fault is not None, "planning has chosen those with a fault"
            try:
                self.environment.stack.enter_context(one.fault.prepared(context))
            except NotApplicable as error:
                if self.load.named:
                    message = f"--fault {one.name} does not apply: {error.message}"
                    raise ExperimentFailed(message, hint="Leave it out, or leave out --fault.") from error
                self.inapplicable[one.name] = error.message
            else:
                found.append(one)
        return found

    def _sender(self) -> Sender:
        client = self.environment.client
        sent = [Sent(LOAD, self.environment.new_id(), 0, name=one.call.task) for one in self.load.dispatches]

        def call(one: Dispatch, task: str) -> None:
            client.send_task(
                one.call.task, one.call.args, dict(one.call.kwargs), task_id=task, queue=one.queue, **one.options
            )

        calls = [partial(call, one, two.task) for one, two in zip(self.load.dispatches, sent, strict=True)]
        return Sender(calls, sent, self.observer.sent.append, self.load.rate)

    # the faults

    def _inject(self, faults: Sequence[Scenario], context: FaultContext, sender: Sender) -> None:
        """Inject the faults, in random order and after random pauses, until nothing more is sent."""
        turn: list[Scenario] = []
        while self._goes_on(self.load.every_s * self.rng.uniform(_LEAST_PAUSE, 2 - _LEAST_PAUSE), sender):
            if faults:
                turn = turn or self.rng.sample(faults, len(faults))
                self._strike(turn.pop(), context)

    def _goes_on(self, pause_s: float, sender: Sender) -> bool:
        """Wait for a pause between two faults; return whether there are messages to send after it."""
        end = monotonic() + pause_s
        self._wait(lambda: sender.is_over or monotonic() >= end, pause_s)
        return not sender.is_over

    def _wait(self, condition: Callable[[], bool], at_most_s: float) -> None:
        def looked() -> bool:
            self.observer.note_deaths()
            self.observer.check()
            self._restart_ended_workers()
            return condition()

        # a worker that starts again takes its time
        wait_until(
            looked, within_s=at_most_s + _RESTARTED_WITHIN_S, what="the load goes on", poll_s=_LOOK_S,
            stop=self.environment.testbed.stop,
        )  # fmt: skip

    def _strike(self, scenario: Scenario, context: FaultContext) -> None:
        """Inject one fault for a random time, and undo it."""
        assert scenario.fault is not None
        if self.environment.pool == PREFORK:
            self.environment.await_that(self.environment.target.pool_processes, "the target worker has processes")
        lasts_s = (scenario.lasts_s or 0) * self.rng.uniform(_LEAST, 1)
        if (scenario.lasts_s or 0) >= LINK_AWAY_S:
            lasts_s *= self.environment.times.stretch
        what = f"{scenario.name}: {scenario.fault.description}"
        self.environment.say(f"{what}, for {lasts_s:.1f} s")
        with self._window(what), self._undone_at_last(scenario, context):
            end = monotonic() + lasts_s

            def is_over() -> bool:
                self.observer.note_deaths()
                return monotonic() >= end

            stop = self.environment.testbed.stop
            wait_until(is_over, within_s=lasts_s + 60, what="the fault ends", poll_s=_LOOK_S, stop=stop)

    @contextmanager
    def _window(self, what: str) -> Iterator[None]:
        begun = monotonic()
        # while it is open, `_require_room` sees it as well
        self.windows.append(Window(what, begun, float("inf")))
        try:
            yield
        finally:
            self.windows[-1] = Window(what, begun, monotonic())

    @contextmanager
    def _undone_at_last(self, scenario: Scenario, context: FaultContext) -> Iterator[None]:
        """Inject a fault; a worker that does not end within the time of a supervisor is killed."""
        assert scenario.fault is not None
        target = self.environment.target
        try:
            with scenario.fault.injected(context):
                yield
        except DeadlineExceeded as error:
            self.notices.append(Notice(monotonic(), f"{error.message}: it was killed"))
            target.stop()
            self.observer.note_deaths()
            target.start_again()

    def _restart_ended_workers(self) -> None:
        for worker in self._workers:
            if worker.has_ended:
                text = f"{worker.name} ended by itself with {worker.process.exit_code}"
                self.notices.append(Notice(monotonic(), text))
                worker.start_again()

    @property
    def _workers(self) -> tuple[WorkerProcess, WorkerProcess]:
        return self.environment.target, self.environment.control

    def _require_room(self) -> None:
        """Accept the run times so far, of the runs that met no fault.

        Raises:
            TimeoutTooShort: one is about as long as the scaled visibility timeout, and the application's own is longer.
        """
        now = monotonic()
        runs = (run for one in self.observer.histories() for run in one.runs)
        spans = ((run.started, now if run.ended is None else run.ended) for run in runs)
        met = [(one.begun, one.ended) for one in self.windows]
        calm = (ended - begun for begun, ended in spans if not any(a <= ended and begun <= b for a, b in met))
        self.environment.times.require_room(max([self.observer.wait_s(), *calm]))

    # afterwards

    def _settle(self) -> str:
        """Wait until nothing is left; restart the workers if something is, as a supervisor may; return what is left."""
        self._restart_ended_workers()
        left = self.observer.settle()
        if left:
            self.environment.say("restarting the workers: messages are left")
            self.notices.append(Notice(monotonic(), f"the workers were restarted: {left}"))
            for worker in self._workers:
                worker.stop()
                self.observer.note_deaths()
                worker.start_again()
            left = self.observer.settle()
        return left


def require_total(observer: Observer, sent: int, results: Sequence[TaskResult]) -> None:
    """Accept verdicts that add up: one for each message that was sent, and one for each other task that a worker had.

    Raises:
        ExperimentFailed: by how much they do not.
    """
    ids = {role: [one.history.task for one in results if one.role == role] for role in (LOAD, CHILD, STRANGER)}
    of_load = set(ids[LOAD])
    if not len(of_load) == len(ids[LOAD]) == sent:
        message = f"the verdicts do not add up: {len(ids[LOAD])} on {len(of_load)} ids, and {sent} messages were sent"
        raise ExperimentFailed(message)
    held = {one.task for one in observer.events if one.kind in (DELIVERED, STARTED) and not _is_other(one.details)}
    if odd := held - {task for tasks in ids.values() for task in tasks}:
        message = f"the verdicts do not add up: {len(odd)} tasks that workers had have none, such as {min(odd)}"
        raise ExperimentFailed(message)


def _is_other(details: Mapping[str, Any]) -> bool:
    return str(details.get("name", "")).startswith(OTHER_TASKS)
