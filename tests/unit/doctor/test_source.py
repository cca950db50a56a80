"""What the doctor reads of a project: its source, its start files, its section of pyproject.toml."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from repot.doctor.config import read_config
from repot.doctor.deployment import read_deployment
from repot.doctor.rule import Finding, Location
from repot.doctor.runner import run_rules
from repot.errors import ConfigInvalid
from support.judging import RULES, judge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from repot.doctor.facts import Facts
    from repot.doctor.runner import Report

CLASS_WITH_WAIVER = """class Bill(app.Task):
    acks_late = False  # repot: ignore[RPT203] counters

    def run(self): ...

app.register_task(Bill())
"""


def judged(facts: Facts, path: Path) -> Report:
    return run_rules(facts, RULES, read_config(path), RULES)


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        ("bill.apply_async(countdown=90)", 90),
        ("bill.apply_async(countdown=2 * 60 * 60)", 7200),
        ("bill.apply_async((1,), countdown=DAY)", 86400),
        ("bill.apply_async(countdown=DAY + 60)", 86460),
        ("bill.apply_async(countdown=timedelta(hours=2).total_seconds())", 7200),
        ("bill.apply_async(eta=datetime.now() + timedelta(1))", 86400),
        ("bill.apply_async(countdown=DAY - 60)", 86340),
        ("later = datetime.now() + timedelta(hours=2)\n    bill.apply_async(eta=later)", 7200),
        ("wait = 90\n    wait = wait + 1\n    bill.apply_async(countdown=wait)", 0),
        ("a = b * 2\n    b = a * 2\n    bill.apply_async(countdown=b)", 0),
        ("wait = wait + 1\n    bill.apply_async(countdown=wait)", 0),
        ("bill.apply_async(eta=datetime.now() + timedelta(hours=3))", 10800),
        ("bill.apply_async(eta=datetime.utcnow() + timedelta(days=1, hours=1))", 90000),
        ("bill.s(1).apply_async(countdown=300)", 300),
        ("bill.s(1).set(countdown=300)", 300),
        ("app.send_task('shop.bill', countdown=120)", 120),
    ],
)
def test_a_delay_is_followed(project: Callable[[str], Facts], call: str, seconds: float) -> None:
    facts = project(f"@app.task(name='shop.bill', shared=False)\ndef bill(): ...\n\ndef view():\n    {call}\n")
    assert seconds == facts.tasks[0].countdown_s


@pytest.mark.parametrize(
    ("options", "is_timed"),
    [
        ("countdown=0", False),
        ("countdown=None", False),
        ("eta=None", False),
        ("countdown=None, eta=None", False),
        ("countdown=NOTHING", False),
        ("priority=3", False),
        ("countdown=None, eta=when()", True),
        ("countdown=5", True),
        ("countdown=delay", True),
    ],
)
def test_a_send_is_timed_unless_its_delay_is_nothing(
    project: Callable[[str], Facts], options: str, *, is_timed: bool
) -> None:
    """A task that is not timed is not held by a worker (RPT309)."""
    found = project(
        "NOTHING = 0\n@app.task(name='shop.bill', shared=False)\ndef bill(): ...\n"
        f"def view(delay, when):\n    bill.apply_async({options})\n"
    )
    assert is_timed is any(call.is_timed for call in found.tasks[0].calls)


@pytest.mark.parametrize("call", ["bill.apply_async(countdown=delay)", "bill.apply_async(eta=when())"])
def test_a_delay_that_cannot_be_followed_is_not_guessed(project: Callable[[str], Facts], call: str) -> None:
    facts = project(
        f"@app.task(name='shop.bill', shared=False)\ndef bill(): ...\n\ndef view(delay, when):\n    {call}\n"
    )
    assert tuple(found.countdown_s for found in facts.tasks[0].calls) == (None,)
    assert facts.tasks[0].countdown_s == 0


def test_a_module_that_is_not_loaded_is_read_for_what_it_sends(project: Callable[[str], Facts], tmp_path: Path) -> None:
    """Views send tasks, and no worker imports them; tests are passed over."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "views.py").write_text("def view(task):\n    task.apply_async(countdown=9000)\n")
    (tmp_path / "test_views.py").write_text("def test(task):\n    task.apply_async(countdown=99999)\n")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "x.py").write_text("def view(task):\n    task.apply_async(countdown=99999)\n")
    facts = project("@app.task(shared=False)\ndef bill(): ...\n")
    assert [(call.location.file, call.countdown_s) for call in facts.source.calls] == [("web/views.py", 9000)]
    assert facts.source.unread == ""


def test_a_delay_of_an_unknown_task(project: Callable[[str], Facts]) -> None:
    facts = project(
        "@app.task(shared=False)\ndef bill(): ...\n\ndef view(task):\n    task.apply_async(countdown=DAY)\n"
    )
    assert facts.tasks[0].countdown_s == 0
    assert facts.longest_countdown_s() == 86400


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ("autoretry_for=(OSError,)", 180),
        ("autoretry_for=(OSError,), default_retry_delay=30", 30),
        ("autoretry_for=(OSError,), retry_kwargs={'countdown': 7}", 7),
        ("autoretry_for=(OSError,), retry_backoff=True, max_retries=5", 16),
        ("autoretry_for=(OSError,), retry_backoff=60, max_retries=20", 600),
        ("autoretry_for=(OSError,), retry_backoff=True, max_retries=None, retry_backoff_max=9000", 9000),
        ("autoretry_for=(OSError,), max_retries=0", 0),
        ("autoretry_for=(OSError,), retry_backoff=True, retry_kwargs={'max_retries': 20}", 600),
        # as odd as Celery allows
        ("autoretry_for=(OSError,), retry_backoff=True, max_retries=5000", 600),
        ("autoretry_for=(OSError,), default_retry_delay=None", 0),
        ("autoretry_for=(OSError,), retry_kwargs=None", 180),
    ],
)
def test_the_delay_of_automatic_retries(project: Callable[[str], Facts], options: str, seconds: float) -> None:
    facts = project(f"@app.task(shared=False, {options})\ndef bill(): ...\n")
    assert seconds == facts.tasks[0].countdown_s


@pytest.mark.parametrize(
    ("options", "calls", "delays"),
    [
        ("", "", ((), ())),
        ("autoretry_for=(OSError,)", "", ((), (180,), (180,))),
        ("autoretry_for=(OSError,), max_retries=1", "", ((), (180,))),
        ("autoretry_for=(OSError,), max_retries=None, retry_kwargs={'countdown': 7}", "", ((), (7,), (7,))),
        ("autoretry_for=(OSError,), retry_backoff=2, retry_jitter=False", "", ((), (2,), (4,), (8,))),
        ("autoretry_for=(OSError,), retry_backoff=True", "", ((), (0, 1), (0, 1, 2), (0, 1, 2, 3, 4))),
        (
            "autoretry_for=(OSError,), retry_backoff=True, retry_backoff_max=2, retry_jitter=False, max_retries=None",
            "",
            ((), (1,), (2,), (2,)),
        ),
        ("", "bill.retry(countdown=9)", ((), (9,), (9,))),
        ("max_retries=1", "bill.retry(countdown=9)", ((), (9,))),
        ("max_retries=0", "bill.retry(countdown=9)", ((),)),
        ("default_retry_delay=30", "bill.retry()", ((), (30,), (30,))),
        ("", "bill.retry(countdown=2**self.request.retries)", ((), ())),
        ("max_retries=1", "bill.apply_async(countdown=5.5); bill.retry(countdown=9)", ((5,), (9,))),
        ("autoretry_for=(OSError,), max_retries=1", "bill.retry(countdown=9)", ((), (9, 180))),
    ],
)
def test_the_delays_of_each_retry(
    project: Callable[[str], Facts], options: str, calls: str, delays: tuple[tuple[int, ...], ...]
) -> None:
    """By the order of them RPT222 knows which queues of delays a message was in."""
    facts = project(
        f"@app.task(shared=False, name='shop.bill', {options})\ndef bill(self=None):\n    {calls or '...'}\n"
    )
    assert tuple(map(tuple, facts.tasks[0].delays)) == delays


def test_a_retry_belongs_to_its_task(project: Callable[[str], Facts]) -> None:
    text = "@app.task(bind=True, shared=False)\ndef bill(self):\n    raise self.retry(countdown=3 * 60 * 60)\n"
    facts = project(text)
    assert facts.tasks[0].countdown_s == 10800
    assert facts.tasks[0].retries_itself
    assert Location(facts.tasks[0].location.file, 8) == facts.tasks[0].location if facts.tasks[0].location else False


def test_a_plain_retry_waits_the_tasks_own_delay(project: Callable[[str], Facts]) -> None:
    text = (
        "@app.task(bind=True, shared=False, default_retry_delay=7200)\n"
        "def bill(self):\n    raise self.retry(exc=OSError())\n"
    )
    assert project(text).tasks[0].countdown_s == 7200


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("raise Reject('bad')", 1),
        ("raise Reject('bad', requeue=False)", 1),
        ("raise Reject('bad', requeue=True)", 0),
        ("raise Reject('bad', True)", 0),
    ],
)
def test_a_rejection_deletes(project: Callable[[str], Facts], call: str, found: int) -> None:
    assert found == len(project(f"@app.task(shared=False)\ndef bill():\n    {call}\n").source.rejects)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("from celery import chord\nchord([])", 1),
        ("import celery\ncelery.chord([])", 1),
        ("from celery.canvas import chord as joined\nchord = None", 0),
        ("def chord(notes): ...\nchord([])", 0),
    ],
)
def test_a_chord_is_celerys(project: Callable[[str], Facts], lines: str, found: int) -> None:
    assert found == len(project(lines).source.chords)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("for one in orders:\n    bill.delay(one)", 1),
        ("while orders:\n    bill.apply_async((orders.pop(),))", 1),
        ("for one in orders:\n    app.send_task('other')", 1),
        ("[bill.delay(one) for one in orders]", 1),
        ("list(bill.delay(one) for one in orders)", 1),
        ("for one in orders:\n    for two in one:\n        bill.si(two).delay()", 1),
        ("with open('log'):\n    for one in orders:\n        bill.delay(one)", 1),
        ("bill.delay(orders)", 0),
        ("for one in bill.delay(orders).get():\n    print(one)", 0),
        ("for one in orders:\n    print(one)\nelse:\n    bill.delay(orders)", 0),
        ("group(bill.s(one) for one in orders).apply_async()", 0),
        ("with repot.confirm_window(app):\n    for one in orders:\n        bill.delay(one)", 0),
        ("for one in orders:\n    def later():\n        bill.delay(one)", 0),
        ("for one in orders:\n    timer.delay(one)", 0),
    ],
)
def test_a_send_in_a_loop_of_a_task(project: Callable[[str], Facts], lines: str, found: int) -> None:
    body = textwrap.indent(lines, "    ")
    text = f"@app.task\ndef bill(*orders): ...\n@app.task\ndef order(orders, timer=None):\n{body}\n"
    assert [one.task.rpartition(".")[2] for one in project(text).source.looped_sends] == ["order"] * found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("bill.delay()", 1),
        ("bill.apply_async((1,))", 1),
        ("app.send_task('other')", 1),
        ("bill.si(1).delay()", 1),
        ("if app:\n    bill.delay()", 1),
        ("SENT = [bill.delay(one) for one in (1, 2)]", 1),
        ("class Shop:\n    first = bill.delay()", 1),
        ("bill.s()", 0),
        ("if __name__ == '__main__':\n    bill.delay()", 0),
        ("def order():\n    bill.delay()", 0),
        ("later = lambda: bill.delay()", 0),
        ("class Shop:\n    def order(self):\n        bill.delay()", 0),
        ("class Timer:\n    def delay(self): ...\nTimer().delay()", 0),
    ],
)
def test_a_send_when_a_module_is_imported(project: Callable[[str], Facts], lines: str, found: int) -> None:
    # for the doctor imports it as well
    text = f"app.send_task = lambda *_, **__: None\n@app.task(shared=False)\ndef bill(*orders): ...\n{lines}\n"
    assert found == len(project(text).source.import_sends)


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("raise self.retry(error, countdown=10)", 1),
        ("raise self.retry(exc=error, countdown=10)", 0),
        ("raise self.retry([order], countdown=10)", 0),
        ("raise self.retry(delay=10)", 1),
        ("bill.apply_async(delay=10)", 1),
        ("http.retry('request')", 0),
        ("http.retry(error, delay=3)", 0),
        ("bill.apply_async((1,), idempotency_key='')", 1),
        ("bill.s(1).set(idempotency_key=' ')", 1),
        ("bill.apply_async((1,), idempotency_key=None)", 0),
        ("bill.apply_async((1,), idempotency_key=order)", 0),
    ],
)
def test_a_call_without_the_effect_it_names(project: Callable[[str], Facts], call: str, found: int) -> None:
    text = (
        "@app.task(bind=True, shared=False)\ndef bill(self, order=None, http=None):\n"
        f"    try:\n        pass\n    except OSError as error:\n        {call}\n"
    )
    assert found == len(project(text).source.misuses)


@pytest.mark.parametrize(
    "text",
    [
        "# repot: ignore[RPT203] counters\n@app.task(acks_late=False, shared=False)\ndef bill(): ...\n",
        "@app.task(acks_late=False, shared=False)  # repot: ignore[RPT203] counters\ndef bill(): ...\n",
        "@app.task(acks_late=False, shared=False)\ndef bill(): ...  # repot: ignore[RPT203] counters\n",
        "# repot: ignore[RPT110,RPT203] counters\n#\n@app.task(\n acks_late=False,\n shared=False)\ndef bill(): ...\n",
        "@app.task(\n    acks_late=False,  # repot: ignore[RPT203] counters\n    shared=False,\n)\ndef bill(): ...\n",
        "@app.task(acks_late=False, shared=False)  # noqa: E501  # repot: ignore[RPT203] counters\ndef bill(): ...\n",
        "@app.task(acks_late=False, shared=False)\ndef bill():\n    # repot: ignore[RPT203] counters\n    return 1\n",
        CLASS_WITH_WAIVER,
    ],
)
def test_a_waiver_beside_a_task(project: Callable[[str], Facts], tmp_path: Path, text: str) -> None:
    report = judged(project(text), tmp_path)
    assert "RPT203" not in {one.rule.id for one in report.findings}
    waived = [one for one in report.waived if one.rule.id == "RPT203"]
    assert [one.waiver.reason for one in waived if one.waiver] == ["counters"]


def test_a_delay_that_is_too_long_names_the_call_beside_the_task(project: Callable[[str], Facts]) -> None:
    """A task is sent in many places, and one of them is to be changed."""
    found = project(
        '@app.task(name="shop.bill", shared=False)\ndef bill(): ...\n'
        "def soon(): bill.apply_async(countdown=5)\ndef late(): bill.apply_async(countdown=DAY)\n"
    )
    (one,) = judge(found, "RPT102").findings
    task, *_ = found.tasks
    assert task.location is not None
    assert task.location == one.finding.location
    late = next(call.location for call in task.calls if call.countdown_s == 86400)
    assert f"is delayed up to 86400 s at {late};" in one.finding.message
    assert task.location.line + 3 == late.line


def test_a_byte_order_mark_changes_nothing(project: Callable[..., Facts], tmp_path: Path) -> None:
    """Editors on Windows write one, and Python imports such a file."""
    text = "@app.task(acks_late=False, shared=False)  # repot: ignore[RPT203] counters\ndef bill(): ...\n"
    text += "def view(task): task.apply_async(countdown=DAY)\n"
    plain, marked = (judged(project(text, encoding), tmp_path) for encoding in ("utf-8", "utf-8-sig"))
    assert {"RPT102"} <= {one.rule.id for one in marked.findings}
    assert [one.rule.id for one in plain.findings] == [one.rule.id for one in marked.findings]
    assert [one.rule.id for one in marked.waived] == ["RPT203"]


def test_a_waiver_beside_a_call(project: Callable[[str], Facts], tmp_path: Path) -> None:
    """What a finding is about need not be a task."""
    text = "def view(task):\n    task.apply_async(countdown=DAY)  # repot: ignore[RPT102] swept by beat\n"
    report = judged(project(text), tmp_path)
    assert "RPT102" not in {one.rule.id for one in report.findings}
    assert [one.rule.id for one in report.waived] == ["RPT102"]


def test_a_waiver_beside_nothing_is_judged_like_any_other(project: Callable[[str], Facts], tmp_path: Path) -> None:
    text = "# repot: ignore[RPT999] because\nX = 1  # repot: ignore[RPT203]\n"
    assert {"RPT001", "RPT002"} <= {one.rule.id for one in judged(project(text), tmp_path).findings}


def test_a_waiver_beside_another_task_waives_nothing(project: Callable[[str], Facts], tmp_path: Path) -> None:
    text = (
        "@app.task(shared=False)  # repot: ignore[RPT203] this one only\ndef other(): ...\n\n"
        "@app.task(acks_late=False, shared=False)\ndef bill(): ...\n"
    )
    assert "RPT203" in {one.rule.id for one in judged(project(text), tmp_path).findings}


def test_a_waiver_without_a_reason_is_a_finding(project: Callable[[str], Facts], tmp_path: Path) -> None:
    text = "@app.task(acks_late=False, shared=False)  # repot: ignore[RPT203]\ndef bill(): ...\n"
    found = {one.rule.id: one.finding for one in judged(project(text), tmp_path).findings}
    assert {"RPT001", "RPT203"} <= set(found)
    assert Location(found["RPT203"].location.file, 8) == found["RPT001"].location if found["RPT203"].location else False


def deployed(directory: Path, **files: str) -> Any:
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text)
    return read_deployment(directory, ())


STARTED = {
    "Procfile": (
        "web: gunicorn shop\nworker: celery -A shop worker -P solo -c 4 -E\n",
        {"pool": "solo", "concurrency": "4", "task_events": True},
    ),
    "compose_yaml": (
        'services:\n  w:\n    command: ["celery", "-A", "shop", "worker", "--autoscale=10,2"]\n',
        {"autoscale": "10,2"},
    ),
    "docker-compose_yml": (
        "services:\n  w:\n    command: celery -A shop worker -B --pool threads\n",
        {"beat": True, "pool": "threads"},
    ),
    "supervisord_conf": (
        "[program:w]\ncommand=celery -A %(ENV_APP)s worker -Q %(ENV_Q)s --autoscale=%(ENV_S)s\n",
        {"queues": "%(ENV_Q)s", "autoscale": "%(ENV_S)s"},
    ),
    "w_service": (
        "[Service]\nExecStart=/opt/venv/bin/celery -A shop worker --prefetch-multiplier 1 $OPTS\n",
        {"prefetch_multiplier": "1"},
    ),
    "list_yaml": (
        "x:\n  w:\n    command:\n    - celery\n    - -A\n    - shop\n    - worker\n    - -P\n    - threads\n",
        {"pool": "threads"},
    ),
    "folded_yaml": (
        "services:\n  w:\n    command: >\n      celery -A shop worker\n      --pool gevent\n      -B\n",
        {"pool": "gevent", "beat": True},
    ),
    "shell_yaml": (
        "services:\n  w:\n    command: ['sh', '-c', 'migrate && exec celery -A shop worker -B']\n",
        {"beat": True},
    ),
    "inline_yaml": ("x: {command: celery -A shop worker -P gevent, image: y}\n", {"pool": "gevent"}),
    "template_yaml": ("{{ if x }}\ncommand: celery -A shop worker -P solo\n{{ end }}\n", {"pool": "solo"}),
    "multi_sh": ("celery multi start w1 w2 -A shop -P threads\n", {"pool": "threads"}),
    "module_sh": ("python -m celery -A shop worker --time-limit 60\n", {"time_limit": "60"}),
    "Dockerfile": ('FROM python\nCMD ["celery", "-A", "shop", "worker", "-P", "gevent"]\n', {"pool": "gevent"}),
    "start_sh": (
        "#!/bin/sh\nexec celery -A shop worker \\\n  --pool threads \\\n  -c 9\n",
        {"pool": "threads", "concurrency": "9"},
    ),
}


@pytest.mark.parametrize(("name", "text", "options"), [(name, *rest) for name, rest in STARTED.items()], ids=[*STARTED])
def test_how_a_worker_is_started(tmp_path: Path, name: str, text: str, options: dict[str, Any]) -> None:
    (worker,) = deployed(tmp_path, **{name: text}).workers
    assert options == worker.options
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "celery" in line or line.endswith(">")]
    assert worker.location.line == lines[0]


@pytest.mark.parametrize(
    ("command", "queues"),
    [
        ("multi start 3 -A shop -Q:1 images,video -Q:2 data -Q:3 mail", ["images,video", "data", "mail"]),
        # the others have what no selector states
        ("multi start 10 -A shop -Q:1-3 images -Q:4,5 data -Q mail", ["images", "data", "mail"]),
        ("multi start 3 -A shop -Q:1-3 images -Q mail", ["images"]),
        ("multi restart w1 w2 -A shop -Q:w1 images --pool:w1=gevent -l info", ["images", None]),
        ("multi start w1 w2 -A shop -Q images", ["images"]),
    ],
)
def test_celery_multi_may_state_options_of_single_workers(
    tmp_path: Path, command: str, queues: list[str | None]
) -> None:
    """RPT322 found that no worker consumes any of these queues."""
    workers = deployed(tmp_path, start_sh=f"celery {command}\n").workers
    assert queues == [one.options.get("queues") for one in workers]
    assert {one.options.get("pool") for one in workers} <= {None, "gevent"}


def test_what_else_the_start_files_say(tmp_path: Path) -> None:
    found = deployed(
        tmp_path,
        Procfile="beat: celery -A worker beat\nx: celery-exporter --broker-url x\n# celery -A shop worker\n",
        compose_yaml='x:\n  healthcheck:\n    test: ["CMD-SHELL", "celery -A shop inspect -t 5 ping -d c@$$H"]\n',
    )
    assert found.workers == ()
    assert (Location("Procfile", 1),) == found.beats
    assert (Location("Procfile", 2),) == found.event_readers
    assert (Location("compose.yaml", 3),) == found.ping_probes


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ('ARGS="-A shop worker -P solo"\ncelery $ARGS\n', {"pool": "solo"}),
        (
            'ARGS="-A shop worker -P solo"\nif true; then\n  exec /usr/bin/celery ${ARGS} -c 3\nfi\n',
            {"concurrency": "3"},
        ),
        ("export APP=shop\nARGS='worker -P solo'\nARGS=\"$ARGS -c 3\"\ncelery -A $APP $ARGS\n", {"concurrency": "3"}),
        ("ARGS=worker\nCOUNT=3\ncelery -A shop $ARGS -c $COUNT\n", {"concurrency": "3"}),
        # given from outside
        ("celery -A shop worker -c $COUNT\n", {"concurrency": "$COUNT"}),
        # for one command
        ("ARGS=beat env\ncelery -A shop ${ARGS:-worker} worker\n", {}),
        # not yet
        ("celery -A shop worker -c $COUNT\nCOUNT=3\n", {"concurrency": "$COUNT"}),
        ("COUNT=3\necho \"$COUNT costs $5\"\ncelery -A shop worker -c '$COUNT'\n", {"concurrency": "$COUNT"}),
    ],
)
def test_a_script_keeps_options_in_a_variable(tmp_path: Path, lines: str, options: dict[str, str]) -> None:
    (tmp_path / "docker" / "entrypoints").mkdir(parents=True)
    (tmp_path / "docker" / "entrypoints" / "long.sh").write_text(f"#!/bin/sh\n{lines}")
    workers = read_deployment(tmp_path, ()).workers
    assert options.items() <= {key: value for one in workers for key, value in one.options.items()}.items()
    assert bool(options) is bool(workers)


@pytest.mark.parametrize(
    "lines",
    [
        "if OTHER:\n    app.conf.broker_url = OTHER\nelse:\n    app.conf.broker_url = f'redis://{HOST}:6379/0'  # here",
        "if OTHER:\n    app.conf.broker_url = 'amqp://h//'\nelse:\n    app.conf.broker_url = URL  # here",
        "app.conf.broker_url = 'amqp://h//'\napp.conf.broker_url = 'redis://h:6379/0'  # here",
        "app.conf.broker_url = URL  # here",
        # nothing tells them apart: the first
        "if OTHER:\n    app.conf.broker_url = OTHER  # here\nelse:\n    app.conf.broker_url = URL",
    ],
)
def test_a_setting_is_where_its_value_was_written(project: Callable[[str], Facts], tmp_path: Path, lines: str) -> None:
    facts = project(f"HOST, OTHER, URL = 'h', None, 'redis://h:6379/0'\n{lines}\n")
    place = facts.settings["broker_url"].location
    assert place is not None
    written = (tmp_path / place.file).read_text().splitlines()[place.line - 1]
    assert "# here" in written


@pytest.mark.parametrize(
    ("command", "schedulers"),
    [
        ("celery -A shop beat -S redbeat.RedBeatScheduler", ("redbeat.RedBeatScheduler",)),
        ("celery -A shop beat --scheduler redbeat.RedBeatScheduler -l info", ("redbeat.RedBeatScheduler",)),
        ("celery -A shop beat --scheduler=redbeat:RedBeatScheduler", ("redbeat:RedBeatScheduler",)),
        ("celery -A shop worker -B --scheduler redbeat.RedBeatScheduler", ("redbeat.RedBeatScheduler",)),
        ("celery -A shop beat -S django", ("django",)),
        ("celery -A shop beat", ()),
        # the file of a worker's state
        ("celery -A shop worker -B -S redbeat.RedBeatScheduler", ()),
        ("celery -A shop worker --scheduler redbeat.RedBeatScheduler", ()),
        ("celery -A shop beat --no-such-option x", ()),
    ],
)
def test_the_scheduler_that_a_command_names(tmp_path: Path, command: str, schedulers: tuple[str, ...]) -> None:
    assert schedulers == deployed(tmp_path, Procfile=f"beat: {command}\n").schedulers


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("app.conf.redbeat_redis_url = 'redis://localhost/3'", {"redbeat_redis_url"}),
        ("app.conf.update(REDBEAT_LOCK_TIMEOUT=5)", {"redbeat_lock_timeout"}),
        ("app.config_from_object(Settings, namespace='CELERY')", {"redbeat_redis_url"}),
        ("pass", set()),
    ],
)
def test_the_settings_of_redbeat_in_any_form(project: Callable[[str], Facts], lines: str, names: set[str]) -> None:
    text = "class Settings:\n    CELERY_REDBEAT_REDIS_URL = 'redis://localhost/3'\n    REDBEATEN_path = 1\n\n"
    assert names == project(text + lines + "\n").redbeat_settings


def test_a_container_of_kubernetes(tmp_path: Path) -> None:
    (tmp_path / "k8s").mkdir()
    (tmp_path / "k8s" / "worker.yaml").write_text(
        "kind: Deployment\nspec:\n  containers:\n  - command: [celery, -A, shop]\n    args: [worker, -P, solo]\n"
        "    livenessProbe:\n      exec:\n        command: [sh, -c, celery -A shop inspect ping]\n"
    )
    found = read_deployment(tmp_path, ())
    assert [worker.options for worker in found.workers] == [{"pool": "solo"}]
    assert (Location("k8s/worker.yaml", 8),) == found.ping_probes


def test_what_is_stated_replaces_what_is_found(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("worker: celery -A shop worker -P solo\n")
    (worker,) = read_deployment(tmp_path, ["celery -A shop worker -P threads"]).workers
    assert worker.options == {"pool": "threads"}


def test_the_section_of_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.repot.doctor]\nselect = ['RPT1']\nfail-on = 'warning'\nlongest-run = 1800\nmay-be-lost = 'shop.*'\n"
        "worker = 'celery -A shop worker'\n"
        "[tool.repot.doctor.waive]\nRPT403 = 'own network'\n'RPT203:shop.m*' = 'counters'\n"
    )
    (tmp_path / "deep").mkdir()
    config = read_config(tmp_path / "deep")
    assert tmp_path == config.root
    assert (
        config.select,
        config.fail_on,
        config.bounds.longest_run_s,
        config.bounds.may_be_lost,
    ) == (("RPT1",), "warning", 1800, ("shop.*",))
    own, some = config.waivers
    assert Location("pyproject.toml", 8) == own.location
    assert own.covers("RPT403", Finding("x", task="any.task"))
    assert some.covers("RPT203", Finding("x", task="shop.metrics"))
    assert not some.covers("RPT203", Finding("x", task="shop.bill"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.repot.doctor]\nfail_on = 'error'\n", "did you mean fail-on?"),
        ("[tool.repot.doctor]\nlongest-run = -1\n", "longest-run: Input should be greater than 0"),
        ("[tool.repot.doctor]\nfail-on = 'never'\n", "fail-on: Input should be 'error' or 'warning'"),
        ("[tool.repot.doctor\n", "cannot be read"),
    ],
)
def test_an_invalid_section(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigInvalid) as caught:
        read_config(tmp_path)
    assert said in str(caught.value)
