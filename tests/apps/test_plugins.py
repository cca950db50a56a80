"""Rules of other packages: found by their entry point, and refused when they cannot be used."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from repot.config import inherited_environment
from support import forked

if TYPE_CHECKING:
    import subprocess

RULES = """
from repot.doctor import WARNING, Facts, Finding, rule

@rule("{id}", "A bill without a queue of its own", WARNING, fix="queue='bills'", evidence="house rules")
def bills_have_their_queue(facts: Facts):
    '''Bills must not wait behind reports.'''
    for task in facts.tasks:
        if task.queue != "bills":
            yield Finding(f"goes to {{task.queue!r}}", task=task.name)
"""
APP = """
from celery import Celery
app = Celery("shop", broker="redis://localhost/0")

@app.task(name="shop.bill")
def bill(): ...
"""


def installed(directory: Path, rules: str) -> Path:
    """A package of rules as pip would leave it, and an application."""
    (directory / "shop.py").write_text(APP)
    (directory / "shop_rules.py").write_text(rules)
    metadata = directory / "shop_rules-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-rules\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[repot.doctor.rules]\nshop = shop_rules\n")
    return directory


def repot(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "repot", "doctor", *arguments],
        cwd=directory,
        env=inherited_environment(without=("WORKER_", "CELERY_")) | {"PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_rule_of_a_plugin_is_one_like_any_other(tmp_path: Path) -> None:
    installed(tmp_path, RULES.format(id="SHOP1"))
    found = repot(tmp_path, "-A", "shop", "--select", "SHOP", "--fail-on", "warning")
    assert found.returncode == 4, found.stderr
    assert "warning SHOP1  A bill without a queue of its own" in found.stdout
    assert "shop.bill: goes to 'celery'  (shop.py:5)" in found.stdout
    assert "SHOP1" in repot(tmp_path, "rules").stdout
    assert "Bills must not wait behind reports." in repot(tmp_path, "explain", "SHOP1").stdout


def test_a_plugin_that_cannot_be_loaded_is_one_clear_error(tmp_path: Path) -> None:
    found = repot(installed(tmp_path, "import no_such_module"), "-A", "shop")
    assert found.returncode == 2
    assert "error: the rules of the plugin 'shop' (shop_rules) cannot be loaded: No module named" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_plugin_takes_no_id_of_ours(tmp_path: Path) -> None:
    found = repot(installed(tmp_path, RULES.format(id="RPT101")), "-A", "shop")
    assert found.returncode == 2
    assert "error: the plugin 'shop' has a rule RPT101, which exists already" in found.stderr


def test_the_rule_of_the_author_page_runs(tmp_path: Path) -> None:
    """The first Python block of docs/write-a-rule.md, installed as its entry point says."""
    page = (Path(__file__).parents[2] / "docs" / "write-a-rule.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    directory = installed(tmp_path, example)
    (directory / "shop.py").write_text(APP.replace('"shop.bill"', '"reports.monthly"'))
    found = repot(directory, "-A", "shop", "--select", "SHOP1")
    assert found.returncode == 4, found.stderr
    assert "error   SHOP1  A report shares its queue" in found.stdout
    assert "reports.monthly: goes to 'celery'  (shop.py:5)" in found.stdout
    (directory / "shop.py").write_text(APP)
    assert repot(directory, "-A", "shop", "--select", "SHOP1").returncode == 0
