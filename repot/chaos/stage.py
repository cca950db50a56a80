"""What an experiment is made of: links, two workers, a producer, and the ways to wait for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
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
from repot.chaos.observed import NAME as OBSERVED
from repot.chaos.observed import Order
from repot.chaos.place import Place
from repot.chaos.proxies import Proxy
from repot.chaos.struck import Struck
from repot.chaos.target import companion
from repot.chaos.verdict import Sending
from repot.chaos.watch import Sent, Watch
from repot.chaos.workers import start_worker
from repot.config import Role
from repot.config.masking import masked
from repot.errors import BrokerUnreachable, ExperimentFailed, Inapplicable, Interrupted
from repot.waiting import wait_until
from repot.worker.gates import Gates, Phase
from repot.worker.journal import DELIVERED, ENDED, HELD, READY, Journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from repot.brokers.local import GuardedProcess
    from repot.chaos.case import Case, Laboratory
    from repot.config import WorkerSettings

STRUCK, HEALTHY = "struck", "healthy"

#: Longer than anything takes here; a step that needs more has failed.
STEP_WITHIN_S = 45
#: A producer that has not returned for so long hangs.
_SENT_WITHIN_S = 15

#: What clients raise when a broker cannot be had.
NOT_SENT = (OperationalError, RedisError, AMQPError, OSError)


@dataclass
class Stage:
    """The surroundings of one experiment; all of it ends with the stack."""

    case: Case
    laboratory: Laboratory
    stack: ExitStack

    def __post_init__(self) -> None:
        """Make all but the workers."""
        case, laboratory = self.case, self.laboratory
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
        self.link = self.proxy("link", ground.port, ground.host)
        self.front = self.proxy("front", ground.port, ground.host)
        self.results = self.proxy("results", laboratory.results.port)
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
        self.client = self.client_of(self.settings.replace(socket_timeout=30))

    def _clean_up(self) -> None:
        """Take away what would stay on somebody's own broker; a verdict does not depend on it."""
        with suppress(BrokerUnreachable, ExperimentFailed):
            queues = (self.queue, f"{self.queue}-idle", f"{self.queue}-dead")
            self.laboratory.ground.clean_up(self.name, queues)

    def proxy(self, name: str, port: int, host: str = LOOPBACK) -> Proxy:
        """A link to a server, as long as the experiment."""
        made = Proxy.create(self.laboratory.toxiproxy_url, f"{self.name}-{name}", port, host)
        self.stack.callback(made.delete)
        return made

    def client_of(self, settings: WorkerSettings) -> Celery:
        """A producer with these settings, as the application would be one."""
        made = Celery("repot-chaos", set_as_current=False)
        self.order.fulfil(made, settings, Role.CLIENT)
        self.stack.callback(made.close)
        return made

    def place(self) -> Place:
        """What a fault may touch."""
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

    def declare_queues(self) -> None:
        """Declare both queues: a worker binds all that it knows for delayed delivery, and only declares its own."""
        with self.client.connection_for_write() as connection:
            for queue in self.client.amqp.queues.values():
                queue.bind(connection.default_channel).declare()

    def start_both(self) -> None:
        """Start both workers, and return when they are ready.

        Raises:
            Interrupted: somebody asked to stop before.
        """
        if self.laboratory.stop.is_set():
            message = "interrupted before the workers were started"
            raise Interrupted(message)
        self.say("starting two workers")
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
            process = start_worker(name, queue, settings, self.folder, processes, options, home=self.laboratory.home)
            self.stack.callback(process.stop)
            return process

        return Struck(name, start, lambda: len(list(self.watch.happened(READY, name))), self.laboratory.stop)

    # sending

    def send(self, role: str, client: Celery | None = None) -> str:
        """Send one of the tasks that are there beside the subject."""
        sent = self._noted(role)
        (client or self.client).send_task(companion(guard=self.case.guard), (0,), task_id=sent.task, queue=self.queue)
        return sent.task

    def send_subject(self, task: str, client: Celery | None = None) -> None:
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
            except NOT_SENT as error:
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
        sent = Sent(role, task or self.new_id(), monotonic())
        self.watch.sent.append(sent)
        return sent

    def new_id(self) -> str:
        """A task id that follows the seed."""
        return str(UUID(int=self.rng.getrandbits(128), version=4))

    # waiting

    def say(self, text: str) -> None:
        """Tell of a step."""
        self.laboratory.say(self.case, text)

    def await_that(self, condition: Callable[[], object], what: str, within_s: float = STEP_WITHIN_S) -> None:
        """Wait for a condition."""
        wait_until(condition, within_s=within_s, what=what, poll_s=0.05, stop=self.laboratory.stop)

    def await_happening(self, what: str, task: str, meaning: str, within_s: float = STEP_WITHIN_S) -> None:
        """Wait until the journal says this of the struck worker and a task."""
        self.await_that(lambda: any(self.watch.happened(what, self.struck.name, task)), meaning, within_s)

    def await_held(self, phase: Phase, task: str) -> None:
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

        self.await_that(come, f"the subject is held at {phase}")

    def let_healthy_worker_in(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Make the healthy worker consume; it answers once it does. On Redis it hears nothing while it reconnects.

        `meanwhile` is called before each attempt.
        """

        def asked() -> bool:
            meanwhile()
            # its own: one from the pool may be of a broker that was killed meanwhile
            with suppress(*NOT_SENT), self.client.connection_for_write() as connection:
                return bool(
                    self.client.control.add_consumer(
                        self.queue, destination=[self.healthy.name], reply=True, timeout=2, connection=connection
                    )
                )
            return False

        self.await_that(asked, "the healthy worker consumes")


@dataclass(frozen=True, slots=True)
class _Victim:
    """The struck worker, which is started after its place is made."""

    worker: Callable[[], Struck]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self.worker(), name)
