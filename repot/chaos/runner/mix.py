"""What a load sends: tasks of an application at random by their weights, or messages of a recorded sample."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar

from repot.brokers.message import media_type, read_json
from repot.chaos.runner.application import OTHER_TASKS
from repot.chaos.runner.target_task import made_arguments
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from random import Random

    from repot.brokers.message import Message

T = TypeVar("T")

_SAMPLE_HINT = 'Each line is one JSON object, as in {"task": "shop.charge", "args": [7], "kwargs": {}}.'
_FIELDS = {"task", "args", "kwargs"}
#: The place of a body of protocol 2 after arguments and keywords, and what of it sends further tasks.
_EMBED, _FOLLOWING = 2, ("callbacks", "errbacks", "chain", "chord")


@dataclass(frozen=True, slots=True)
class Call:
    """A task and its arguments."""

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mix:
    """Tasks by their weights, whose arguments are made for each message; or calls, each as likely as another.

    Attributes:
        make: makes the arguments of one message, with the task's name if it takes one; without it, `args` and `kwargs`
            are those of each message.
        made_by: its name, for errors.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    sample: Sequence[Call] = ()
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[..., object] | None = None
    made_by: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the names of its tasks."""
        return tuple(dict.fromkeys((*self.weights, *(one.task for one in self.sample))))

    def draw(self, count: int, rng: Random) -> list[Call]:
        """Return the messages of a load, in the order of sending.

        Raises:
            ExperimentFailed: the arguments of one cannot be made.
        """
        if self.sample:
            return rng.choices(self.sample, k=count)
        names = rng.choices(list(self.weights), list(self.weights.values()), k=count)
        return [self._call(name) for name in names]

    def _call(self, task: str) -> Call:
        if self.make is None:
            return Call(task, self.args, self.kwargs)
        make = self.make
        args, kwargs = made_arguments((lambda: make(task)) if _takes_a_name(make) else make, self.made_by)
        return Call(task, args, kwargs)


def weighted(texts: Sequence[str]) -> dict[str, float]:
    """Return the weights of tasks, from texts such as `shop.charge` and `shop.mail=3`; 1 without a number.

    Raises:
        ConfigInvalid: a weight is not a number above 0, or a task is named twice.
    """
    weights: dict[str, float] = {}
    for text in texts:
        name, _, weight = text.partition("=")
        try:
            number = float(weight or 1)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            message = f"--task {text}: the weight is not a number above 0"
            raise ConfigInvalid(message, hint="As in --task shop.charge --task shop.mail=3: three mails to one charge.")
        if name in weights:
            message = f"--task {name} is named twice"
            raise ConfigInvalid(message, hint=f"Give it a weight instead: --task {name}=2.")
        weights[name] = number
    return weights


def _takes_a_name(make: Callable[..., object]) -> bool:
    try:
        parameters = signature(make).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for one in parameters)


# samples


def read_sample(path: Path) -> tuple[Call, ...]:
    """Read a recorded sample: one JSON object a line.

    Raises:
        ConfigInvalid: it cannot be read, a line is not a call, or it has none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"the sample {path} cannot be read: {error}"
        raise ConfigInvalid(message, hint="`repot chaos sample > FILE` records one.") from error
    found = tuple(_read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip())
    if not found:
        message = f"the sample {path} has no message"
        raise ConfigInvalid(message, hint=f"`repot chaos sample > FILE` records those that wait now. {_SAMPLE_HINT}")
    return found


def _read_line(line: str, place: str) -> Call:
    try:
        found = json.loads(line)
    except ValueError as error:
        message = f"{place} is not JSON: {error}"
        raise ConfigInvalid(message, hint=_SAMPLE_HINT) from error
    if not isinstance(found, dict) or not isinstance(found.get("task"), str) or set(found) - _FIELDS:
        message = f"{place} is not an object of task, args and kwargs"
        raise ConfigInvalid(message, hint=_SAMPLE_HINT)
    args, kwargs = found.get("args", []), found.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        message = f"{place}: args is not a list, or kwargs is not an object"
        raise ConfigInvalid(message, hint=_SAMPLE_HINT)
    return Call(found["task"], tuple(args), kwargs)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A message of a queue as a line of a sample has it; `continues` if further tasks follow it, which are left out."""

    call: Call
    continues: bool = False


def recorded(message: Message) -> Recorded | str:
    """Return the call of a message, or why a sample cannot have it. Only JSON is read: loading pickle can run code."""
    if media_type(message.content_type) != "application/json":
        return "not JSON"
    if message.headers.get("compression"):
        return "compressed"
    try:
        body = read_json(message.body)
    except (ValueError, RecursionError):
        return "not valid JSON"
    found = _of_protocol_2(message.headers.get("task"), body) or _of_protocol_1(body)
    if found is None:
        return "not a task"
    return "a task of Celery's own" if found.call.task.startswith(OTHER_TASKS) else found


def _of_protocol_2(task: object, body: Any) -> Recorded | None:  # noqa: ANN401 - JSON
    if not isinstance(task, str) or not isinstance(body, list) or len(body) <= _EMBED:
        return None
    args, kwargs, embed = body[:3]
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return None
    continues = isinstance(embed, dict) and any(embed.get(name) for name in _FOLLOWING)
    return Recorded(Call(task, tuple(args), kwargs), continues)


def _of_protocol_1(body: Any) -> Recorded | None:  # noqa: ANN401 - JSON
    if not isinstance(body, dict) or not isinstance(body.get("task"), str):
        return None
    args, kwargs = body.get("args") or [], body.get("kwargs") or {}
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return None
    return Recorded(Call(body["task"], tuple(args), kwargs), any(body.get(name) for name in _FOLLOWING))


def as_line(call: Call) -> str:
    """Return a call as a line of a sample."""
    return json.dumps({"task": call.task, "args": list(call.args), "kwargs": dict(call.kwargs)})
