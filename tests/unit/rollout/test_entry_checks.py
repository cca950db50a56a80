"""What an operator is warned of before a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.config import BrokerUrl, ExplicitSettings
from repot.rollout.entry_checks import warnings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

#: What the doctor looks for; the library itself need not be installed.
LIBRARY = "from celery import Task\nclass Batches(Task):\n    abstract = True\n    flush_every = 10\n"
SHOP = """
from celery import Celery
from celery_batches import Batches
app = Celery("batching", broker="redis://h/0", backend="redis://h/1", set_as_current=False)
@app.task(base=Batches, name="shop.collect", shared=False)
def collect(requests): ...
@app.task(name="shop.charge", shared=False)
def charge(order): ...
"""


def test_tasks_that_the_judge_does_not_see_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch that went to a target failed, and the rollout was done."""
    (tmp_path / "celery_batches.py").write_text(LIBRARY)
    (tmp_path / "batching.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = ExplicitSettings(app="batching", lease_store="sqlite://")
    (found,) = [one for one in warnings(settings, BrokerUrl.parse("amqp://h//")) if "judge" in one]
    assert "the judge sees no run and no failure of shop.collect, of celery-batches" in found
