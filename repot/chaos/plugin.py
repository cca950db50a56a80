"""The pytest plugin: private brokers, and scenarios for a user's own tasks.

It starts no server and imports no heavy module before a test requests one of its fixtures.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from repot.chaos.fixtures import Brokers, Chaos
    from repot.chaos.runner.session import Session

_MARKERS = (
    "chaos_app(name): the Celery application of the tasks under test, as for `celery -A`.",
    "chaos_profile(*names): run the test once under each of these profiles; `repot chaos list` names them.",
    "chaos_scenario(*names): run the test once with each of these scenarios; `repot chaos list` names them.",
)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The parameter of a `chaos` fixture; empty where the call names scenario or profile."""

    scenario: str = ""
    profile: str = ""

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.scenario, self.profile)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options."""
    group = parser.getgroup("repot", "scenarios of repot")
    group.addoption("--repot-seed", type=int, help="Random seed; default: 0.")
    parser.addini("repot_chaos_app", "The Celery application of the tasks under test, as for `celery -A`.")
    parser.addini("repot_chaos_profiles", "Profiles of tests that name no profile.", type="args", default=[])
    parser.addini("repot_chaos_seed", "Random seed.", default="0")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create one test for each scenario and profile that marks or the configuration name.

    An unknown name is an error of the collection: no test runs. (A `UsageError` would crash pytest-xdist.)
    """
    if "chaos" not in metafunc.fixturenames:
        return
    scenarios = _marked(metafunc.definition, "chaos_scenario")
    profiles = _marked(metafunc.definition, "chaos_profile") or metafunc.config.getini("repot_chaos_profiles")
    if scenarios or profiles:
        _require_known(scenarios, profiles)
        choices = [_Choice(scenario, profile) for scenario in scenarios or [""] for profile in profiles or [""]]
        metafunc.parametrize("chaos", choices, indirect=True, ids=[choice.name for choice in choices])


@pytest.fixture(scope="session")
def repot_brokers() -> Iterator[Brokers]:
    """Private servers that start on first use: `redis`, `rabbitmq`, `toxiproxy`."""
    with _extra():
        from repot.chaos.fixtures import Brokers
    with Brokers() as brokers:
        yield brokers


@pytest.fixture(scope="session")
def _repot_session() -> Iterator[Session]:
    """The servers that all scenarios of a test session share."""
    with _extra():
        from repot.chaos.fixtures import running_session
    with running_session() as found:
        yield found


@pytest.fixture
def chaos(request: pytest.FixtureRequest, _repot_session: Session, tmp_path: Path) -> Chaos:
    """Runs a task under a scenario: `chaos.survives("killed-running", task="shop.charge", args=[1])`."""
    from repot.chaos.fixtures import Chaos

    choice = getattr(request, "param", None) or _Choice()
    app = _marked(request.node, "chaos_app") or [request.config.getini("repot_chaos_app")]
    seed, node = _seed(request.config), request.node.nodeid
    return Chaos(_repot_session, tmp_path / "chaos", app[0], choice.scenario, choice.profile, seed, node)


def _marked(node: pytest.Item | pytest.Collector, name: str) -> list[str]:
    """Return the arguments of the nearest mark of this name."""
    found = node.get_closest_marker(name)
    return [str(one) for one in found.args] if found else []


def _require_known(scenarios: Iterable[str], profiles: Iterable[str]) -> None:
    with _extra():
        from repot.chaos.runner import planning
    from repot.errors import ConfigInvalid

    try:
        planning.require_known(scenarios, profiles)
    except ConfigInvalid as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _seed(config: pytest.Config) -> int:
    """Return the seed of the command line, or else of the configuration."""
    given = config.getoption("repot_seed")
    text = config.getini("repot_chaos_seed")
    try:
        return int(text) if given is None else int(given)
    except ValueError:
        message = f"repot_chaos_seed is not a number: {text!r}"
        raise pytest.fail.Exception(message, pytrace=False) from None


@contextmanager
def _extra() -> Iterator[None]:
    """Name the extra to install if an import fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed: pip install 'repot[chaos]'"
        raise pytest.fail.Exception(message, pytrace=False) from None
