"""One experiment: two workers, a task under test and a fault, followed to the end.

The *target* worker reaches its broker and its results through its own Toxiproxy links, the *control*
worker and the producer through another. Each step waits for an event of the journal or an answer of
the broker; only the duration of the fault is a fixed time.

1. Both workers start. Only the target worker consumes; it runs a first task.
2. The task under test is sent and waits at the failpoint of the scenario's phase, in the target
   worker. Another task waits behind it.
3. Once the target worker has reserved that one, if its prefetch allows it, the control worker starts to
   consume as well.
4. The fault is injected and the task released. Both tasks are followed until no run is open and the
   queue is drained.
5. The fault is undone. A worker that ended by itself is started again, as a supervisor does.
6. The control worker stops, and one more task shows whether the target worker consumes. If it does
   not, it is ended, and the broker delivers the messages that it had reserved again.
7. Every task id gets its verdict.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from repot.chaos.faults.context import PREFORK
from repot.chaos.instruments.failpoints import MAX_WAIT_S, Phase
from repot.chaos.instruments.journal import DELIVERED, ENDED, NEVER_RELEASED, READY, SENT, STARTED
from repot.chaos.report.result import Window, WorkerOutcome
from repot.chaos.runner.application import GREEN
from repot.chaos.runner.environment import NOT_SENT, STEP_WITHIN_S, RunEnvironment
from repot.chaos.runner.evaluate import Observation, evaluate, silence
from repot.chaos.runner.observer import POLL_S
from repot.chaos.runner.time_scale import with_room
from repot.chaos.runner.verdict import Sending, task_history
from repot.chaos.scenarios.scenario import Needs
from repot.chaos.scenarios.scenario import SendTime as When
from repot.errors import BrokerUnreachable, DeadlineExceeded, ExperimentFailed, Inconclusive, NotApplicable
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from repot.chaos.faults.context import FaultContext
    from repot.chaos.report.result import Result
    from repot.chaos.runner.case import Case, Testbed
    from repot.chaos.runner.time_scale import TimeScale
    from repot.chaos.runner.verdict import EffectCount
    from repot.chaos.runner.worker_process import WorkerProcess

#: The visibility timeout doubles at least from one to the next.
_ATTEMPTS = 6
#: A worker that takes no task within this time does not consume.
_CONSUMES_WITHIN_S = 15
#: A main thread that is blocked in one call and logs nothing for so long hangs: four times the timeouts of an
#: experiment.
HUNG_AFTER_S = 8
#: Redis replies to a waiting BRPOP at once; RabbitMQ's counts lag.
_DELIVERED_WITHIN_S = 6
#: Long enough to act in; a worker that waits for each of several answers in turn still gets to its messages.
_ANSWER_AFTER_MS = 400
#: More messages behind the task under test show nothing more.
_MOST_RESERVED = 20
#: From the beginning of the fault until the target worker has the result of its process: some milliseconds, and a
#: hundred on a busy machine.
_PAUSE_S = 0.3
_PAUSE_WITHIN_S = 10
_BUSY = "Is the machine too busy for the scaled times? Then try --jobs 1."
_GREEN_ENDS_WITHIN_S = 5
#: A task that no worker has by then is reserved by the frozen one.
_TAKEN_WITHIN_S = 2


def perform(case: Case, testbed: Testbed) -> Result:
    """Run one case.

    Raises:
        ExperimentFailed: a step did not happen; there is no verdict.
        NotApplicable: the case does not apply to this broker or this task.
        Interrupted: `testbed.stop` was set.
    """
    times, say = testbed.target.times(case.profile), partial(testbed.say, case)
    return with_room(times, _ATTEMPTS, partial(_perform, case, testbed), say, prefix=f"{case.name}: ")


def _perform(case: Case, testbed: Testbed, times: TimeScale, attempt: int) -> Result:
    testbed = replace(testbed, target=testbed.target.fresh())
    with ExitStack() as stack:
        try:
            return _Experiment(RunEnvironment(case, testbed, stack, times, attempt)).perform()
        except (DeadlineExceeded, BrokerUnreachable) as error:
            message = f"{case.name}: {error.message}"
            raise ExperimentFailed(message, hint=error.hint or _BUSY) from error
        except NOT_SENT as error:
            message = f"{case.name}: a server refused a message of the experiment: {error}"
            raise ExperimentFailed(message) from error


@dataclass
class _Experiment:
    environment: RunEnvironment
    windows: list[Window] = field(default_factory=list)
    exits: list[tuple[float, str, int | None]] = field(default_factory=list)
    begun: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.case, self.testbed = self.environment.case, self.environment.testbed
        self.observer = self.environment.observer
        #: What the probe counted before the task under test was sent.
        self.before: Mapping[str, int] = {}

    def perform(self) -> Result:
        scenario = self.case.scenario
        context = self.environment.fault_context()
        if scenario.fault:
            self.environment.stack.enter_context(scenario.fault.prepared(context))
        self.environment.declare_queues()
        self.environment.say("waiting to start")
        with self.testbed.starting:
            self.environment.start_both()
        self.environment.say("running a first task without a fault")
        self.environment.await_event(ENDED, self.environment.send("before"), "the first task ends")
        self._inject(context, self._next_id())
        self.environment.say("following the tasks to their end")
        self._restart_ended_workers()
        left = self.observer.settle()
        outcome, steady_at = self._try_target_worker()
        if steady_at is not None:
            left = self.observer.settle() or left
        if outcome is WorkerOutcome.HUNG or left:
            left = self._restart_target_worker()
        for queue in self.environment.queues:
            self.observer.read_dead_letters(self.environment.settings.dead_letters_of(queue))
        observed = Observation(
            target=self.environment.target.name,
            control=self.environment.control.name,
            windows=tuple(self.windows),
            exits=tuple(self.exits),
            worker_outcome=outcome,
            left=left,
            steady_at=steady_at,
            stills_worker=scenario.stills_worker,
            scaled=self.environment.shown_times(),
            effects=self._effects(),
        )
        self._require_timely_release()
        self._require_end()
        return evaluate(self.case, self.observer, observed, self.testbed, took_s=monotonic() - self.begun)

    def _require_end(self) -> None:
        """Refuse a verdict on a task that is to run again only after the experiment: what it does then is not seen.

        Raises:
            Inconclusive: says when it is to run.
        """
        task = self.observer.task_under_test.task
        if task in self.observer.postponed:
            due_s = self.observer.due_s(task)
            message = f"{self.case.name}: the task is to run again in {due_s:.0f} s, after the end of the experiment"
            hint = "What comes then is not tested: give it a shorter countdown where it is tested."
            raise Inconclusive(message, hint=hint)

    def _next_id(self) -> str:
        """Return the id of the task under test; its effects are counted from now on."""
        task = self.environment.new_id()
        self.before = self.testbed.target.count(task)
        return task

    def _effects(self) -> tuple[EffectCount, ...]:
        """Return the effects of the task under test that its probe counts; nothing without a probe.

        Raises:
            ExperimentFailed: a run succeeded without an effect that the probe could see, but there were some before.
        """
        target, before, task = self.testbed.target, self.before, self.observer.task_under_test.task
        if target.probe is None:
            return ()
        found = target.probe.since(before, target.count(task))
        unseen = [one for one in found if not one.happened and before.get(one.name, 0) >= one.expected > 0]
        if unseen and task_history(task, self.observer.events, self.observer.died).completed:
            name = unseen[0].name or "effects"
            message = (
                f"{self.case.name}: the task succeeded, and the probe counts {before[unseen[0].name]} {name}, as "
                "before it was sent: an effect that overwrites an earlier one is not seen"
            )
            hint = "Give each run fresh arguments (--arguments), or remove what the one before it left (--reset)."
            raise ExperimentFailed(message, hint=hint)
        return found

    def _require_timely_release(self) -> None:
        """Refuse a verdict on a task that was never released: the fault did not meet it at the scenario's phase."""
        if any(one.kind == NEVER_RELEASED for one in self.observer.events):
            message = f"{self.case.name}: the task waited {MAX_WAIT_S} s at its failpoint and was not released"
            raise ExperimentFailed(message)

    # the fault

    def _inject(self, context: FaultContext, task: str) -> None:
        """Send the task under test, inject the fault, and follow the tasks until the fault is undone."""
        how = {
            When.BEFORE: self._inject_into_task,
            When.INTO_THE_FAULT: self._send_into_fault,
            When.OVER_THE_TARGET_LINK: self._send_over_target_link,
        }
        how[self.case.scenario.sent](context, task)

    def _send_over_target_link(self, context: FaultContext, task: str) -> None:
        self.environment.start_control_consumer()
        test_broker = self.environment.test_broker
        producer = self.environment.proxy("producer", test_broker.port, test_broker.host)
        client = self.environment.client_of(
            self.environment.settings.replace(broker_url=test_broker.url_at(producer.port))
        )
        # a task before the fault opens its connection
        sent = self.environment.send("before", client)
        self.environment.await_that(
            lambda: any(one.kind == ENDED and one.task == sent for one in self.observer.events),
            "the task that the producer sends before the fault ends",
        )
        with self._fault(replace(context, link=producer)):
            self.environment.send_task_under_test(task, client)
            self._follow()

    def _send_into_fault(self, context: FaultContext, task: str) -> None:
        def injected() -> bool:
            with self._fault(context):
                self.environment.send_task_under_test(task)
                if not self.observer.await_delivered(_DELIVERED_WITHIN_S):
                    return False
                follow()
            return True

        def follow() -> None:
            self.environment.send("waiting")
            self.environment.start_control_consumer()
            self._follow()

        if not injected():
            # the worker could not ask for the task: the fault meets the answer to a task that it asked for before
            self.windows.clear()
            task = self._take_back()
            with self._slow_answers(context):
                self.environment.send_task_under_test(task)
                self._await_asked_for(task)
                with self._fault(context):
                    follow()

    def _inject_into_task(self, context: FaultContext, task: str) -> None:
        """Let the task under test wait at its phase, inject the fault, and release the task."""
        phase = self.case.scenario.phase
        if self.case.scenario.deadly and self.testbed.target.app:
            self._make_deadly(task)
        if phase is Phase.BEFORE_RECEIVE:
            self._inject_before_receive(context, task)
            return
        if phase is None or phase is Phase.AFTER_ACK:
            self._send_without_fault(task)
            if phase and (left := self.observer.settle()):
                message = f"the task did not end without a fault: {left}"
                raise ExperimentFailed(message)
            self._inject_and_release(context, lambda: None)
            return
        self.environment.failpoints.set(phase, task)
        self._send_without_fault(task)
        self.environment.await_reached(phase, task)
        self._inject_and_release(context, lambda: self.environment.failpoints.clear(phase, task))

    def _make_deadly(self, task: str) -> None:
        """Let a user's task kill its process.

        Raises:
            NotApplicable: the pool has no process for it.
        """
        if self.environment.pool != PREFORK:
            message = f"the pool {self.environment.pool} has no processes that a task could kill"
            raise NotApplicable(message)
        self.environment.failpoints.make_deadly(task)

    def _outlast_timeout(self) -> None:
        """Hold a user's task for as long as repot's own works: longer than the visibility timeout.

        Raises:
            NotApplicable: no task is held for so long.
        """
        hold_s = self.case.scenario.works_s * self.environment.times.stretch
        if hold_s >= MAX_WAIT_S:
            message = f"no task is held for {hold_s:.0f} s, as long as this visibility timeout asks for"
            raise NotApplicable(message, hint="Leave --scale out.")
        end = monotonic() + hold_s
        wait_until(lambda: monotonic() >= end, within_s=MAX_WAIT_S, what="the task works", stop=self.testbed.stop)

    def _send_without_fault(self, task: str) -> None:
        """Send the task under test while no fault is active.

        Raises:
            ExperimentFailed: the broker did not accept it: no verdict on a task that was never there.
        """
        self.environment.send_task_under_test(task)
        sent = self.observer.task_under_test
        if sent.sending is not Sending.ACCEPTED:
            message = f"{self.case.name}: the task was not sent, although no fault was active: {sent.error}"
            raise ExperimentFailed(message)

    def _inject_before_receive(self, context: FaultContext, task: str) -> None:
        """Inject the fault while the message is on its way to a frozen worker, or has just arrived there."""
        with ExitStack() as freeze:
            freeze.enter_context(self.environment.target.frozen())
            self._send_without_fault(task)
            if not self.observer.await_delivered(_DELIVERED_WITHIN_S):
                # on Redis a frozen worker may not have asked for a message
                with self._slow_answers(context):
                    freeze.close()
                    self._await_asked_for(task)
                    freeze.enter_context(self.environment.target.frozen())
            self._inject_and_release(context, freeze.close)

    @contextmanager
    def _slow_answers(self, context: FaultContext) -> Iterator[None]:
        """Delay what the broker sends to the target worker."""
        with context.link.with_toxic("latency", ["downstream"], {"latency": _ANSWER_AFTER_MS, "jitter": 0}):
            yield

    def _await_asked_for(self, task: str) -> None:
        """Wait until the broker has handed the task to the worker, whose link is slow.

        Raises:
            ExperimentFailed: the worker has it already.
        """
        is_empty = partial(self.observer.counts, lambda depth: depth.ready == 0)
        wait_until(is_empty, within_s=STEP_WITHIN_S, what="the worker asks for the task", poll_s=0.01)
        if any(one.kind == DELIVERED and one.task == task for one in self.observer.events):
            message = f"{self.case.name}: the worker received the task before the fault"
            raise ExperimentFailed(message)

    def _take_back(self) -> str:
        """Turn a task under test that was not delivered into another first task; return the id of the next one."""
        sent = self.observer.task_under_test
        sent.role = "before"
        self.environment.await_event(ENDED, sent.task, "the task that was not delivered ends")
        return self._next_id()

    def _inject_and_release(self, context: FaultContext, release: Callable[[], None]) -> None:
        """Inject the fault while the task waits at its failpoint; call `release` to let it continue."""
        scenario = self.case.scenario
        if scenario.phase not in (Phase.RECEIVED, Phase.AFTER_ACK):
            # at RECEIVED the main process would miss its heartbeats, at AFTER_ACK the worker would run the waiting task
            self._send_waiting(can_reserve=scenario.phase is not Phase.BEFORE_RECEIVE)
        # the control worker cannot start to consume at a broker that is down; the waiting tasks stay at the broker
        broker_is_target = scenario.needs is not Needs.ANY
        if not broker_is_target:
            self.environment.start_control_consumer()
            with suppress(DeadlineExceeded):
                self.environment.await_that(
                    self._all_delivered, "workers have taken all waiting tasks", _TAKEN_WITHIN_S
                )
        if scenario.phase is Phase.BEFORE_ACK:
            self._await_pause()
        if self.testbed.target.into_s and scenario.phase is Phase.RUNNING and scenario.fault:
            release()
            self._await_into(self.testbed.target.into_s)
        self._require_first_delivery()
        if scenario.phase and not scenario.fault and self.testbed.target.app:
            self._outlast_timeout()
        frozen = self.environment.target.frozen() if scenario.unseen else nullcontext()
        if scenario.lasts_s == 0:
            with frozen, self._fault(context):
                pass
            release()
        else:
            with self._fault(context):
                release()
                self._follow()
        if broker_is_target:
            # a worker takes seconds to end after a fatal error, and answers nothing meanwhile
            self.environment.start_control_consumer(meanwhile=self._restart_ended_workers)

    def _await_into(self, into_s: float) -> None:
        """Let the task under test run for so long.

        Raises:
            NotApplicable: it has ended before.
        """
        task, end = self.observer.task_under_test.task, monotonic() + into_s

        def is_there() -> bool:
            if any(self.observer.events_of(ENDED, self.environment.target.name, task)):
                message = f"the task ended before it had run for {into_s:g} s"
                raise NotApplicable(message)
            return monotonic() >= end

        wait_until(is_there, within_s=into_s + STEP_WITHIN_S, what=f"the task has run for {into_s:g} s", poll_s=0.02)

    def _require_first_delivery(self) -> None:
        """Refuse to inject the fault into a task that the broker has delivered again before, by its own timeout.

        Raises:
            Inconclusive: the verdict would be that on another scenario.
        """
        if not self.case.scenario.fault:
            return
        mine = [one for one in self.observer.events if one.task == self.observer.task_under_test.task]
        deliveries = [one.at for one in mine if one.kind == DELIVERED]
        if len(deliveries) > 1 + sum(one.kind == SENT for one in mine):
            message = f"{self.case.name}: the broker delivered the task again before the fault"
            raise Inconclusive(message, hint=_BUSY)
        if deliveries and self.environment.counts_run_time:
            self.environment.times.require_in_time(monotonic() - min(deliveries), self.case.name)

    def _send_waiting(self, *, can_reserve: bool) -> None:
        """Send the tasks that wait behind the task under test: those that the target worker reserves, and one more."""
        scenario, reserves = self.case.scenario, self._reserves()
        crowded = scenario.crowded and scenario.needs is not Needs.ANY
        first, *_ = [self.environment.send("waiting") for _ in range(reserves + 1 if crowded else 1)]
        # without a phase a user's task may run for long before the worker has room
        if reserves and can_reserve and (scenario.phase or not self.testbed.target.app):
            self._await_reserved(first)

    def _await_reserved(self, task: str) -> None:
        """Wait until the target worker has a waiting task: the control worker would take it, and hide what is lost.

        Raises:
            DeadlineExceeded: it does not take it.
        """
        self.environment.await_event(DELIVERED, task, "the target worker reserves a task")

    def _reserves(self) -> int:
        """Return how many messages the target worker reserves beside the one that it runs.

        An application has a prefetch of its own, and perhaps another for each task; its worker has stated it.
        """
        if not self.testbed.target.app:
            return self.case.profile.reserves(guard=self.case.guard)
        if self.environment.runs_in_main_thread:
            return 0
        name = self.environment.target.name
        *_, ready = self.observer.events_of(READY, name)
        prefetch = ready.details["prefetch"]
        received = self.observer.events_of(DELIVERED, name, self.observer.task_under_test.task)
        held = any(one.details["late"] for one in received)
        # without a limit it takes all that there is
        return min(prefetch - held, _MOST_RESERVED) if prefetch else _MOST_RESERVED

    def _await_pause(self) -> None:
        """Wait until no timer of the target worker runs for a moment.

        At BEFORE_ACK the worker's next command is to be what follows from the end of the task. A timer, such as that of
        the restore scan, which meets the fault before the worker has read that end may block it for good. None runs
        while the main thread runs the task itself.
        """
        if self.environment.runs_in_main_thread:
            return
        try:
            self.environment.await_that(
                lambda: self.observer.timers_pause(self.environment.target.name, _PAUSE_S),
                "the timers of the target worker pause",
                _PAUSE_WITHIN_S,
            )
        except DeadlineExceeded:
            self.environment.say("the timers of the target worker do not pause: one may meet the fault before the ACK")

    def _all_delivered(self) -> bool:
        """Return whether workers have received all waiting tasks."""
        taken = {one.task for one in self.observer.events if one.kind == DELIVERED}
        return all(sent.task in taken for sent in self.observer.sent if sent.role == "waiting")

    @contextmanager
    def _fault(self, context: FaultContext) -> Iterator[None]:
        fault = self.case.scenario.fault
        if fault is None:
            yield
            return
        self.environment.say(f"fault: {fault.description}")
        begun = monotonic()
        with fault.injected(context):
            yield
        self.windows.append(Window(fault.description, begun, monotonic()))

    def _follow(self) -> None:
        """Follow the tasks for as long as the fault lasts."""
        lasts_s = self.environment.lasts_s
        if lasts_s is None:
            self.observer.settle()
            return
        end = monotonic() + lasts_s

        def is_over() -> bool:
            self.observer.note_deaths()
            return monotonic() >= end

        wait_until(is_over, within_s=lasts_s + 5, what="the fault ends", poll_s=POLL_S, stop=self.testbed.stop)

    # afterwards

    def _restart_ended_workers(self) -> None:
        for worker in (self.environment.target, self.environment.control):
            if worker.has_ended:
                self._start_again(worker)

    def _start_again(self, worker: WorkerProcess) -> None:
        self.exits.append((monotonic(), worker.name, worker.process.exit_code))
        worker.start_again()

    def _try_target_worker(self) -> tuple[WorkerOutcome, float | None]:
        """Send a task that only the target worker can take; return the worker outcome and when the task started."""
        self.environment.say("checking whether the target worker consumes")
        self._restart_ended_workers()
        self.environment.control.signal(signal.SIGTERM)
        with suppress(DeadlineExceeded):
            wait_until(
                lambda: self.environment.control.has_ended,
                # a pool of greenlets ends a minute later, or not at all
                within_s=_GREEN_ENDS_WITHIN_S if self.environment.pool in GREEN else STEP_WITHIN_S,
                what="the control worker ends",
                stop=self.testbed.stop,
            )
        self.environment.control.stop()
        after = self.environment.send("after")
        try:
            self.environment.await_event(STARTED, after, "the target worker runs another task", _CONSUMES_WITHIN_S)
        except DeadlineExceeded:
            if not self.environment.target.has_ended:
                return WorkerOutcome.HUNG, None
            self._start_again(self.environment.target)
            self.environment.await_event(STARTED, after, "the restarted worker runs another task")
        at = monotonic()
        if any(name == self.environment.target.name for _, name, _ in self.exits):
            return WorkerOutcome.EXITED, at
        return (WorkerOutcome.HUNG if self._hung() else WorkerOutcome.CONSUMES), at

    def _hung(self) -> bool:
        """Return whether the target worker was blocked and silent since the fault, and not by the fault itself.

        While it runs tasks in its main thread, that is not known.
        """
        if not self.windows or self.environment.runs_in_main_thread:
            return False
        since = self.windows[-1].ended if self.case.scenario.stills_worker else self.windows[0].begun
        hung_after_s = HUNG_AFTER_S * self.environment.times.patience
        return silence(self.observer, self.environment.target.name, since) >= hung_after_s

    def _restart_target_worker(self) -> str:
        """End the target worker, for the broker to deliver its reserved messages again; start it again to run them."""
        self.environment.say("restarting the target worker")
        self.environment.target.stop()
        self.observer.note_deaths()
        self.environment.target.start_again()
        return self.observer.settle()
