"""The total of a load: each id that was sent has one verdict, and the verdicts add up, whatever happened."""

from __future__ import annotations

import json
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from time import process_time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator

from repot.brokers.message import Message
from repot.chaos.instruments.journal import DELIVERED, EFFECT, ENDED, FAILED, PARKED, SENDING, SENT, STARTED, Journal
from repot.chaos.report import files
from repot.chaos.report.load_report import LoadReport, as_json, sums_text
from repot.chaos.report.result import CHILD, LOAD, TaskResult, Window
from repot.chaos.runner import load_planning
from repot.chaos.runner.evaluate import results_of
from repot.chaos.runner.load import require_total
from repot.chaos.runner.load_planning import LoadOptions, load_faults, load_plan
from repot.chaos.runner.mix import Call, Recorded, read_sample, recorded, weighted
from repot.chaos.runner.observer import Observer, Sent
from repot.chaos.runner.sampling import record_sample
from repot.chaos.runner.sender import Sender
from repot.chaos.runner.verdict import Sending, Verdict
from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.scenario import Needs
from repot.cli import chaos_load
from repot.errors import ConfigInvalid, ExperimentFailed
from repot.waiting import wait_until
from support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.brokers import Broker
    from repot.brokers.browse import Decide

WORKERS = ("target", "control")
SARIF_SCHEMA = Path(__file__).parent / "doctor" / "sarif-schema-2.1.0.json"


@dataclass
class History:
    """What happened to the messages of a load, as a journal has it, and what the sender knows."""

    lines: list[list[Any]] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    at: float = 0

    def write(self, kind: str, task: str, pid: int, **details: Any) -> None:
        self.at += 0.01
        self.lines.append([self.at, kind, WORKERS[pid % 2], pid, task, details])

    def send(self, task: str, sending: Sending = Sending.ACCEPTED) -> None:
        self.sent.append(Sent(LOAD, task, self.at, sending, name="shop.t"))

    def deliver(self, task: str, root: str, pid: int = 0, name: str = "shop.t") -> None:
        self.write(DELIVERED, task, pid, name=name, root=root, redelivered=False, late=True)

    def run(self, task: str, root: str, end: str = "SUCCESS", pid: int = 0, children: int = 0) -> None:
        self.write(STARTED, task, pid, name="shop.t", root=root, follows=[])
        for number in range(children):
            child = f"{task}-{number}"
            self.write(SENDING, child, pid, name="shop.c", root=root, by=task, queues=["q"], arguments=str(number))
            self.write(SENT, child, pid)
        if end == "SUCCESS":
            self.write(EFFECT, task, pid)
        if end == "FAILURE":
            self.write(FAILED, task, pid, text="ValueError: no", internal=False)
        if end:
            self.write(ENDED, task, pid, state=end)

    def results(
        self, left: frozenset[str] = frozenset(), ledger: dict[str, int] | None = None
    ) -> tuple[TaskResult, ...]:
        """Return the results; the verdicts add up."""
        with tempfile.TemporaryDirectory() as directory:
            journal = Journal(Path(directory) / "journal")
            journal.path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
            broker = cast("Broker", SimpleNamespace(depth_lag_s=0))
            observer = Observer(journal, lambda: broker, ("q",), Event())
            observer.sent = self.sent
            observer.died = dict.fromkeys(range(100), self.at)
            observer.unfinished = set(left)
            found = tuple(results_of(observer, 0, ledger=ledger))
            require_total(observer, len(self.sent), found)
            return found


def verdicts(results: tuple[TaskResult, ...], role: str = LOAD) -> dict[str, Verdict]:
    return {one.history.task: one.verdict for one in results if one.role == role}


#: How one delivery of a message ends: it is not run, killed in its run, raises, or succeeds.
ENDS = st.lists(st.sampled_from(["reserved", "", "FAILURE", "SUCCESS"]), max_size=3)
MESSAGES = st.tuples(
    st.sampled_from([Sending.ACCEPTED, Sending.UNKNOWN]), ENDS, st.integers(0, 2), st.booleans(), st.booleans()
)


@settings(deadline=None, max_examples=150)
@given(st.lists(MESSAGES, min_size=1, max_size=8))
def test_any_history_adds_up(messages: list[tuple[Sending, list[str], int, bool, bool]]) -> None:
    """Each message and each child has one verdict, and one that says whether it was done."""
    history, left, done = History(), set(), Counter[str]()
    for number, (sending, ends, children, is_left, is_parked) in enumerate(messages):
        task = f"t{number}"
        history.send(task, sending)
        for pid, end in enumerate(ends):
            history.deliver(task, task, pid)
            if end != "reserved":
                history.run(task, task, end, pid, children)
            done[task] += end == "SUCCESS"
        if is_parked:
            history.write(PARKED, task, 0)
        if is_left:
            left.add(task)
    found = history.results(frozenset(left))
    assert len(messages) == len(verdicts(found))
    ran = Counter(line[4] for line in history.lines if line[1] == SENT)
    assert set(ran) == set(verdicts(found, CHILD))
    for task, verdict in verdicts(found).items():
        assert (verdict is Verdict.DUPLICATED) == (done[task] > 1)
        assert verdict.is_harmless == (done[task] == 1)


def test_the_applications_own_ledger_decides() -> None:
    """Of two runs, one row by key is one effect; a run that returned without an effect did not do its work."""
    history = History()
    for task in ("t0", "t1", "t2"):
        history.send(task)
        history.deliver(task, task)
        history.run(task, task, children=1)
    history.deliver("t0", "t0", 1)
    history.run("t0", "t0", pid=1)
    assert verdicts(history.results())["t0"] is Verdict.DUPLICATED
    noted = {"t0": 1, "t1": 0, "t2": 2, "another load's": 3}
    found = history.results(ledger=noted)
    assert verdicts(found) == {"t0": Verdict.REDELIVERED, "t1": Verdict.LOST, "t2": Verdict.DUPLICATED}
    # the children's task is not in it: they are judged by their runs
    assert verdicts(found, CHILD) == verdicts(history.results(), CHILD)


def test_what_is_in_the_ledger_was_not_lost_with_the_worker() -> None:
    history = History()
    for task in ("t0", "t1"):
        history.send(task)
        history.deliver(task, task)
        history.run(task, task, end="")
    assert {Verdict.LOST} == set(verdicts(history.results()).values())
    assert verdicts(history.results(ledger={"t0": 1})) == {"t0": Verdict.OK, "t1": Verdict.LOST}


def test_work_that_is_sent_again_under_another_id_has_no_second_effect_in_the_ledger() -> None:
    history = History()
    history.send("t0")
    for pid, child in enumerate(("c0", "c1")):
        history.deliver("t0", "t0", pid)
        history.write(STARTED, "t0", pid, name="shop.t", root="t0", follows=[])
        history.write(SENDING, child, pid, name="shop.c", root="t0", by="t0", queues=["q"], arguments="same")
        history.write(SENT, child, pid)
        history.write(EFFECT, "t0", pid)
        history.write(ENDED, "t0", pid, state="SUCCESS")
        history.deliver(child, "t0", pid, name="shop.c")
        history.run(child, "t0", pid=pid)
    assert verdicts(history.results(), CHILD) == {"c0": Verdict.OK, "c1": Verdict.DUPLICATED}
    once = history.results(ledger={"c0": 1})
    assert verdicts(once, CHILD) == {"c0": Verdict.OK, "c1": Verdict.OK}
    twice = history.results(ledger={"c0": 1, "c1": 1})
    assert verdicts(twice, CHILD) == {"c0": Verdict.OK, "c1": Verdict.DUPLICATED}


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 20), st.data())
def test_a_message_whose_events_are_removed_is_lost_and_one_that_runs_twice_is_duplicated(
    count: int, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, count - 1))
    twice = data.draw(st.integers(0, count - 1).filter(lambda number: number != gone or count == 1))
    history = History()
    for number in range(count):
        history.send(f"t{number}")
        for pid in range(2 if number == twice else 1):
            history.deliver(f"t{number}", f"t{number}", pid)
            history.run(f"t{number}", f"t{number}", pid=pid)
    history.lines = [line for line in history.lines if line[4] != f"t{gone}"]
    found = verdicts(history.results())
    expected = {f"t{number}": Verdict.OK for number in range(count)}
    assert expected | {f"t{twice}": Verdict.DUPLICATED} | {f"t{gone}": Verdict.LOST} == found


def test_each_message_has_a_tree_of_its_own() -> None:
    history = History()
    for root in ("a", "b"):
        history.send(root)
        history.deliver(root, root)
        history.run(root, root, children=2)
    for child in ("a-0", "a-1", "b-0"):
        history.deliver(child, child[0], 1, "shop.c")
        history.run(child, child[0], pid=1)
    assert verdicts(history.results(), CHILD) == {"a-0": "ok", "a-1": "ok", "b-0": "ok", "b-1": "lost"}


def test_verdicts_that_do_not_add_up_are_an_error() -> None:
    history = History()
    history.send("a")
    history.send("a")
    with pytest.raises(ExperimentFailed, match="do not add up: 2 on 1 ids, and 2 messages were sent"):
        history.results()


def test_a_task_that_a_worker_had_and_that_has_no_root_here_is_unexpected_or_an_error() -> None:
    history = History()
    history.send("a")
    history.run("x", "elsewhere")
    assert verdicts(history.results(), "stranger") == {"x": Verdict.UNEXPECTED}
    history.deliver("y", "elsewhere")
    with pytest.raises(ExperimentFailed, match="1 tasks that workers had have none, such as y"):
        history.results()


def test_many_messages_are_judged_in_seconds() -> None:
    """A time that grows with the square of their number would take minutes."""
    history = History()
    for number in range(3000):
        task = f"t{number}"
        history.send(task)
        history.deliver(task, task)
        history.run(task, task, children=1)
        history.deliver(f"{task}-0", task, 1, "shop.c")
        history.run(f"{task}-0", task, pid=1)
    begun = process_time()
    found = history.results()
    assert len(found) == 6000
    # of the processor: other processes do not count
    assert process_time() - begun < 10


# the sender


def sends(count: int, call: Callable[[int], str], rate: float) -> tuple[Sender, list[Sent]]:
    """Send messages; return the sender when it is done, and what it has noted."""
    sent: list[Sent] = []
    planned = [Sent(LOAD, f"t{number}", 0) for number in range(count)]
    sender = Sender([partial(call, number) for number in range(count)], planned, sent.append, rate)
    sender.start()
    wait_until(lambda: sender.is_over, within_s=30, what="all is sent")
    sender.end()
    return sender, sent


def test_each_message_has_the_reply_of_the_broker() -> None:
    def call(number: int) -> str:
        if number % 2:
            message = "connection refused"
            raise OSError(message)
        return ""

    sender, sent = sends(8, call, rate=2)
    replies = {one.task: (one.sending, one.error) for one in sent}
    assert len(replies) == 8
    assert replies["t0"] == (Sending.ACCEPTED, "")
    assert replies["t1"] == (Sending.UNKNOWN, "OSError: connection refused")
    assert all(one.at > 0 for one in sent)
    assert sender.behind_s < 4


def test_a_sender_that_cannot_keep_up_says_so() -> None:
    """Eight threads, each of which a message holds up for as long as ten take."""
    sender, sent = sends(40, lambda _: str(Event().wait(0.5)), rate=40)
    assert len(sent) < 40
    assert sender.behind_s > 0.05
    shown = report(History(), planned=40, sent=len(sent), behind_s=sender.behind_s)
    assert f"The sender could not keep up: {len(sent)} of 40 messages were sent, up to" in shown.missed
    assert report(History(), planned=2, sent=2).missed == ""


def test_a_message_that_cannot_be_made_ends_the_load() -> None:
    def call(_: int) -> str:
        message = "no route"
        raise ValueError(message)

    with pytest.raises(ExperimentFailed, match="a message was never sent: ValueError: no route"):
        # at a rate of 200 the time for all three may be over before a thread begins
        sends(3, call, rate=0.1)


# the report


def report(history: History, *windows: Window, **given: Any) -> LoadReport:
    """Return a report of these events and faults."""
    found = LoadReport(
        app="shop:app", profile="redis-stock", guard=True, seed=0, created="2026-01-01T00:00:00+00:00", took_s=1,
        product="Redis", version="8", versions={}, rate=1, for_s=1, planned=len(history.sent), sent=len(history.sent),
        behind_s=0, task_results=history.results(), windows=windows, inapplicable={}, notices=(), left="", untested="",
        command="repot chaos load",
    )  # fmt: skip
    return replace(found, **given)


def mixed() -> LoadReport:
    """Return a report of two tasks, of which `shop.mail` went wrong, with a password in an address."""
    history = History()
    for task, end in (("a", "SUCCESS"), ("b", ""), ("c", "")):
        history.send(task)
        history.deliver(task, task)
        history.run(task, task, end)
    made = report(history, Window("the worker is killed", 0.04, 0.06), untested="redis://u:pl4nted@h")
    named = tuple(
        replace(one, name="shop.charge" if one.history.task == "a" else "shop.mail", reason="amqp://u:pl4nted@h")
        for one in made.task_results
    )
    return replace(
        made, task_results=named, places={"shop.mail": ("shop/tasks.py", 7), "shop.charge": ("shop/tasks.py", 3)}
    )


def test_junit_has_a_case_for_each_task_and_a_failure_for_what_went_wrong() -> None:
    text = files.LOAD_FORMS["junit"](mixed())
    assert "pl4nted" not in text
    (suite,) = ET.fromstring(text.encode())  # noqa: S314 - our own
    cases = {one.get("name"): one.find("failure") for one in suite.iter("testcase")}
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert cases["shop.charge"] is None
    failure = cases["shop.mail"]
    assert failure is not None
    assert failure.get("message") == "2 lost of 2"
    assert "met the worker is killed, 0.0 s to 0.1 s" in str(failure.text)
    assert str(failure.text).endswith("run it again: repot chaos load")
    assert "0 of 0" not in text


def test_sarif_has_what_went_wrong_at_the_line_of_the_task() -> None:
    text = files.LOAD_FORMS["sarif"](mixed())
    assert "pl4nted" not in text
    log = json.loads(text)
    Draft4Validator(json.loads(SARIF_SCHEMA.read_text())).validate(log)
    (run,) = log["runs"]
    (found,) = run["results"]
    assert found["ruleId"] == run["tool"]["driver"]["rules"][found["ruleIndex"]]["id"] == "load-lost"
    (location,) = found["locations"]
    assert location["physicalLocation"]["region"]["startLine"] == 7
    assert found["message"]["text"].startswith("shop.mail: 2 of 2 are lost. lost: shop.mail b, sent at")


def test_the_forms_of_a_load_in_which_nothing_went_wrong_or_nothing_has_a_line() -> None:
    assert {"junit", "sarif"} == {*files.LOAD_FORMS}
    for made in (replace(mixed(), places={}), replace(mixed(), task_results=())):
        log = json.loads(files.LOAD_FORMS["sarif"](made))
        Draft4Validator(json.loads(SARIF_SCHEMA.read_text())).validate(log)
        assert log["runs"][0]["results"] == []
    (suite,) = ET.fromstring(files.LOAD_FORMS["junit"](replace(mixed(), task_results=())).encode())  # noqa: S314
    assert (suite.get("tests"), suite.get("failures")) == ("0", "0")


def test_every_bad_verdict_has_a_rule() -> None:
    log = json.loads(files.LOAD_FORMS["sarif"](mixed()))
    rules = {one["id"].removeprefix("load-").replace("-", " ") for one in log["runs"][0]["tool"]["driver"]["rules"]}
    assert {verdict.value for verdict in Verdict if verdict.is_bad} == rules


def test_the_report_has_sums_and_the_faults_that_each_bad_task_met() -> None:
    history = History()
    for task, end in (("a", "SUCCESS"), ("b", ""), ("c", "")):
        history.send(task)
        history.deliver(task, task)
        if task != "c":
            history.run(task, task, end)
    # b runs from 0.05 s until the end of all, when its process was found dead
    before, during, after = Window("before", 0.001, 0.002), Window("during", 0.04, 0.06), Window("after", 7, 8)
    found = report(history, before, during, after)
    assert sums_text(found.sums(LOAD)) == "3 = 1 ok + 2 lost"
    met = {one.history.task: [window.what for window in found.met(one)] for one in found.bad}
    assert met == {"b": ["during"], "c": ["after"]}
    data = json.loads(as_json(found))
    assert data["sums"]["load"] == {"ok": 1, "lost": 2}
    assert data["tasks"] == [{"role": "load", "name": "shop.t", "verdicts": {"ok": 1, "lost": 2}}]
    assert [[window["what"] for window in one["met"]] for one in data["bad"]] == [["during"], ["after"]]


def test_the_terminal_has_a_table_the_sums_and_an_example_of_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    for number in range(6):
        history.send(f"t{number}")
        if number > 3:
            history.deliver(f"t{number}", f"t{number}")
            history.run(f"t{number}", f"t{number}", children=1)
    fault = Window("link-down: the link is closed", 0.01, 3)
    chaos_load._print(report(history, fault, left="1 ready in q"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["task", "role", "ok", "lost", "all"]
    assert lines[2].split() == ["shop.t", "sent", "2", "4", "6"]
    assert lines[3].split() == ["shop.c", "child", "2", "2"]
    assert "sent: 6 = 2 ok + 4 lost" in lines
    assert "sent by these tasks: 2 = 2 lost" in lines
    assert "faults: 1 (link-down)" in lines
    assert "left: 1 ready in q" in lines
    examples = [line for line in lines if line.startswith("lost: shop.t")]
    assert len(examples) == 3
    assert examples[0].endswith("; met link-down: the link is closed, 0.0 s to 3.0 s")


# samples

HEADERS = {"task": "shop.charge", "id": "1"}


def message(body: object, content_type: str = "application/json", **headers: Any) -> Message:
    return Message(json.dumps(body).encode(), content_type, "utf-8", headers)


RECORDED = {
    "protocol 2": (message([[7], {"a": 1}, {}], **HEADERS), Recorded(Call("shop.charge", (7,), {"a": 1}))),
    "protocol 2 with a chain": (
        message([[7], {}, {"chain": [{"task": "x"}], "chord": None}], **HEADERS),
        Recorded(Call("shop.charge", (7,), {}), continues=True),
    ),
    "protocol 1": (
        message({"task": "shop.charge", "id": "1", "args": [7], "kwargs": {}}), Recorded(Call("shop.charge", (7,), {})),
    ),
    "pickle": (message([[7], {}, {}], "application/x-python-serialize", **HEADERS), "not JSON"),
    "compressed": (message([[7], {}, {}], **HEADERS, compression="application/x-gzip"), "compressed"),
    "cut off": (Message(b"[[7], {}", "application/json", "utf-8", HEADERS), "not valid JSON"),
    "no task": (message({"event": 1}), "not a task"),
    "other arguments": (message(["7", {}, {}], **HEADERS), "not a task"),
    "of Celery": (message([[], {}, {}], task="celery.chord_unlock"), "a task of Celery's own"),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_a_sample_has_the_tasks_of_json_messages(name: str) -> None:
    found, expected = RECORDED[name]
    assert expected == recorded(found)


class _Queues:
    """A broker with messages in queues; the visit of a real one is tested in `tests/servers/test_browse.py`."""

    def __init__(self, **queues: list[Message]) -> None:
        self.queues, self.seen = queues, 0

    def browse(self, queue: str, decide: Decide) -> SimpleNamespace:
        for one in self.queues.get(queue, []):
            self.seen += 1
            decide(one)
        return SimpleNamespace(missing=queue not in self.queues)


def test_a_sample_ends_with_its_count_and_says_what_is_left_out() -> None:
    broker = _Queues(a=[RECORDED["pickle"][0], *[RECORDED["protocol 2 with a chain"][0]] * 5])
    found = record_sample(cast("Broker", broker), ["none", "a"], 3)
    assert (len(found.calls), found.continued, found.skipped, found.missing) == (3, 3, {"not JSON": 1}, ["none"])
    # one more to see that there are more
    assert broker.seen == 5


LINES = {
    "no JSON": ("{", "line 2 is not JSON"),
    "no task": ('{"args": []}', "line 2 is not an object of task, args and kwargs"),
    "another field": ('{"task": "a", "eta": 1}', "line 2 is not an object of task, args and kwargs"),
    "arguments": ('{"task": "a", "args": {}}', "line 2: args is not a list"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_call_is_named(name: str, tmp_path: Path) -> None:
    line, said = LINES[name]
    path = tmp_path / "sample.jsonl"
    path.write_text(f'{{"task": "a", "args": [1]}}\n{line}\n')
    with pytest.raises(ConfigInvalid, match=said):
        read_sample(path)


# options

APP = """
from celery import Celery
app = Celery("mixed", broker="redis://127.0.0.1:1/0")
app.conf.task_routes = {"mixed.mail": {"queue": "mails"}}

@app.task(name="mixed.pay")
def pay(order): ...

@app.task(name="mixed.mail")
def mail(order): ...

def order(task):
    return [f"{task}-1"]

def plain():
    return {"order": 1}
"""


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadOptions:
    """Options with an application that has two tasks."""
    (tmp_path / "mixed.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return LoadOptions("mixed:app", tasks=("mixed.pay",), args="[1]", rate=10, for_s=10)


def changed(options: LoadOptions, **given: Any) -> LoadOptions:
    """Return the options with others in their place."""
    values = {name: getattr(options, name) for name in LoadOptions.__slots__}
    return LoadOptions(**{**values, **given})


def test_the_mix_is_drawn_by_weight_and_each_message_has_its_route(options: LoadOptions) -> None:
    given = changed(
        options,
        tasks=("mixed.pay", "mixed.mail=4"),
        args=None,
        arguments="mixed:order",
        rate=100,
        profile="redis-stock",
    )
    planned = load_plan(given)
    sent = Counter((one.call.task, one.queue) for one in planned.load.dispatches)
    assert sent.total() == 1000
    assert 700 < sent["mixed.mail", "mails"] < 900
    assert {("mixed.pay", "celery"), ("mixed.mail", "mails")} == set(sent)
    assert all(one.call.args == (f"{one.call.task}-1",) for one in planned.load.dispatches)
    assert planned.load.dispatches == load_plan(given).load.dispatches
    assert planned.load.dispatches != load_plan(changed(given, seed=1)).load.dispatches


def test_a_function_without_a_parameter_and_a_sample_make_messages(options: LoadOptions, tmp_path: Path) -> None:
    (made, *_) = load_plan(changed(options, args=None, arguments="mixed:plain")).load.dispatches
    assert made.call.kwargs == {"order": 1}
    (tmp_path / "s").write_text('{"task": "mixed.pay", "args": [5]}\n{"task": "mixed.mail", "kwargs": {"order": 6}}\n')
    planned = load_plan(changed(options, tasks=(), args=None, sample=tmp_path / "s"))
    assert {"mixed.pay", "mixed.mail"} == {one.call.task for one in planned.load.dispatches}


def test_by_default_all_faults_happen_that_need_no_task_at_a_phase(options: LoadOptions) -> None:
    planned = load_plan(options)
    assert set(load_faults()) == {one.name for one in planned.load.faults}
    assert Needs.OWN is planned.load.scenario.needs
    assert (case := planned.plan.cases[0]).profile.name == "redis-stock"
    assert case.scenario.name == "load"
    assert load_plan(changed(options, faults=("no-fault",))).load.faults == ()
    harmless = load_planning._faults((), harmless=True)
    assert {Needs.ANY} == {one.needs for one in harmless}


def test_the_page_names_the_faults_of_a_load() -> None:
    page = (ROOT / "docs" / "chaos-testing.md").read_text()
    section = page.partition("## Load with faults")[2].partition("\n## ")[0]
    assert set(load_faults()) == {name for name in SCENARIOS if f"`{name}`" in section} - {"no-fault"}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no task": ({"tasks": ()}, "neither --task nor --sample"),
    "unknown task": ({"tasks": ("mixed.pai",)}, "there is no task 'mixed.pai'"),
    "weight": ({"tasks": ("mixed.pay=much",)}, "the weight is not a number above 0"),
    "no weight": ({"tasks": ("mixed.pay=0",)}, "the weight is not a number above 0"),
    "twice": ({"tasks": ("mixed.pay", "mixed.pay")}, "--task mixed.pay is named twice"),
    "both": ({"sample": Path("s")}, "--sample and --task together"),
    "no sample": ({"tasks": (), "args": None, "sample": Path("s")}, "the sample s cannot be read"),
    "two arguments": ({"arguments": "mixed:order"}, "--args and --arguments together"),
    "no function": ({"args": None, "arguments": "mixed:nothing"}, "--arguments mixed:nothing was not found"),
    "nothing": ({"rate": 0.01, "for_s": 1}, "are 0 messages"),
    "too many": ({"rate": 1000, "for_s": 3600}, "are 3600000 messages"),
    "unknown fault": ({"faults": ("earthquake",)}, "there is no scenario 'earthquake'"),
    "fault at a phase": ({"faults": ("ack-cut",)}, "the fault of this scenario cannot happen at any instant"),
    "no fault and one": ({"faults": ("no-fault", "blackhole")}, "--fault no-fault together with others"),
    "profile": ({"profile": "redis"}, "there is no profile 'redis'"),
    "queue": ({"tasks": ("mixed.mail",), "queues": "celery"}, "sent to the queue 'mails', which no worker consumes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_error_with_the_next_step(options: LoadOptions, name: str) -> None:
    given, said = WRONG[name]
    with pytest.raises(ConfigInvalid) as refused:
        load_plan(changed(options, **given))
    assert said in refused.value.message
    assert refused.value.hint


def test_weights_are_numbers() -> None:
    assert weighted(["a", "b=2.5"]) == {"a": 1, "b": 2.5}
