"""Lends brokers to cases: started when first needed, shared where nothing happens to them."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Event
from typing import TYPE_CHECKING

from repot.brokers.local.lone_rabbitmq import rabbitmq_ground
from repot.brokers.local.lone_redis import redis_ground
from repot.brokers.local.rabbitmq_cluster import rabbitmq_cluster_ground
from repot.brokers.local.replicated_redis import replicated_redis_ground
from repot.chaos.scenarios import Needs
from repot.errors import Interrupted, RepotError, ServerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from repot.brokers.local.ground import Ground
    from repot.chaos.case import Case

log = logging.getLogger(__name__)

#: Seconds between two looks whether somebody asked to stop.
_POLL_S = 0.2
#: So many starts of a kind have failed in a row: others would fail as slowly.
_HOPELESS = 3


@dataclass(frozen=True, slots=True)
class Kind:
    """How brokers for a need are made: at most so many at a time, each for so many cases at a time."""

    make: Callable[[], AbstractContextManager[Ground]]
    most: int = 1
    guests: int = 1
    #: Not worth keeping: it starts in a moment.
    fleeting: bool = False


#: A Redis of its own for each case: all users of one share `unacked`, and the lock of its sweep, which a killed
#: worker may keep. A RabbitMQ takes seconds of two cores to start, a cluster of three takes thrice that.
_PLENTY = 1000
KINDS: Mapping[tuple[str, Needs], Kind] = {
    ("redis", Needs.ANY): Kind(redis_ground, most=_PLENTY, fleeting=True),
    ("redis", Needs.OWN): Kind(redis_ground, most=_PLENTY, fleeting=True),
    ("redis", Needs.REPLICATED): Kind(replicated_redis_ground, most=_PLENTY, fleeting=True),
    ("amqp", Needs.ANY): Kind(rabbitmq_ground, guests=_PLENTY),
    ("amqp", Needs.OWN): Kind(rabbitmq_ground, most=2),
    ("amqp", Needs.REPLICATED): Kind(rabbitmq_cluster_ground),
}


@dataclass(eq=False)
class _Lent:
    """A broker, or one that is being started, and how many cases use it. Two are never the same."""

    kind: Kind
    guests: int = 0
    ground: Ground | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    #: Nobody else gets it; it ends when its last guest gives it back.
    is_dropped: bool = False
    #: Somebody's own: neither started nor mended nor ended.
    is_existing: bool = False


@dataclass(eq=False)
class Loan:
    """A broker that is lent to a case, perhaps one that is still to be started.

    Attributes:
        starts: whether it is this case that starts it; decided with the loan, so that of several it is one.
    """

    case: Case
    lent: _Lent | None
    starts: bool


class Grounds:
    """All brokers of a campaign; ends them with it."""

    def __init__(
        self,
        serves: Callable[[Ground], None],
        existing: Mapping[str, Ground],
        stop: Event | None = None,
        kinds: Mapping[tuple[str, Needs], Kind] = KINDS,
    ) -> None:
        """Tell `serves` of each that was started; take `existing` ones instead, by the scheme of their address.

        Once `stop` is set, nothing is lent or started any more.
        """
        self._serves = serves
        self._stop = stop or Event()
        self._kinds = kinds
        self._lent: dict[tuple[str, Needs], list[_Lent]] = {key: [] for key in kinds}
        # one case at a time: what one leaves is cleaned up before the next
        self._existing = {
            scheme: _Lent(Kind(_nothing), ground=ground, is_existing=True) for scheme, ground in existing.items()
        }
        self._alive: list[_Lent] = []
        self._failures: dict[tuple[str, Needs], list[Exception]] = {key: [] for key in kinds}
        self._changed = Condition()
        self._closed = False

    def lend(self, pending: list[Case]) -> Loan:
        """Wait until there is a broker for one of the pending cases; remove that, and lend it.

        Raises:
            Interrupted: the campaign is over.
        """
        with self._changed:
            while True:
                self._require_open()
                if not pending:
                    message = "no case is left"
                    raise Interrupted(message)
                loan = self._loan(pending)
                if loan:
                    pending.remove(loan.case)
                    return loan
                self._changed.wait(_POLL_S)

    def start(self, loan: Loan) -> Ground:
        """The broker of a loan, once it serves; if another case's start of it failed, one more try.

        Whatever is raised, the loan is to be given back.

        Raises:
            Interrupted: the campaign is over.
            ProgramMissing, ServerFailed: it did not start.
        """
        while loan.lent is None or loan.lent.ground is None:
            if loan.lent is None:
                again = self.lend([loan.case])
                loan.lent, loan.starts = again.lent, again.starts
            elif loan.starts:
                self._start(loan.lent, loan.case)
            elif not self._comes_up(loan.lent):
                self.give_back(loan)
        return loan.lent.ground

    def give_back(self, loan: Loan, *, broken: bool = False) -> None:
        """Let others have it; nobody gets it any more if it is `broken`. Nothing happens the second time.

        Raises:
            RepotError: it did not end as it should; it is given back all the same.
        """
        lent, loan.lent = loan.lent, None
        if lent is None:
            return
        # without a ground its start failed, or never began, and others wait for it
        drop = (broken or lent.kind.fleeting or lent.ground is None) and not lent.is_existing
        try:
            drop = drop or self._is_spoiled(lent, loan.case)
        except BaseException:
            drop = True
            raise
        finally:
            with self._changed:
                lent.guests -= 1
                if drop:
                    self._drop(lent, loan.case)
                is_over = lent.is_dropped and not lent.guests
                self._changed.notify_all()
            if is_over:
                self._end(lent)

    def take(self, pending: list[Case]) -> tuple[Case, Ground, Callable[..., None]]:
        """`lend` and `start` at once: the case, its broker, and what gives it back, `broken` if it says so.

        Raises:
            Interrupted: the campaign is over.
            ProgramMissing, ServerFailed: it did not start.
        """
        loan = self.lend(pending)
        try:
            ground = self.start(loan)
        except BaseException:
            self.give_back(loan, broken=True)
            raise
        return loan.case, ground, partial(self.give_back, loan)

    def close(self) -> None:
        """End all brokers, even if one does not end as it should.

        Raises:
            RepotError: one did not.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            alive = list(self._alive)
        with ExitStack() as ending:
            for lent in alive:
                ending.callback(lent.stack.close)

    def _loan(self, pending: list[Case]) -> Loan | None:
        """For the first of these cases that there is a broker for, or may be. Under the lock."""
        for case in pending:
            lent = self._free_for(case)
            if lent:
                starts = lent.ground is None and not lent.guests
                lent.guests += 1
                return Loan(case, lent, starts)
        return None

    def _key(self, case: Case) -> tuple[str, Needs]:
        return case.profile.broker, case.scenario.needs

    def _free_for(self, case: Case) -> _Lent | None:
        """One that takes another guest, perhaps not started yet. Under the lock."""
        existing = self._existing.get(case.profile.broker)
        if existing:
            return None if existing.guests else existing
        kind, lents = self._kinds[self._key(case)], self._lent[self._key(case)]
        free = next((one for one in lents if one.guests < kind.guests), None)
        if free is None and len(lents) < kind.most:
            free = _Lent(kind)
            lents.append(free)
        return free

    def _start(self, lent: _Lent, case: Case) -> None:
        failures = self._failures[self._key(case)]
        try:
            with self._changed:
                self._require_open()
                _require_hope(failures)
                self._alive.append(lent)
            ground = lent.stack.enter_context(lent.kind.make())
            self._serves(ground)
        except BaseException as error:
            with self._changed:
                if isinstance(error, Exception) and not isinstance(error, Interrupted):
                    failures.append(error)
                self._drop(lent, case)
            self._end(lent)
            raise
        with self._changed:
            failures.clear()
            lent.ground = ground
            self._changed.notify_all()

    def _comes_up(self, lent: _Lent) -> bool:
        """Wait until another case has started it; whether it has."""
        with self._changed:
            while lent.ground is None and not lent.is_dropped:
                self._require_open()
                self._changed.wait(_POLL_S)
            return lent.ground is not None

    def _require_open(self) -> None:
        if self._closed or self._stop.is_set():
            message = "interrupted"
            raise Interrupted(message)

    def _drop(self, lent: _Lent, case: Case) -> None:
        """Let nobody else have it. Under the lock."""
        lent.is_dropped = True
        lents = self._lent[self._key(case)]
        if lent in lents:
            lents.remove(lent)
        self._changed.notify_all()

    def _is_spoiled(self, lent: _Lent, case: Case) -> bool:
        """Whether it cannot be made as good as new; nobody needs it any more after a stop."""
        if lent.ground is None or lent.is_existing or case.scenario.needs is Needs.ANY:
            return False
        if self._stop.is_set():
            return True
        try:
            lent.ground.mend()
        except RepotError as error:
            log.warning("%s could not be mended, and is not used again: %s", lent.ground.product, error.message)
            return True
        return False

    def _end(self, lent: _Lent) -> None:
        try:
            lent.stack.close()
        finally:
            with self._changed:
                if lent in self._alive:
                    self._alive.remove(lent)


def _require_hope(failures: list[Exception]) -> None:
    """Do not wait for one more start where none has succeeded.

    Raises:
        ServerFailed: too many have failed in a row.
    """
    if len(failures) >= _HOPELESS:
        why = failures[0]
        message = f"such a broker failed to start {_HOPELESS} times: {getattr(why, 'message', why)}"
        raise ServerFailed(message, hint=getattr(why, "hint", ""))


def _nothing() -> AbstractContextManager[Ground]:
    """Nothing is made where a broker exists."""
    raise NotImplementedError
