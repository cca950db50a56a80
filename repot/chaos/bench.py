"""One case after another on servers that stay: for a test session, whose next case is not known."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from threading import Event, Lock
from typing import TYPE_CHECKING, Self

from repot.brokers.local import redis_server, toxiproxy_server
from repot.chaos.case import Case, Laboratory
from repot.chaos.experiment import perform
from repot.chaos.grounds import Grounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from repot.chaos.result import Result
    from repot.chaos.target import Target


class Bench:
    """Toxiproxy, a Redis for results, and every broker that was needed so far; they end with a `with`."""

    def __init__(self, say: Callable[[Case, str], None]) -> None:
        """Tell `say` of each step."""
        self._say = say
        self._stack = ExitStack()
        self._numbers: Counter[str] = Counter()

    def __enter__(self) -> Self:
        """Start what every case needs.

        Raises:
            ProgramMissing, ServerFailed: a server is not there.
        """
        with ExitStack() as stack:
            self._toxiproxy = stack.enter_context(toxiproxy_server())
            self._results = stack.enter_context(redis_server())
            self._grounds = Grounds(lambda _: None, {})
            stack.callback(self._grounds.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End all."""
        self._stack.close()

    def perform(self, case: Case, target: Target, *, seed: int, folder: Path) -> Result:
        """Carry out one case; its journal and its workers' logs are then in `folder`.

        Raises:
            ExperimentFailed: a step did not happen; there is no verdict.
            Inapplicable: this case means nothing on this broker, or for this task.
            ProgramMissing, ServerFailed: the broker is not there.
        """
        # a broker that is shared has the queues of earlier cases
        self._numbers[case.cell.name] += 1
        case = replace(case, number=self._numbers[case.cell.name])
        case, ground, give_back = self._grounds.take([case])
        try:
            laboratory = Laboratory(
                ground=ground, results=self._results, toxiproxy_url=self._toxiproxy.url, folder=folder, home=None,
                seed=seed, target=target, options=target.options, expected=None, say=self._say, stop=Event(),
                starting=Lock(),
            )  # fmt: skip
            return perform(case, laboratory)
        finally:
            give_back()
