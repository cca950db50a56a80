"""The wheel of the Dockerfile: it has neither `repot.chaos` nor `repot.testbed`, and a worker needs neither."""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from repot.config import ExplicitSettings, Role, celery_config, inherited_environment
from repot.testbed import ReapedProcess
from support.wheels import ROOT, Built, checked, install, run, unpacked, wheel_of

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server

OMITTED = ("repot/chaos/", "repot/testbed/")


def omitting(source: Path) -> None:
    """Run the Dockerfile's own line in a directory of sources."""
    text = (ROOT / "Dockerfile").read_text()
    option, line = re.findall(r'(?m)^ARG (OMIT=".+")\nRUN (.+)$', text)[0]
    checked(["sh", "-c", f"{option}; {line}"], source)


@pytest.fixture(scope="module")
def wheel(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel without them."""
    source = unpacked(built.sdist, tmp_path_factory.mktemp("omitting"))
    omitting(source)
    return wheel_of(source)


@pytest.fixture(scope="module")
def production(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the commands of an environment with this wheel; and pytest, as an application's image may."""
    return install(tmp_path_factory.mktemp("production"), f"{wheel}[healthcheck]", "pytest")


def test_the_wheel_has_all_but_these_packages_and_no_entry_point_into_them(built: Built, wheel: Path) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        everything = set(archive.namelist())
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (points,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
        entry_points = archive.read(points).decode()
    assert names == {name for name in everything if not name.startswith(OMITTED)}
    assert "repot.cli.main:main" in entry_points
    assert "repot.chaos" not in entry_points


def test_it_is_imported_and_configures(production: Path, tmp_path: Path) -> None:
    code = (
        "import pkgutil, importlib, celery, repot\n"
        "app = celery.Celery('shop')\n"
        "repot.configure(app)\n"
        "for found in pkgutil.walk_packages(repot.__path__, 'repot.'):\n"
        "    if found.name.partition('.')[2].split('.')[0] not in {'cli', '__main__'}:\n"
        "        try:\n"
        "            importlib.import_module(found.name)\n"
        "        except ModuleNotFoundError as error:\n"
        "            assert not error.name.startswith('repot'), (found.name, error)\n"
        "print('imported')\n"
    )
    assert checked([production / "python", "-c", code], tmp_path).split()[-1] == "imported"


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "doctor --help",
        "move --help",
        "rollout --help",
        "healthcheck --help",
        "chaos --help",
        "demo --help",
        "schema",
        "schema doctor",
        "completion bash",
    ],
)
def test_the_commands_of_production_answer(production: Path, tmp_path: Path, words: str) -> None:
    assert checked([production / "repot", *words.split()], tmp_path)


def test_the_doctor_judges_it(production: Path, tmp_path: Path) -> None:
    found = run([production / "repot", "doctor", "--app", "repot.worker.app"], tmp_path)
    assert found.returncode in (0, 4), found.stderr
    assert "RPT" in found.stdout


@pytest.mark.parametrize(
    "words",
    [
        "chaos list",
        "chaos explain reset",
        "chaos run smoke --profile redis",
        "demo",
        "up",
        "schema chaos run",
        "schema demo",
    ],
)
def test_a_command_of_experiments_is_refused(production: Path, tmp_path: Path, words: str) -> None:
    found = run([production / "repot", *words.split()], tmp_path)
    assert (found.returncode, found.stdout) == (1, "")
    message, hint = found.stderr.splitlines()
    assert re.fullmatch(
        r"error: this command needs repot\.(chaos|testbed), which this build of repot does not have", message
    )
    assert hint == "hint: in another environment: pip install 'repot[chaos]'"


@pytest.mark.parametrize("typed", ["chaos run re", "chaos run --profile re", "chaos load --fault re", "cha"])
def test_a_shell_completes_without_a_traceback(production: Path, tmp_path: Path, typed: str) -> None:
    words = f"COMP_WORDS='repot {typed}' COMP_CWORD={len(typed.split())}"
    found = run(["sh", "-c", f"_REPOT_COMPLETE=bash_complete {words} {production / 'repot'}"], tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (0, "plain,chaos\n" if typed == "cha" else "\n", "")


def test_the_tests_of_an_application_run_beside_it(production: Path, tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text("def test_nothing() -> None: ...\n")
    assert "1 passed" in checked([production / "pytest", "-p", "no:cacheprovider"], tmp_path)


def test_a_journal_that_nothing_writes_is_refused(production: Path, tmp_path: Path) -> None:
    command = f"WORKER_JOURNAL={tmp_path / 'journal'} {production / 'celery'} -A repot.worker.app worker"
    found = run(["sh", "-c", command], tmp_path)
    assert found.returncode == 2, found.stderr
    assert "WORKER_JOURNAL is set, and no recorder that writes it is installed" in found.stderr


def test_a_worker_runs_tasks(production: Path, redis: Server, tmp_path: Path) -> None:
    settings = ExplicitSettings(broker_url=redis.url, result_backend=redis.results_url, queue_names=("production",))  # type: ignore[arg-type]
    variables = {
        "WORKER_BROKER_URL": redis.url,
        "WORKER_RESULT_BACKEND": redis.results_url,
        "WORKER_QUEUE_NAMES": "production",
    }
    outside = inherited_environment(without=("WORKER_", "CELERY_", "PYTHON", "VIRTUAL_ENV"))
    command = [str(production / "celery"), "-A", "repot.worker.app", "worker", "--concurrency", "1"]
    worker = ReapedProcess(command, log=tmp_path / "log", environment=outside | variables, directory=tmp_path)
    try:
        client = Celery("client", set_as_current=False)
        client.conf.update(celery_config(settings, Role.CLIENT))
        assert client.send_task("repot.run", (0,)).get(timeout=60)["seconds"] == 0, worker.log_tail()
    finally:
        worker.stop()
