"""Effects by the application's own measure: what a probe counts, and how many of each one run is to have."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repot.chaos.runner.verdict import EffectCount
from repot.config import inherited_environment
from repot.errors import ConfigInvalid, ExperimentFailed
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Callable

_PROBED_WITHIN_S = 30
#: Characters of a probe's output that an error shows.
_SHOWN = 100
#: The name of effects that a probe counts as one number.
UNNAMED = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """Counts the effects so far.

    Attributes:
        how: a command, without a shell, that prints one whole number, or a JSON object of numbers by name; or a
            function of the root id, the arguments and the keyword arguments that returns one of these.
        expected: how many effects of each name a task is to have; without it, one of each.
    """

    how: str | Callable[..., object]
    expected: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the text for reports and errors."""
        return self.how if isinstance(self.how, str) else getattr(self.how, "__qualname__", repr(self.how))

    @property
    def options(self) -> list[str]:
        """Return the options of `repot chaos run` for it; a function has none."""
        if not isinstance(self.how, str):
            return []
        plain = self.expected.get(UNNAMED, dict(self.expected))
        return ["--probe", self.how, *(["--expect", json.dumps(plain)] if self.expected else [])]

    def count(self, root_id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of effects now, by name.

        A command has the root id as `REPOT_ROOT_ID`, and as `REPOT_TASK_ID`, and the arguments as `REPOT_ARGUMENTS`.

        Raises:
            ExperimentFailed: the probe fails, or counts in another form or other effects than expected.
        """
        found = self._called(root_id, args, kwargs) if callable(self.how) else self._ran(root_id, args, kwargs)
        if isinstance(found, Mapping) and found and all(_is_count(one) for one in found.values()):
            counted = {str(name): int(one) for name, one in found.items()}
        elif _is_count(found):
            counted = {UNNAMED: int(str(found))}
        else:
            why = f"it gave {str(found)[:_SHOWN]!r}"
            raise self._not_counted(why)
        if self.expected and set(self.expected) != set(counted):
            counts, wanted = (", ".join(sorted(one)) or "one number" for one in (counted, self.expected))
            why = f"it counted {counts}, and --expect has {wanted}"
            raise self._not_counted(why)
        return counted

    def since(self, before: Mapping[str, int], now: Mapping[str, int]) -> tuple[EffectCount, ...]:
        """Return the effects between two counts.

        Raises:
            ExperimentFailed: there are fewer than before, or of other names.
        """
        found = {name: now.get(name, 0) - before.get(name, 0) for name in {**before, **now}}
        if gone := [name for name, more in found.items() if more < 0]:
            names = " and ".join(one or "effects" for one in gone)
            why = f"it counted fewer {names} than before the task was sent"
            raise self._not_counted(why)
        return tuple(EffectCount(name, more, self.expected.get(name, 1)) for name, more in found.items())

    def _called(self, root_id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        assert callable(self.how)
        try:
            return self.how(root_id, args, dict(kwargs))
        except Exception as error:
            # whatever a user's function raises
            why = f"{type(error).__name__}: {error}"
            raise self._not_counted(why) from error

    def _ran(self, root_id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        assert isinstance(self.how, str)
        text = json.dumps({"args": list(args), "kwargs": dict(kwargs)}, default=repr)
        environment = {"REPOT_ROOT_ID": root_id, "REPOT_TASK_ID": root_id, "REPOT_ARGUMENTS": text}
        printed = run_command(self.how, environment, self._not_counted)
        if printed.lstrip().startswith("{"):
            try:
                return json.loads(printed)
            except ValueError:
                return printed.strip()
        # `wc -l` also prints the file's name
        numbers = [word for word in printed.split() if word.isdecimal()]
        return int(numbers[0]) if len(numbers) == 1 else printed.strip()

    def _not_counted(self, why: str) -> ExperimentFailed:
        message = f"the probe {self.name!r} did not count the effects: {masked(why)}"
        hint = "It gives all effects so far: one whole number, or a JSON object of whole numbers by name."
        return ExperimentFailed(message, hint=hint)


def run_command(command: str, variables: Mapping[str, str], failed: Callable[[str], ExperimentFailed]) -> str:
    """Run a user's command without a shell, and return what it prints.

    Raises:
        ExperimentFailed: as `failed` makes it, if it does not end with 0 within 30 s.
    """
    environment = {**inherited_environment(without=("WORKER_",)), **variables}
    try:
        found = subprocess.run(  # noqa: S603 - the user's own command
            shlex.split(command), env=environment, capture_output=True, text=True, check=True,
            timeout=_PROBED_WITHIN_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        last_line = str(getattr(error, "stderr", None) or "").strip().rpartition("\n")[2]
        why = f"{error} {last_line}".strip()
        raise failed(why) from error
    return found.stdout


def expected_effects(text: str | None) -> dict[str, int]:
    """Return how many effects of each name a task is to have, from `--expect`.

    Raises:
        ConfigInvalid: it is neither a whole number nor a JSON object of them.
    """
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if _is_count(found):
        return {UNNAMED: int(found)}
    if isinstance(found, dict) and found and all(_is_count(one) for one in found.values()):
        return found
    message = f"--expect is neither a whole number nor a JSON object of whole numbers: {text}"
    raise ConfigInvalid(message, hint="""As in --expect 3 or --expect '{"payments": 1, "rows": 3}'.""")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
