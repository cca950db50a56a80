"""An application is read the same way by its own interpreter as in the doctor's process: `repot doctor --python`."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from celery import _state
from click.testing import CliRunner

from repot.cli.main import main
from repot.doctor.collect import DoctorRequest, collect_facts
from repot.doctor.config import DoctorConfig
from repot.doctor.reports import FORMATS, text
from repot.errors import AppFailed, ConfigInvalid, FactUnknown, RepotError
from support.judging import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.doctor.facts import Facts

PLANTED = "pl4nted-s3cret"
APPLICATION = f"""\
from celery import Celery
app = Celery("shop", broker="redis://shop:{PLANTED}@localhost:6379/0", set_as_current=False)
"""
_BUILTINS = "celery.app.builtins"
_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _no_shared_tasks_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery gives the shared tasks of every module that was imported to each application of the process."""
    found: set[Callable[..., object]] = _state._on_app_finalizers  # type: ignore[attr-defined]
    monkeypatch.setattr(_state, "_on_app_finalizers", {one for one in found if one.__module__ == _BUILTINS})


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write modules of an application into the current directory; returns the name of the first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(source: str, **others: str) -> str:
        number = next(_NUMBERS)
        for name, one in {"shop": source, **others}.items():
            (tmp_path / f"{name}{number}.py").write_text(one.replace("{N}", str(number)))
        return f"shop{number}"

    yield write
    for name in set(sys.modules) - before:
        sys.modules.pop(name, None)


def with_python(name: str, python: str = sys.executable, *, timeout_s: float = 60, target: str | None = None) -> Facts:
    request = DoctorRequest(name, python=python, timeout_s=timeout_s, target=target)
    return collect_facts(request, DoctorConfig(Path.cwd()))


def in_this_process(name: str, target: str | None = None) -> Facts:
    return collect_facts(DoctorRequest(name, target=target), DoctorConfig(Path.cwd()))


TASKS = """
from datetime import timedelta
from celery.exceptions import Reject
DAY, LATER = 86400, timedelta(hours=3)
@app.task(name="shop.bill", bind=True, shared=False, autoretry_for=(OSError,), retry_backoff=2, tme_limit=7)
def bill(self, order):
    if order: raise Reject("no", requeue=False)
    self.retry(countdown=DAY)
class Archive(app.Task):
    name = "shop.archive"
    acks_late = True
    own = 5
    def run(self): return self.own
app.register_task(Archive())
app.conf.beat_schedule = {"nightly": {"task": "shop.bill", "schedule": LATER, "options": {"idempotency_key": "x"}}}
app.conf.update(task_acks_late=True, task_routes={"shop.bill": {"queue": "bills"}}, worker_concurency=4)
"""
VIEWS = """
from shop{N} import bill, LATER
def view(request):
    bill.apply_async(countdown=LATER.total_seconds())  # repot: ignore[RPT102] known
"""
ON_REDIS = """
import socket
app.conf.broker_transport_options = {"visibility_timeout": 1500,
    "socket_keepalive_options": {socket.TCP_KEEPIDLE: 30}, "sentinel_kwargs": {"password": "x"}}
"""
ON_RABBITMQ = """
import ssl
from kombu import Exchange, Queue
app.conf.update(broker_url="amqps://shop:secret@rabbit.example.com//", broker_use_ssl={"cert_reqs": ssl.CERT_NONE})
app.conf.task_queues = [Queue("bills", Exchange("bills", "topic"), routing_key="b", max_priority=3, queue_arguments={
    "x-queue-type": "quorum"})]
"""
OLD_NAMES = """
app.conf.update({"CELERY_ACKS_LATE": True, "CELERYD_CONCURRENCY": 2, "CELERY_ROUTES": {"a": {"queue": "b"}}})
@app.task(name="a", shared=False)
def a(): ...
"""


@pytest.mark.parametrize("target", [None, f"amqp://shop:{PLANTED}@rabbit.example.com//"], ids=["", "target"])
@pytest.mark.parametrize("source", [TASKS + ON_REDIS, TASKS + ON_RABBITMQ, OLD_NAMES], ids=["redis", "rabbitmq", "old"])
def test_both_ways_have_the_same_facts(written: Callable[..., str], source: str, target: str | None) -> None:
    name = written(APPLICATION + source, views=VIEWS)
    theirs = with_python(name, target=target)
    assert sys.executable == theirs.python
    assert in_this_process(name, target) == replace(theirs, python="")


#: What `-A` says after the module's name, and what stands in it.
UNUSABLE = {
    "no such module": (".nothing", APPLICATION),
    "no such name": (":application", APPLICATION),
    "no application in it": ("", ""),
    "another thing": (":app", "app = {}"),
    "raises": ("", f"raise OSError('no answer from redis://shop:{PLANTED}@h')"),
    "exits": ("", "import sys\nsys.exit('now')"),
    "syntax": ("", "def x(:"),
    "misses a module": ("", "import nowhere_to_be_found"),
    "misses its configuration": ("", f"{APPLICATION}app.config_from_object('settings_elsewhere')"),
    "misses its tasks": ("", f"{APPLICATION}app.conf.include = ['tasks_elsewhere']"),
    "odd queues": ("", f"{APPLICATION}app.conf.task_queues = 5"),
    "odd options": ("", f"{APPLICATION}app.conf.broker_transport_options = 'x'"),
    "another broker": ("", f"{APPLICATION}app.conf.broker_url = 'sqs://key:{PLANTED}@'"),
    "an error of repot": ("", "from repot.errors import ConfigInvalid\nraise ConfigInvalid('wrong', hint='right')"),
    "its cause": (
        "",
        """from repot.errors import ConfigInvalid
try:
    raise ConfigInvalid('wrong', hint='right')
except ConfigInvalid as error:
    raise RuntimeError('outer') from error
""",
    ),
}


@pytest.mark.parametrize(("app", "source"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_application_that_cannot_be_used_has_the_same_error(
    written: Callable[..., str], app: str, source: str
) -> None:
    name = written(source) + app
    found = []
    for read in (in_this_process, with_python):
        with pytest.raises(RepotError) as caught:
            read(name)
        found.append((type(caught.value), caught.value.message, caught.value.hint))
    assert found[0] == found[1]


def test_what_an_application_prints_is_no_data(written: Callable[..., str], capfd: pytest.CaptureFixture[str]) -> None:
    """By `print`, past Python, by a program that it starts."""
    name = written(
        "import atexit, os, subprocess\nprint('by print')\nos.write(1, b'{past Python\\n')\n"
        "subprocess.run(['echo', 'by a program'])\n"
        f"atexit.register(print, '{{}}')\n{APPLICATION}"
    )
    assert with_python(name).servers[0].scheme == "redis"
    out, err = capfd.readouterr()
    assert not out
    assert all(text in err for text in ("by print", "past Python", "by a program"))


def test_an_application_finds_the_directory_and_the_variables_of_its_user(
    written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TIMEOUT", "4711")
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "redis://localhost/7")
    name = written(
        f"import os, sys\nassert '' not in sys.path and sys.stdin.read() == ''\n{APPLICATION}"
        "app.conf.broker_transport_options = {'visibility_timeout': int(os.environ['SHOP_TIMEOUT'])}\n"
        "assert os.path.exists('shop{N}.py')\n"
    )
    found = with_python(name)
    assert found.option("visibility_timeout") == 4711
    assert found.settings["result_backend"].origin == "CELERY_RESULT_BACKEND (environment)"


def test_nothing_is_written_beside_the_application(
    written: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    name = written(f"import views{{N}}\n{APPLICATION}", views="")
    before = sorted(tmp_path.rglob("*"))
    with_python(name)
    assert before == sorted(tmp_path.rglob("*"))


def test_a_password_goes_through_pipes_alone(written: Callable[..., str], tmp_path: Path) -> None:
    """No argument and no variable has it, which others on the machine can see."""
    name = written(
        "import os\nseen = ''.join(open(f'/proc/self/{one}').read() for one in ('cmdline', 'environ'))\n"
        f"open('seen', 'w').write(seen)\n{APPLICATION}"
    )
    with_python(name, target=f"amqp://shop:{PLANTED}@rabbit.example.com//")
    seen = (tmp_path / "seen").read_text()
    assert "repot" in seen
    assert PLANTED not in seen


def test_no_report_shows_a_password(written: Callable[..., str]) -> None:
    name = written(
        f"{APPLICATION}app.conf.update(redis_pasword='{PLANTED}', "
        f"broker_transport_options={{'sentinel_kwargs': {{'password': '{PLANTED}'}}, 'socket_timeout': None}})\n"
    )
    found = with_python(name, target=f"amqp://shop:{PLANTED}@rabbit.example.com//")
    report = judge(found)
    assert report.findings
    shown = [text.render([report], verbose=True), *(render([report]) for render in FORMATS.values())]
    assert [one for one in shown if PLANTED in one] == []
    assert PLANTED not in repr(found)


def wrapper(directory: Path, line: str) -> str:
    """A program that runs this Python otherwise."""
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


#: The words of a program, of its error and of the error's hint.
NO_INTERPRETER = {
    "missing": ("", "cannot be run: No such file", "venv/bin/python"),
    "no Python": ("cat >/dev/null; echo hello", "is not a Python interpreter", "command -v python"),
    "ends at once": ("exit 3", "is not a Python interpreter", "command -v python"),
    "Python 2": ("echo repot-collector 2.7.18", "is Python 2.7.18; an application is read with Python 3.6", "workers"),
    "no Celery": (f'exec {sys.executable} -S "$@"', "has no Celery that can be imported", "environment"),
    "an old Celery": (
        f'PYTHONPATH=older exec {sys.executable} "$@"',
        "has Celery 4.3.0; an application is read from 4.4 on",
        "Upgrade",
    ),
}


@pytest.mark.parametrize(("line", "says", "hint"), NO_INTERPRETER.values(), ids=NO_INTERPRETER)
def test_an_interpreter_that_cannot_be_used_is_one_error_with_a_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "older/celery").mkdir(parents=True)
    (tmp_path / "older/celery/__init__.py").write_text("__version__ = '4.3.0'\n")
    python = wrapper(tmp_path, line) if line else str(tmp_path / "nowhere")
    with pytest.raises(ConfigInvalid) as caught:
        with_python("shop", python)
    assert says in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message


def test_a_directory_is_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="cannot be run: Permission denied"):
        with_python("shop", str(tmp_path))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11 while it read"),
        ("import os\nos._exit(5)", "ended with exit code 5 while it read"),
    ],
    ids=["signal", "exit"],
)
def test_an_interpreter_that_crashes_is_an_error(written: Callable[..., str], source: str, says: str) -> None:
    with pytest.raises(AppFailed, match=says) as caught:
        with_python(written(source))
    assert "-X faulthandler -c 'import shop" in caught.value.hint


def test_an_application_that_never_loads_is_ended(written: Callable[..., str]) -> None:
    name = written("import threading\nthreading.Event().wait()")
    with pytest.raises(AppFailed, match=r"did not answer within 0\.5 s and was ended"):
        with_python(name, timeout_s=0.5)


def test_an_application_that_never_ends_has_answered(
    written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repot.doctor.interpreter._END_S", 0.1)
    name = written(f"import threading\nthreading.Thread(target=threading.Event().wait).start()\n{APPLICATION}")
    assert with_python(name).servers[0].scheme == "redis"


def test_what_only_its_own_repot_knows_is_unknown(written: Callable[..., str]) -> None:
    """Its lease store, which delays RabbitMQ holds for it, and where it would be on another broker."""
    on_rabbitmq = APPLICATION.replace("redis:", "amqp:").replace(":6379/0", "//")
    name = written(
        f"{on_rabbitmq}import repot\nfrom repot.idempotency import IdempotentTask, Policy\nrepot.configure(app)\n"
        "@app.task(name='shop.charge', base=IdempotentTask, idempotency=Policy(key=('order',)), shared=False)\n"
        "def charge(order): ...\n"
    )
    found = with_python(name)
    assert [task.guarded for task in found.tasks] == [True]
    with pytest.raises(FactUnknown, match="the repot of its own environment"):
        _ = found.has_database_store
    for rule in ("RPT208", "RPT903"):
        (one,) = judge(found, rule).not_judged
        assert f"Run `repot doctor -A {name}` in that environment." == one.remedy
    with pytest.raises(RepotError, match="the repot of its own environment"):
        with_python(name, target="redis://redis.example.com:6379/0")


@pytest.mark.parametrize(
    ("configured", "given", "says"),
    [
        ("", (), True),
        ("", ("--target", f"amqp://shop:{PLANTED}@rabbit.example.com//"), False),
        ("", ("--python", sys.executable), False),
        ("import repot\nrepot.configure(app)\n", (), False),
    ],
    ids=["", "target", "python", "configured"],
)
def test_what_repot_clears_is_said_of_an_application_that_it_may_configure(
    written: Callable[..., str], configured: str, given: tuple[str, ...], *, says: bool
) -> None:
    name = written(f"{APPLICATION}{TASKS}{configured}")
    shown = CliRunner().invoke(main, ["doctor", "-A", name, *given]).stdout
    found = re.search(r"`repot.configure\(app\)` clears (\d+) of these (\d+)\b", shown)
    assert says is bool(found), shown
    if found:
        cleared, found_before = map(int, found.groups())
        assert 0 < cleared < found_before
