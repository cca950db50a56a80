"""The tutorial of a rollout, run as a reader does; and what it leaves when it is interrupted."""

from __future__ import annotations

import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.page_programs import HANGS_AFTER_S, ROOT, SCRIPT, require_nothing_left, running, typed_by, typed_on

if TYPE_CHECKING:
    from pathlib import Path

#: Its durations are compared with those of an earlier step, when other tests may have left the machine alone.
PAGE = (ROOT / "docs" / "tutorial-rollout.md").read_text().replace("--samples 40", "--samples 40 --slowdown 1000")

#: Each run has a busy worker on each side, and a judge that compares durations.
pytestmark = pytest.mark.xdist_group("tutorial")


def test_the_tutorial_runs_as_written(own_directory: Path) -> None:
    """A defect is taken back, its fix goes through, no id is lost, and no order is charged or shipped twice."""
    page = own_directory / "page.md"
    page.write_text(PAGE)
    with running(own_directory, str(page)) as process:
        shown, _ = process.communicate(timeout=HANGS_AFTER_S)
    assert process.returncode == 0, shown
    assert typed_on(PAGE) == typed_by(shown)

    sent, orders = map(int, re.findall(r"task ids sent: (\d+), for (\d+) orders", shown)[0])
    finished, on_redis, on_rabbitmq = map(
        int, re.findall(r"finished: (\d+); on Redis (\d+), on RabbitMQ (\d+)", shown)[0]
    )
    assert sent == finished == on_redis + on_rabbitmq
    assert sent > orders * 6  # some clicked twice
    assert on_redis > 100
    assert on_rabbitmq > 100
    assert "\n  lost: 0\n" in shown
    for effect in ("charged", "shipped"):
        assert f"\n  orders {effect}: {orders}; missing 0, doubled 0\n" in shown
    aborted, done = shown.index("aborted at 0%"), shown.index("done at 100%")
    assert aborted < shown.index("the firewall lets the gateway through") < done

    report = (own_directory / "repot-rollout-demo.html").read_text()
    assert "the firewall lets the gateway through" in report
    require_nothing_left(own_directory, "repot-rollout-demo.html", "page.md")


def test_make_runs_the_demo() -> None:
    wanted = subprocess.run(
        ["make", "--dry-run", "--silent", "rollout-demo"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f".venv/bin/python {SCRIPT}" in wanted.stdout


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, r"\[target\] .* ready\."),
        (signal.SIGKILL, "canary at 25%  by controller"),
    ],
)
def test_an_interrupted_tutorial_leaves_nothing(own_directory: Path, number: signal.Signals, moment: str) -> None:
    """While workers start, and while the controller leads."""
    with running(own_directory) as process:
        assert process.stdout is not None
        shown = ""
        while not re.search(moment, shown):
            line = process.stdout.readline()
            assert line, shown
            shown += line
        process.send_signal(number)
        rest, _ = process.communicate(timeout=60)
    assert (-9 if number == signal.SIGKILL else 130) == process.returncode, rest
    assert "Traceback" not in rest
    require_nothing_left(own_directory)


def test_a_worker_that_ends_by_itself_fails_the_tutorial(own_directory: Path) -> None:
    """What is not as the page says is an error, and ends everything."""
    page = own_directory / "page.md"
    page.write_text(PAGE.replace("celery -A shop worker -n source@%h", "celery -A shop worker --no-such-option"))
    with running(own_directory, str(page)) as process:
        shown, _ = process.communicate(timeout=HANGS_AFTER_S)
    assert process.returncode == 1, shown
    assert "error: this is not as the tutorial says: `celery -A shop worker --no-such-option" in shown
    assert "No such option" in shown
    require_nothing_left(own_directory, "page.md")
