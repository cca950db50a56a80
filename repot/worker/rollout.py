"""A rollout for a configured application: its record's store, its two brokers, and the hook where Celery sends."""

from __future__ import annotations

import atexit
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from celery import signals

from repot.config import BrokerUrl
from repot.errors import RepotError
from repot.logs import get_logger
from repot.routing.follower import Follower
from repot.routing.once import ANSWER_PART, CONNECT_PART
from repot.routing.record import RolloutRecords
from repot.routing.sender import RolloutSender
from repot.routing.side import Side
from repot.routing.tally import Reporter, Tally
from repot.upstream.app_state import state_of
from repot.upstream.remote_control import control_by, stop_controlling_by
from repot.upstream.sending import send_by, stop_sending_by
from repot.upstream.sibling_app import own_pools, sibling_of, with_own_queues
from repot.worker.rollout_control import BothSides
from repot.worker.rollout_store import open_rollout_store, quick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery import Celery

    from repot.config import WorkerSettings
    from repot.routing.counters import Counters
    from repot.routing.record import RolloutRecord
    from repot.routing.store import RolloutStore

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SiblingApp:
    """The application on the other broker, and its connections."""

    app: Celery
    pool: Any


def install_rollout(
    app: Celery, settings: WorkerSettings, given: WorkerSettings, derive: Callable[[Celery, WorkerSettings], object]
) -> None:
    """Send the tasks of an application by the rollout of its settings.

    `settings` are complete, `given` those before the application's own values were added. `derive` configures an
    application, and does not install a rollout.
    """
    home = Side(settings.rollout_side)
    sibling_settings = given.replace(rollout_side=home.other.value)
    follower = followed(settings, lambda: sender.counters)

    def make() -> SiblingApp:
        sibling = sibling_of(app)
        derive(sibling, sibling_settings)
        with_own_queues(sibling)
        if home.other is Side.TARGET:
            _limit_waits(sibling, settings.rollout_send_timeout)
        return SiblingApp(sibling, own_pools(sibling))

    sender = RolloutSender(app, settings.rollout, home, follower, make, settings.rollout_send_timeout)
    state_of(app).rollout = sender
    send_by(app, sender.send)
    control_by(app, BothSides(app, settings, sender))
    signals.worker_init.connect(_note_worker, dispatch_uid="repot-rollout-worker")
    signals.beat_init.connect(_guard_beat, dispatch_uid="repot-rollout-beat")


def followed(settings: WorkerSettings, counters: Callable[[], Counters]) -> Follower:
    """Return what follows the record of the settings' rollout, and reports what this process has sent."""
    # not in the follower's thread: a process that is forked while a thread imports a driver waits for ever
    store = open_rollout_store(quick(settings))
    return Follower(settings.rollout, lambda: _reader(store, settings, counters), _acceptor(settings))


def rollout_of(app: Celery) -> RolloutSender | None:
    """Return what sends the tasks of an application during a rollout; None without one."""
    return cast("RolloutSender | None", state_of(app).rollout)


def remove_rollout(app: Celery) -> None:
    """Send the tasks of an application as before; the thread that follows the record ends."""
    sender = rollout_of(app)
    if sender is not None:
        sender.stop()
    stop_sending_by(app)
    stop_controlling_by(app)
    state_of(app).rollout = None


def _note_worker(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    rollout = rollout_of(sender.app)
    if rollout is not None:
        rollout.is_worker = True


def _guard_beat(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
    if rollout_of(sender.app) is not None:
        from repot.worker.rollout_beat import guard_beat

        guard_beat(sender, state_of(sender.app).settings)


def _reader(
    store: RolloutStore, settings: WorkerSettings, counters: Callable[[], Counters]
) -> Callable[[], RolloutRecord | None]:
    """Return what reads the record, and reports what this process has sent."""
    records = RolloutRecords(store, settings.lease_prefix)
    tally, process = Tally(store, settings.lease_prefix, settings.rollout), uuid4().hex
    reporters = [Reporter(tally, side, process, partial(_sent, counters, side)) for side in Side]
    has_failed = False

    def read() -> RolloutRecord | None:
        nonlocal has_failed
        record = records.read(settings.rollout)
        try:
            _report(reporters)
            has_failed = False
        except RepotError as error:
            # the record counts more: without the right to report, a process still follows
            if not has_failed:
                log.warning("what is sent is not counted: %s", error.message, extra={"action": "rollout_uncounted"})
            has_failed = True
        return record

    # a script that sends once ends before the next reading
    atexit.register(_report_last, reporters)
    return read


def _sent(counters: Callable[[], Counters], side: Side) -> dict[str, int]:
    return asdict(counters().of(side))


def _report(reporters: Iterable[Reporter]) -> None:
    for reporter in reporters:
        reporter.report()


def _report_last(reporters: Iterable[Reporter]) -> None:
    with suppress(RepotError):
        _report(reporters)


def _acceptor(settings: WorkerSettings) -> Callable[[RolloutRecord], bool]:
    """Return what accepts a record of the brokers in the settings; it logs the first one of others."""
    assert settings.rollout_target is not None
    own_brokers = (settings.broker_url, settings.rollout_target)
    refused: set[tuple[str, str]] = set()

    def accepts(record: RolloutRecord) -> bool:
        brokers = (record.source, record.target)
        if all(_is_same(text, url) for text, url in zip(brokers, own_brokers, strict=True)):
            refused.clear()
            return True
        if brokers not in refused:
            log.error(
                "the rollout %s leads from %s to %s, and this process is configured for %s and %s: it does not "
                "follow, and its tasks go to the source; correct WORKER_BROKER_URL, WORKER_ROLLOUT_TARGET or "
                "WORKER_ROLLOUT",
                record.name,
                *brokers,
                *own_brokers,
                extra={"action": "rollout_of_other_brokers"},
            )
        refused.add(brokers)
        return False

    return accepts


def _is_same(stored: str, url: BrokerUrl) -> bool:
    try:
        return BrokerUrl.parse(stored).shares_server(url)
    except ValueError:
        return False


def _limit_waits(sibling: Celery, limit_s: float) -> None:
    """Let nothing that happens before a message is sent wait for long, and nothing be sent twice in silence."""
    servers = max(len(sibling.connection_for_write().alt or ()), 1)
    connect_s, answer_s = limit_s * CONNECT_PART / servers, limit_s * CONNECT_PART
    options = {
        **(sibling.conf.broker_transport_options or {}),
        "socket_connect_timeout": connect_s,
        "socket_timeout": limit_s * ANSWER_PART,
        "read_timeout": answer_s,
        "write_timeout": answer_s,
        "retry_on_timeout": False,
        # a fallback needs to know what the broker has, whatever WORKER_PUBLISHER_CONFIRMS says
        "confirm_publish": True,
    }
    sibling.conf.update(broker_connection_timeout=connect_s, broker_transport_options=options, task_publish_retry=False)
