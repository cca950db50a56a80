"""One experiment: two workers, a task, a fault, followed to the end.

The *struck* worker reaches its broker and its results through Toxiproxy links of its
own, the *healthy* one and the producer through another. Nothing waits for a time to
pass, but for how long the fault lasts: each step waits for what the journal or the
broker says.

1. Both workers start; the struck one alone consumes, and runs a task: all is well.
2. The subject is sent and held at the scenario's phase, so the struck worker has it;
   another task is sent behind it, which waits.
3. The healthy worker starts to consume, too.
4. The fault strikes; the subject is let go; both are followed until no run goes on and
   the broker holds nothing of them.
5. The fault is undone. A worker that ended by itself is started again, as a supervisor
   does.
6. The healthy worker leaves, and one more task shows whether the struck one consumes.
   What a worker that does not keeps to itself comes to light when it is ended.
7. Every task id gets its verdict.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING

from repot.chaos.account import Course, result, silence
from repot.chaos.result import Fate, Window
from repot.chaos.scenarios import Needs
from repot.chaos.scenarios import Sent as When
from repot.chaos.stage import NOT_SENT, STEP_WITHIN_S, Stage
from repot.chaos.watch import POLL_S
from repot.errors import BrokerUnreachable, DeadlineExceeded, ExperimentFailed
from repot.waiting import wait_until
from repot.worker.gates import LONGEST_HOLD_S, Phase
from repot.worker.journal import DELIVERED, ENDED, HELD_TOO_LONG, STARTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.chaos.case import Case, Laboratory
    from repot.chaos.place import Place
    from repot.chaos.result import Result
    from repot.chaos.struck import Struck

#: A worker that has not taken a task for so long does not consume.
_CONSUMES_WITHIN_S = 15
#: A main thread that stood still in one call for so long, and said nothing, hangs: four times the timeouts of an
#: experiment.
HUNG_AFTER_S = 8
#: Redis hands over at once, if it has been asked; RabbitMQ's counts lag.
_HANDED_OVER_WITHIN_S = 6
_RESERVED_WITHIN_S = 5
#: What is not in a worker's hands by then lies in the one that stands still.
_TAKEN_WITHIN_S = 2


def perform(case: Case, laboratory: Laboratory) -> Result:
    """Carry out one case.

    Raises:
        ExperimentFailed: a step did not happen; there is no verdict.
        Inapplicable: this case means nothing on this broker, or for this task.
        Interrupted: `laboratory.stop` was set.
    """
    with ExitStack() as stack:
        try:
            return _Experiment(Stage(case, laboratory, stack)).perform()
        except (DeadlineExceeded, BrokerUnreachable) as error:
            message = f"{case.name}: {error.message}"
            raise ExperimentFailed(message, hint=error.hint) from error
        except NOT_SENT as error:
            message = f"{case.name}: a server did not take a message of the experiment: {error}"
            raise ExperimentFailed(message) from error


@dataclass
class _Experiment:
    stage: Stage
    windows: list[Window] = field(default_factory=list)
    exits: list[tuple[float, str, int | None]] = field(default_factory=list)
    begun: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.case, self.laboratory, self.watch = self.stage.case, self.stage.laboratory, self.stage.watch

    def perform(self) -> Result:
        scenario, target = self.case.scenario, self.laboratory.target
        place = self.stage.place()
        if scenario.fault:
            self.stage.stack.enter_context(scenario.fault.prepared(place))
        self.stage.declare_queues()
        self.stage.say("waiting to start")
        with self.laboratory.starting:
            self.stage.start_both()
        self.stage.say("a first task shows that all is well")
        self.stage.await_happening(ENDED, self.stage.send("before"), "a first task ends")
        counted = target.effects("")
        self._strike(place)
        self.stage.say("following the tasks to their end")
        self._start_again_what_ended()
        left = self.watch.settle()
        fate, steady_at = self._try_struck_worker()
        if steady_at is not None:
            left = self.watch.settle() or left
        if fate is Fate.HUNG or left:
            left = self._end_struck_worker()
        self.watch.take_letters(self.stage.settings.dead_letters_of(self.stage.queue))
        course = Course(
            struck=self.stage.struck.name,
            healthy=self.stage.healthy.name,
            windows=tuple(self.windows),
            exits=tuple(self.exits),
            fate=fate,
            left=left,
            steady_at=steady_at,
            stills_worker=scenario.stills_worker,
            effects=None if counted is None else (target.effects(self.watch.subject.task) or 0) - counted,
        )
        self._require_timely_release()
        return result(self.case, self.watch, course, self.laboratory, took_s=monotonic() - self.begun)

    def _require_timely_release(self) -> None:
        """Give no verdict on a task that nobody let go: the fault did not meet it where the scenario says."""
        if any(one.what == HELD_TOO_LONG for one in self.watch.happenings):
            message = f"{self.case.name}: the task was held for {LONGEST_HOLD_S} s at its phase, and nobody let it go"
            raise ExperimentFailed(message)

    # the fault

    def _strike(self, place: Place) -> None:
        """Bring subject and fault together, and follow what comes of it until the fault is undone."""
        how = {
            When.BEFORE: self._strike_a_task,
            When.INTO_THE_FAULT: self._send_into_fault,
            When.OVER_THE_STRUCK_LINK: self._send_over_struck_link,
        }
        how[self.case.scenario.sent](place, self.stage.new_id())

    def _send_over_struck_link(self, place: Place, task: str) -> None:
        self.stage.let_healthy_worker_in()
        producer = self.stage.proxy("producer", self.laboratory.ground.port, self.laboratory.ground.host)
        client = self.stage.client_of(
            self.stage.settings.replace(broker_url=self.laboratory.ground.url_at(producer.port))
        )
        # one that has sent before: its connection is there
        sent = self.stage.send("before", client)
        self.stage.await_that(
            lambda: any(one.what == ENDED and one.task == sent for one in self.watch.happenings),
            "what the producer sends before the fault is run",
        )
        with self._fault(replace(place, link=producer)):
            self.stage.send_subject(task, client)
            self._follow()

    def _send_into_fault(self, place: Place, task: str) -> None:
        def struck() -> bool:
            with self._fault(place):
                self.stage.send_subject(task)
                if not self.watch.is_handed_over(_HANDED_OVER_WITHIN_S):
                    return False
                self.stage.send("waiting")
                self.stage.let_healthy_worker_in()
                self._follow()
            return True

        while not struck():
            self.windows.clear()
            task = self._take_back()

    def _strike_a_task(self, place: Place, task: str) -> None:
        """Hold the subject at its phase, strike, and let it go."""
        phase = self.case.scenario.phase
        if phase is Phase.BEFORE_RECEIVE:
            while not self._strike_unread(place, task):
                task = self._take_back()
            return
        if phase is None or phase is Phase.AFTER_ACK:
            self.stage.send_subject(task)
            if phase and (left := self.watch.settle()):
                message = f"the task did not come to its end without a fault: {left}"
                raise ExperimentFailed(message)
            self._strike_held(place, lambda: None)
            return
        self.stage.gates.close(phase, task)
        self.stage.send_subject(task)
        self.stage.await_held(phase, task)
        self._strike_held(place, lambda: self.stage.gates.open(phase, task))

    def _strike_unread(self, place: Place, task: str) -> bool:
        """Strike a worker that stands still with the subject in its hands; False if it did not ask for it in time."""
        with ExitStack() as standstill:
            standstill.enter_context(self.stage.struck.frozen())
            self.stage.send_subject(task)
            if not self.watch.is_handed_over(_HANDED_OVER_WITHIN_S):
                return False
            self._strike_held(place, standstill.close)
            return True

    def _take_back(self) -> str:
        """Let a subject that nobody had asked for run as another first task; give the id for one that takes its place.

        On Redis a worker asks for a second at a time: it may stand still just when its question is over.
        """
        sent = self.watch.subject
        sent.role = "before"
        self.stage.await_happening(ENDED, sent.task, "the task that nobody had asked for ends")
        return self.stage.new_id()

    def _strike_held(self, place: Place, release: Callable[[], None]) -> None:
        """Strike a task that is held, and let it go by `release`."""
        scenario = self.case.scenario
        if scenario.phase not in (Phase.RECEIVED, Phase.AFTER_ACK):
            # one would keep the main process held for longer than its heartbeats, the other run what is to wait
            self._send_waiting(can_reserve=scenario.phase is not Phase.BEFORE_RECEIVE)
        # a broker that is struck cannot let anybody in; what waits, waits
        broker_is_struck = scenario.needs is not Needs.ANY
        if not broker_is_struck:
            self.stage.let_healthy_worker_in()
            with suppress(DeadlineExceeded):
                self.stage.await_that(self._nothing_waits, "nothing waits any more", _TAKEN_WITHIN_S)
        unseen = self.stage.struck.frozen() if scenario.unseen else nullcontext()
        if scenario.lasts_s == 0:
            with unseen, self._fault(place):
                pass
            release()
        else:
            with self._fault(place):
                release()
                self._follow()
        if broker_is_struck:
            # a worker that has met a fatal error takes seconds to end, and nobody hears of it before
            self.stage.let_healthy_worker_in(meanwhile=self._start_again_what_ended)

    def _send_waiting(self, *, can_reserve: bool) -> None:
        """Send what is to wait behind the subject: what the struck worker reserves, and one at the broker."""
        scenario, reserves = self.case.scenario, self.case.profile.reserves(guard=self.case.guard)
        crowded = scenario.crowded and scenario.needs is not Needs.ANY
        first, *_ = [self.stage.send("waiting") for _ in range(reserves + 1 if crowded else 1)]
        if reserves and can_reserve:
            # an application of the user's own may reserve less
            with suppress(DeadlineExceeded):
                self.stage.await_happening(DELIVERED, first, "the struck worker reserves a task", _RESERVED_WITHIN_S)

    def _nothing_waits(self) -> bool:
        """Whether all that waited is in a worker's hands."""
        taken = {one.task for one in self.watch.happenings if one.what == DELIVERED}
        return all(sent.task in taken for sent in self.watch.sent if sent.role == "waiting")

    @contextmanager
    def _fault(self, place: Place) -> Iterator[None]:
        fault = self.case.scenario.fault
        if fault is None:
            yield
            return
        self.stage.say(f"fault: {fault.what}")
        struck_at = monotonic()
        with fault.injected(place):
            yield
        self.windows.append(Window(fault.what, struck_at, monotonic()))

    def _follow(self) -> None:
        """Follow the tasks for as long as the fault lasts."""
        lasts_s = self.case.scenario.lasts_s
        if lasts_s is None:
            self.watch.settle()
            return
        end = monotonic() + lasts_s

        def is_over() -> bool:
            self.watch.look()
            return monotonic() >= end

        wait_until(is_over, within_s=lasts_s + 5, what="the fault lasts", poll_s=POLL_S, stop=self.laboratory.stop)

    # afterwards

    def _start_again_what_ended(self) -> None:
        for worker in (self.stage.struck, self.stage.healthy):
            if worker.has_ended:
                self._start_again(worker)

    def _start_again(self, worker: Struck) -> None:
        self.exits.append((monotonic(), worker.name, worker.process.exit_code))
        worker.start_again()

    def _try_struck_worker(self) -> tuple[Fate, float | None]:
        """Send a task that only the struck worker can take; say what became of the worker, and when all was well."""
        self.stage.say("does the struck worker consume again?")
        self._start_again_what_ended()
        self.stage.healthy.signal(signal.SIGTERM)
        with suppress(DeadlineExceeded):
            wait_until(
                lambda: self.stage.healthy.has_ended,
                within_s=STEP_WITHIN_S,
                what="the healthy worker leaves",
                stop=self.laboratory.stop,
            )
        self.stage.healthy.stop()
        after = self.stage.send("after")
        try:
            self.stage.await_happening(STARTED, after, "the struck worker runs another task", _CONSUMES_WITHIN_S)
        except DeadlineExceeded:
            if not self.stage.struck.has_ended:
                return Fate.HUNG, None
            self._start_again(self.stage.struck)
            self.stage.await_happening(STARTED, after, "the worker that was started again runs another task")
        at = monotonic()
        if any(name == self.stage.struck.name for _, name, _ in self.exits):
            return Fate.EXITED, at
        return (Fate.HUNG if self._hung() else Fate.CONSUMES), at

    def _hung(self) -> bool:
        """Whether the struck worker stood still without a word since the fault, and not because of the fault itself."""
        if not self.windows:
            return False
        since = self.windows[-1].ended if self.case.scenario.stills_worker else self.windows[0].begun
        return silence(self.watch, self.stage.struck.name, since) >= HUNG_AFTER_S

    def _end_struck_worker(self) -> str:
        """End it, so that what it kept to itself comes to light, and start it anew to finish that."""
        self.stage.say("ending the struck worker, and starting it anew")
        self.stage.struck.stop()
        self.watch.look()
        self.stage.struck.start_again()
        return self.watch.settle()
