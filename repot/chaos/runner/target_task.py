"""The task that faults are aimed at: repot's own or a user's."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from repot.chaos.runner.probe import run_command
from repot.chaos.runner.time_scale import TimeScale
from repot.errors import ExperimentFailed
from repot.masking import masked
from repot.worker.app_loader import load_app

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.chaos.runner.application import Application
    from repot.chaos.runner.probe import Probe
    from repot.chaos.scenarios.profiles import Profile
    from repot.chaos.scenarios.scenario import Scenario

#: repot's own tasks: plain; guarded; guarded, and run again when the outcome is unknown; guarded, with its effect in a
#: transaction.
PLAIN, GUARDED, GUARDED_RERUN = "repot.under_test", "repot.guarded_under_test", "repot.guarded_under_test_rerun"
IN_TRANSACTION = "repot.under_test_in_transaction"


@dataclass(frozen=True, slots=True)
class Target:
    """A task, its arguments, and how its effects are counted.

    Attributes:
        app: the user's application, as for `celery -A`; empty for repot's own task.
        make: makes the arguments of each run of a cell: a list, a dictionary of keyword arguments, or a tuple of
            both. None if `args` and `kwargs` have them.
        made_by: the name of `make`, as `--arguments` takes it.
        probe: counts the effects; without one, an effect is a run whose function has returned.
        reset: a command, or a function without arguments, that removes what an earlier run left; called before each
            run of a cell.
        queues: those that the application's workers consume, if the user has named them.
        pool: of the application's workers, if the user has named it.
        scale: by how much the times of settings are divided; None for a factor that fits each experiment.
        application: what the user's application keeps in experiments; None for repot's own task.
        into_s: how long the task has run when the fault comes, in scenarios of the phase `running`.
        same_ids: the seed and the case decide the task ids, so a second run sends the same ones.
    """

    app: str = ""
    task: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[], object] | None = None
    made_by: str = ""
    probe: Probe | None = None
    reset: str | Callable[[], object] = ""
    queues: tuple[str, ...] = ()
    pool: str = ""
    scale: float | None = None
    application: Application | None = None
    same_ids: bool = False
    into_s: float = 0

    def times(self, profile: Profile) -> TimeScale:
        """Return how the times of settings are scaled under a profile."""
        return TimeScale.of(profile, load_app(self.app), self.scale) if self.app else TimeScale()

    @property
    def name(self) -> str:
        """Return the name for reports; empty for repot's own task."""
        return f"{self.app} {self.task}" if self.app else ""

    @property
    def replaced(self) -> tuple[str, ...]:
        """Return what experiments have in the place of the user's; nothing for repot's own task."""
        return self.application.replaced if self.application else ()

    @property
    def is_guarded(self) -> bool:
        """Return whether a guard has something to guard: repot's own task, or an application with guarded ones."""
        return self.application is None or self.application.is_guarded

    @property
    def runs_alone(self) -> bool:
        """Return whether one cell at a time may run: a probe counts the effects of all, a reset removes them."""
        return bool(self.probe or self.reset)

    @property
    def options(self) -> str:
        """Return the options of `repot chaos run` for this task; for repot's own, those that are not the default."""
        words = ["--same-ids"] if self.same_ids else []
        if not self.app:
            return shlex.join(words)
        given = json.dumps(dict(self.kwargs) or list(self.args), default=repr)
        task = ["--app", self.app, "--task", self.task]
        task += ["--arguments", self.made_by] if self.made_by else ["--args", given]
        words += ["--queues", ",".join(self.queues)] if self.queues else []
        words += ["--pool", self.pool] if self.pool else []
        words += ["--scale", f"{self.scale:g}"] if self.scale else []
        words += ["--into", f"{self.into_s:g}s"] if self.into_s else []
        words += self.probe.options if self.probe else []
        words += ["--reset", self.reset] if isinstance(self.reset, str) and self.reset else []
        return shlex.join([*task, *words])

    def task_for(self, scenario: Scenario, profile: Profile, *, guard: bool) -> str:
        """Return the name of the task to send."""
        own = companion(profile, guard=guard)
        return self.task or (GUARDED_RERUN if own == GUARDED and scenario.reruns else own)

    def arguments(self, scenario: Scenario) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to send."""
        if self.task:
            return self.args, dict(self.kwargs)
        return (scenario.works_s, scenario.retries), {"deadly": scenario.deadly}

    def fresh(self) -> Target:
        """Remove what an earlier run left, and return this task with the arguments of a new run.

        Raises:
            ExperimentFailed: one of both fails.
        """
        self._reset()
        return self.with_arguments()

    def with_arguments(self) -> Target:
        """Return this task with the arguments of a new run.

        Raises:
            ExperimentFailed: they cannot be made.
        """
        if self.make is None:
            return self
        args, kwargs = made_arguments(self.make, self.made_by)
        return replace(self, args=args, kwargs=kwargs)

    def count(self, root_id: str) -> dict[str, int]:
        """Return the number of effects that the probe counts now, by name; nothing without a probe.

        Raises:
            ExperimentFailed: the probe fails.
        """
        return self.probe.count(root_id, self.args, self.kwargs) if self.probe else {}

    def _reset(self) -> None:
        def failed(why: str) -> ExperimentFailed:
            message = f"--reset failed: {masked(why)}"
            return ExperimentFailed(message, hint="It must end with 0 before each run.")

        if isinstance(self.reset, str):
            if self.reset:
                run_command(self.reset, {}, failed)
        else:
            _attempted(self.reset, failed)


def made_arguments(make: Callable[[], object], made_by: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a user's function makes.

    Raises:
        ExperimentFailed: it raises, or returns something else.
    """

    def not_made(why: str) -> ExperimentFailed:
        message = f"--arguments {made_by} made no arguments: {masked(why)}"
        hint = "It returns a list, a dictionary of keyword arguments, or a tuple of both."
        return ExperimentFailed(message, hint=hint)

    made = _attempted(make, not_made)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict):  # noqa: PLR2004 - of both kinds
        return tuple(made[0]), made[1]
    if isinstance(made, dict):
        return (), made
    if isinstance(made, (list, tuple)):
        return tuple(made), {}
    why = f"it returned {type(made).__name__}"
    raise not_made(why)


def _attempted(function: Callable[[], object], failed: Callable[[str], ExperimentFailed]) -> object:
    try:
        return function()
    except Exception as error:
        # whatever a user's function raises
        why = f"{type(error).__name__}: {error}"
        raise failed(why) from error


def companion(profile: Profile, *, guard: bool) -> str:
    """Return the name of repot's own task, which also runs beside a user's task."""
    if not guard:
        return PLAIN
    return IN_TRANSACTION if profile.in_transaction else GUARDED
