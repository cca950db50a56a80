"""What the installed releases of libraries can do, and what the settings say about it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from repot.cli.main import main
from repot.config import ExplicitSettings, celery_config
from repot.upstream import capabilities
from repot.upstream.capabilities import CAPABILITIES, Before, Capability

_LATER = Capability(
    "time to end", "celery", "99", Before.ABSENT, "none", ("worker_soft_shutdown_timeout",), "soft_shutdown_timeout"
)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capability of a release to come."""
    monkeypatch.setattr(capabilities, "CAPABILITIES", (_LATER,))


def test_a_setting_that_needs_a_later_release_is_refused_by_name(later: Any) -> None:  # noqa: ARG001
    with pytest.raises(ValidationError, match=r"WORKER_SOFT_SHUTDOWN_TIMEOUT needs celery 99, and 5\.\d+\.\d+ is inst"):
        ExplicitSettings(soft_shutdown_timeout=3)


@pytest.mark.parametrize("given", [{}, {"soft_shutdown_timeout": 0}, {"soft_shutdown_timeout": 15}])
def test_without_asking_for_it_nothing_is_refused_and_nothing_set(later: Any, given: dict[str, Any]) -> None:  # noqa: ARG001
    """An environment file may state the default, for all releases."""
    assert "worker_soft_shutdown_timeout" not in celery_config(ExplicitSettings(**given))


def test_config_show_says_what_is_off(later: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setenv("WORKER_BROKER_URL", "memory://")
    done = CliRunner().invoke(main, ["config", "show", "--json"], catch_exceptions=False)
    (found,) = json.loads(done.stdout)["off"]
    assert found.startswith("time to end: off, needs celery 99, and ")
    assert found in done.stderr


@pytest.mark.parametrize(
    ("since", "installed", "expected"),
    [("5.7", "5.6.3", False), ("5.7", "5.7.0", True), ("5.7", "5.10", True), ("5.0.4", "5.0.3", False)],
)
def test_a_release_has_it_or_not(since: str, installed: str, *, expected: bool) -> None:
    assert expected is Capability("x", "celery", since, Before.ABSENT, "").is_in(installed)


def test_each_is_described_and_no_two_own_one_key() -> None:
    keys = [key for one in CAPABILITIES for key in one.keys]
    assert len(keys) == len(set(keys))
    assert all(one.gives for one in CAPABILITIES)
    assert {one.field for one in CAPABILITIES if one.field} <= set(ExplicitSettings.model_fields)
