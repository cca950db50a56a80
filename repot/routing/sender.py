"""Send each task of an application to its side of a rollout.

The choice is made where Celery sends (`Celery.send_task`). A message for the other side goes through a *sibling* of the
application, whose settings are those of the other broker. A message that surely did not reach the target goes to the
source; one that may have arrived raises, as Celery does, and is not sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from os import getpid
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from celery.utils import uuid
from kombu import Connection
from kombu.exceptions import OperationalError

from repot.brokers.headers import ROLLOUT_HEADER, RolloutStamp
from repot.logs import get_logger
from repot.routing.breaker import Breaker
from repot.routing.counters import Counters
from repot.routing.destination import only_queue_at
from repot.routing.once import NotSent, publishing_once
from repot.routing.side import Side, side_of
from repot.upstream.sending import current_root, options_with_those_of_the_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from repot.routing.follower import Follower
    from repot.routing.once import OnceProducer
    from repot.routing.record import RolloutRecord

log = get_logger(__name__)


class Sibling(Protocol):
    """The application on the other broker, and its connections."""

    @property
    def app(self) -> Any:  # noqa: ANN401 - Celery's stubs lack parts of it
        """The application."""

    @property
    def pool(self) -> Any:  # noqa: ANN401 - kombu's ConnectionPool
        """Its connections."""


@dataclass(slots=True)
class _Process:
    """What one process has: connections and locks do not survive a fork."""

    breaker: Breaker
    counters: Counters = field(default_factory=Counters)
    lock: Lock = field(default_factory=Lock)
    sibling: Sibling | None = None
    #: Tasks and exchanges that stay at home, and whether the target refuses tasks: each is logged once.
    kept: set[tuple[str, str]] = field(default_factory=set)
    is_refused: bool = False
    #: Connections that callers gave, and whether they lead to the application's own broker.
    known: WeakKeyDictionary[Any, bool] = field(default_factory=WeakKeyDictionary)


class RolloutSender:
    """Sends the tasks of one application during a rollout; threads share it, and a forked process begins again."""

    def __init__(
        self,
        app: Celery,
        name: str,
        home: Side,
        follower: Follower,
        make_sibling: Callable[[], Sibling],
        send_timeout_s: float,
    ) -> None:
        """Take the application, the rollout, the side of the application's own broker, and what makes the sibling."""
        self._app = app
        self.name = name
        self.home = home
        self._follower = follower
        self._make_sibling = make_sibling
        self._send_timeout_s = send_timeout_s
        # one for each process, by its id. Those of parents stay: collected, their connections would end the parent's
        self._processes: dict[int, _Process] = {}
        #: The header's value by side, for one generation.
        self._stamps: tuple[int, dict[Side, str]] = (-1, {})
        #: Whether this process is a worker's: what it sends with a root id outside of a task belongs to a task of its.
        self.is_worker = False

    @property
    def counters(self) -> Counters:
        """What this process has sent."""
        return self._here().counters

    @property
    def record(self) -> RolloutRecord | None:
        """The last known record."""
        return self._follower.record()

    def sibling(self) -> Any:  # noqa: ANN401 - Celery's stubs lack parts of it
        """Return this process' application on the other broker."""
        return self._sibling(self._here()).app

    def stop(self) -> None:
        """End the thread of this process that follows the record."""
        self._follower.stop()

    def send(self, original: Callable[..., Any], name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:  # noqa: ANN401 - Celery's
        """Send a task in the place of `Celery.send_task`; `options` are its other arguments, by name."""
        here = self._here()
        if self._leads_elsewhere(here, options):
            # the caller names a broker, or routes by itself
            return original(name, args, kwargs, **options)
        record = self._follower.record()
        options["task_id"] = options.get("task_id") or uuid()
        message = _Message(original, name, args, kwargs, options, record.generation if record else 0)
        if self._side_of(record, message) is not self.home:
            return self._send_to_the_other(here, message)
        return self._send(here, self.home, message, original)

    def side_of_a_run(self, task_id: str, root: str | None) -> Side | None:
        """Return the side on which a message has to stay because its root runs there; None for a free choice."""
        current = current_root(self._app)
        is_of_a_run = root == current if current else self.is_worker and root not in (None, task_id)
        return self.home if is_of_a_run else None

    def _here(self) -> _Process:
        pid = getpid()
        found = self._processes.get(pid)
        # one step, as several threads may send first
        return found or self._processes.setdefault(pid, _Process(Breaker(self._send_timeout_s)))

    def _side_of(self, record: RolloutRecord | None, message: _Message) -> Side:
        options = message.options
        current, given = current_root(self._app), options.get("root_id")
        root = given or current or options["task_id"]
        belongs_to_a_run = root == current if current else bool(given and self.is_worker)
        if belongs_to_a_run and not (record and record.gather):
            # a root id is not split, however the weights change
            return self.home
        if record is None:
            return Side.SOURCE
        weights = record.weights
        weight = weights.of(message.name, partial(self._queue_of, message)) if weights.differ else weights.default
        return side_of(self.name, root, weight)

    def _queue_of(self, message: _Message) -> str:
        """Return the queue that Celery's routing names; empty for an exchange without exactly one."""
        routed = self._routed(message)
        queue = only_queue_at(self._app.amqp.queues, routed) or routed.get("queue")
        return str(getattr(queue, "name", queue) or "")

    def _routed(self, message: _Message) -> dict[str, Any]:
        """Return what Celery's routing makes of a message's options."""
        options = options_with_those_of_the_task(self._app, message.name, message.options)
        name, kind = options.get("route_name") or message.name, options.get("task_type")
        routed: dict[str, Any] = self._app.amqp.router.route(options, name, message.args, message.kwargs, kind)
        return routed

    def _leads_elsewhere(self, here: _Process, options: dict[str, Any]) -> bool:
        if options.get("router") is not None:
            return True
        producer = options.get("producer") or options.get("publisher")
        connection = options.get("connection") or (producer and producer.connection)
        if not connection:
            return False
        if connection not in here.known:
            here.known[connection] = _place(connection) in _places(self._app.connection_for_write())
        return not here.known[connection]

    def _send_to_the_other(self, here: _Process, message: _Message) -> Any:  # noqa: ANN401 - Celery's
        side = self.home.other
        routed = self._routed(message)
        queue = only_queue_at(self._app.amqp.queues, routed)
        if queue is None:
            if (message.name, str(routed.get("exchange"))) not in here.kept:
                here.kept.add((message.name, str(routed.get("exchange"))))
                log.warning(
                    "%s stays on the %s: the application does not declare exactly one queue that is bound to the "
                    "exchange %r with the key %r, so the other broker may have none",
                    message.name,
                    self.home,
                    str(routed.get("exchange")),
                    routed.get("routing_key"),
                    extra={"action": "rollout_not_routed"},
                )
            return self._send_home(here, message)
        options = dict(message.options)
        if queue:
            # as values: an option that is missing would be that of the task's class
            options |= {"queue": queue, "exchange": None, "routing_key": None}
        # a producer of canvas or beat leads home
        options = {key: value for key, value in options.items() if key not in ("producer", "publisher", "connection")}
        there = replace(message, options=options)
        if side is Side.SOURCE:
            # as Celery sends: from here there is no other way
            return self._send(here, side, there, self._sibling(here).app.send_task)
        return self._send_to_the_target(here, message, there)

    def _send_to_the_target(self, here: _Process, message: _Message, there: _Message) -> Any:  # noqa: ANN401 - Celery's
        if here.breaker.allows():
            try:
                return self._send_once(here, there)
            except NotSent as error:
                here.counters.failed(Side.TARGET)
                self._note_failure(here, error)
        here.counters.fell_back(Side.TARGET)
        return self._send_home(here, message)

    def _send_once(self, here: _Process, there: _Message) -> Any:  # noqa: ANN401 - Celery's
        sibling = self._sibling(here)
        with publishing_once(sibling.pool, self._send_timeout_s) as producer:
            there.options |= {"producer": producer, "retry": False}
            try:
                return there.sent_by(sibling.app.send_task, self._stamp(there.generation, Side.TARGET))
            finally:
                self._note_outcome(here, producer)

    def _note_outcome(self, here: _Process, producer: OnceProducer) -> None:
        if producer.may_have_arrived:
            here.counters.failed(Side.TARGET)
            here.breaker.failed()
        elif producer.is_sent:
            # an event about it may still have failed
            here.counters.sent(Side.TARGET)
            here.is_refused = False
            if here.breaker.succeeded():
                text = "the target of the rollout %s answers again"
                log.warning(text, self.name, extra={"action": "rollout_target_answers"})

    def _note_failure(self, here: _Process, error: NotSent) -> None:
        cause = f"{type(error.__cause__).__name__}: {error.__cause__}"
        if not error.is_unreachable:
            here.breaker.succeeded()
            if not here.is_refused:
                log.warning(
                    "the target of the rollout %s refuses tasks, which go to the source: %s",
                    self.name,
                    cause,
                    extra={"action": "rollout_fallback"},
                )
            here.is_refused = True
        elif here.breaker.failed():
            log.warning(
                "the target of the rollout %s does not answer, and tasks go to the source: %s",
                self.name,
                cause,
                extra={"action": "rollout_fallback"},
            )

    def _send_home(self, here: _Process, message: _Message) -> Any:  # noqa: ANN401 - Celery's
        return self._send(here, self.home, message, message.original)

    def _send(self, here: _Process, side: Side, message: _Message, send: Callable[..., Any]) -> Any:  # noqa: ANN401 - Celery's
        try:
            result = message.sent_by(send, self._stamp(message.generation, side))
        except OperationalError:
            here.counters.failed(side)
            raise
        here.counters.sent(side)
        return result

    def _stamp(self, generation: int, side: Side) -> str:
        stamped = self._stamps
        if stamped[0] != generation:
            # one for each generation: a send is to cost next to nothing
            stamped = (generation, {one: str(RolloutStamp(self.name, generation, one)) for one in Side})
            self._stamps = stamped
        return stamped[1][side]

    def _sibling(self, here: _Process) -> Sibling:
        if here.sibling is None:
            with here.lock:
                here.sibling = here.sibling or self._make_sibling()
        return here.sibling


@dataclass(slots=True)
class _Message:
    """One call of `send_task`."""

    original: Callable[..., Any]
    name: str
    args: Any
    kwargs: Any
    options: dict[str, Any]
    #: Of the record by which its side was chosen.
    generation: int

    def sent_by(self, send: Callable[..., Any], stamp: str) -> Any:  # noqa: ANN401 - Celery's
        # the options are of this call alone; the headers may be the caller's own dictionary
        given = self.options.get("headers")
        self.options["headers"] = {**given, ROLLOUT_HEADER: stamp} if given else {ROLLOUT_HEADER: stamp}
        return send(self.name, self.args, self.kwargs, **self.options)


def _place(connection: Any) -> tuple[Any, ...]:  # noqa: ANN401 - kombu's Connection
    found = connection.info()
    return tuple(str(found.get(key) or "") for key in ("transport", "hostname", "port", "virtual_host"))


def _places(connection: Any) -> set[tuple[Any, ...]]:  # noqa: ANN401 - kombu's Connection
    """Return the servers of an application's connection: its own, and those of its failover list."""
    return {_place(connection), *(_place(Connection(url)) for url in connection.alt or ())}
