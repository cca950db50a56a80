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
from random import Random
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

from amqp import AMQPError
from celery import Celery
from kombu.exceptions import OperationalError
from redis import RedisError

from repot.brokers.local import LOOPBACK
from repot.chaos.account import Course, result, silence
from repot.chaos.observed import NAME as OBSERVED
from repot.chaos.observed import Order
from repot.chaos.place import Place
from repot.chaos.proxies import Proxy
from repot.chaos.result import Cell, Fate, Window
from repot.chaos.scenarios import Needs
from repot.chaos.scenarios import Sent as When
from repot.chaos.struck import Struck
from repot.chaos.target import companion
from repot.chaos.verdict import Sending
from repot.chaos.watch import POLL_S, Sent, Watch
from repot.chaos.workers import start_worker
from repot.config import Role
from repot.config.masking import masked
from repot.errors import BrokerUnreachable, DeadlineExceeded, ExperimentFailed, Inapplicable, Interrupted
from repot.waiting import wait_until
from repot.worker.gates import Gates, Phase
from repot.worker.journal import DELIVERED, ENDED, HELD, READY, STARTED, Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from threading import Event, Lock

    from repot.brokers.local import GuardedProcess, Server
    from repot.brokers.local.ground import Ground
    from repot.chaos.profiles import Profile
    from repot.chaos.result import Finding, Result
    from repot.chaos.scenarios import Scenario
    from repot.chaos.target import Target
    from repot.config import WorkerSettings

STRUCK, HEALTHY = "struck", "healthy"

#: Longer than anything takes here; a step that needs more has failed.
_STEP_WITHIN_S = 45
#: A worker that has not taken a task for so long does not consume.
_CONSUMES_WITHIN_S = 15
#: A main thread that stood still in one call for so long, and said nothing, hangs: four times the timeouts of an
#: experiment.
HUNG_AFTER_S = 8
#: A producer that has not returned for so long hangs.
_SENT_WITHIN_S = 15
#: Redis hands over at once, if it has been asked; RabbitMQ's counts lag.
_HANDED_OVER_WITHIN_S = 6
_RESERVED_WITHIN_S = 5
#: What is not in a worker's hands by then lies in the one that stands still.
_TAKEN_WITHIN_S = 2

#: What clients raise when a broker cannot be had.
_NOT_SENT = (OperationalError, RedisError, AMQPError, OSError)


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a cell."""

    scenario: Scenario
    profile: Profile
    guard: bool
    number: int = 1

    @property
    def cell(self) -> Cell:
        """Its place in the matrix."""
        return Cell(self.scenario.name, self.profile.name, self.guard)

    @property
    def name(self) -> str:
        """Unique among the cases of a campaign; also the name of its queue."""
        return f"{self.cell.name.replace('/', '-')}-{self.number}"

    def command(self, seed: int, target: Target) -> str:
        """What runs it again."""
        guard = "on" if self.guard else "off"
        again = f"repot chaos run {self.scenario.name} --profile {self.profile.name} --guard {guard} --seed {seed}"
        return f"{again} {target.options}".strip()


@dataclass(frozen=True, slots=True)
class Laboratory:
    """What an experiment uses, and how it tells of its steps."""

    ground: Ground
    results: Server
    toxiproxy_url: str
    folder: Path
    seed: int
    target: Target
    expected: tuple[Finding, ...] | None
    say: Callable[[Case, str], None]
    stop: Event
    #: Held while two workers start. A start takes a core for a second, and a worker
    #: starved of it sends no heartbeats: several at once would add faults of their own.
    starting: Lock


def perform(case: Case, laboratory: Laboratory) -> Result:
    """Carry out one case.

    Raises:
        ExperimentFailed: a step did not happen; there is no verdict.
        Inapplicable: this case means nothing on this broker, or for this task.
        Interrupted: `laboratory.stop` was set.
    """
    with ExitStack() as stack:
        try:
            return _Experiment(case, laboratory, stack).perform()
        except (DeadlineExceeded, BrokerUnreachable) as error:
            message = f"{case.name}: {error.message}"
            raise ExperimentFailed(message, hint=error.hint) from error
        except _NOT_SENT as error:
            message = f"{case.name}: a private server did not take a message: {error}"
            raise ExperimentFailed(message) from error


@dataclass
class _Experiment:
    case: Case
    laboratory: Laboratory
    stack: ExitStack
    windows: list[Window] = field(default_factory=list)
    exits: list[tuple[float, str, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        case, laboratory = self.case, self.laboratory
        self.begun = monotonic()
        ground = laboratory.ground
        # on somebody's own broker no two runs have anything in common
        self.name = f"{case.name}-{ground.token}" if ground.token else case.name
        self.folder = laboratory.folder / case.name
        self.folder.mkdir(parents=True)
        self.journal = Journal(self.folder / "journal")
        self.gates = Gates(self.journal)
        self.rng = Random(f"{laboratory.seed}/{self.name}")  # noqa: S311 - to be repeated
        self.queue = self.name
        # last of all: by then nobody is there any more
        self.stack.callback(self._clean_up)
        self.link = self._proxy("link", ground.port, ground.host)
        self.front = self._proxy("front", ground.port, ground.host)
        self.results = self._proxy("results", laboratory.results.port)
        self.watch = Watch(self.journal, ground, self.name, laboratory.stop)
        self.stack.callback(self.watch.close)
        self.settings = case.profile.worker_settings(
            app=OBSERVED,
            broker_url=laboratory.ground.url_at(self.front.port),
            result_backend=laboratory.results.results_url,
            lease_store=laboratory.results.url,
            lease_prefix=self.name,
            queue_names=(self.queue, f"{self.queue}-idle"),
            dead_letter_queue="{queue}-dead",
            guard=case.guard,
            journal=self.journal.path,
            pulse_folder=self.folder / "pulse",
        )
        self.order = Order(laboratory.target.app, case.profile.bare(self.settings), ground.transport_options(self.name))
        self.order.write(self.journal.path)
        # patient, unlike the workers: the experiment's own messages must not fail or be sent twice
        self.client = self._client(self.settings.replace(socket_timeout=30))

    def perform(self) -> Result:
        scenario, target = self.case.scenario, self.laboratory.target
        place = self._place()
        if scenario.fault:
            self.stack.enter_context(scenario.fault.prepared(place))
        self._declare_queues()
        self._say("waiting to start")
        with self.laboratory.starting:
            self._start_both()
        self._say("a first task shows that all is well")
        self._await_happening(ENDED, self._send("before"), "a first task ends")
        counted = target.effects("")
        self._strike(place)
        self._say("following the tasks to their end")
        self._start_again_what_ended()
        left = self.watch.settle()
        fate, steady_at = self._try_struck_worker()
        if steady_at is not None:
            left = self.watch.settle() or left
        if fate is Fate.HUNG or left:
            left = self._end_struck_worker()
        self.watch.take_letters(self.settings.dead_letters_of(self.queue))
        course = Course(
            struck=self.struck.name,
            healthy=self.healthy.name,
            windows=tuple(self.windows),
            exits=tuple(self.exits),
            fate=fate,
            left=left,
            steady_at=steady_at,
            stills_worker=scenario.stills_worker,
            effects=None if counted is None else (target.effects(self.watch.subject.task) or 0) - counted,
        )
        seed, expected = self.laboratory.seed, self.laboratory.expected
        return result(
            self.case, self.watch, course, seed=seed, target=target, expected=expected, took_s=monotonic() - self.begun
        )  # fmt: skip

    # what it is made of

    def _clean_up(self) -> None:
        """Take away what would stay on somebody's own broker; a verdict does not depend on it."""
        with suppress(BrokerUnreachable, ExperimentFailed):
            queues = (self.queue, f"{self.queue}-idle", f"{self.queue}-dead")
            self.laboratory.ground.clean_up(self.name, queues)

    def _proxy(self, name: str, port: int, host: str = LOOPBACK) -> Proxy:
        made = Proxy.create(self.laboratory.toxiproxy_url, f"{self.name}-{name}", port, host)
        self.stack.callback(made.delete)
        return made

    def _client(self, settings: WorkerSettings) -> Celery:
        made = Celery("repot-chaos", set_as_current=False)
        self.order.fulfil(made, settings, Role.CLIENT)
        self.stack.callback(made.close)
        return made

    def _place(self) -> Place:
        return Place(
            link=self.link,
            front=self.front,
            results=self.results,
            victim=_Victim(lambda: self.struck),
            ground=self.laboratory.ground,
            queue=self.queue,
            tag=lambda: str(
                next(self.watch.happened(DELIVERED, self.struck.name, self.watch.subject.task)).details["tag"]
            ),
            rng=self.rng,
        )

    def _declare_queues(self) -> None:
        """Declare both queues: a worker binds all that it knows for delayed delivery, and only declares its own."""
        with self.client.connection_for_write() as connection:
            for queue in self.client.amqp.queues.values():
                queue.bind(connection.default_channel).declare()

    def _start_both(self) -> None:
        if self.laboratory.stop.is_set():
            message = "interrupted before the workers were started"
            raise Interrupted(message)
        self._say("starting two workers")
        results = self.laboratory.results
        over_struck_links = self.settings.replace(
            broker_url=self.laboratory.ground.url_at(self.link.port),
            result_backend=results.results_url.replace(f":{results.port}/", f":{self.results.port}/"),
        )
        self.struck = self._start(STRUCK, self.queue, over_struck_links, processes=1)
        # with room for one task while another is under way
        self.healthy = self._start(HEALTHY, self.settings.queue_names[1], self.settings, processes=2)
        self.struck.await_ready()
        self.healthy.await_ready()

    def _start(self, role: str, queue: str, settings: WorkerSettings, processes: int) -> Struck:
        name = f"{role}@{self.name}"

        def start() -> GuardedProcess:
            options = ("--include", "repot.chaos.subject")
            process = start_worker(name, queue, settings, self.folder, processes, options)
            self.stack.callback(process.stop)
            return process

        return Struck(name, start, lambda: len(list(self.watch.happened(READY, name))), self.laboratory.stop)

    # sending

    def _send(self, role: str, client: Celery | None = None) -> str:
        """Send one of the tasks that are there beside the subject."""
        sent = self._noted(role)
        (client or self.client).send_task(companion(guard=self.case.guard), (0,), task_id=sent.task, queue=self.queue)
        return sent.task

    def _send_subject(self, task: str, client: Celery | None = None) -> None:
        """Send the subject, and see what its sender is told; one that hangs is left alone."""
        scenario, target = self.case.scenario, self.laboratory.target
        sent = self._noted("subject", task)
        args, kwargs = target.arguments(scenario)
        options: dict[str, Any] = {"countdown": scenario.countdown_s} if scenario.countdown_s else {}
        answers: list[tuple[Sending, str]] = []

        def send() -> None:
            try:
                name = target.task_for(scenario, guard=self.case.guard)
                (client or self.client).send_task(name, args, kwargs, task_id=task, queue=self.queue, **options)
            except _NOT_SENT as error:
                answers.append((Sending.UNKNOWN, f"{type(error).__name__}: {masked(str(error))}"))
            else:
                answers.append((Sending.ACCEPTED, ""))

        # it may wait in queues that are not counted
        self.watch.not_before = sent.at + scenario.countdown_s
        sending = Thread(target=send, daemon=True, name="repot-sender")
        sending.start()
        sending.join(_SENT_WITHIN_S)
        # what it is told later comes too late: its caller has given up
        sent.sending, sent.error = (answers or [(Sending.UNKNOWN, f"no answer within {_SENT_WITHIN_S} s")])[0]

    def _noted(self, role: str, task: str = "") -> Sent:
        sent = Sent(role, task or self._new_id(), monotonic())
        self.watch.sent.append(sent)
        return sent

    def _new_id(self) -> str:
        return str(UUID(int=self.rng.getrandbits(128), version=4))

    # the fault

    def _strike(self, place: Place) -> None:
        """Bring subject and fault together, and follow what comes of it until the fault is undone."""
        how = {
            When.BEFORE: self._strike_a_task,
            When.INTO_THE_FAULT: self._send_into_fault,
            When.OVER_THE_STRUCK_LINK: self._send_over_struck_link,
        }
        how[self.case.scenario.sent](place, self._new_id())

    def _send_over_struck_link(self, place: Place, task: str) -> None:
        self._let_healthy_worker_in()
        producer = self._proxy("producer", self.laboratory.ground.port, self.laboratory.ground.host)
        client = self._client(self.settings.replace(broker_url=self.laboratory.ground.url_at(producer.port)))
        # one that has sent before: its connection is there
        sent = self._send("before", client)
        self._await(
            lambda: any(one.what == ENDED and one.task == sent for one in self.watch.happenings),
            "what the producer sends before the fault is run",
        )
        with self._fault(replace(place, link=producer)):
            self._send_subject(task, client)
            self._follow()

    def _send_into_fault(self, place: Place, task: str) -> None:
        def struck() -> bool:
            with self._fault(place):
                self._send_subject(task)
                if not self.watch.is_handed_over(_HANDED_OVER_WITHIN_S):
                    return False
                self._send("waiting")
                self._let_healthy_worker_in()
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
        held = None if phase is Phase.AFTER_ACK else phase
        if held:
            self.gates.close(held, task)
        self._send_subject(task)
        if held:
            self._await_held(held, task)
        elif phase is Phase.AFTER_ACK and (left := self.watch.settle()):
            message = f"the task did not come to its end without a fault: {left}"
            raise ExperimentFailed(message)
        self._strike_held(place, held, task)

    def _strike_unread(self, place: Place, task: str) -> bool:
        """Strike a worker that stands still with the subject in its hands; False if it did not ask for it in time."""
        with self.struck.frozen():
            self._send_subject(task)
            if not self.watch.is_handed_over(_HANDED_OVER_WITHIN_S):
                return False
            self._strike_held(place, None, task)
            return True

    def _take_back(self) -> str:
        """Let a subject that nobody had asked for run as another first task; give the id for one that takes its place.

        On Redis a worker asks for a second at a time: it may stand still just when its question is over.
        """
        sent = self.watch.subject
        sent.role = "before"
        self._await_happening(ENDED, sent.task, "the task that nobody had asked for ends")
        return self._new_id()

    def _strike_held(self, place: Place, held: Phase | None, task: str) -> None:
        scenario = self.case.scenario
        if scenario.phase not in (Phase.RECEIVED, Phase.AFTER_ACK):
            # one would keep the main process held for longer than its heartbeats, the other run what is to wait
            self._send_waiting(can_reserve=scenario.phase is not Phase.BEFORE_RECEIVE)
        # a broker that is struck cannot let anybody in; what waits, waits
        broker_is_struck = scenario.needs is not Needs.ANY
        if not broker_is_struck:
            self._let_healthy_worker_in()
            with suppress(DeadlineExceeded):
                self._await(self._nothing_waits, "nothing waits any more", _TAKEN_WITHIN_S)
        unseen = self.struck.frozen() if scenario.unseen else nullcontext()
        if scenario.lasts_s == 0:
            with unseen, self._fault(place):
                pass
            self._release(held, task)
        else:
            with self._fault(place):
                self._release(held, task)
                self._follow()
        if broker_is_struck:
            self._start_again_what_ended()
            self._let_healthy_worker_in()

    def _release(self, held: Phase | None, task: str) -> None:
        if held:
            self.gates.open(held, task)

    def _send_waiting(self, *, can_reserve: bool) -> None:
        """Send what is to wait behind the subject: what the struck worker reserves, and one at the broker."""
        scenario, reserves = self.case.scenario, self.case.profile.reserves(guard=self.case.guard)
        crowded = scenario.crowded and scenario.needs is not Needs.ANY
        first, *_ = [self._send("waiting") for _ in range(reserves + 1 if crowded else 1)]
        if reserves and can_reserve:
            # an application of the user's own may reserve less
            with suppress(DeadlineExceeded):
                self._await_happening(DELIVERED, first, "the struck worker reserves a task", _RESERVED_WITHIN_S)

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
        self._say(f"fault: {fault.what}")
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
        for worker in (self.struck, self.healthy):
            if worker.has_ended:
                self._start_again(worker)

    def _start_again(self, worker: Struck) -> None:
        self.exits.append((monotonic(), worker.name, worker.process.exit_code))
        worker.start_again()

    def _try_struck_worker(self) -> tuple[Fate, float | None]:
        """Send a task that only the struck worker can take; say what became of the worker, and when all was well."""
        self._say("does the struck worker consume again?")
        self._start_again_what_ended()
        self.healthy.signal(signal.SIGTERM)
        with suppress(DeadlineExceeded):
            wait_until(
                lambda: self.healthy.has_ended,
                within_s=_STEP_WITHIN_S,
                what="the healthy worker leaves",
                stop=self.laboratory.stop,
            )
        self.healthy.stop()
        after = self._send("after")
        try:
            self._await_happening(STARTED, after, "the struck worker runs another task", _CONSUMES_WITHIN_S)
        except DeadlineExceeded:
            if not self.struck.has_ended:
                return Fate.HUNG, None
            self._start_again(self.struck)
            self._await_happening(STARTED, after, "the worker that was started again runs another task")
        at = monotonic()
        if any(name == self.struck.name for _, name, _ in self.exits):
            return Fate.EXITED, at
        return (Fate.HUNG if self._hung() else Fate.CONSUMES), at

    def _hung(self) -> bool:
        """Whether the struck worker stood still without a word since the fault, and not because of the fault itself."""
        if not self.windows:
            return False
        since = self.windows[-1].ended if self.case.scenario.stills_worker else self.windows[0].begun
        return silence(self.watch, self.struck.name, since) >= HUNG_AFTER_S

    def _end_struck_worker(self) -> str:
        """End it, so that what it kept to itself comes to light, and start it anew to finish that."""
        self._say("ending the struck worker, and starting it anew")
        self.struck.stop()
        self.watch.look()
        self.struck.start_again()
        return self.watch.settle()

    # waiting

    def _say(self, text: str) -> None:
        self.laboratory.say(self.case, text)

    def _await(self, condition: Callable[[], object], what: str, within_s: float = _STEP_WITHIN_S) -> None:
        wait_until(condition, within_s=within_s, what=what, poll_s=0.05, stop=self.laboratory.stop)

    def _await_happening(self, what: str, task: str, meaning: str, within_s: float = _STEP_WITHIN_S) -> None:
        self._await(lambda: any(self.watch.happened(what, self.struck.name, task)), meaning, within_s)

    def _await_held(self, phase: Phase, task: str) -> None:
        """Wait until the subject has come to its phase.

        Raises:
            Inapplicable: it is over, and never came there.
        """

        def come() -> bool:
            if any(one.details["phase"] == phase for one in self.watch.happened(HELD, self.struck.name, task)):
                return True
            if phase is not Phase.BEFORE_ACK and any(self.watch.happened(ENDED, self.struck.name, task)):
                message = f"the task never came to the phase {phase}"
                raise Inapplicable(message)
            return False

        self._await(come, f"the subject is held at {phase}")

    def _let_healthy_worker_in(self) -> None:
        """Make the healthy worker consume; it answers once it does. On Redis it hears nothing while it reconnects."""

        def asked() -> bool:
            # its own: one from the pool may be of a broker that was killed meanwhile
            with suppress(*_NOT_SENT), self.client.connection_for_write() as connection:
                return bool(
                    self.client.control.add_consumer(
                        self.queue, destination=[self.healthy.name], reply=True, timeout=2, connection=connection
                    )
                )
            return False

        self._await(asked, "the healthy worker consumes")


@dataclass(frozen=True, slots=True)
class _Victim:
    """The struck worker, which is started after its place is made."""

    worker: Callable[[], Struck]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self.worker(), name)
