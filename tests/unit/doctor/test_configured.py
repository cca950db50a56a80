"""An application that repot configures has what its Celery lacks, and the doctor knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from repot.config import ExplicitSettings
from repot.doctor.collect import DoctorRequest, collect_facts, configured_by_repot, read_app
from repot.doctor.config import DoctorConfig
from repot.doctor.facts import Deployment, StartCommand
from repot.idempotency import TASK_ID, IdempotentTask, Policy
from repot.upstream.capabilities import supplied_keys
from repot.worker.configure import configure
from support.bill import bill
from support.judging import ROOT, judge

if TYPE_CHECKING:
    from pathlib import Path

REDIS = {"broker_url": "redis://localhost:6379/0"}
RABBITMQ = {"broker_url": "amqp://shop:a-good-password@localhost//", "queue_type": "quorum"}


def configured(*, task: dict[str, Any] | None = None, **given: Any) -> Any:
    app = Celery("shop", set_as_current=False)
    settings = ExplicitSettings(result_backend="redis://localhost:6379/1", task_time_limit=10, **given)
    configure(app, settings)
    options: Any = {"name": "shop.bill", "shared": False, **(task or {})}
    app.task(**options)(bill)
    return read_app(app, "shop", DoctorConfig(ROOT))


@pytest.mark.parametrize("given", [REDIS, RABBITMQ], ids=["redis", "rabbitmq"])
def test_nothing_is_found_in_what_repot_configures_on_any_release(given: dict[str, Any]) -> None:
    report = judge(configured(**given))
    assert [(one.rule, one.finding.message) for one in report.findings] == []


@pytest.mark.parametrize("given", [REDIS, RABBITMQ], ids=["redis", "rabbitmq"])
def test_what_repot_s_own_class_states_is_an_option_on_any_release(given: dict[str, Any]) -> None:
    found = configured(task={"base": IdempotentTask, "idempotency": Policy(key=TASK_ID)}, **given)
    assert judge(found, "RPT509").findings == ()


@pytest.mark.parametrize("given", [REDIS, RABBITMQ], ids=["redis", "rabbitmq"])
def test_a_failure_whose_result_is_ignored_leaves_a_dead_letter(given: dict[str, Any]) -> None:
    assert judge(configured(task={"ignore_result": True}, **given), "RPT202").findings == ()
    (found,) = judge(configured(task={"ignore_result": True}, dead_letter_failures=False, **given), "RPT202").findings
    assert "its failure is not stored" in found.finding.message


@pytest.mark.parametrize("given", [REDIS, RABBITMQ], ids=["redis", "rabbitmq"])
def test_what_repot_supplies_is_a_setting_on_any_release(given: dict[str, Any]) -> None:
    found = configured(**given)
    options = "broker_transport_options."
    names = {key for key in supplied_keys() if not key.startswith(options)}
    assert not [name for name in names if not found.has_setting(name)]
    assert {key.removeprefix(options) for key in supplied_keys() - names} <= found.read_options


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        # the worker reserves full batches by itself
        ({}, 0),
        ({"other": {"queue": "mail"}, "queues": "celery"}, 0),
        # not beside other tasks, nor against what is stated
        ({"other": {}}, 1),
        ({"other": {"queue": "mail"}}, 1),
        ({"other": {}, "queues": "celery"}, 1),
        ({"multiplier": 1}, 1),
        ({"command": "1"}, 1),
    ],
)
def test_a_worker_that_reserves_batches_by_itself_is_no_finding(changes: dict[str, Any], found: int) -> None:
    stated = {"prefetch_multiplier": changes["multiplier"]} if "multiplier" in changes else {}
    given: dict[str, Any] = {**RABBITMQ, **stated}
    judged = configured(**given)
    batched = replace(judged.tasks[0], batch=20)
    others = [replace(batched, name="shop.mail", batch=0, **changes["other"])] if "other" in changes else []
    options = {"queues": changes.get("queues"), "prefetch_multiplier": changes.get("command")}
    deployment = Deployment((StartCommand("celery -A shop worker", options),), (), (), ())
    report = judge(replace(judged, tasks=(batched, *others), deployment=deployment), "RPT324")
    assert len(report.findings) == found


def test_what_tasks_take_by_configuration_is_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They took it when the doctor looked at them; on public projects a hundred findings counted as not cleared."""
    (tmp_path / "taking_shop.py").write_text(
        "from celery import Celery\napp = Celery(broker='redis://h/0', backend='redis://h/1', set_as_current=False)\n"
        "@app.task(shared=False)\ndef bill(): ...\n@app.task(shared=False, acks_late=False)\ndef own(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    request, config = DoctorRequest("taking_shop"), DoctorConfig(tmp_path)
    found = collect_facts(request, config)
    again = configured_by_repot(request, config, found, None)
    assert again is not None
    assert {one.name: one.acks_late for one in found.tasks} == {"taking_shop.bill": False, "taking_shop.own": False}
    assert {one.name: one.acks_late for one in again.tasks} == {"taking_shop.bill": True, "taking_shop.own": False}
