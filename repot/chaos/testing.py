"""What the fixtures of the pytest plugin are."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import pytest

from repot.brokers.local import rabbitmq_server, redis_server, toxiproxy_server
from repot.chaos import planning
from repot.chaos.bench import Bench
from repot.chaos.junit import account
from repot.chaos.target import Target
from repot.errors import Inapplicable, RepotError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from repot.brokers.local import Server
    from repot.chaos.case import Case
    from repot.chaos.result import Result

log = logging.getLogger("repot.chaos")


class Brokers:
    """Private servers, each started when it is first asked for, and ended with a `with`."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    @cached_property
    def redis(self) -> Server:
        """A Redis (or Valkey) that keeps nothing on disk."""
        return self._started(redis_server())

    @cached_property
    def rabbitmq(self) -> Server:
        """A RabbitMQ with its management API."""
        return self._started(rabbitmq_server())

    @cached_property
    def toxiproxy(self) -> Server:
        """A Toxiproxy; its `url` is that of its API."""
        return self._started(toxiproxy_server())

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what was started."""
        self._stack.close()

    def _started(self, server: AbstractContextManager[Server]) -> Server:
        with _explained():
            return self._stack.enter_context(server)


@contextmanager
def bench() -> Iterator[Bench]:
    """The servers that all scenarios of a session share; they tell of their steps in the log."""

    def say(case: Case, text: str) -> None:
        log.info("%s: %s", case.name, text)

    with ExitStack() as stack:
        with _explained():
            found = stack.enter_context(Bench(say))
        yield found


class Chaos:
    """Strikes tasks.

    A scenario, a profile and an application that a call does not name are those of the
    test's marks or of pytest's configuration. Without a profile it is that of the
    application's own settings, on a private broker of the kind that it uses.
    """

    def __init__(self, bench: Bench, folder: Path, app: str, scenario: str, profile: str, seed: int) -> None:
        self._bench = bench
        self._folder = folder
        self._app = app
        self._scenario = scenario
        self._profile = profile
        self._seed = seed

    def run(
        self, scenario: str = "", *, task: str = "", args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        profile: str = "", guard: bool = True, probe: str = "",
    ) -> Result:  # fmt: skip
        """Strike a task, and return what became of it; without a `task` it is one of repot's own.

        `guard` is whether guards work. `probe` is a command that prints how many effects
        there are so far; without one an effect is a run whose body returned. A scenario
        that means nothing here skips the test; an experiment that cannot be carried out
        fails it.
        """
        __tracebackhide__ = True
        with _explained():
            app = self._app if task else ""
            if task and not app:
                pytest.fail("no application: @pytest.mark.chaos_app or repot_chaos_app names it", pytrace=False)
            target = planning.task_of(app, task, tuple(args), dict(kwargs or {}), probe) if task else Target()
            name = planning.scenario_called(scenario or self._scenario).name
            profile = profile or self._profile or planning.profile_for(app)
            plan = planning.plan(names=[name], profiles=[profile], guards=[guard], target=target, seed=self._seed)
            return self._bench.perform(plan.cases[0], target, seed=self._seed, folder=self._folder)

    def survives(self, scenario: str = "", **options: Any) -> Result:  # noqa: ANN401 - those of `run`
        """Strike a task, and return what became of it if that is nothing bad.

        Raises:
            AssertionError: it was lost or done twice, another task was, or the struck worker hangs; with the account.
        """
        __tracebackhide__ = True
        result = self.run(scenario, **options)
        if result.finding.is_bad:
            raise AssertionError(account(result))
        return result


@contextmanager
def _explained() -> Iterator[None]:
    """Let an error of repot's be its words alone."""
    __tracebackhide__ = True
    try:
        yield
    except Inapplicable as error:
        raise pytest.skip.Exception(error.message) from None
    except RepotError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
