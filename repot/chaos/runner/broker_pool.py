"""A pool of test brokers for cases: each starts on first use, and is shared where no fault changes it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Event
from typing import TYPE_CHECKING

from repot.chaos.scenarios.scenario import Needs
from repot.errors import Interrupted, RepotError, ServerFailed
from repot.logs import get_logger
from repot.testbed.private_brokers import PRIVATE_BROKERS
from repot.testbed.test_broker import Restorable, capability

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from repot.chaos.runner.case import Case
    from repot.config.broker_kinds import BrokerKind
    from repot.testbed.private_brokers import PrivateBroker
    from repot.testbed.test_broker import TestBroker

log = get_logger(__name__)

#: Seconds between two checks of `stop`.
_POLL_S = 0.2
#: After so many failed starts in a row others would fail as slowly.
_MAX_FAILED_STARTS = 3


@dataclass(frozen=True, slots=True)
class Provision:
    """How the pool provides brokers for a need.

    Attributes:
        start: starts one.
        max_brokers: at a time.
        max_users: cases that use one broker at a time.
        is_ephemeral: it starts so quickly that it is not kept for the next case.
    """

    start: Callable[[], AbstractContextManager[TestBroker]]
    max_brokers: int = 1
    max_users: int = 1
    is_ephemeral: bool = False


_UNLIMITED = 1000


def _provisions_of(private: PrivateBroker) -> dict[Needs, Provision]:
    if private.one_per_case:
        own = Provision(private.standalone, max_brokers=_UNLIMITED, is_ephemeral=True)
        replicated = Provision(private.replicated, max_brokers=_UNLIMITED, is_ephemeral=True)
        return {Needs.ANY: own, Needs.OWN: own, Needs.REPLICATED: replicated}
    # a start takes seconds of two cores, one of three servers takes three times as long
    return {
        Needs.ANY: Provision(private.standalone, max_users=_UNLIMITED),
        Needs.OWN: Provision(private.standalone, max_brokers=2),
        Needs.REPLICATED: Provision(private.replicated),
    }


PROVISIONS: Mapping[tuple[BrokerKind, Needs], Provision] = {
    (kind, needs): provision
    for kind, private in PRIVATE_BROKERS.items()
    for needs, provision in _provisions_of(private).items()
}


@dataclass(eq=False)
class _PooledBroker:
    """A broker of the pool, or one that is being started; compared by identity.

    Attributes:
        users: how many cases use it.
        is_dropped: no other case gets it; it stops when its last user releases it.
        is_external: the pool does not start, repair or stop it.
    """

    provision: Provision
    users: int = 0
    test_broker: TestBroker | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    is_dropped: bool = False
    is_external: bool = False


@dataclass(eq=False)
class Acquisition:
    """A pooled broker that a case has acquired; it may still have to be started.

    Attributes:
        starts: whether this case starts it; decided on acquisition, so exactly one of several cases does.
    """

    case: Case
    pooled: _PooledBroker | None
    starts: bool


class BrokerPool:
    """All test brokers of a campaign."""

    def __init__(
        self,
        on_started: Callable[[TestBroker], None],
        external: Mapping[BrokerKind, TestBroker],
        stop: Event | None = None,
        provisions: Mapping[tuple[BrokerKind, Needs], Provision] = PROVISIONS,
    ) -> None:
        """Call `on_started` for each broker that was started; use `external` ones instead, by kind.

        Once `stop` is set, no broker is acquired or started any more.
        """
        self._on_started = on_started
        self._stop = stop or Event()
        self._provisions = provisions
        self._pooled: dict[tuple[BrokerKind, Needs], list[_PooledBroker]] = {key: [] for key in provisions}
        # one case at a time: each cleans up before the next
        self._external = {
            kind: _PooledBroker(Provision(_never_started), test_broker=test_broker, is_external=True)
            for kind, test_broker in external.items()
        }
        self._running: list[_PooledBroker] = []
        self._failures: dict[tuple[BrokerKind, Needs], list[Exception]] = {key: [] for key in provisions}
        self._changed = Condition()
        self._closed = False

    def acquire(self, pending: list[Case]) -> Acquisition:
        """Wait until a broker is free for one of the pending cases; remove that case and acquire the broker.

        Raises:
            Interrupted: the campaign is over.
        """
        with self._changed:
            while True:
                self._require_open()
                if not pending:
                    message = "no case is left"
                    raise Interrupted(message)
                acquisition = self._acquire_free(pending)
                if acquisition:
                    pending.remove(acquisition.case)
                    return acquisition
                self._changed.wait(_POLL_S)

    def start(self, acquisition: Acquisition) -> TestBroker:
        """Return the acquired broker when it serves; if another case failed to start it, try once more.

        The caller must release the acquisition also after an error.

        Raises:
            Interrupted: the campaign is over.
            ProgramMissing, ServerFailed: it did not start.
        """
        while acquisition.pooled is None or acquisition.pooled.test_broker is None:
            if acquisition.pooled is None:
                again = self.acquire([acquisition.case])
                acquisition.pooled, acquisition.starts = again.pooled, again.starts
            elif acquisition.starts:
                self._start(acquisition.pooled, acquisition.case)
            elif not self._await_started(acquisition.pooled):
                self.release(acquisition)
        return acquisition.pooled.test_broker

    def release(self, acquisition: Acquisition, *, broken: bool = False) -> None:
        """Release a broker; no other case gets it if it is `broken`. A second call does nothing.

        Raises:
            RepotError: the broker did not stop cleanly; it is released all the same.
        """
        pooled, acquisition.pooled = acquisition.pooled, None
        if pooled is None:
            return
        # without a test broker its start failed or never began, and other cases wait for it
        drop = (broken or pooled.provision.is_ephemeral or pooled.test_broker is None) and not pooled.is_external
        try:
            drop = drop or not self._repaired(pooled, acquisition.case)
        except BaseException:
            drop = True
            raise
        finally:
            with self._changed:
                pooled.users -= 1
                if drop:
                    self._drop(pooled, acquisition.case)
                is_unused = pooled.is_dropped and not pooled.users
                self._changed.notify_all()
            if is_unused:
                self._end(pooled)

    def acquire_started(self, pending: list[Case]) -> tuple[Case, TestBroker, Callable[..., None]]:
        """Acquire and start a broker; return the case, the broker, and a function that releases it.

        Raises:
            Interrupted: the campaign is over.
            ProgramMissing, ServerFailed: it did not start.
        """
        acquisition = self.acquire(pending)
        try:
            test_broker = self.start(acquisition)
        except BaseException:
            self.release(acquisition, broken=True)
            raise
        return acquisition.case, test_broker, partial(self.release, acquisition)

    def close(self) -> None:
        """Stop all brokers, also if one does not stop cleanly.

        Raises:
            RepotError: one did not.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            running = list(self._running)
        with ExitStack() as ending:
            for pooled in running:
                ending.callback(pooled.stack.close)

    def _acquire_free(self, pending: list[Case]) -> Acquisition | None:
        """Acquire a broker for the first case that can have one. The caller holds the lock."""
        for case in pending:
            pooled = self._free_for(case)
            if pooled:
                starts = pooled.test_broker is None and not pooled.users
                pooled.users += 1
                return Acquisition(case, pooled, starts)
        return None

    def _key(self, case: Case) -> tuple[BrokerKind, Needs]:
        return case.profile.kind, case.scenario.needs

    def _free_for(self, case: Case) -> _PooledBroker | None:
        """Return a broker that takes another user; it may not be started yet. The caller holds the lock."""
        external = self._external.get(case.profile.kind)
        if external:
            return None if external.users else external
        provision, pooled = self._provisions[self._key(case)], self._pooled[self._key(case)]
        free = next((one for one in pooled if one.users < provision.max_users), None)
        if free is None and len(pooled) < provision.max_brokers:
            free = _PooledBroker(provision)
            pooled.append(free)
        return free

    def _start(self, pooled: _PooledBroker, case: Case) -> None:
        failures = self._failures[self._key(case)]
        try:
            with self._changed:
                self._require_open()
                _require_few(failures)
                self._running.append(pooled)
            test_broker = pooled.stack.enter_context(pooled.provision.start())
            self._on_started(test_broker)
        except BaseException as error:
            with self._changed:
                if isinstance(error, Exception) and not isinstance(error, Interrupted):
                    failures.append(error)
                self._drop(pooled, case)
            self._end(pooled)
            raise
        with self._changed:
            failures.clear()
            pooled.test_broker = test_broker
            self._changed.notify_all()

    def _await_started(self, pooled: _PooledBroker) -> bool:
        """Wait until another case has started the broker; return whether it succeeded."""
        with self._changed:
            while pooled.test_broker is None and not pooled.is_dropped:
                self._require_open()
                self._changed.wait(_POLL_S)
            return pooled.test_broker is not None

    def _require_open(self) -> None:
        if self._closed or self._stop.is_set():
            message = "interrupted"
            raise Interrupted(message)

    def _drop(self, pooled: _PooledBroker, case: Case) -> None:
        """Remove a broker from the pool. The caller holds the lock."""
        pooled.is_dropped = True
        others = self._pooled[self._key(case)]
        if pooled in others:
            others.remove(pooled)
        self._changed.notify_all()

    def _repaired(self, pooled: _PooledBroker, case: Case) -> bool:
        """Return whether the broker can be used again, after a repair where the case may have harmed it."""
        if pooled.test_broker is None or pooled.is_external or case.scenario.needs is Needs.ANY:
            return True
        if self._stop.is_set():
            return False
        try:
            capability(pooled.test_broker, Restorable).restore()
        except RepotError as error:
            log.warning(
                "%s could not be repaired, and is not used again: %s", pooled.test_broker.product, error.message
            )
            return False
        return True

    def _end(self, pooled: _PooledBroker) -> None:
        try:
            pooled.stack.close()
        finally:
            with self._changed:
                if pooled in self._running:
                    self._running.remove(pooled)


def _require_few(failures: list[Exception]) -> None:
    """Refuse one more start after too many failures.

    Raises:
        ServerFailed: with the first of the failures.
    """
    if len(failures) >= _MAX_FAILED_STARTS:
        first = failures[0]
        message = (
            f"a broker for this need failed to start {_MAX_FAILED_STARTS} times: {getattr(first, 'message', first)}"
        )
        raise ServerFailed(message, hint=getattr(first, "hint", ""))


def _never_started() -> AbstractContextManager[TestBroker]:
    """Fail: the pool never starts an external broker."""
    raise NotImplementedError
