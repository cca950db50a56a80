"""Looking at one worker: its pulse, and over its broker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from repot.config import Role, celery_config
from repot.config.masking import masked
from repot.healthcheck.answer import Answer
from repot.healthcheck.inquiry import Heard, Inquiry, Outcome
from repot.healthcheck.liveness import find_pulse, liveness
from repot.healthcheck.readiness import BROKER_UNREACHABLE, StallWatch, after_asking, stalled, without_asking
from repot.waiting import wait_until
from repot.worker.pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.config import HealthcheckSettings, WorkerSettings


_ANOTHER_LOOK_WITHIN_S = 10


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment; `at` is on the monotonic clock."""

    at: float
    pulse: Pulse | None
    live: Answer
    ready: Answer | None = None


class Watch:
    """Looks at one worker. The pulse may be looked at from any thread, the worker asked from one."""

    def __init__(
        self, worker: WorkerSettings, health: HealthcheckSettings, heard: Callable[[Heard], None] = lambda _: None
    ) -> None:
        """Watch the worker with the settings `worker`; `heard` is told of each question's outcome."""
        self._worker = worker
        config = celery_config(worker, Role.CLIENT)
        self._url = str(masked(config.get("broker_read_url") or config["broker_url"]))
        self._health = health
        self._told = heard
        self._stall = StallWatch(health.stall)
        self._inquiry: Inquiry | None = None
        self._asked: Pulse | None = None

    def look(self) -> Look:
        """See whether it is alive: reads one file."""
        found = find_pulse(self._worker.pulse_folder, self._health.node)
        pulse = found if isinstance(found, Pulse) else None
        return Look(monotonic(), pulse, liveness(found, self._health.pulse_timeout))

    def ask(self) -> Look:
        """See whether it takes tasks: asks it, if its pulse does not say already. Blocks for the ping's timeouts."""
        seen = self.look()
        if seen.pulse is None:
            return Look(seen.at, None, seen.live, seen.live)
        ready = (
            without_asking(seen.pulse, seen.live, self._health.stall)
            or self._misled(seen.pulse)
            or self._ask(seen.pulse)
        )
        return Look(seen.at, seen.pulse, seen.live, ready)

    @property
    def confirm_s(self) -> float:
        """How much later another look has to be."""
        return self._stall.confirm_s

    @property
    def is_unsure(self) -> bool:
        """Whether only another look, a little later, tells a stall from a task that has just come."""
        return self._stall.is_unsure

    def close(self) -> None:
        """Give the connection back."""
        if self._inquiry:
            self._inquiry.close()

    def _misled(self, found: Pulse) -> Answer | None:
        """The answer where the worker listens on another broker than these settings name."""
        if self._url == found.link.url:
            return None
        reason = (
            f"{found.node} listens on {found.link.url}, but WORKER_BROKER_URL here is {self._url}; "
            "give this process the worker's environment"
        )
        return Answer(ok=False, state="misconfigured", reason=reason)

    def _ask(self, found: Pulse) -> Answer:
        inquiry = self._inquiry_for(found)
        heard = inquiry.ask(found.node)
        self._told(heard)
        if heard.outcome is Outcome.ANSWERED and self._stall.suspects(found):
            waiting = inquiry.waiting(found.link.queues)
            if waiting is not None and self._stall.is_stalled(found, waiting):
                return stalled(found, waiting)
        return after_asking(found, heard)

    def _inquiry_for(self, found: Pulse) -> Inquiry:
        """A new one for each start of the worker, and for each server it turns to: its options may be others."""
        known = self._asked and (self._asked.process, self._asked.started_at, self._asked.link.server)
        if self._inquiry is None or known != (found.process, found.started_at, found.link.server):
            self.close()
            self._inquiry = Inquiry(self._worker, found.link, self._health.ping_timeout)
            self._asked = found
        return self._inquiry


def too_slow(look: Look, deadline_s: float) -> Look:
    """The look of somebody who could not wait any longer for the worker's answer."""
    if look.pulse is None:
        return replace(look, ready=look.live)
    reason = f"{look.pulse.link.url} and {look.pulse.node} did not answer within {deadline_s:g} s in all"
    return replace(look, ready=Answer(ok=False, state=BROKER_UNREACHABLE, reason=reason))


def ask_once(watch: Watch, deadline_s: float) -> Answer:
    """The answer for somebody who keeps nothing between two probes; looks twice where one look cannot tell."""
    looks: list[Look] = []

    def ask() -> None:
        look = watch.ask()
        if watch.is_unsure:
            wait_until(lambda: not watch.is_unsure, within_s=_ANOTHER_LOOK_WITHIN_S, what="another look is due")
            look = watch.ask()
        looks.append(look)
        watch.close()

    # it dies with the process, wherever it waits
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(deadline_s + watch.confirm_s)
    look = looks[0] if looks else too_slow(watch.look(), deadline_s)
    return look.ready or look.live
