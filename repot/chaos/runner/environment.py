"""The run environment of an experiment: links, two workers, a producer, and the ways to wait for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from amqp import AMQPError
from celery import Celery
from kombu.exceptions import OperationalError
from redis import RedisError

from repot.chaos.faults.context import FaultContext
from repot.chaos.instruments.failpoints import Failpoints, Phase
from repot.chaos.instruments.journal import DELIVERED, ENDED, REACHED, READY, STARTED, Journal
from repot.chaos.report.result import UNDER_TEST
from repot.chaos.runner.app_under_test import NAME as APP_UNDER_TEST
from repot.chaos.runner.app_under_test import AppConfig, key_names
from repot.chaos.runner.application import Application
from repot.chaos.runner.observer import Observer, Sent
from repot.chaos.runner.proxies import Proxy
from repot.chaos.runner.target_task import companion
from repot.chaos.runner.time_scale import RETRY_DELAY, counts_run_time
from repot.chaos.runner.verdict import Sending
from repot.chaos.runner.worker_process import WorkerProcess
from repot.chaos.runner.workers import start_worker
from repot.chaos.scenarios.scenario import LINK_AWAY_S
from repot.config import Role
from repot.errors import (
    BrokerUnreachable,
    DeadlineExceeded,
    ExperimentFailed,
    Inconclusive,
    Interrupted,
    NotApplicable,
)
from repot.masking import masked
from repot.testbed import LOOPBACK
from repot.waiting import wait_until
from repot.worker.app_loader import load_app

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from repot.chaos.instruments.effect_table import EffectTable
    from repot.chaos.report.result import ScaledTime
    from repot.chaos.runner.case import Case, Testbed
    from repot.chaos.runner.time_scale import TimeScale
    from repot.config import WorkerSettings
    from repot.testbed import ReapedProcess

#: The first part of a worker's name.
TARGET, CONTROL = "target", "control"

#: A step that takes longer has failed.
STEP_WITHIN_S = 45
#: A worker sends no heartbeat while it runs a task in its main thread; the broker ends a connection after two to three.
_SOLO_HEARTBEAT_S = 10
#: The longest run of a user's task that is waited for.
LONGEST_BODY_S = 600
#: The phases that a task reaches after its work, which may take long.
_AFTER_BODY = (Phase.RETRY_PUBLISH, Phase.AFTER_EFFECT, Phase.RESULT_STORE, Phase.BEFORE_ACK)
#: A producer that takes longer hangs.
_SENT_WITHIN_S = 15

#: What clients raise when a broker is not reachable.
NOT_SENT = (OperationalError, RedisError, AMQPError, OSError)


@dataclass
class RunEnvironment:
    """Links, workers and producer of one experiment; they end with the stack.

    Attributes:
        attempt: how often it was tried before, with a shorter visibility timeout.
    """

    case: Case
    testbed: Testbed
    stack: ExitStack
    times: TimeScale
    attempt: int = 0

    def __post_init__(self) -> None:
        """Create everything but the workers."""
        case, testbed = self.case, self.testbed
        test_broker = self.test_broker = testbed.test_broker
        again = f"-again-{self.attempt}" if self.attempt else ""
        self.name = case.unique_name(test_broker.token) + again
        self.directory = testbed.directory / f"{case.name}{again}"
        self.directory.mkdir(parents=True)
        self.journal = Journal(self.directory / "journal")
        self.failpoints = Failpoints(self.journal)
        self.rng = case.random(testbed.seed, test_broker.token)
        # an application's queues keep their names
        own = testbed.target.application or Application((self.name,), self.name)
        self.queues, self.queue, self.pool = own.queues, own.queue, own.pool
        self.runs_in_main_thread = own.runs_in_main_thread
        self.idle = f"{self.name}-idle"
        # repot's settings have a result backend, unless the application states one
        self.keeps_backend = own.keeps_backend(stated=case.profile.settings is not None)
        # runs last, when all workers have ended
        self.stack.callback(self._clean_up)
        if testbed.target.app:
            keys = key_names(load_app(testbed.target.app))
            test_broker = self.test_broker = test_broker.apart(self.name, keys)
        self.link = self.proxy("link", test_broker.port, test_broker.host)
        self.control_link = self.proxy("control", test_broker.port, test_broker.host)
        self.results_link = self.proxy("results", testbed.results.port)
        self.settings = self._worker_settings()
        self.app_config = AppConfig(
            testbed.target.app, case.profile.bare(self.settings, scaled=self.times.is_scaled),
            test_broker.transport_options(self.name),
            self.queues, self.idle, self.pool, self.keeps_backend, self.times.used.get(RETRY_DELAY),
        )  # fmt: skip
        self.app_config.write(self.journal.path)
        # a long timeout, unlike the workers': the experiment's own messages must not fail or be sent twice
        self.client = self.client_of(self.settings.replace(socket_timeout=30))
        self.observer = self._observer()

    def _worker_settings(self) -> WorkerSettings:
        testbed, profile = self.testbed, self.case.profile
        times = {name: value for name, value in self.times.used.items() if name != RETRY_DELAY}
        if self.runs_in_main_thread:
            times["heartbeat"] = _SOLO_HEARTBEAT_S
        return profile.worker_settings(
            app=APP_UNDER_TEST,
            broker_url=self.test_broker.url_at(self.control_link.port),
            result_backend=testbed.results.results_url,
            lease_store=f"sqlite:///{self.directory}/shop.db" if profile.in_transaction else testbed.results.url,
            lease_prefix=self.name,
            # an application has its own
            **({} if testbed.target.app else {"queue_names": (self.queue, self.idle)}),
            **times,
            dead_letter_queue="{queue}-dead",
            guard=self._guards,
            journal=self.journal.path,
            status_dir=self.directory / "status",
        )

    def _observer(self) -> Observer:
        is_own, test_broker = bool(self.testbed.target.app), self.test_broker
        self.counts_run_time = is_own and counts_run_time(self.settings, self.case.profile)
        made = Observer(
            self.journal,
            lambda: test_broker.open(self.name),
            self.queues,
            self.testbed.stop,
            self._effect_table() if self.case.profile.in_transaction else None,
            longest_run_s=LONGEST_BODY_S if is_own else 0,
            settled_within_s=self.times.settled_within_s,
            check=self._require_room if self.counts_run_time else lambda: None,
        )
        self.stack.callback(made.close)
        return made

    def _require_room(self) -> None:
        """Accept the run times so far, and the countdowns: on Redis a worker holds a message until it is due.

        Raises:
            TimeoutTooShort: one is about as long as the scaled visibility timeout, and the application's own is longer.
        """
        self.times.require_room(max(self.observer.run_s(), self.observer.wait_s()))

    def shown_times(self) -> tuple[ScaledTime, ...]:
        """Return the times that are not the application's own; that of a retry only if there was one."""
        has_retried = any(one.kind == STARTED and one.details["retries"] for one in self.observer.events)
        return tuple(one for one in self.times.shown() if has_retried or one.name != RETRY_DELAY)

    @property
    def lasts_s(self) -> float | None:
        """Return how long the fault lasts; one that outlasts the visibility timeout does so here as well."""
        lasts_s = self.case.scenario.lasts_s
        return lasts_s * self.times.stretch if lasts_s and lasts_s >= LINK_AWAY_S else lasts_s

    def _effect_table(self) -> EffectTable:
        # only these experiments need SQLAlchemy
        from repot.chaos.instruments.effect_table import EffectTable

        made = EffectTable(self.settings)
        self.stack.callback(made.close)
        return made

    def _clean_up(self) -> None:
        """Remove queues and keys from an external broker; a failure does not change the verdict."""
        with suppress(BrokerUnreachable, ExperimentFailed):
            # those of an application are apart
            mine = () if self.testbed.target.application else (self.queue, self.idle)
            self.test_broker.clean_up(self.name, [*mine, *(f"{one}-dead" for one in mine)])

    def proxy(self, name: str, port: int, host: str = LOOPBACK) -> Proxy:
        """Create a link to a server that lasts as long as the experiment."""
        made = Proxy.create(self.testbed.toxiproxy_url, f"{self.name}-{name}", port, host)
        self.stack.callback(made.delete)
        return made

    def client_of(self, settings: WorkerSettings) -> Celery:
        """Create a producer with these settings, configured as the application under test."""
        made = Celery("repot-chaos", set_as_current=False)
        # only workers record: this process sends for all experiments of the campaign
        self.app_config.apply(made, settings.replace(journal=None), Role.CLIENT)
        self.stack.callback(made.close)
        return made

    def fault_context(self) -> FaultContext:
        """Return what the fault may act on."""
        return FaultContext(
            link=self.link,
            control_link=self.control_link,
            results_link=None if self.keeps_backend else self.results_link,
            target=_TargetWorker(lambda: self.target),
            test_broker=self.test_broker,
            queue=self.queue,
            tag=lambda: str(
                next(self.observer.events_of(DELIVERED, self.target.name, self.observer.task_under_test.task)).details[
                    "tag"
                ]
            ),
            rng=self.rng,
            pool=self.pool,
        )

    def declare_queues(self) -> None:
        """Declare all queues: a worker binds all queues for delayed delivery, but declares only those it consumes."""
        with self.client.connection_for_write() as connection:
            for queue in self.client.amqp.queues.values():
                queue.bind(connection.default_channel).declare()

    def start_both(self, processes: tuple[int, int] = (1, 2), *, both_consume: bool = False) -> None:
        """Start both workers; return when they are ready.

        `processes` is how many each has: the control worker has two, to run one task while another runs. It consumes
        nothing at first, unless `both_consume`.

        Raises:
            Interrupted: `stop` was set before.
        """
        if self.testbed.stop.is_set():
            message = "interrupted before the workers were started"
            raise Interrupted(message)
        self.say("starting two workers")
        results = self.testbed.results
        over_target_links = self.settings.replace(
            broker_url=self.test_broker.url_at(self.link.port),
            result_backend=results.results_url.replace(f":{results.port}/", f":{self.results_link.port}/"),
        )
        consumed, (of_target, of_control) = ",".join(self.queues), processes
        self.target = self._start(TARGET, consumed, over_target_links, of_target)
        self.control = self._start(CONTROL, consumed if both_consume else self.idle, self.settings, of_control)
        self.target.await_ready()
        self.control.await_ready()

    def _start(self, role: str, queue: str, settings: WorkerSettings, processes: int) -> WorkerProcess:
        name = f"{role}@{self.name}"

        def start() -> ReapedProcess:
            options = ("--include", "repot.chaos.runner.task_under_test", "--pool", self.pool)
            variables = {"REPOT_TIME_SCALE": f"{self.times.factor:g}"} if self.testbed.target.app else {}
            process = start_worker(
                name, queue, settings, self.directory, processes, options, home=self.testbed.home, variables=variables
            )
            self.stack.callback(process.stop)
            return process

        return WorkerProcess(name, start, lambda: len(list(self.observer.events_of(READY, name))), self.testbed.stop)

    @property
    def _guards(self) -> bool:
        """Return whether guards are on; beside an application without any, the experiment's own tasks are guarded."""
        return self.case.guard or not self.testbed.target.is_guarded

    # sending

    def send(self, role: str, client: Celery | None = None) -> str:
        """Send a companion task; return its id."""
        sent = self._add_sent(role)
        (client or self.client).send_task(
            companion(self.case.profile, guard=self._guards), (0,), task_id=sent.task, queue=self.queue
        )
        return sent.task

    def send_task_under_test(self, task: str, client: Celery | None = None) -> None:
        """Send the task under test and note the broker's reply; a sender that hangs is abandoned.

        Raises:
            ExperimentFailed: its message could not be made, whatever the broker does.
        """
        scenario, target = self.case.scenario, self.testbed.target
        sent = self._add_sent(UNDER_TEST, task)
        args, kwargs = target.arguments(scenario)
        options: dict[str, Any] = dict(target.application.options) if target.application else {}
        countdown_s = scenario.countdown_s * self.times.stretch
        if countdown_s:
            options["countdown"] = countdown_s
        replies: list[tuple[Sending, str]] = []
        unmade: list[Exception] = []

        def send() -> None:
            try:
                name = target.task_for(scenario, self.case.profile, guard=self.case.guard)
                (client or self.client).send_task(name, args, kwargs, task_id=task, queue=self.queue, **options)
            except NOT_SENT as error:
                replies.append((Sending.UNKNOWN, f"{type(error).__name__}: {masked(str(error))}"))
            except Exception as error:  # noqa: BLE001 - given to the caller, in another thread
                # the application's own serializer, router or signal receiver
                unmade.append(error)
            else:
                replies.append((Sending.ACCEPTED, ""))

        # with a countdown it may wait in queues that are not counted
        self.observer.not_before = sent.at + countdown_s
        sending = Thread(target=send, daemon=True, name="repot-sender")
        sending.start()
        sending.join(_SENT_WITHIN_S)
        if unmade:
            message = f"the task was never sent: {type(unmade[0]).__name__}: {masked(str(unmade[0]))}"
            raise ExperimentFailed(message, hint="A producer of the application gets this error as well.")
        # a later reply does not count: the caller has given up
        sent.sending, sent.error = (replies or [(Sending.UNKNOWN, f"no reply within {_SENT_WITHIN_S} s")])[0]

    def _add_sent(self, role: str, task: str = "") -> Sent:
        sent = Sent(role, task or self.new_id(), monotonic())
        self.observer.sent.append(sent)
        return sent

    def new_id(self) -> str:
        """Return a new task id, or the one that the seed and the case decide.

        By default no run repeats the ids of an earlier one: what the application keeps by task id is not found again.
        """
        # drawn in either case, so that the amounts of a fault depend on the seed alone
        drawn = UUID(int=self.rng.getrandbits(128), version=4)
        return str(drawn if self.testbed.target.same_ids else uuid4())

    # waiting

    def say(self, text: str) -> None:
        """Report a step."""
        self.testbed.say(self.case, text)

    def await_that(self, condition: Callable[[], object], what: str, within_s: float = STEP_WITHIN_S) -> None:
        """Wait until a condition holds; `what` names it in an error."""
        within_s *= self.times.patience
        wait_until(condition, within_s=within_s, what=what, poll_s=0.05, stop=self.testbed.stop)

    def await_event(self, kind: str, task: str, what: str, within_s: float = STEP_WITHIN_S) -> None:
        """Wait until the journal has an event of the target worker and a task."""
        self.await_that(lambda: any(self.observer.events_of(kind, self.target.name, task)), what, within_s)

    def await_reached(self, phase: Phase, task: str) -> None:
        """Wait until a task waits at the failpoint of a phase, for as long as a user's task runs before it.

        Raises:
            NotApplicable: the task has ended without reaching it.
            Inconclusive: the worker has ended, or the task runs for too long.
        """

        def reached() -> bool:
            self.observer.check()
            if any(one.details["phase"] == phase for one in self.observer.events_of(REACHED, self.target.name, task)):
                return True
            if self.target.has_ended:
                message = f"the target worker ended before the task reached {phase}"
                raise Inconclusive(message, hint=f"Its last lines were:\n{self.target.process.log_tail()}")
            if phase is not Phase.BEFORE_ACK and any(self.observer.events_of(ENDED, self.target.name, task)):
                message = f"the task never reached the phase {phase}"
                raise NotApplicable(message)
            return False

        within_s = LONGEST_BODY_S if self.testbed.target.app and phase in _AFTER_BODY else STEP_WITHIN_S
        try:
            self.await_that(reached, f"the task under test reaches {phase}", within_s)
        except DeadlineExceeded as error:
            raise Inconclusive(error.message) from error

    def start_control_consumer(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Make the control worker consume, by remote control; on Redis it gets no command while it reconnects.

        `meanwhile` is called before each attempt.
        """

        def consumes(queue: str) -> bool:
            meanwhile()
            # a connection of its own: one from the pool may lead to a broker that was killed meanwhile
            with suppress(*NOT_SENT), self.client.connection_for_write() as connection:
                return bool(
                    self.client.control.add_consumer(
                        queue, destination=[self.control.name], reply=True, timeout=2, connection=connection
                    )
                )
            return False

        for queue in self.queues:
            self.await_that(partial(consumes, queue), f"the control worker consumes {queue}")


@dataclass(frozen=True, slots=True)
class _TargetWorker:
    """The target worker of a fault context, which is made before the worker is started."""

    worker: Callable[[], WorkerProcess]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self.worker(), name)
