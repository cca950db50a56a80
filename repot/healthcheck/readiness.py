"""Does the worker take tasks? What its pulse, itself and its broker say, put into one answer."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from repot.healthcheck.answer import Answer
from repot.healthcheck.inquiry import Outcome
from repot.healthcheck.liveness import BUSY, POOL_STUCK
from repot.worker.pulse import CONNECTING, STARTING, STOPPING, Pulse

if TYPE_CHECKING:
    from repot.healthcheck.inquiry import Heard

BROKER_UNREACHABLE = "broker_unreachable"
BROKER_REFUSED = "broker_refused"
BROKER_ALARM = "broker_alarm"
POOL_CRASH_LOOP = "pool_crash_loop"
NOT_ANSWERING = "not_answering"
NOT_CONSUMING = "not_consuming"
READY = "ready"

#: A pool whose processes have done nothing but die for so long, and so often, takes no tasks.
CRASHING_S = 10
_DEATHS = 3

#: Where a worker cannot be asked, a broker that sent nothing for longer is not there: heartbeats and polls come every
#: few seconds.
SILENT_S = 60


def without_asking(found: Pulse, live: Answer, stall_s: float = 60) -> Answer | None:
    """The answer where the pulse alone knows it; None where the worker must be asked.

    A pool may run none of the tasks it holds, or wait for a result, for `stall_s` seconds.
    """
    if not live.ok or found.phase in (STARTING, STOPPING):
        return Answer(ok=False, state=live.state, reason=live.reason)
    checks = (
        _searching(found),
        _crashing(found),
        _stuck(found),
        _unread(found, stall_s),
        _idle(found, stall_s),
        _cancelled(found),
        live if live.state == BUSY else None,
        _mute(found),
    )
    return next((answer for answer in checks if answer), None)


def _searching(found: Pulse) -> Answer | None:
    if found.phase != CONNECTING:
        return None
    for_s = monotonic() - found.since
    if found.link.refusal:
        said = f"{found.link.url} refused {found.node}: {found.link.refusal}"
        reason = f"{said}; it has been trying again for {for_s:.0f} s"
        return Answer(ok=False, state=BROKER_REFUSED, reason=reason)
    reason = f"{found.node} has been looking for its broker {found.link.url} for {for_s:.0f} s"
    return Answer(ok=False, state=BROKER_UNREACHABLE, reason=reason)


def _stuck(found: Pulse) -> Answer | None:
    task = found.pool.overdue
    if not found.pool.is_stuck or task is None:
        return None
    past_s = monotonic() - (task.deadline or 0)
    reason = f"{found.node} runs {task.name} {past_s:.0f} s past its hard time limit"
    return Answer(ok=False, state=POOL_STUCK, reason=reason)


def _crashing(found: Pulse) -> Answer | None:
    pool = found.pool
    for_s = monotonic() - pool.dying_since if pool.dying_since is not None else 0
    if for_s < CRASHING_S or pool.deaths < _DEATHS:
        return None
    reason = f"the processes of {found.node} die as they start: {pool.deaths} in {for_s:.0f} s, and none ran a task"
    return Answer(ok=False, state=POOL_CRASH_LOOP, reason=reason)


def _unread(found: Pulse, stall_s: float) -> Answer | None:
    task = found.pool.lost
    if task is None or monotonic() - task.started < stall_s:
        return None
    ended = f"ended {task.name} ({task.id}) {monotonic() - task.started:.0f} s ago"
    reason = f"a process of {found.node} {ended}, and its result has not arrived: it gets no other task"
    return Answer(ok=False, state=POOL_STUCK, reason=reason)


def _idle(found: Pulse, stall_s: float) -> Answer | None:
    since = found.pool.idle_since
    if since is None or monotonic() - since < stall_s:
        return None
    reason = f"{found.node} has held {found.pool.reserved} tasks for {monotonic() - since:.0f} s and runs none"
    return Answer(ok=False, state=POOL_STUCK, reason=reason)


def _cancelled(found: Pulse) -> Answer | None:
    if not found.link.cancelled:
        return None
    reason = f"{found.node} was told to stop consuming {', '.join(found.link.cancelled)}"
    return Answer(ok=False, state=NOT_CONSUMING, reason=reason)


def _mute(found: Pulse) -> Answer | None:
    """Whoever cannot be asked is judged by its pulse: a bridge's answers go to the broker it writes to."""
    if found.link.answers and not found.link.is_bridge:
        return None
    heard = found.link.last_contact
    silent_s = 0 if heard is None else monotonic() - heard
    said = "" if heard is None else f", heard {silent_s:.0f} s ago"
    why = "a bridge cannot be asked, its answers go elsewhere"
    if not found.link.is_bridge:
        why = "it cannot be asked: remote control is off, or answers are not JSON"
    reason = f"{found.node} consumes from {found.link.url}{said}; {why}"
    if silent_s > SILENT_S:
        return Answer(ok=False, state=BROKER_UNREACHABLE, reason=reason)
    return Answer(ok=True, state=READY, reason=reason)


def after_asking(found: Pulse, heard: Heard) -> Answer:
    """What the worker's answer, or its silence, means."""
    broker = found.link.url
    match heard.outcome:
        case Outcome.UNREACHABLE:
            return Answer(ok=False, state=BROKER_UNREACHABLE, reason=f"{broker} cannot be reached: {heard.said}")
        case Outcome.REFUSED:
            # connections that are open stay so, and the worker works on those
            reason = (
                f"{broker} refused the probe: {heard.said}; {found.node} would be refused, too, on a new connection"
            )
            return Answer(ok=False, state=BROKER_REFUSED, reason=reason)
        case Outcome.BLOCKED:
            # the worker works on; a restart would only take its tasks from it
            reason = f"{broker} lets nobody publish (memory or disk alarm); {found.node} beats and works on"
            return Answer(ok=True, state=BROKER_ALARM, reason=reason)
        case Outcome.SILENT:
            reason = f"{found.node} did not answer on {broker} within {heard.took_s:.1f} s, though it beats"
            return Answer(ok=False, state=NOT_ANSWERING, reason=reason)
    return Answer(ok=True, state=READY, reason=f"{found.node} answered on {broker} in {heard.took_s * 1000:.0f} ms")


@dataclass(slots=True)
class StallWatch:
    """Notices a worker that answers and does not take what waits.

    A look that finds work is not enough: it may have come this very moment. It has to
    be there again `confirm_s` later, with nothing received in between.
    """

    stall_s: float
    confirm_s: float = 2.0
    _since: float | None = None
    _received: float | None = None

    def suspects(self, found: Pulse) -> bool:
        """Whether it is worth a look into the queues: a process is free, and nothing came for long."""
        quiet_since = max(found.last_received or 0, found.since)
        is_free = found.pool.reserved < found.pool.processes and not found.pool.limited
        suspected = is_free and monotonic() - quiet_since >= self.stall_s
        if not suspected:
            self._since = None
        return suspected

    def is_stalled(self, found: Pulse, waiting: int) -> bool:
        """Whether what was seen waiting still waits."""
        now = monotonic()
        if not waiting or self._received != found.last_received or self._since is None:
            self._since, self._received = (now if waiting else None), found.last_received
            return False
        return now - self._since >= self.confirm_s

    @property
    def is_unsure(self) -> bool:
        """Whether only another look can tell."""
        return self._since is not None and monotonic() - self._since < self.confirm_s


def stalled(found: Pulse, waiting: int) -> Answer:
    """The answer for a worker that does not take what waits."""
    came = "nothing" if found.last_received is None else f"nothing for {monotonic() - found.last_received:.0f} s"
    reason = (
        f"{found.node} answers, but received {came} while {waiting} wait in {', '.join(found.link.queues)} "
        f"and {found.pool.processes - found.pool.reserved} of its processes are free"
    )
    return Answer(ok=False, state=NOT_CONSUMING, reason=reason)
