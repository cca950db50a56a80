"""How an experiment scales the times of an application's settings.

The minutes of an incident take seconds: settings are scaled down, and the run time of a user's task is what it is.
A run that is longer than the application's visibility timeout must be longer here as well, and one that is shorter,
shorter. If that is not so, the experiment is run again with a longer timeout.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from kombu.transport.redis import Channel

from repot.chaos.report.result import ScaledTime
from repot.chaos.runner.application import OTHER_TASKS
from repot.chaos.runner.observer import SETTLED_WITHIN_S
from repot.chaos.scenarios.profiles import SCALED
from repot.config import celery_config, entries
from repot.errors import Inconclusive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

    from repot.chaos.scenarios.profiles import Profile
    from repot.config import WorkerSettings

T = TypeVar("T")

_TIMEOUT, _HEARTBEAT = "visibility_timeout", "heartbeat"
#: An option of tasks, and not a setting: of all tasks of the application the longest.
RETRY_DELAY = "default_retry_delay"
#: What a retry without a countdown of its own waits for in an experiment, in seconds.
_RETRY_DELAY_S = 1
#: Not a setting of Celery's.
_OF_THE_GUARD = {"lease"}
#: kombu looks for overdue messages about so often.
_SCAN_S = 110
#: The share of the timeout that a run may take: the rest is for its delivery and the steps of the experiment.
_ROOM = 0.75
#: The share of it after which a fault comes too late.
_LATE = 0.9
#: A second attempt leaves room for a run that takes twice as long as it has taken so far.
_AHEAD, _STEPS_S = 2, 8
#: A run that grows more than the timeout from one attempt to the next lasts as long as the fault does.
_GROWS = 1.5


class TimeoutTooShort(Exception):
    """A task ran for about as long as the scaled visibility timeout, and the application's own is longer."""

    def __init__(self, run_s: float) -> None:
        """Take how long it has run so far, in seconds."""
        super().__init__(f"a task runs for {run_s:.1f} s")
        self.run_s = run_s


@dataclass(frozen=True, slots=True)
class TimeScale:
    """The times of one experiment, in seconds, by the names of `SCALED`.

    Attributes:
        own: those of the application, where they are known.
        used: those of its workers in the experiment.
        run_s: the longest run of the attempt before; 0 before the first.
        is_scaled: False if the user has asked for the application's own times.
    """

    own: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=lambda: dict(SCALED))
    run_s: float = 0
    is_scaled: bool = True

    @classmethod
    def of(cls, profile: Profile, app: Celery, factor: float | None) -> TimeScale:
        """Return the times of a user's application, divided by `factor`, but no shorter than in other experiments."""
        own, least_of = _own_times(profile, app), dict(SCALED)
        if delay_s := _retry_delay_s(app):
            own[RETRY_DELAY], least_of[RETRY_DELAY] = delay_s, _RETRY_DELAY_S
        shortest = {
            name: max(least, own.get(name, least) / factor if factor else 0) for name, least in least_of.items()
        }
        used = {name: ceil(min(own.get(name, least), least)) for name, least in shortest.items()}
        return cls(own, used, is_scaled=factor != 1)

    @property
    def timeout_s(self) -> float:
        """Return the visibility timeout of the workers."""
        return self.used.get(_TIMEOUT, 0)

    @property
    def factor(self) -> float:
        """Return how many seconds of the application's one second of the experiment stands for."""
        return max(1.0, self.own.get(_TIMEOUT, 0) / self.timeout_s) if self.timeout_s else 1.0

    @property
    def stretch(self) -> float:
        """Return by how much a fault has to last longer to outlast the timeout as in other experiments."""
        return max(1.0, self.timeout_s / SCALED[_TIMEOUT]) if _TIMEOUT in SCALED else 1.0

    @property
    def patience(self) -> float:
        """Return by how much longer a worker may take to notice a dead connection than in other experiments."""
        return max(
            1.0, *(self.used[name] / SCALED[name] for name in (_HEARTBEAT, "socket_timeout") if name in self.used)
        )

    @property
    def settled_within_s(self) -> float:
        """Return how long all tasks have to settle: a message may come back after the timeout and a restore scan."""
        scan_s = 0 if self.is_scaled else _SCAN_S
        return SETTLED_WITHIN_S * self.patience + self.timeout_s - SCALED.get(_TIMEOUT, 0) + scan_s

    def require_room(self, run_s: float) -> None:
        """Accept the longest run so far.

        Raises:
            TimeoutTooShort: it is shorter than the application's timeout, and not than the scaled one.
        """
        grows = self.run_s and run_s > self.run_s * _GROWS * _AHEAD
        if not grows and _ROOM * self.timeout_s <= run_s < self.own.get(_TIMEOUT, 0) and self._is_shortened:
            raise TimeoutTooShort(run_s)

    def require_in_time(self, age_s: float, case: str) -> None:
        """Accept a fault so long after the delivery of its task.

        Raises:
            Inconclusive: it would meet a task that is about to be delivered again.
        """
        if age_s > _LATE * self.timeout_s:
            why = f"{case}: the fault would come {age_s:.1f} s after the delivery, past the visibility timeout"
            raise Inconclusive(why, hint="Is the machine too busy for the scaled times? Then try --jobs 1.")

    def longer(self, run_s: float) -> TimeScale:
        """Return the same times with a visibility timeout that a run of this length does not reach."""
        timeout_s = ceil(min(self.own[_TIMEOUT], _AHEAD * run_s + _STEPS_S))
        return replace(self, used={**self.used, _TIMEOUT: timeout_s}, run_s=run_s)

    def shown(self) -> tuple[ScaledTime, ...]:
        """Return the times that are not the application's own."""
        return tuple(
            ScaledTime(name, self.own[name], used)
            for name, used in self.used.items()
            if name in self.own and self.own[name] != used
        )

    @property
    def _is_shortened(self) -> bool:
        return self.timeout_s < self.own.get(_TIMEOUT, 0)


def with_room(
    times: TimeScale,
    attempts: int,
    perform: Callable[[TimeScale, int], T],
    say: Callable[[str], None],
    prefix: str = "",
) -> T:
    """Perform an experiment by its times and the number of the attempt, again with longer ones if they are too short.

    Raises:
        Inconclusive: they were too short in the last of the attempts; `prefix` begins the message.
    """
    for attempt in range(attempts):
        try:
            return perform(times, attempt)
        except TimeoutTooShort as found:
            say(f"{found}: again, with a longer visibility timeout")
            times = times.longer(found.run_s)
    message = f"{prefix}a task still ran after {times.run_s:.0f} s in the last of {attempts} attempts"
    raise Inconclusive(message, hint="--scale 1 leaves all times as they are.")


def _retry_delay_s(app: Celery) -> float:
    """Return the longest delay of a retry that states none."""
    own = (task for name, task in app.tasks.items() if not name.startswith(OTHER_TASKS))
    return max((float(task.default_retry_delay or 0) for task in own), default=0)


def counts_run_time(settings: WorkerSettings, profile: Profile) -> bool:
    """Return whether a worker's messages go back after a visibility timeout, whatever becomes of the worker."""
    has_timeout = _TIMEOUT in celery_config(settings)["broker_transport_options"]
    return has_timeout and (profile.settings is None or settings.redis_claim == "brpop")


def _own_times(profile: Profile, app: Celery) -> dict[str, float]:
    """Return the application's own times, where the broker of the profile has them."""
    stated = profile.unscaled()
    known = {field for one in entries(stated) for field in one.fields} | _OF_THE_GUARD
    options = {**(app.conf.get("broker_transport_options") or {}), **profile.celery.get("broker_transport_options", {})}
    timeout: Any = options.get(_TIMEOUT, Channel.visibility_timeout)
    if profile.settings is None:
        heartbeat = profile.celery.get("broker_heartbeat", app.conf.broker_heartbeat)
        return {name: value for name, value in ((_TIMEOUT, timeout), (_HEARTBEAT, heartbeat)) if name in known}
    own = {name: float(getattr(stated, name)) for name in known & set(SCALED) - set(profile.settings)}
    if _TIMEOUT in options and _TIMEOUT in own:
        own[_TIMEOUT] = timeout
    return own
