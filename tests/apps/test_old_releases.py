"""Applications on Celery 4.4 and 5.2, in environments of their own: what is found is right for their release."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from repot.doctor.release import SINCE
from repot.upstream import collector
from support.applications import RELEASES, ROOT, interpreter
from support.judging import NEWEST
from support.tutorials import run

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = "pl4nted-s3cret"
REDIS = f"redis://shop:{PLANTED}@redis.example.com:6379/0"
RABBITMQ = f"amqp://shop:{PLANTED}@rabbit.example.com//"

#: The mistakes of tests/tutorial_apps/old_release that each release has: rule and task or setting.
EVERYWHERE = {
    ("RPT201", "shop.tasks.remind"),
    ("RPT201", "shop.tasks.render"),
    ("RPT202", "shop.tasks.charge"),
    ("RPT202", "shop.tasks.remind"),
    ("RPT202", "shop.tasks.render"),
    ("RPT203", "shop.tasks.count"),
    ("RPT220", None),
    ("RPT308", "broker_connection_max_retries"),
    ("RPT403", "broker_url"),
    ("RPT405", "accept_content"),
    ("RPT405", "task_serializer"),
    ("RPT502", "worker_max_task_per_child"),
    ("RPT502", "worker_soft_shutdown_timeout"),
    ("RPT509", "shop.tasks.remind"),
    ("RPT510", None),
}
OPTIONS = "broker_transport_options"
ON_REDIS = {
    ("RPT101", "shop.tasks.render"),
    ("RPT102", "shop.tasks.remind"),
    ("RPT120", "shop.tasks.charge"),
    ("RPT206", None),
    ("RPT219", f"{OPTIONS}.claim"),
    ("RPT301", f"{OPTIONS}.socket_timeout"),
    ("RPT301", f"{OPTIONS}.socket_connect_timeout"),
    ("RPT302", f"{OPTIONS}.socket_keepalive"),
    ("RPT504", f"{OPTIONS}.unacked_restore_interval"),
}
ON_RABBITMQ = {
    ("RPT112", f"{OPTIONS}.socket_settings"),
    ("RPT114", "shop.tasks.remind"),
    ("RPT116", "broker_heartbeat"),
    ("RPT204", f"{OPTIONS}.confirm_publish"),
    ("RPT205", "task_queues"),
    ("RPT310", None),
    ("RPT321", None),
}
#: It came with 5.1.
LATER = "worker_cancel_long_running_tasks_on_connection_loss"
OF_4_4 = {("RPT502", LATER)}


@dataclass(frozen=True)
class Judged:
    """The report of an application, and everything that was printed."""

    report: dict[str, Any]
    printed: str

    @property
    def findings(self) -> set[tuple[str, str | None]]:
        """Rule, and task or setting."""
        return {(one["rule"], one["task"] or one["setting"]) for one in self.report["findings"]}

    def fix(self, rule: str) -> str:
        """The lines to write for the first finding of a rule."""
        return next(str(one["fix"]) for one in self.report["findings"] if one["rule"] == rule)


def judge(directory: Path, release: str, broker: str, *options: str) -> Judged:
    """Judge the shop in a directory with the interpreter of a release."""
    python = interpreter(release)
    command = [sys.executable, "-m", "repot", "doctor", "--python", python, "-A", "shop"]
    found = run([*command, "--format", "json", *options], directory, {"SHOP_BROKER": broker})
    assert found.stdout, found.stderr
    (report,) = json.loads(found.stdout)["applications"]
    return Judged(report, found.stdout + found.stderr)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A copy of the shop."""
    directory = tmp_path / "shop"
    shutil.copytree(ROOT / "tests/tutorial_apps/old_release", directory)
    return directory


@pytest.mark.parametrize(("broker", "theirs"), [(REDIS, ON_REDIS), (RABBITMQ, ON_RABBITMQ)], ids=["redis", "rabbitmq"])
@pytest.mark.parametrize("release", RELEASES)
def test_the_mistakes_of_a_release_are_found_and_no_others(
    shop: Path, release: str, broker: str, theirs: set[tuple[str, str | None]]
) -> None:
    before = sorted(shop.rglob("*"))
    found = judge(shop, release, broker)
    assert EVERYWHERE | theirs | (OF_4_4 if release == "application-4.4" else set()) == found.findings
    assert RELEASES[release] == found.report["versions"]["celery"]
    assert "shop: 1" in found.printed
    assert PLANTED not in found.printed
    assert before == sorted(shop.rglob("*"))


@pytest.mark.parametrize("release", RELEASES)
def test_what_it_says_to_write_exists_in_the_release(shop: Path, release: str) -> None:
    on_redis, on_rabbitmq = judge(shop, release, REDIS), judge(shop, release, RABBITMQ)
    assert "task_acks_on_failure_or_timeout" in on_redis.fix("RPT202")
    assert on_redis.fix("RPT201").startswith("pip install 'celery>=5.7'")
    assert "task_reject_on_worker_lost = True" in on_rabbitmq.fix("RPT201")
    assert "celery>=5.5" in on_rabbitmq.fix("RPT321")
    assert "consumer_timeout = " in on_rabbitmq.fix("RPT114")
    assert "5.4 or newer" in on_redis.fix("RPT219")


@pytest.mark.parametrize("release", RELEASES)
def test_a_target_is_judged_with_the_release_that_goes_there(shop: Path, release: str) -> None:
    found = judge(shop, release, REDIS, "--target", RABBITMQ)
    assert {"RPT204", "RPT112"} <= {rule for rule, _ in found.findings}
    assert found.report["broker"]["moved_from"] == "Redis"
    assert PLANTED not in found.printed


@pytest.mark.parametrize("release", RELEASES)
def test_a_project_in_a_namespace_is_read(tmp_path: Path, release: str) -> None:
    """As the documentation of Django's projects writes it."""
    shutil.copytree(ROOT / "tests/tutorial_apps/django_namespace", tmp_path, dirs_exist_ok=True)
    found = judge(tmp_path, release, REDIS)
    assert ("RPT219", f"{OPTIONS}.claim") in found.findings
    assert found.report["tasks"] >= 4


#: A project of Django's own making, in which a worker opens a transaction for each request.
DJANGO = {
    "settings.py": (
        "SECRET_KEY = 'x'\nUSE_TZ = True\nINSTALLED_APPS = ['orders']\n"
        "ENGINE = 'django.db.backends.sqlite3'\n"
        "DATABASES = {'default': {'ENGINE': ENGINE, 'NAME': ':memory:', 'ATOMIC_REQUESTS': True}}\n"
        f"CELERY_BROKER_URL = '{REDIS}'\nCELERY_TASK_ACKS_LATE = True\nCELERY_TASK_TIME_LIMIT = 900\n"
    ),
    "shop.py": (
        "import os\nfrom celery import Celery\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'settings')\n"
        "app = Celery('shop')\napp.config_from_object('django.conf:settings', namespace='CELERY')\n"
        "app.autodiscover_tasks()\n"
    ),
    "orders/__init__.py": "",
    "orders/models.py": (
        "from django.db import models\nclass Order(models.Model):\n    name = models.CharField(max_length=9)\n"
    ),
    "orders/tasks.py": ("from celery import shared_task\n@shared_task\ndef bill(order): ...\n"),
    "orders/views.py": ("from orders.tasks import bill\ndef order(request):\n    bill.delay(1)\n"),
}


@pytest.mark.parametrize("release", RELEASES)
def test_a_django_project_is_read_with_its_settings_and_its_installed_applications(
    tmp_path: Path, release: str
) -> None:
    for name, text in DJANGO.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = judge(tmp_path, release, REDIS)
    assert found.report["tasks"] == 1
    assert ("RPT201", "orders.tasks.bill") in found.findings
    (failed,) = [one for one in found.report["findings"] if one["rule"] == "RPT202"]
    # one setting for failures and timeouts, whose default is to acknowledge
    assert failed["message"] == "is acknowledged when it fails; its failure is not stored"
    (sent,) = [one for one in found.report["findings"] if one["rule"] == "RPT220"]
    assert (sent["file"], sent["line"]) == ("orders/views.py", 3)
    assert PLANTED not in found.printed


@NEWEST
def test_the_releases_of_settings_are_all_known() -> None:
    """What Celery 4.4 lacks of today's settings is what came since."""
    code = "from celery.app.defaults import NAMESPACES, flatten; print(*(key for key, _ in flatten(NAMESPACES)))"
    python = interpreter("application-4.4")
    old = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert SINCE.keys() == collector.celery_options().keys() - set(old)
