"""The objects behind the fixtures of the pytest plugin."""

from __future__ import annotations

import shlex
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import pytest

from repot.chaos.report.junit import describe
from repot.chaos.runner import planning
from repot.chaos.runner.probe import UNNAMED, Probe
from repot.chaos.runner.session import Session
from repot.chaos.runner.target_task import Target
from repot.errors import NotApplicable, RepotError
from repot.logs import get_logger
from repot.testbed import rabbitmq_server, redis_server, toxiproxy_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from repot.chaos.report.result import Result
    from repot.chaos.runner.case import Case
    from repot.testbed import Server

log = get_logger("repot.chaos")


class Brokers:
    """Private servers: each starts on first use; all stop at the end of the `with`."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    @cached_property
    def redis(self) -> Server:
        """Return a Redis (or Valkey) without persistence."""
        return self._started(redis_server())

    @cached_property
    def rabbitmq(self) -> Server:
        """Return a RabbitMQ with its management API."""
        return self._started(rabbitmq_server())

    @cached_property
    def toxiproxy(self) -> Server:
        """Return a Toxiproxy; `url` is its API."""
        return self._started(toxiproxy_server())

    def __enter__(self) -> Self:
        """Start no server yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the servers."""
        self._stack.close()

    def _started(self, server: AbstractContextManager[Server]) -> Server:
        with _explained():
            return self._stack.enter_context(server)


@contextmanager
def running_session() -> Iterator[Session]:
    """Start the servers that all scenarios of a test session share; log the steps of each case."""

    def say(case: Case, text: str) -> None:
        log.info("%s: %s", case.name, text)

    with ExitStack() as stack:
        with _explained():
            found = stack.enter_context(Session(say))
        yield found


class Chaos:
    """Runs tasks under scenarios.

    The test's marks or pytest's configuration name the scenario, the profile and the application that a
    call leaves out. Without a profile, the application runs with its own settings on a private broker of
    the kind that it uses.
    """

    def __init__(
        self, session: Session, directory: Path, app: str, scenario: str, profile: str, seed: int, node: str
    ) -> None:
        self._session = session
        self._directory = directory
        self._app = app
        self._scenario = scenario
        self._profile = profile
        self._seed = seed
        self._node = node

    def run(  # noqa: PLR0913 - the options of `repot chaos run`
        self, scenario: str = "", *, task: str = "",
        args: Sequence[Any] | Callable[[], object] = (), kwargs: Mapping[str, Any] | None = None,
        profile: str = "", guard: bool = True, probe: str | Callable[..., object] = "",
        expect: int | Mapping[str, int] | None = None, queues: str | Sequence[str] = (), pool: str = "",
        scale: float | None = None, reset: str | Callable[[], object] = "", into: float = 0,
    ) -> Result:  # fmt: skip
        """Run a task under a scenario and return the result; without a `task`, one of repot's own.

        `args` may be a function that makes the arguments of each run: a list, a dictionary of keyword arguments, or a
        tuple of both. `reset` is a command, or a function, that removes what an earlier run left, before each run.
        `into` is how many seconds the task has run when the fault comes, in scenarios of the phase `running`.
        `guard` is whether guards are active. `probe` is a command that prints the number of effects so far, or a
        function of the root id, the arguments and the keyword arguments that returns it; both may give numbers by
        name. `expect` is how many there are to be, one of each without it. Without a probe an effect is a run whose
        function has returned. `queues` are those that the application's workers consume, as a list or separated by
        commas; by default all that are declared or that tasks are routed to. `pool` is theirs; by default the
        application's. `scale` divides the times of settings; 1 leaves them as they are. A scenario that does not apply
        skips the test; an experiment that cannot be completed fails it.
        """
        __tracebackhide__ = True
        with _explained():
            app = self._app if task else ""
            if task and not app:
                pytest.fail("no application: @pytest.mark.chaos_app or repot_chaos_app names it", pytrace=False)
            own = {"args": args, "kwargs": kwargs, "probe": probe, "queues": queues, "pool": pool, "scale": scale,
                   "reset": reset, "into": into}  # fmt: skip
            _refuse_ignored(own, expect, has_task=bool(task))
            counted = Probe(probe, {UNNAMED: expect} if isinstance(expect, int) else expect or {}) if probe else None
            make, args = (args, ()) if callable(args) else (None, args)
            queues = planning.queues_in(queues) if isinstance(queues, str) else queues
            made = Target(
                app, task, tuple(args), dict(kwargs or {}), make, getattr(make, "__qualname__", ""), counted, reset,
                tuple(queues), pool, scale, into_s=into,
            )  # fmt: skip
            target = planning.task_of(made) if task else Target()
            name = planning.scenario_called(scenario or self._scenario).name
            profile = profile or self._profile or planning.profile_for(app)
            plan = planning.plan(names=[name], profiles=[profile], guards=[guard], target=target, seed=self._seed)
            result = self._session.perform(plan.cases[0], target, seed=self._seed, directory=self._directory)
            if any(map(callable, (make, probe, reset))):
                # no option of a command names a function of the test
                result = replace(result, command=shlex.join(["pytest", self._node, "--repot-seed", str(self._seed)]))
            return result

    def survives(self, scenario: str = "", **options: Any) -> Result:  # noqa: ANN401 - those of `run`
        """Run a task under a scenario; return the result if its verdict is not bad.

        Raises:
            AssertionError: it or another task was lost or duplicated, or the target worker hangs; describes the run.
        """
        __tracebackhide__ = True
        result = self.run(scenario, **options)
        if result.verdict.is_bad:
            raise AssertionError(describe(result))
        return result


def _refuse_ignored(options: Mapping[str, object], expect: object, *, has_task: bool) -> None:
    """Fail a test whose options would be left out, as the command refuses them."""
    __tracebackhide__ = True
    if not has_task and (ignored := [name for name, value in options.items() if value]):
        pytest.fail(f"{', '.join(ignored)} without task: it names the application's task", pytrace=False)
    if isinstance(options["args"], str):
        pytest.fail(f"args is the text {options['args']!r}: put it in a list", pytrace=False)
    if expect is not None and not options["probe"]:
        pytest.fail("expect without probe: it is what the probe is to count", pytrace=False)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn an error of repot into a pytest failure without a traceback."""
    __tracebackhide__ = True
    try:
        yield
    except NotApplicable as error:
        raise pytest.skip.Exception(error.message) from None
    except RepotError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
