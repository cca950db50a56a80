"""Run single cases on servers that stay, for a test session."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from threading import Event, Lock
from typing import TYPE_CHECKING, Self

from repot.chaos.runner.broker_pool import BrokerPool
from repot.chaos.runner.case import Case, Testbed
from repot.chaos.runner.experiment import perform
from repot.errors import NotApplicable
from repot.testbed import redis_server, toxiproxy_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from repot.chaos.report.result import Result
    from repot.chaos.runner.target_task import Target


class Session:
    """Toxiproxy, a Redis for results, and every test broker that was needed so far; they end with the `with`."""

    def __init__(self, say: Callable[[Case, str], None]) -> None:
        """Report each step to `say`."""
        self._say = say
        self._stack = ExitStack()
        self._numbers: Counter[str] = Counter()

    def __enter__(self) -> Self:
        """Start the servers that every case needs.

        Raises:
            ProgramMissing, ServerFailed: a server did not start.
        """
        with ExitStack() as stack:
            self._toxiproxy = stack.enter_context(toxiproxy_server())
            self._results = stack.enter_context(redis_server())
            self._brokers = BrokerPool(lambda _: None, {})
            stack.callback(self._brokers.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all servers."""
        self._stack.close()

    def perform(self, case: Case, target: Target, *, seed: int, directory: Path) -> Result:
        """Run one case; write its journal and its workers' logs to `directory`.

        Raises:
            ExperimentFailed: a step did not happen; there is no verdict.
            NotApplicable: the case does not apply to this broker or this task.
            ProgramMissing, ServerFailed: the broker did not start.
        """
        # a shared broker has the queues of earlier cases
        self._numbers[case.cell.name] += 1
        case = replace(case, number=self._numbers[case.cell.name])
        case, test_broker, release = self._brokers.acquire_started([case])
        try:
            testbed = Testbed(
                test_broker=test_broker, results=self._results, toxiproxy_url=self._toxiproxy.url, directory=directory,
                home=None, seed=seed, target=target, options=target.options, expected=None, say=self._say, stop=Event(),
                starting=Lock(),
            )  # fmt: skip
            return perform(case, testbed)
        except BaseException as error:
            # a case that failed may have left its broker harmed
            release(broken=not isinstance(error, NotApplicable))
            raise
        finally:
            # a second call does nothing
            release()
