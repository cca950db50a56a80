"""The task that faults are aimed at: repot's own or a user's."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repot.config import inherited_environment
from repot.errors import ExperimentFailed
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.chaos.runner.application import Application
    from repot.chaos.scenarios.profiles import Profile
    from repot.chaos.scenarios.scenario import Scenario

#: repot's own tasks: plain; guarded; guarded, and run again when the outcome is unknown; guarded, with its effect in a
#: transaction.
PLAIN, GUARDED, GUARDED_RERUN = "repot.under_test", "repot.guarded_under_test", "repot.guarded_under_test_rerun"
IN_TRANSACTION = "repot.under_test_in_transaction"

_PROBED_WITHIN_S = 30
#: Characters of a probe's output that an error shows.
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Target:
    """A task, its arguments, and how its effects are counted.

    Attributes:
        app: the user's application, as for `celery -A`; empty for repot's own task.
        probe: a command that prints the number of effects so far; without one an effect is a run whose body
            has returned.
        queues: those that the application's workers consume, if the user has named them.
        application: what the user's application keeps in experiments; None for repot's own task.
        same_ids: the seed and the case decide the task ids, so a second run sends the same ones.
    """

    app: str = ""
    task: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    probe: str = ""
    same_ids: bool = False
    queues: tuple[str, ...] = ()
    application: Application | None = None

    @property
    def name(self) -> str:
        """Return the name for reports; empty for repot's own task."""
        return f"{self.app} {self.task}" if self.app else ""

    @property
    def options(self) -> str:
        """Return the options of `repot chaos run` for this task; for repot's own, those that are not the default."""
        words = ["--same-ids"] if self.same_ids else []
        if self.app:
            given = json.dumps(dict(self.kwargs) or list(self.args), default=repr)
            words = ["--app", self.app, "--task", self.task, "--args", given, *words]
            words += ["--queues", ",".join(self.queues)] if self.queues else []
        return shlex.join([*words, "--probe", self.probe] if self.probe else words)

    def task_for(self, scenario: Scenario, profile: Profile, *, guard: bool) -> str:
        """Return the name of the task to send."""
        own = companion(profile, guard=guard)
        return self.task or (GUARDED_RERUN if own == GUARDED and scenario.reruns else own)

    def arguments(self, scenario: Scenario) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to send."""
        if self.task:
            return self.args, dict(self.kwargs)
        return (scenario.works_s, scenario.retries), {"deadly": scenario.deadly}

    def effects(self, task_id: str) -> int | None:
        """Return the number of effects that the probe counts now; None without a probe.

        Raises:
            ExperimentFailed: the probe fails, or does not print one number.
        """
        if not self.probe:
            return None
        environment = inherited_environment(without=("WORKER_",)) | {"REPOT_TASK_ID": task_id}
        try:
            found = subprocess.run(  # noqa: S603 - the user's own command
                shlex.split(self.probe), env=environment, capture_output=True, text=True, check=True,
                timeout=_PROBED_WITHIN_S,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            said = str(getattr(error, "stderr", None) or "").strip().rpartition("\n")[2]
            why = f"{error} {said}".strip()
            raise self._not_counted(why) from error
        # `wc -l` also prints the file's name
        numbers = [word for word in found.stdout.split() if word.isdecimal()]
        if len(numbers) != 1:
            why = f"it printed {found.stdout.strip()[:_SHOWN]!r}"
            raise self._not_counted(why)
        return int(numbers[0])

    def _not_counted(self, why: str) -> ExperimentFailed:
        message = f"the probe {self.probe!r} did not count the effects: {masked(why)}"
        return ExperimentFailed(message, hint="It must end with 0 and print one whole number: all effects so far.")


def companion(profile: Profile, *, guard: bool) -> str:
    """Return the name of repot's own task, which also runs beside a user's task."""
    if not guard:
        return PLAIN
    return IN_TRANSACTION if profile.in_transaction else GUARDED
