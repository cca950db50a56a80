"""One campaign of every case, which the tests of this folder look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from installed import require
from repot.brokers.local import Server, programs
from repot.chaos import campaign
from repot.chaos.scenarios import SCENARIOS

if TYPE_CHECKING:
    from repot.chaos.experiment import Case, Result


class Silence:
    """Nobody is told how it goes."""

    def server(self, server: Server) -> None:
        """Say nothing."""

    def step(self, case: Case, text: str) -> None:
        """Say nothing."""

    def result(self, result: Result) -> None:
        """Say nothing."""


@pytest.fixture(scope="session", autouse=True)
def _all_programs() -> None:
    for program in (programs.REDIS, programs.RABBITMQ, programs.TOXIPROXY):
        require(program)


@pytest.fixture(scope="session")
def results() -> list[Result]:
    """Every scenario on both brokers, with deduplication of successes off and on."""
    cases = campaign.plan(SCENARIOS.values(), ("redis", "amqp"), (False, True), repeat=1)
    return campaign.run(cases, jobs=4, app="repot.worker.app", progress=Silence())
