"""The collector: one file for any interpreter, and a document that JSON holds."""

from __future__ import annotations

import ast
import json
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from repot.doctor.collect import OwnFacts, facts_of
from repot.doctor.config import DoctorConfig
from repot.doctor.release import SINCE
from repot.upstream import collector
from support.judging import (
    GOOD_RABBITMQ,
    GOOD_REDIS,
    NEWEST,
    QUORUM,
    application,
    facts,
    judge,
    queue,
    rabbitmq,
    redis,
    stock,
    stock_options,
    worker,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.doctor.facts import Facts

SOURCE = """
import typing
LATER = timedelta(hours=2)
app.conf.beat_schedule = {"nightly": {"task": "shop.bill", "schedule": LATER}}
@app.task(name="shop.bill", shared=False, retry_backoff=2, autoretry_for=(OSError,), tme_limit=5)
def bill(): ...
def view():
    bill.apply_async(countdown=LATER.total_seconds())
    raise Reject("no", requeue=False)
"""


@pytest.mark.parametrize("conf", [GOOD_REDIS, GOOD_RABBITMQ, stock()], ids=["redis", "rabbitmq", "stock"])
def test_a_document_says_all_that_the_doctor_reads(conf: dict[str, object], tmp_path: Path) -> None:
    """What another interpreter sends as JSON makes the same facts as what is read in this process."""
    document = collector.read(application(conf), "shop", str(tmp_path))
    sent = json.loads(json.dumps(document))
    here, there = (facts_of(one, "shop", DoctorConfig(tmp_path), OwnFacts()) for one in (document, sent))
    assert here == there


def test_a_document_says_all_that_is_read_in_the_source(
    project: Callable[[str], Facts], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = project(SOURCE)
    read = collector.read
    monkeypatch.setattr(collector, "read", lambda *given, **more: json.loads(json.dumps(read(*given, **more))))
    there = project(SOURCE)
    assert here == there
    assert {task.name: task.countdown_s for task in there.tasks} == {"shop.bill": 7200.0}


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("from django.db import models\nclass Order(models.Model): ...\n", False),
        ("def total(lines):\n    return sum(line.price for line in lines)\n", False),
        ("worker_log_color = True\n", False),
        ("print(worker_log_color)\n", False),
        ("result_expires = 60\n", True),
        ("conf['result_expires'] = 60\n", True),
        ("CONF = {'visibility_timeout': 60}\n", True),
        ("RESULT_EXPIRES = 60\n", True),
        ("CELERY_TASK_RESULT_EXPIRES = 60\n", True),
        ("def make(Celery): Celery('shop', broker='redis://h/0')\n", True),
        ("def view(bill): bill.delay()\n", True),
        ("def view(bill): bill.s().set(countdown = 60)\n", True),
        ("def view(app, name): app.control.revoke (name)\n", True),
        ("x = 1  # repot: ignore[RPT101] it is short\n", True),
    ],
)
def test_a_module_is_parsed_only_if_its_text_holds_what_is_asked(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_read: bool
) -> None:
    """Parsing all modules of a large application takes as long as importing it."""
    options = {"visibility_timeout": 60}
    app = application(stock() | {"result_expires": 60, "broker_transport_options": options})
    path = tmp_path / "shop_part.py"
    path.write_text(text)
    module = ModuleType("shop_part")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "shop_part", module)
    document = collector.read(app, "shop", str(tmp_path))
    assert is_read == (str(path) in [one["path"] for one in document["modules"]])


def test_the_collector_is_one_file_of_the_oldest_python() -> None:
    """It imports the standard library and Celery's own; nothing of repot and nothing that 3.6 does not read."""
    source = Path(collector.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert {"celery", "kombu", "redis"} == imported - sys.stdlib_module_names


def old(conf: dict[str, object], celery: str = "4.4.7", **task: object) -> Facts:
    """The facts of an application whose Celery and kombu are older than those of this environment."""
    found = facts(conf, task=task)
    kombu = {"4.4.7": "4.6.11", "5.2.7": "5.2.4"}[celery]
    known = set(found.release.settings) - {name for name, since in SINCE.items() if _release(since) > _release(celery)}
    release = replace(
        found.release,
        celery=celery,
        kombu=kombu,
        settings={name: found.release.settings[name] for name in known},
        transport_options={
            name: options - {"unacked_restore_interval", "unacked_restore_throttle"}
            for name, options in found.release.transport_options.items()
        },
    )
    settings = {name: one for name, one in found.settings.items() if "." in name or name in known}
    versions = found.versions._replace(celery=celery, kombu=kombu)
    return replace(found, release=release, versions=versions, settings=settings)


LOSS = "worker_cancel_long_running_tasks_on_connection_loss"
BEHIND_DIRECT = rabbitmq(
    task_queues=[queue(kind="direct", queue_arguments=QUORUM)], task_default_exchange_type="direct"
)


def _without(name: str) -> dict[str, object]:
    """The configuration without one of its settings."""
    return {key: value for key, value in stock().items() if key != name}


def _release(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


@NEWEST
def test_every_setting_that_came_later_exists_now() -> None:
    assert set() == SINCE.keys() - collector.celery_options().keys()


@pytest.mark.parametrize("celery", ["4.4.7", "5.2.7"])
@pytest.mark.parametrize("conf", [GOOD_REDIS, GOOD_RABBITMQ, stock(), {**GOOD_RABBITMQ, "task_acks_on_failure": False}])
def test_no_line_names_a_setting_that_the_release_lacks_without_saying_so(conf: dict[str, object], celery: str) -> None:
    found = old(conf, celery)
    tasks = tuple(replace(task, retry_on_worker_lost=False, time_limit_s=None, countdown_s=1e6) for task in found.tasks)
    report = judge(replace(found, tasks=tasks))
    lines = [line for one in report.findings for line in one.fix.splitlines()]
    lacking = [name for name, since in SINCE.items() if _release(since) > _release(celery)]
    named = [line for line in lines for name in lacking if name in line]
    assert [line for line in named if "Celery" not in line and "celery>=" not in line] == []


@NEWEST
@pytest.mark.parametrize(
    ("rule", "conf", "task", "today", "on_5_2", "on_4_4"),
    [
        ("RPT107", _without(LOSS), {}, True, True, False),
        ("RPT110", stock(worker_soft_shutdown_timeout=1.0), {}, True, False, False),
        ("RPT118", stock_options(visibility_timeout=60), {}, True, False, False),
        ("RPT120", stock(), {"reject_on_worker_lost": True, "retry_on_worker_lost": False}, True, True, True),
        ("RPT121", stock(task_acks_on_timeout=False), {}, True, False, False),
        ("RPT201", GOOD_REDIS, {"retry_on_worker_lost": False}, True, True, True),
        ("RPT208", BEHIND_DIRECT, {"autoretry_for": (OSError,)}, True, False, False),
        ("RPT321", GOOD_RABBITMQ, {}, False, True, True),
        ("RPT511", stock(task_acks_on_failure_or_timeout=False), {}, True, False, False),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_rule_is_applied_to_the_releases_that_it_is_about(
    rule: str, conf: dict[str, object], task: dict[str, object], today: bool, on_5_2: bool, on_4_4: bool
) -> None:
    judged = (facts(conf, task=task), old(conf, "5.2.7", **task), old(conf, "4.4.7", **task))
    assert (today, on_5_2, on_4_4) == tuple(bool(judge(one, rule).findings) for one in judged)


def test_an_option_that_its_kombu_does_not_read_has_no_effect() -> None:
    conf = stock(broker_transport_options={"visibility_timeout": 7200, "unacked_restore_interval": 1})
    assert old(conf).option("unacked_restore_interval") == 10
    assert [one.finding.message.partition(";")[0] for one in judge(old(conf), "RPT504").findings] == [
        "Redis does not read 'unacked_restore_interval'"
    ]


def test_a_transport_that_cannot_be_loaded_is_unknown() -> None:
    found = facts(GOOD_REDIS)
    broken = replace(
        found, release=replace(found.release, transport_options={"redis": frozenset(), "amqp": frozenset()})
    )
    (one,) = judge(broken, "RPT504").not_judged
    assert "cannot load its transport 'redis'" in one.reason
    assert broken.option("visibility_timeout") == 7200


def test_a_host_name_that_its_kombu_does_not_fill_in_is_not_verified() -> None:
    conf = rabbitmq(broker_use_ssl={"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": "/ca.crt", "server_hostname": None})
    assert judge(old(conf, "5.2.7"), "RPT404").findings == ()
    (one,) = judge(old(conf, "4.4.7"), "RPT404").findings
    assert "kombu 4.6.11 does not fill in" in one.finding.message


@pytest.mark.parametrize(
    ("task", "limits"),
    [({}, [(None, 9000), (30, 60)]), ({"time_limit": 7200}, [(None, 7200), (30, 7200)])],
)
def test_a_limit_is_the_tasks_own_or_the_start_commands_or_the_configurations(
    task: dict[str, Any], limits: list[tuple[float | None, float]]
) -> None:
    """A public project's workers start with `--time-limit=10000`, and its configuration says 1800."""
    workers = (*worker(time_limit="9000"), *worker(soft_time_limit="30"))
    found = facts(redis(task_time_limit=60, task_soft_time_limit=None), task=task, workers=workers)
    if found.has_version("celery", 5, 7):
        # a task takes what the configuration has for its own
        limits = [(soft, 60 if hard == 9000 else hard) for soft, hard in limits]
    assert limits == found.limits_s(found.tasks[0])
    assert max(hard for _, hard in limits) == found.limit_s(found.tasks[0])
