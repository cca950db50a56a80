"""How long the doctor takes on an application of 200 tasks, static and live, beside `celery report`.

    python benchmarks/doctor.py [--runs 5]

The peer is `celery -A shop report`, which imports the same application and prints its
configuration. "own" is what the doctor adds to the import: gathering the facts and
running every rule, in one process, without Python's start.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from repot.config import inherited_environment
from repot.testbed import rabbitmq_server, redis_server

TASKS, MODULES = 200, 20

_OWN = """
import sys
from time import perf_counter
sys.path.insert(0, "")
begun = perf_counter()
from repot.worker.app_loader import load_app
app = load_app("shop.celery:app")
app.loader.import_default_modules()
imported = perf_counter()
from pathlib import Path
from repot.doctor.registry import all_rules
from repot.doctor.runner import run_rules
from repot.doctor.collect import DoctorRequest, collect_from
from repot.doctor.config import read_config
config = read_config(Path.cwd())
request = DoctorRequest("shop.celery:app", live={live}, management_url={management!r})
rules = all_rules()
report = run_rules(collect_from(app, request, config), rules, config, rules)
assert len(report.facts.tasks) == {tasks}, len(report.facts.tasks)
print(imported - begun, perf_counter() - imported, len(report.findings))
"""

_TASK = '''

@app.task(bind=True, autoretry_for=(OSError,), retry_backoff=True)
def task{number}(self, order):
    """Work on an order."""
    if order:
        task{number}.apply_async((order,), countdown=60 * {number})
'''


def main() -> None:
    """Measure, and print a table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runs", type=int, default=5)
    runs = arguments.parse_args().runs
    with tempfile.TemporaryDirectory() as name, redis_server() as redis, rabbitmq_server() as rabbitmq:
        directory = Path(name)
        write_application(directory)
        print(f"{TASKS} tasks in {MODULES} modules, {runs} runs; median (least to most), seconds")
        for server in (redis, rabbitmq):
            environment = {"SHOP_BROKER": server.url, "WORKER_MANAGEMENT_URL": server.management_url}
            print(f"\n{server.name} {server.version}")
            peer = [
                timed(directory, environment, "-m", "celery", "-A", "shop.celery:app", "report") for _ in range(runs)
            ]
            show("celery report, whole process", peer)
            for live in (False, True):
                flags = ["--live", "--management-url", server.management_url] if live and server.management_url else []
                flags = flags or (["--live"] if live else [])
                whole = [
                    timed(directory, environment, "-m", "repot", "doctor", "-A", "shop.celery:app", *flags)
                    for _ in range(runs)
                ]
                own = [
                    timed_own(directory, environment, live=live, management=server.management_url) for _ in range(runs)
                ]
                label = "doctor --live" if live else "doctor"
                show(f"{label}, whole process", whole, peer)
                show(f"{label}, own, after the import", own)


def write_application(directory: Path) -> None:
    """An application with its tasks in modules, each sent from another with a delay."""
    package = directory / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    includes = [f"shop.tasks{number}" for number in range(MODULES)]
    (package / "celery.py").write_text(
        "import os\nfrom celery import Celery\n"
        f"app = Celery('shop', broker=os.environ['SHOP_BROKER'], include={includes!r})\n"
    )
    for number in range(MODULES):
        text = "from shop.celery import app\n"
        for task in range(TASKS // MODULES):
            text += _TASK.format(number=task)
        (package / f"tasks{number}.py").write_text(text)


def timed(directory: Path, environment: dict[str, str], *command: str) -> float:
    """Wall time of a whole process."""
    begun = perf_counter()
    run(directory, environment, *command)
    return perf_counter() - begun


def timed_own(directory: Path, environment: dict[str, str], *, live: bool, management: str) -> float:
    """What the doctor needs after the application's own import."""
    script = _OWN.format(live=live, management=management, tasks=TASKS)
    return float(run(directory, environment, "-c", script).split()[-2])


def run(directory: Path, environment: dict[str, str], *command: str) -> str:
    """Run Python in the application's directory; findings are no failure."""
    found = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=inherited_environment(without=("WORKER_", "CELERY_")) | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode not in (0, 4):
        raise SystemExit(found.stderr)
    return found.stdout


def show(label: str, times: list[float], peer: list[float] | None = None) -> None:
    """A line of the table."""
    median = statistics.median(times)
    ratio = f"  {median / statistics.median(peer):.2f} x celery report" if peer else ""
    print(f"  {label:36} {median:.3f} ({min(times):.3f} to {max(times):.3f}){ratio}")


if __name__ == "__main__":
    main()
