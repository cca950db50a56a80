"""Which task faults are aimed at: repot's own, or one of the user's."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repot.config import inherited_environment
from repot.config.masking import masked
from repot.errors import ExperimentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.chaos.scenarios import Scenario

#: repot's own: plain, and guarded; the last one runs again where nobody knows whether it was done.
PLAIN, GUARDED, RERUN_IN_DOUBT = "repot.subject", "repot.guarded_subject", "repot.guarded_subject_rerun"

_PROBED_WITHIN_S = 30
#: Characters of what a probe printed that are told.
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Target:
    """A task, its arguments, and how its effects are counted.

    Attributes:
        app: the user's application, as for `celery -A`; empty for repot's own task.
        probe: a command that prints how many effects there are so far; without one an effect is a run whose body
            has returned.
    """

    app: str = ""
    task: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    probe: str = ""

    @property
    def name(self) -> str:
        """As it stands in a report; empty for repot's own."""
        return f"{self.app} {self.task}" if self.app else ""

    @property
    def options(self) -> str:
        """What `repot chaos run` needs to strike the same task again; empty for repot's own."""
        if not self.app:
            return ""
        given = json.dumps(dict(self.kwargs) or list(self.args), default=repr)
        words = ["--app", self.app, "--task", self.task, "--args", given]
        return shlex.join([*words, "--probe", self.probe] if self.probe else words)

    def task_for(self, scenario: Scenario, *, guard: bool) -> str:
        """The name of the task to send."""
        return self.task or (RERUN_IN_DOUBT if guard and scenario.reruns else companion(guard=guard))

    def arguments(self, scenario: Scenario) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to send it with."""
        if self.task:
            return self.args, dict(self.kwargs)
        return (scenario.works_s, scenario.retries), {"deadly": scenario.deadly}

    def effects(self, task_id: str) -> int | None:
        """How many effects the probe counts now; None without a probe.

        Raises:
            ExperimentFailed: it fails, or prints no number.
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
        # `wc -l` prints the file's name, too
        numbers = [word for word in found.stdout.split() if word.isdecimal()]
        if len(numbers) != 1:
            why = f"it printed {found.stdout.strip()[:_SHOWN]!r}"
            raise self._not_counted(why)
        return int(numbers[0])

    def _not_counted(self, why: str) -> ExperimentFailed:
        message = f"the probe {self.probe!r} did not count the effects: {masked(why)}"
        return ExperimentFailed(message, hint="It must end with 0 and print one whole number: all effects so far.")


def companion(*, guard: bool) -> str:
    """The name of repot's own task, which also runs beside a user's."""
    return GUARDED if guard else PLAIN
