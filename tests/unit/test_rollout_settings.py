"""The settings of a rollout: what belongs together, and what a worker on the target derives."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from repot.config import ExplicitSettings, Role, celery_config, load
from repot.config.probe import application_mark
from repot.errors import ConfigInvalid
from repot.routing.synthetic import TASK
from repot.worker.configure import configure

SOURCE, TARGET, RESULTS = "redis://source/0", "amqp://me:planted@target//", "redis://results/1"
COMPLETE = {
    "WORKER_ROLLOUT": "shop",
    "WORKER_ROLLOUT_TARGET": TARGET,
    "WORKER_BROKER_URL": SOURCE,
    "WORKER_RESULT_BACKEND": RESULTS,
}


@pytest.mark.parametrize(
    ("changes", "cause", "next_step"),
    [
        ({"WORKER_ROLLOUT_TARGET": ""}, "without WORKER_ROLLOUT_TARGET", "unset WORKER_ROLLOUT"),
        ({"WORKER_ROLLOUT_TARGET": SOURCE}, "names the source", "name the other broker"),
        ({"WORKER_BROKER_URL": "amqp://other:secret@target:5672"}, "names the source", "name the other broker"),
        (
            {"WORKER_BROKER_READ_URL": SOURCE, "WORKER_BROKER_WRITE_URL": TARGET},
            "cannot be used with WORKER_BROKER_READ_URL",
            "unset the two",
        ),
        ({"WORKER_RESULT_BACKEND": "rpc://"}, "needs a lease store", "set WORKER_LEASE_STORE="),
        ({"WORKER_BROKER_URL": "memory://"}, "two brokers with a server", "have none"),
        ({"WORKER_ROLLOUT_TARGET": "sentinel://target:26379/0"}, "WORKER_SENTINEL_MASTER is missing", "needs the name"),
    ],
)
def test_a_contradiction_names_its_cause_and_the_next_step(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], cause: str, next_step: str
) -> None:
    for name, value in {**COMPLETE, **changes}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigInvalid) as raised:
        load()
    assert cause in str(raised.value)
    assert next_step in str(raised.value)
    assert "planted" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_database_is_a_lease_store_of_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = {"WORKER_RESULT_BACKEND": "db+postgresql://results", "WORKER_LEASE_STORE": "postgresql+psycopg://leases"}
    for name, value in {**COMPLETE, **stores}.items():
        monkeypatch.setenv(name, value)
    assert load().rollout == "shop"


@pytest.mark.parametrize(
    ("name", "value"),
    [("WORKER_ROLLOUT", "a:b"), ("WORKER_ROLLOUT_SIDE", "middle"), ("WORKER_ROLLOUT_SEND_TIMEOUT", "0")],
)
def test_an_invalid_value_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    for one, text in {**COMPLETE, name: value}.items():
        monkeypatch.setenv(one, text)
    with pytest.raises(ConfigInvalid, match=name):
        load()


def _settings(**changes: Any) -> ExplicitSettings:
    given = {"rollout": "shop", "rollout_target": TARGET, "broker_url": SOURCE, "result_backend": RESULTS}
    return ExplicitSettings(**{**given, **changes})


def test_a_worker_on_the_target_has_the_configuration_that_the_target_s_address_gives() -> None:
    there = celery_config(_settings(rollout_side="target"))
    expected = celery_config(ExplicitSettings(broker_url=TARGET, result_backend=RESULTS))
    assert str(expected) == str(there)
    assert there["broker_url"] == TARGET


@pytest.mark.parametrize("side", ["source", "target"])
def test_without_a_rollout_s_name_its_other_variables_have_no_effect(side: str) -> None:
    given = _settings(rollout="", rollout_side=side)
    assert SOURCE == given.read_url.reveal() == given.write_url.reveal() == celery_config(given)["broker_url"]


@pytest.mark.parametrize(("side", "expected"), [("source", "amqp://own//"), ("target", "redis://target/0")])
def test_the_application_s_own_address_is_the_source(side: str, expected: str) -> None:
    app = Celery("own", broker="amqp://own//", set_as_current=False)
    settings = ExplicitSettings(
        rollout="shop", rollout_target="redis://target/0", rollout_side=side, result_backend=RESULTS
    )
    found = configure(app, settings, Role.CLIENT)
    assert expected == app.conf.broker_url == found.read_url.reveal()


def test_the_application_s_own_address_cannot_be_the_target() -> None:
    app = Celery("own", broker=TARGET, set_as_current=False)
    with pytest.raises(ConfigInvalid, match="names the source"):
        configure(app, ExplicitSettings(rollout="shop", rollout_target=TARGET, result_backend=RESULTS), Role.CLIENT)


def test_a_default_address_can_be_the_target_of_an_application_that_names_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Back from RabbitMQ to Redis, where only the application names the source."""
    monkeypatch.setenv("WORKER_ROLLOUT", "back")
    monkeypatch.setenv("WORKER_ROLLOUT_TARGET", "redis://localhost:6379/0")
    app = Celery("own", broker="amqp://own//", set_as_current=False)
    assert configure(app, role=Role.CLIENT).broker_url.reveal() == "amqp://own//"


def test_nobody_names_the_source_and_the_target_is_the_default() -> None:
    app = Celery("own", set_as_current=False)
    settings = ExplicitSettings(rollout="shop", rollout_target="redis://localhost:6379/0", result_backend=RESULTS)
    with pytest.raises(ConfigInvalid, match="names the source"):
        configure(app, settings, Role.CLIENT)


def test_status_files_of_the_two_sides_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in COMPLETE.items():
        monkeypatch.setenv(name, value)
    here = application_mark()
    monkeypatch.setenv("WORKER_ROLLOUT_SIDE", "target")
    assert here != application_mark()


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("url", [SOURCE, TARGET, "redis://third/0"])
def test_one_broker_is_what_it_is_beside_a_rollout(url: str, side: str) -> None:
    """`repot move`, `repot doctor --target` and the sidecar look at one of the two, or at another."""
    found = _settings(rollout_side=side).at(url)
    assert url == found.read_url.reveal() == found.write_url.reveal() == celery_config(found)["broker_url"]


def test_the_synthetic_task_belongs_to_the_application_that_follows_the_rollout() -> None:
    """It is registered once, however often the application is configured, and no other application has it."""
    ours = Celery("ours", broker=SOURCE, set_as_current=False)
    for _ in range(2):
        configure(ours, _settings())
    other = Celery("other", broker=SOURCE, set_as_current=False)
    assert TASK in ours.tasks
    assert TASK not in other.tasks
    configure(ours, _settings())
    configure(Celery("third", broker=SOURCE, set_as_current=False), _settings())
    assert TASK not in Celery("fourth", broker=SOURCE, set_as_current=False).tasks
