"""An application that repot configures has what its Celery lacks, and the doctor knows."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from repot.config import ExplicitSettings
from repot.doctor.collect import read_app
from repot.doctor.config import DoctorConfig
from repot.upstream.capabilities import supplied_keys
from repot.worker.configure import configure
from support.bill import bill
from support.judging import ROOT, judge

REDIS = {"broker_url": "redis://localhost:6379/0"}
RABBITMQ = {"broker_url": "amqp://shop:a-good-password@localhost//", "queue_type": "quorum"}


def configured(**given: Any) -> Any:
    app = Celery("shop", set_as_current=False)
    settings = ExplicitSettings(result_backend="redis://localhost:6379/1", task_time_limit=10, **given)
    configure(app, settings)
    app.task(name="shop.bill", shared=False)(bill)
    return read_app(app, "shop", DoctorConfig(ROOT))


@pytest.mark.parametrize("given", [REDIS, RABBITMQ], ids=["redis", "rabbitmq"])
def test_nothing_is_found_in_what_repot_configures_on_any_release(given: dict[str, Any]) -> None:
    report = judge(configured(**given))
    assert [] == [(one.rule, one.finding.message) for one in report.findings]


@pytest.mark.parametrize("given", [REDIS, RABBITMQ], ids=["redis", "rabbitmq"])
def test_what_repot_supplies_is_a_setting_on_any_release(given: dict[str, Any]) -> None:
    found = configured(**given)
    options = "broker_transport_options."
    names = {key for key in supplied_keys() if not key.startswith(options)}
    assert not [name for name in names if not found.has_setting(name)]
    assert {key.removeprefix(options) for key in supplied_keys() - names} <= found.read_options
