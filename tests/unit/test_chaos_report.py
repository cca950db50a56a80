"""The forms of a report: JSON that reads back, JUnit XML, HTML, Markdown, conclusions and terminal tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from jsonschema import Draft4Validator

from repot.chaos.report import files
from repot.chaos.report.conclusions import ConclusionKind, conclusions, limits
from repot.chaos.report.junit import describe
from repot.chaos.report.matrix import CellStatus, counts, matrix
from repot.chaos.report.result import About, Campaign, Cell, CellVerdict, ScaledTime, Unmeasured, WorkerOutcome
from repot.chaos.report.timeline import WIDTH, picture
from repot.chaos.runner import planning
from repot.chaos.runner.verdict import Verdict
from repot.cli import tables
from repot.errors import FileUnusable
from repot.sanitize import sanitize_report
from repot.testbed.servers import BROKER_VARIABLE, TOXIPROXY_VARIABLE
from support.campaigns import NOTICES, PROFILES, SCENARIOS, campaign, result, task_result

if TYPE_CHECKING:
    from collections.abc import Callable

SARIF_SCHEMA = Path(__file__).parent / "doctor" / "sarif-schema-2.1.0.json"
LOST, OK, TWICE, AGAIN = (
    CellVerdict(Verdict.LOST),
    CellVerdict(Verdict.OK),
    CellVerdict(Verdict.DUPLICATED),
    CellVerdict(Verdict.REDELIVERED),
)
HUNG = CellVerdict(Verdict.OK, worker=WorkerOutcome.HUNG)
MANY = tuple(About(f"{one.name}-{number}", one.title, one.text) for number in range(6) for one in SCENARIOS)


def found(*cells: tuple[str, str, bool, CellVerdict]) -> Campaign:
    """Return a campaign of these cells; a cell that is named twice has two runs."""
    seen: list[Cell] = []
    results = []
    for scenario, profile, guard, verdict in cells:
        cell = Cell(scenario, profile, guard)
        seen.append(cell)
        results.append(result(cell, verdict, number=seen.count(cell)))
    return replace(campaign(), results=tuple(results), unmeasured=(), interrupted=False)


def test_json_reads_back(tmp_path: Path) -> None:
    """Every verdict, worker outcome and unusual character; only masked text differs."""
    made = sanitize_report(campaign(repeat=2))
    files.write(files.as_json(made), tmp_path / "files.json")
    assert made == files.read(tmp_path / "files.json")


def test_json_has_derived_values() -> None:
    """A script can find unexpected verdicts without repot's rules."""
    made = campaign()
    results = json.loads(files.as_json(made))["results"]
    assert [one.as_expected for one in made.results] == [one["as_expected"] for one in results]
    assert results[0]["name"] == "ack-cut/redis-stock/plain"
    assert results[0]["found"] == "duplicated"
    assert results[0]["bad"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "EOF"),
        ("no JSON", "Invalid JSON"),
        ("[]", "should be an object"),
        ('{"created": 5, "results": "s3cret"}', "created"),
        ('{"runs": []}', "more"),
    ],
)
def test_a_file_that_is_not_a_report(tmp_path: Path, text: str, says: str) -> None:
    """One short error names the problem and the next step, without the values."""
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(FileUnusable, match=says) as raised:
        files.read(path)
    assert raised.value.exit_code == 2
    assert "repot chaos run --json" in raised.value.hint
    assert "s3cret" not in str(raised.value)
    assert len(raised.value.message) < 400


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    """A directory instead of a file, and a directory that does not exist."""
    with pytest.raises(FileUnusable, match="Is a directory"):
        files.read(tmp_path)
    with pytest.raises(FileUnusable, match="No such file"):
        files.read(tmp_path / "missing.json")
    for write in (files.require_writable, lambda path: files.write("text", path)):
        with pytest.raises(FileUnusable, match="No such file"):
            write(tmp_path / "no" / "directory.html")


def test_the_check_for_a_writable_file_changes_nothing(tmp_path: Path) -> None:
    """A new file is removed, an old one keeps its content."""
    files.require_writable(tmp_path / "new.html")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.html").write_text("old")
    files.require_writable(tmp_path / "old.html")
    assert (tmp_path / "old.html").read_text() == "old"


@pytest.mark.parametrize("form", [files.as_json, *files.FORMS.values()])
def test_no_form_contains_a_secret(form: Callable[[Campaign], str]) -> None:
    """A password in a logged address is masked, and no control character is left."""
    assert any("s3cret-planted" in text for text in NOTICES)
    text = form(campaign())
    assert "s3cret-planted" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", text)
    text.encode()


def test_half_of_a_surrogate_pair_is_escaped() -> None:
    """No file can hold it; escaping twice changes nothing."""
    made = replace(campaign(), app="half \ud800 of it")
    assert sanitize_report(made).app == "half \\ud800 of it"
    assert sanitize_report(made) == sanitize_report(sanitize_report(made))
    for form in (files.as_json, *files.FORMS.values()):
        form(made).encode()


def test_junit_has_a_suite_for_each_scenario_and_a_case_for_each_run() -> None:
    """The counts add up, and the elements have the order that CI systems read."""
    made = campaign(repeat=2)
    root = ET.fromstring(files.as_junit(made))  # noqa: S314 - our own
    assert root.tag == "testsuites"
    assert [one.name for one in SCENARIOS] == [suite.get("name") for suite in root]
    cases = root.findall("./testsuite/testcase")
    assert len(made.results) + len(made.unmeasured) == len(cases)
    kinds = {"failure": len(made.unexpected), "error": 1, "skipped": 1}
    for kind, number in kinds.items():
        assert number == len(root.findall(f"./testsuite/testcase/{kind}"))
    for suite in root:
        assert {"properties", "testcase"} == {child.tag for child in suite}
        for kind, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert str(len(suite.findall(f"testcase/{kind}"))) == suite.get(attribute)
        assert str(len(suite.findall("testcase"))) == suite.get("tests")
    assert str(len(cases)) == root.get("tests")
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)


def test_junit_explains_a_failure() -> None:
    """It has both verdicts, every task, the logged problems, and the command that runs it again."""
    root = ET.fromstring(files.as_junit(campaign()))  # noqa: S314 - our own
    failure = root.find("./testsuite[@name='ack-cut']/testcase[@name='redis-stock plain']/failure")
    assert failure is not None
    assert failure.get("message") == "found duplicated, expected ok (`repot chaos explain ack-cut`)"
    text = failure.text or ""
    for words in ("effects 2", "waiting 2", "<script>document.title", "repot chaos run ack-cut --profile redis-stock"):
        assert words in text


class _Page(HTMLParser):
    """The references, identifiers and tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.elsewhere: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and (value or "").startswith("#"):
                self.links.append(unquote(value or "")[1:])
            elif name in ("src", "href", "srcset", "action", "data"):
                self.elsewhere.append(f"{tag} {name} {value}")


def test_the_page_is_self_contained() -> None:
    """It has no external reference, in markup or in style."""
    text = files.as_html(campaign())
    page = _Page(text)
    assert page.elsewhere == []
    assert not {"link", "img", "iframe", "object", "base"} & set(page.tags)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in style
    assert re.findall(r"url\([^)]*\)", style) == ["url(#hatch)"]
    assert not re.search("https?:", text)


@pytest.mark.parametrize(
    ("app", "guards"), [("shop:app shop.charge", (False,)), ("shop:app shop.charge", (True,)), ("", (False,))]
)
def test_the_page_of_an_application_that_guards_nothing_says_nothing_of_the_guard(
    app: str, guards: tuple[bool, ...]
) -> None:
    made = campaign()
    some = tuple(one for one in made.results if one.cell.guard in guards)
    text = files.as_html(replace(made, app=app, results=some, unmeasured=()))
    explained = "<dt>guarded</dt>" in text
    assert explained == (not app or True in guards)
    assert explained != ("<dt>plain</dt>" in text)


def test_logged_text_is_escaped_on_the_page() -> None:
    """The page has only its own script, and expands no template in a log."""
    text = files.as_html(campaign())
    assert _Page(text).tags.count("script") == 1
    assert "&lt;script&gt;document.title" in text
    assert "{{ 7 * 7 }}" in text
    made = campaign()
    evil = '"><script>alert(1)</script>'
    named = replace(
        made,
        app=evil,
        versions={evil: evil},
        scenarios=(About(evil, evil, evil),),
        results=(result(Cell(evil, evil, guard=False), LOST, left=evil, lanes=(evil,)),),
        unmeasured=(Unmeasured(Cell(evil, "p", guard=True), 1, evil, failed=True, command=evil),),
    )
    assert _Page(files.as_html(named)).tags.count("script") == 1


@pytest.mark.parametrize("repeat", [1, 3])
def test_every_link_of_the_page_leads_somewhere(repeat: int) -> None:
    """Each known cell has a link to its details, and every id is unique."""
    made = campaign(repeat=repeat)
    page = _Page(files.as_html(made))
    assert set(page.links) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    cells = {one.cell.name for one in made.results} | {one.cell.name for one in made.unmeasured}
    assert cells <= set(page.links)


def test_the_page_of_a_large_campaign_stays_small() -> None:
    """A page of 400 cells can be mailed."""
    made = campaign(scenarios=MANY[:29])
    assert len(made.results) > 400
    assert len(files.as_html(made).encode()) < 4_000_000


def test_equal_repetitions_are_shown_as_one() -> None:
    """One of them is drawn; of differing runs one for each verdict, and the cell names them."""
    equal = files.as_html(found(*[("ack-cut", "redis-late", False, OK)] * 3))
    assert equal.count('<svg class="timeline" viewBox="0 0') == 1
    assert "2 further runs found the same" in equal
    differ = files.as_html(found(("ack-cut", "redis-late", False, OK), ("ack-cut", "redis-late", False, LOST)))
    assert differ.count('<svg class="timeline" viewBox="0 0') == 2
    assert "not stable: lost 1, ok 1 of 2" in differ


def test_markdown_is_one_table_with_its_conclusions() -> None:
    """It has date and versions, equally many cells in every row, and no unescaped bar."""
    text = files.as_markdown(campaign())
    counted = "Only runs were counted: without a probe, an effect is a run whose function returned."
    assert text.startswith(
        "# The fault matrix\n\n67 cells, 67 runs, 7 cells not as expected. **Bold**: not acceptable."
    )
    assert text.count(f"\n\n{counted}\n\n") == 1
    measured = text.partition("\n## How it was measured\n\n")[2]
    assert measured.startswith("Measured 2026-11-21T21:37:41+00:00 with repot 0.1.0, celery 5.7.0")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert 2 + len(SCENARIOS) == len(rows)
    assert {2 * len(PROFILES) + 3} == {len(re.split(r"(?<!\\)\|", row)) for row in rows}
    assert "| ack-cut | **duplicated** ≠ | ok |" in text
    assert f"\n## {ConclusionKind.GUARD_HELPS.value}" in text


def test_the_matrix_has_every_status() -> None:
    """Failed, inapplicable and unmeasured cells differ, and a bad repetition decides."""
    table = matrix(campaign())
    last = [summary.status for summary in table.row(table.rows[-1])[-3:]]
    assert last == [CellStatus.FAILED, CellStatus.INAPPLICABLE, CellStatus.UNMEASURED]
    assert set(CellStatus) == {summary.status for row in table.rows for summary in table.row(row)}
    mixed = matrix(found(("a", "p", False, OK), ("a", "p", False, LOST), ("a", "p", False, OK)))
    assert (
        mixed.known[0].status,
        mixed.known[0].differs,
        mixed.known[0].text,
    ) == (CellStatus.BAD, True, "not stable: ok 2, lost 1 of 3")
    assert counts(mixed).lost == 1


def _runs(*verdicts: CellVerdict, failed: int = 0) -> Campaign:
    """Return a campaign of one cell, with runs that have a verdict and runs that have none."""
    with_verdicts = found(*(("s", "p", False, verdict) for verdict in verdicts))
    cell, total = Cell("s", "p", guard=False), len(verdicts)
    none = tuple(Unmeasured(cell, total + number, "why", failed=True, command="") for number in range(1, failed + 1))
    return replace(with_verdicts, unmeasured=none)


#: Runs of one cell, its spread, and whether it is stable.
SPREADS = {
    "one run": (_runs(LOST), "lost", True),
    "all equal": (_runs(*[LOST] * 5), "lost 5 of 5", True),
    "two verdicts": (
        _runs(*[CellVerdict(Verdict.REDELIVERED)] * 3, *[LOST] * 2), "redelivered 3, lost 2 of 5", False,
    ),
    "verdicts of several parts": (
        _runs(OK, CellVerdict(Verdict.OK, children=Verdict.LOST)), "ok, children lost 1; ok 1 of 2", False,
    ),
    "a run without a verdict": (_runs(OK, OK, failed=1), "ok 2, no verdict 1 of 3", False),
    "one run with a verdict": (_runs(OK, failed=2), "ok 1, no verdict 2 of 3", False),
}  # fmt: skip


@pytest.mark.parametrize("name", SPREADS)
def test_each_form_of_a_report_has_the_spread_of_a_cell_and_says_that_it_is_not_stable(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repeated, spread, is_stable = SPREADS[name]
    text = spread if is_stable else f"not stable: {spread}"
    (cell,) = json.loads(files.as_json(repeated))["cells"]
    assert (spread, is_stable) == (cell["spread"], cell["stable"])
    assert len(repeated.results) == sum(one["runs"] for one in cell["verdicts"])
    assert len(repeated.unmeasured) == cell["without_verdict"]
    assert text in files.as_markdown(repeated)
    assert text in files.as_html(repeated)
    tables.results(repeated)
    assert text in shown(capsys)
    tables.repetitions(repeated)
    line = "" if name == "one run" else f"s/p/plain: {spread}"
    assert line in shown(capsys)


def test_a_profile_without_a_description_has_a_column() -> None:
    table = matrix(found(("mine", "own", True, OK)))
    assert [row.name for row in table.rows] == ["mine"]
    assert [column.name for column in table.columns] == ["own, guarded"]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (LOST, OK, ConclusionKind.FIXED),
        (HUNG, AGAIN, ConclusionKind.FIXED),
        (TWICE, CellVerdict(Verdict.PARKED), ConclusionKind.FIXED),
        (LOST, LOST, ConclusionKind.NOT_FIXED),
        (LOST, TWICE, ConclusionKind.NOT_FIXED),
        (AGAIN, HUNG, ConclusionKind.WORSE),
        (OK, OK, None),
        (OK, AGAIN, None),
    ],
)
@pytest.mark.parametrize("guard", [False, True])
def test_conclusions_about_moving(
    before: CellVerdict, after: CellVerdict, kind: ConclusionKind | None, *, guard: bool
) -> None:
    """Bad before and not after, bad both times, or bad only after."""
    told = conclusions(found(("s", "redis-late", guard, before), ("s", "amqp-late", guard, after)))
    assert [(kind, ("s",))] * bool(kind) == [(one.kind, one.scenarios) for one in told]
    for one in told:
        assert "redis-late to amqp-late, with" + ("" if guard else "out") + " the guard" in one.text
        assert str(before) in one.text
        assert str(after) in one.text


def test_only_comparable_profiles_are_compared() -> None:
    """A hardened RabbitMQ that is better than Redis' defaults proves nothing about moving."""
    assert conclusions(found(("s", "redis-stock", False, LOST), ("s", "amqp-quorum", False, OK))) == ()
    assert conclusions(found(("s", "redis-stock", False, LOST), ("s", "amqp-stock", True, OK))) == ()
    assert conclusions(found(("one", "redis-stock", False, LOST), ("other", "amqp-stock", False, OK))) == ()


@pytest.mark.parametrize(
    ("plain", "guarded", "kind"),
    [
        (TWICE, AGAIN, ConclusionKind.GUARD_HELPS),
        (LOST, LOST, ConclusionKind.GUARD_HELPLESS),
        (OK, LOST, ConclusionKind.GUARD_HARMS),
        (OK, OK, None),
    ],
)
def test_conclusions_about_the_guard(plain: CellVerdict, guarded: CellVerdict, kind: ConclusionKind | None) -> None:
    """They also hold for a user's own profile."""
    told = conclusions(found(("s", "own", False, plain), ("s", "own", True, guarded)))
    assert [kind] * bool(kind) == [one.kind for one in told]
    assert all(one.text.startswith("On own: s (") for one in told)


def test_profiles_with_the_same_conclusion_share_a_sentence() -> None:
    """Classic and quorum queues that fix the same scenarios have one sentence."""
    cells = [
        (scenario, profile, False, verdict)
        for scenario in ("one", "two")
        for profile, verdict in (("redis-hardened", LOST), ("amqp-classic", OK), ("amqp-quorum", OK))
    ]
    told = [one.text for one in conclusions(found(*cells))]
    assert told == [
        "From redis-hardened to amqp-classic and amqp-quorum, without the guard: one (lost → ok); two (lost → ok)."
    ]


def test_unmeasured_cells_have_no_conclusion() -> None:
    """A failed cell is neither good nor bad, and the report counts what is missing."""
    made = found(("s", "redis-late", False, LOST), ("s", "amqp-stock", False, OK))
    failed = Unmeasured(Cell("s", "amqp-late", guard=False), 1, "it failed", failed=True, command="")
    assert conclusions(replace(made, unmeasured=(failed,))) == ()
    assert "1 whose experiment failed" in limits(replace(made, unmeasured=(failed,)))
    assert limits(made) == ""
    assert "was interrupted" in limits(replace(made, interrupted=True))


def test_differing_repetitions_are_a_conclusion() -> None:
    """It names the cell, and how often each verdict occurred."""
    told = conclusions(found(("s", "p", False, OK), ("s", "p", False, LOST)))
    assert [(one.kind, one.scenarios) for one in told] == [(ConclusionKind.UNSTEADY, ("s",))]
    assert "s/p/plain (lost 1, ok 1 of 2)" in told[0].text


def test_nothing_overlaps_in_a_timeline() -> None:
    """Every mark is inside the drawing; overlapping runs, faults and long names have rows of their own."""
    made = result(Cell("s", "p", guard=False), TWICE, notices=["late"], lanes=("a-very-long-name-" * 5, "control"))
    twice = made.task_results[0]
    same = tuple(replace(run, worker="control") for run in twice.history.runs)
    task = replace(twice, history=replace(twice.history, runs=same))
    drawn = picture(replace(made, task_results=(task, *made.task_results[1:])))
    spans = [span for span in drawn.spans if "under-test" in span.kind]
    assert len({span.y for span in spans}) == 2
    for x in [mark.x for marks in drawn.marks.values() for mark in marks] + [one.x for one in drawn.spans]:
        assert drawn.margin <= x <= WIDTH
    assert all(one.x + one.width <= WIDTH for one in (*drawn.spans, *drawn.faults))
    assert len({label.y for label in drawn.fault_labels}) == len(drawn.fault_labels)
    assert all(len(lane.name.text) <= 22 for lane in drawn.lanes)
    assert drawn.margin < WIDTH / 2


@pytest.mark.parametrize("instants", ["none", "one"])
def test_an_empty_timeline(instants: str) -> None:
    """A task that was never delivered, without a fault, can be drawn."""
    made = result(Cell("s", "p", guard=False), CellVerdict(Verdict.REFUSED))
    task_results = made.task_results[:1] if instants == "one" else ()
    drawn = picture(replace(made, task_results=task_results, windows=(), lanes=()))
    assert drawn.ticks
    assert drawn.height > 0


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed."""
    return capsys.readouterr().out


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the width of the terminal."""
    from rich.console import Console

    return lambda width: monkeypatch.setattr(tables, "_data", lambda: Console(width=width))


@pytest.mark.parametrize("width", [80, 250])
def test_no_word_is_cut(capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None], width: int) -> None:
    """The matrix if it fits, else a line for each cell; nothing is wider than the terminal."""
    terminal(width)
    made = campaign()
    tables.results(made)
    text = shown(capsys)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = set(text.split())
    for one in made.results:
        assert set(str(one.verdict).split()) <= words
    for name in (*(one.name for one in SCENARIOS), *(one.name for one in PROFILES)):
        assert name in words
    assert (width == 250) == bool(re.search("redis-stock +redis-stock +redis-late", text))


def test_unexpected_verdicts_come_last_with_their_command(capsys: pytest.CaptureFixture[str]) -> None:
    """They follow the matrix, the totals and the failed cells."""
    made = campaign()
    tables.results(made)
    _, *parts = shown(capsys).split("NOT AS EXPECTED ")
    assert [one.cell.name for one in made.unexpected] == [one.splitlines()[0] for one in parts]
    assert all(one.command in text for one, text in zip(made.unexpected, parts, strict=True))


def test_text_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither an error nor a title can."""
    made = campaign()
    nasty = "\x1b[2J\u202e[bold]"
    tables.results(replace(made, unmeasured=(replace(made.unmeasured[0], why=nasty),)))
    tables.scenarios([About("s", nasty, nasty)])
    text = shown(capsys)
    assert "\x1b" not in text
    assert "\\x1b[2J\\u202e[bold]" in text


def test_each_address_is_printed_under_its_own_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with tables.CampaignProgress(1, addresses=True) as progress:
        progress.serves("Toxiproxy", "2.12", TOXIPROXY_VARIABLE, "http://127.0.0.1:8474")
        progress.serves("RabbitMQ", "4.3", BROKER_VARIABLE, "amqp://guest:s3cret@127.0.0.1:5672//")
    talk = capsys.readouterr().err
    assert "Toxiproxy 2.12: TOXIPROXY_URL=http://127.0.0.1:8474" in talk
    assert "RabbitMQ 4.3: WORKER_BROKER_URL=amqp://guest:**@127.0.0.1:5672//" in talk


def test_a_case_with_a_verdict_is_not_shown_as_running() -> None:
    """Also a case whose fault was moved to another phase."""
    (case,) = planning.plan(names=("link-down@received",), profiles=("redis-late",), guards=(True,)).cases
    with tables.CampaignProgress(1) as progress:
        progress.step(case, "starting two workers")
        assert [case.name] == list(progress._running)
        progress.result(result(case.cell, OK))
        assert not progress._running


def test_repetitions(capsys: pytest.CaptureFixture[str]) -> None:
    """It counts equal cells and names the others."""
    tables.repetitions(found(*[("s", "p", False, OK)] * 2, ("s", "p", True, OK), ("s", "p", True, LOST)))
    text = shown(capsys)
    assert "1 of 2 repeated cells had the same verdict" in text
    assert "s/p/plain: ok 2 of 2" in text
    assert "NOT STABLE s/p/guarded: lost 1, ok 1 of 2" in text
    tables.repetitions(campaign())
    assert shown(capsys) == ""


def test_scenarios_profiles_and_expectations(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has one line."""
    tables.scenarios(SCENARIOS)
    tables.profiles(PROFILES)
    tables.expectations({Cell("s", "amqp-late", guard=True): (HUNG, CellVerdict(Verdict.OK))})
    text = shown(capsys)
    assert all(one.title in text for one in (*SCENARIOS, *PROFILES))
    assert re.search("amqp-late +guarded +✗ ok, worker hung or ok", text)


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Each form of a report in which a child was lost, and a setting and a time were not the application's."""
    made = result(Cell("no-fault", "redis-stock", guard=True), CellVerdict(Verdict.OK, children=Verdict.LOST))
    child = task_result("child", Verdict.LOST, task="c")
    made = replace(
        made, scaled=(ScaledTime("visibility_timeout", 3600, 21),), replaced=("TLS to the broker: none",),
        longest_run_s=12, task_results=(*made.task_results, replace(child, name="shop.pay", reason="ValueError: no")),
    )  # fmt: skip
    whole = replace(campaign(), results=(made,), unmeasured=())
    tables.results(whole)
    return {
        "terminal": shown(capsys),
        "HTML": files.as_html(whole),
        "Markdown": files.as_markdown(whole),
        "pytest": describe(made),
        "JUnit": files.as_junit(whole),
    }


def test_what_was_not_tested_on_ones_settings_is_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Both numbers of a time are there."""
    for form, text in told(capsys).items():
        plain = text.replace("\\", "").replace("&#39;", "'")
        assert "TLS to the broker: none; visibility_timeout (3600 s, here 21 s)" in plain, form


def placed() -> Campaign:
    """A task of an application that was lost in two of three runs, and a child in one of them."""
    cell = Cell("no-fault", "redis-stock", guard=False)
    made = [result(cell, one, number=number) for number, one in enumerate((LOST, LOST, OK), 1)]
    child = replace(task_result("child", Verdict.LOST, task="c"), name="shop.mail", reason="no worker has it")
    made[0] = replace(made[0], task_results=(*made[0].task_results, child))
    places = {"shop.pay": ("shop/tasks.py", 12), "shop.mail": ("shop/mails.py", 3)}
    rows = (About("no-fault", "No fault", ""),)
    return replace(
        campaign(), scenarios=rows, results=tuple(replace(one, expected=None) for one in made), unmeasured=(),
        app="shop:app shop.pay", places=places,
    )  # fmt: skip


def test_sarif_has_each_task_that_went_wrong_at_its_line() -> None:
    log = json.loads(files.as_sarif(placed()))
    Draft4Validator(json.loads(SARIF_SCHEMA.read_text())).validate(log)
    (run,) = log["runs"]
    found = {
        (place["artifactLocation"]["uri"], place["region"]["startLine"]): one["message"]["text"].partition(". Run")[0]
        for one in run["results"]
        for place in (one["locations"][0]["physicalLocation"],)
    }
    where = "no-fault under redis-stock"
    assert {
        ("shop/tasks.py", 12): f"shop.pay is lost in 2 of 3 runs: {where}",
        ("shop/mails.py", 3): f"shop.mail is lost in 1 of 3 runs: {where}; no worker has it",
    } == found
    assert all("repot chaos run no-fault" in one["message"]["text"] for one in run["results"])
    assert len({one["partialFingerprints"]["repotChaos/v1"] for one in run["results"]}) == 2


@pytest.mark.parametrize("made", [campaign(), replace(placed(), places={})], ids=["repot's own task", "no places"])
def test_sarif_without_a_line_has_no_result_and_is_valid(made: Campaign) -> None:
    """Code scanning refuses a file in which one result has no place."""
    log = json.loads(files.as_sarif(made))
    Draft4Validator(json.loads(SARIF_SCHEMA.read_text())).validate(log)
    assert log["runs"][0]["results"] == []


@pytest.mark.parametrize("form", ["terminal", "pytest", "JUnit"])
def test_a_child_that_was_lost_is_named_with_the_reason(capsys: pytest.CaptureFixture[str], form: str) -> None:
    text = told(capsys)[form]
    assert "ok, children lost" in text
    assert re.search("shop.pay .*lost.*ValueError: no", text)
