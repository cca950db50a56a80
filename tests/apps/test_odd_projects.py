"""Projects as odd as people have them: the doctor says what it can, and never falls over or shows a password."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft4Validator, FormatChecker

from repot.config import inherited_environment
from repot.config.broker_kinds import BrokerKind
from repot.config.endpoints import endpoints
from repot.doctor.config import read_config
from repot.doctor.deployment import read_deployment
from repot.doctor.static_analysis import SourceFacts
from repot.doctor.static_analysis import read as read_source
from repot.errors import ConfigInvalid
from repot.upstream import collector
from support import forked
from support.judging import GOOD_RABBITMQ, facts, judge, redis

if TYPE_CHECKING:
    import subprocess

PLANTED = "pl4nted-s3cret"
APP = """
from celery import Celery
app = Celery("shop", broker="redis://localhost/0")

@app.task(name="shop.bill")
def bill(): ...
"""


def read(directory: Path) -> SourceFacts:
    """The facts in the source of a project of which nothing is loaded."""
    modules, complete = collector.sources([], directory, (), collector.Asked())
    document = {"modules": modules, "complete": complete, "atomic_requests": False}
    return read_source(document, directory, {})


def doctor(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "repot", "doctor", "-A", "shop", *arguments],
        cwd=directory,
        env=inherited_environment(without=("WORKER_", "CELERY_")),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "text",
    [
        "def f(t):\n    t.apply_async()\nX = " + "+".join(["1"] * 5000),
        "def f(t):\n    t.apply_async(" + "a" + ".b(1)" * 3000 + ")\n",
        "def f(t):\n    t.apply_async(countdown=timedelta(foo=3))\n",
        "def f(t):\n    t.apply_async(countdown=timedelta(days=10 ** 9))\n",
        "this is no python: t.apply_async(",
        "\0t.apply_async(",
    ],
)
def test_a_module_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "views.py").write_text(text)
    assert tuple(call.countdown_s for call in read(tmp_path).calls if call.countdown_s) == ()


def test_what_is_no_file(tmp_path: Path) -> None:
    """A link that leads nowhere, as editors leave them, one round in a circle, a pipe."""
    (tmp_path / ".#views.py").symlink_to("me@host.1:2")
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    (tmp_path / "round.py").symlink_to("round.py")
    os.mkfifo(tmp_path / "pipe.py")
    assert read(tmp_path).unread == ""


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: celery -A shop worker\n",
        "a: &a [*a]\n",
        "[" * 3000,
        "a: &a1 [x, x, x]\n" + "".join(f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 6)}]\n" for n in range(2, 17)),
        "!!python/object/apply:os.system [id]\n",
    ],
)
def test_a_start_file_that_is_odd(tmp_path: Path, text: str) -> None:
    (tmp_path / "compose.yaml").write_text(text)
    assert read_deployment(tmp_path, ()).beats == ()


@pytest.mark.parametrize("address", [";", [""], 5, b"redis://h", {"a": 1}, object()])
def test_an_address_that_is_none(address: object) -> None:
    with pytest.raises(ValueError, match="names no server"):
        endpoints(address)


def test_a_redis_behind_a_socket() -> None:
    (server,) = endpoints(f"redis+socket://:{PLANTED}@/tmp/redis.sock?virtual_host=2")
    assert (server.kind, server.host, server.path, server.is_local) == (BrokerKind.REDIS, "/tmp/redis.sock", "2", True)
    assert PLANTED not in f"{server} {server!r}"


@pytest.mark.parametrize("backend", ["django-db", "rpc", "disabled", "cache+memory://"])
def test_a_result_backend_that_is_no_server(backend: str) -> None:
    found = judge(facts(redis(result_backend=backend)), "RPT401")
    assert found.findings == ()


def test_tls_options_are_no_wrong_kind_of_value() -> None:
    options = {"ssl_cert_reqs": 2, "ssl_certfile_password": PLANTED}
    assert judge(facts(redis(broker_use_ssl=options)), "RPT512").findings == ()
    (one,) = judge(facts({**GOOD_RABBITMQ, "broker_use_ssl": [PLANTED, {"password": PLANTED}]}), "RPT512").findings
    assert PLANTED not in one.finding.message.partition(",")[2]


@pytest.mark.parametrize(
    "call",
    ["element.set('a', priority=3)", "timer.set(countdown=7200)", "token.revoke()", "raise Reject('spam')"],
)
def test_what_only_looks_like_celery(tmp_path: Path, call: str) -> None:
    (tmp_path / "views.py").write_text(
        f"class Reject(Exception): ...\ndef view(element, timer, token):\n    x.apply_async()\n    {call}\n"
    )
    found = read(tmp_path)
    assert (found.rejects, found.revokes, tuple(one for one in found.calls if one.countdown_s)) == ((), (), ())
    assert not any(one.priority for one in found.calls)


def test_what_an_application_prints_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(f"print('loading')\n{APP}")
    found = doctor(tmp_path, "--format", "json")
    assert json.loads(found.stdout)["applications"]
    assert "loading" in found.stderr


def test_a_class_that_raises_when_looked_at_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        f"{APP}\nclass Odd(app.Task):\n    name = 'odd'\n    @property\n    def time_limit(self):\n"
        f"        raise RuntimeError('redis://u:{PLANTED}@h')\n    def run(self): ...\n\napp.register_task(Odd())\n"
    )
    for arguments in ((), ("--format", "sarif")):
        found = doctor(tmp_path, *arguments)
        assert found.returncode == 7
        assert found.stderr.count("error: ") == 1
        assert "Traceback" not in found.stderr
        assert PLANTED not in found.stdout + found.stderr


def test_sarif_of_files_with_odd_names(tmp_path: Path) -> None:
    (tmp_path / "sp ace").mkdir()
    (tmp_path / "sp ace" / "ta%sk ü.py").write_text("from shop import app\n@app.task(name='odd')\ndef odd(): ...\n")
    (tmp_path / "shop.py").write_text(
        f"{APP}\nimport runpy, sys\nsys.modules.setdefault('shop', sys.modules[__name__])\n"
        "exec(\"@app.task(name='made')\\ndef made(): ...\")\nrunpy.run_path('sp ace/ta%sk ü.py')\n"
    )
    log = json.loads(doctor(tmp_path, "--format", "sarif").stdout)
    schema = json.loads((Path(__file__).parents[1] / "unit" / "doctor" / "sarif-schema-2.1.0.json").read_text())
    Draft4Validator(schema, format_checker=FormatChecker()).validate(log)
    uris = {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in log["runs"][0]["results"]}
    assert "sp%20ace/ta%25sk%20%C3%BC.py" in uris


@pytest.mark.parametrize(
    ("target", "said"),
    [("", "is empty"), (";", "is empty"), ("foo", "has no scheme"), ("sqs://x", "has the scheme 'sqs'")],
)
def test_an_invalid_target(tmp_path: Path, target: str, said: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    found = doctor(tmp_path, "--target", target)
    assert found.returncode == 2
    assert f"error: --target: {said}" in found.stderr
    assert "hint: Write it as redis://" in found.stderr


def test_a_broker_that_repot_does_not_know_is_judged_on_one_it_does(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.replace("redis://localhost/0", "sqs://"))
    found = doctor(tmp_path)
    assert found.returncode == 2
    assert "--target amqp://" in found.stderr
    assert "shop on RabbitMQ" in doctor(tmp_path, "--target", "amqp://shop:pw@localhost//").stdout


def test_what_is_wrong_with_the_target_is_not_on_a_line_of_the_application(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    found = doctor(tmp_path, "--target", "amqp://guest:guest@localhost//").stdout
    assert "broker_url: amqp://guest:**@localhost// logs in with well-known credentials  (--target)" in found


@pytest.mark.parametrize("text", ["tool = 3\n", "[tool.repot]\ndoctor = 'x'\n"])
def test_a_section_that_is_no_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigInvalid, match="is not a table"):
        read_config(tmp_path)


def test_rules_are_chosen_in_the_section_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "pyproject.toml").write_text("[tool.repot.doctor]\nselect = ['rpt1,RPT203']\nignore = 'rpt103'\n")
    found = json.loads(doctor(tmp_path, "--format", "json").stdout)["applications"][0]
    assert {"RPT203"} == {one["rule"] for one in found["findings"]}
