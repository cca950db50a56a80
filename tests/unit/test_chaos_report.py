"""What is made of a campaign: data that reads back, JUnit's XML, a page, a table, conclusions and terminal tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest

from campaigns import NOTICES, PROFILES, SCENARIOS, campaign, result
from repot.chaos import report
from repot.chaos.conclusions import Kind, conclusions, limits
from repot.chaos.legible import legible
from repot.chaos.matrix import Tone, counts, matrix
from repot.chaos.result import About, Campaign, Cell, Fate, Finding, Unmeasured
from repot.chaos.timeline import WIDTH, picture
from repot.chaos.verdict import Word
from repot.cli import show
from repot.errors import ReportUnreadable, ReportUnwritable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOST, OK, TWICE, AGAIN = Finding(Word.LOST), Finding(Word.OK), Finding(Word.DUPLICATED), Finding(Word.REDELIVERED)
HUNG = Finding(Word.OK, worker=Fate.HUNG)
MANY = tuple(About(f"{one.name}-{number}", one.title, one.text) for number in range(6) for one in SCENARIOS)


def found(*cells: tuple[str, str, bool, Finding]) -> Campaign:
    """A campaign of these cells alone; one that is named twice was repeated."""
    seen: list[Cell] = []
    results = []
    for scenario, profile, guard, finding in cells:
        cell = Cell(scenario, profile, guard)
        seen.append(cell)
        results.append(result(cell, finding, number=seen.count(cell)))
    return replace(campaign(), results=tuple(results), unmeasured=(), interrupted=False)


def test_json_reads_back(tmp_path: Path) -> None:
    """Everything, with every word, fate and odd character, whatever was masked aside."""
    made = legible(campaign(repeat=2))
    report.write(report.as_json(made), tmp_path / "report.json")
    assert made == report.read(tmp_path / "report.json")


def test_json_says_what_follows() -> None:
    """A script needs no knowledge of repot's to find what is not as expected."""
    made = campaign()
    told = json.loads(report.as_json(made))["results"]
    assert [one.as_expected for one in made.results] == [one["as_expected"] for one in told]
    assert "ack-cut/redis-stock/plain" == told[0]["name"]
    assert "duplicated" == told[0]["found"]
    assert told[0]["bad"]


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
def test_a_file_that_is_no_report(tmp_path: Path, text: str, says: str) -> None:
    """One clear error says what is wrong, in few words and without the values, and what to do."""
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ReportUnreadable, match=says) as raised:
        report.read(path)
    assert 2 == raised.value.exit_code
    assert "repot chaos run --json" in raised.value.hint
    assert "s3cret" not in str(raised.value)
    assert len(raised.value.message) < 400


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    """A folder in a file's place, and a folder that is not there."""
    with pytest.raises(ReportUnreadable, match="Is a directory"):
        report.read(tmp_path)
    with pytest.raises(ReportUnreadable, match="No such file"):
        report.read(tmp_path / "missing.json")
    for write in (report.require_writable, lambda path: report.write("text", path)):
        with pytest.raises(ReportUnwritable, match="No such file"):
            write(tmp_path / "no" / "folder.html")


def test_asking_whether_a_file_is_writable_leaves_no_trace(tmp_path: Path) -> None:
    """It is not there afterwards, or as it was."""
    report.require_writable(tmp_path / "new.html")
    assert [] == list(tmp_path.iterdir())
    (tmp_path / "old.html").write_text("old")
    report.require_writable(tmp_path / "old.html")
    assert "old" == (tmp_path / "old.html").read_text()


@pytest.mark.parametrize("form", [report.as_json, report.as_junit, report.as_html, report.as_markdown])
def test_no_form_tells_a_secret(form: Callable[[Campaign], str]) -> None:
    """A password in a log's address is masked everywhere, and no control character is left."""
    assert any("s3cret-planted" in text for text in NOTICES)
    text = form(campaign())
    assert "s3cret-planted" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", text)
    text.encode()


def test_a_text_that_no_file_holds() -> None:
    """Half of a surrogate pair is written out; doing it again changes nothing."""
    made = replace(campaign(), app="half \ud800 of it")
    assert "half \\ud800 of it" == legible(made).app
    assert legible(made) == legible(legible(made))
    for form in (report.as_json, report.as_junit, report.as_html, report.as_markdown):
        form(made).encode()


def test_junit_has_a_suite_for_each_scenario_and_a_case_for_each_run() -> None:
    """With counts that add up, and in the one order that CI systems read."""
    made = campaign(repeat=2)
    root = ET.fromstring(report.as_junit(made))  # noqa: S314 - our own
    assert "testsuites" == root.tag
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
    """What was found and expected, the account of every task, what the log said, and how to run it again."""
    root = ET.fromstring(report.as_junit(campaign()))  # noqa: S314 - our own
    failure = root.find("./testsuite[@name='ack-cut']/testcase[@name='redis-stock plain']/failure")
    assert failure is not None
    assert "found duplicated, expected ok" == failure.get("message")
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


def test_the_page_stands_alone() -> None:
    """It refers to nothing outside, in markup or in style."""
    text = report.as_html(campaign())
    page = _Page(text)
    assert [] == page.elsewhere
    assert not {"link", "img", "iframe", "object", "base"} & set(page.tags)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in style
    assert ["url(#hatch)"] == re.findall(r"url\([^)]*\)", style)
    assert not re.search("https?:", text)


def test_what_logs_say_is_escaped_on_the_page() -> None:
    """The page has one script, its own, and nobody's template is filled in."""
    text = report.as_html(campaign())
    assert 1 == _Page(text).tags.count("script")
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
    assert 1 == _Page(report.as_html(named)).tags.count("script")


@pytest.mark.parametrize("repeat", [1, 3])
def test_every_link_of_the_page_leads_somewhere(repeat: int) -> None:
    """Each cell of which anything is known has a link to its details, and no identifier is there twice."""
    made = campaign(repeat=repeat)
    page = _Page(report.as_html(made))
    assert set(page.links) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    cells = {one.cell.name for one in made.results} | {one.cell.name for one in made.unmeasured}
    assert cells <= set(page.links)


def test_the_page_of_a_large_campaign_stays_small() -> None:
    """Some 400 cells stay below what a mail takes."""
    made = campaign(scenarios=MANY[:29])
    assert len(made.results) > 400
    assert len(report.as_html(made).encode()) < 4_000_000


def test_equal_repetitions_are_shown_as_one() -> None:
    """Only one is drawn; where they differ, each finding is, and the cell says so."""
    equal = report.as_html(found(*[("ack-cut", "redis-late", False, OK)] * 3))
    assert 1 == equal.count('<svg class="timeline" viewBox="0 0')
    assert "2 further runs found the same" in equal
    differ = report.as_html(found(("ack-cut", "redis-late", False, OK), ("ack-cut", "redis-late", False, LOST)))
    assert 2 == differ.count('<svg class="timeline" viewBox="0 0')
    assert "lost in 1 of 2; ok in 1 of 2" in differ


def test_markdown_is_one_table_with_its_conclusions() -> None:
    """Date, versions, as many cells in every row, and nothing in it that ends a cell."""
    text = report.as_markdown(campaign())
    assert text.startswith("# The fault matrix\n\nMeasured 2026-11-21T21:37:41+00:00 with repot 0.1.0, celery 5.7.0")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert 2 + len(SCENARIOS) == len(rows)
    assert {2 * len(PROFILES) + 3} == {len(re.split(r"(?<!\\)\|", row)) for row in rows}
    assert "| ack-cut | **duplicated** ≠ | ok |" in text
    assert f"\n## {Kind.GUARD_HELPS.value}" in text


def test_the_matrix_knows_every_sort_of_cell() -> None:
    """Failed, inapplicable and unmeasured ones are told apart, and a bad repetition decides."""
    table = matrix(campaign())
    last = [square.tone for square in table.row(table.rows[-1])[-3:]]
    assert [Tone.FAILED, Tone.INAPPLICABLE, Tone.UNMEASURED] == last
    assert set(Tone) == {square.tone for row in table.rows for square in table.row(row)}
    mixed = matrix(found(("a", "p", False, OK), ("a", "p", False, LOST), ("a", "p", False, OK)))
    assert (Tone.BAD, True, "lost in 1 of 3; ok in 2 of 3") == (
        mixed.known[0].tone,
        mixed.known[0].differs,
        mixed.known[0].words,
    )
    assert 1 == counts(mixed).lost


def test_names_that_nobody_told_of_are_shown_all_the_same() -> None:
    """A profile of the user's own has its column."""
    table = matrix(found(("mine", "own", True, OK)))
    assert ["mine"] == [row.name for row in table.rows]
    assert ["own, guarded"] == [column.name for column in table.columns]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (LOST, OK, Kind.FIXED),
        (HUNG, AGAIN, Kind.FIXED),
        (TWICE, Finding(Word.SET_ASIDE), Kind.FIXED),
        (LOST, LOST, Kind.NOT_FIXED),
        (LOST, TWICE, Kind.NOT_FIXED),
        (AGAIN, HUNG, Kind.WORSE),
        (OK, OK, None),
        (OK, AGAIN, None),
    ],
)
@pytest.mark.parametrize("guard", [False, True])
def test_what_moving_does(before: Finding, after: Finding, kind: Kind | None, *, guard: bool) -> None:
    """Bad before and not after, bad both times, or bad only after."""
    told = conclusions(found(("s", "redis-late", guard, before), ("s", "amqp-late", guard, after)))
    assert [(kind, ("s",))] * bool(kind) == [(one.kind, one.scenarios) for one in told]
    for one in told:
        assert "redis-late to amqp-late, with" + ("" if guard else "out") + " the guard" in one.text
        assert str(before) in one.text
        assert str(after) in one.text


def test_only_profiles_of_equal_hardness_are_compared() -> None:
    """A hardened RabbitMQ that is better than Redis' defaults proves nothing of moving."""
    assert () == conclusions(found(("s", "redis-stock", False, LOST), ("s", "amqp-quorum", False, OK)))
    assert () == conclusions(found(("s", "redis-stock", False, LOST), ("s", "amqp-stock", True, OK)))
    assert () == conclusions(found(("one", "redis-stock", False, LOST), ("other", "amqp-stock", False, OK)))


@pytest.mark.parametrize(
    ("plain", "guarded", "kind"),
    [
        (TWICE, AGAIN, Kind.GUARD_HELPS),
        (LOST, LOST, Kind.GUARD_HELPLESS),
        (OK, LOST, Kind.GUARD_HARMS),
        (OK, OK, None),
    ],
)
def test_what_the_guard_does(plain: Finding, guarded: Finding, kind: Kind | None) -> None:
    """On a profile of the user's own, too."""
    told = conclusions(found(("s", "own", False, plain), ("s", "own", True, guarded)))
    assert [kind] * bool(kind) == [one.kind for one in told]
    assert all(one.text.startswith("On own: s (") for one in told)


def test_places_with_the_same_conclusion_share_a_sentence() -> None:
    """Classic and quorum queues that fix the same are told of once."""
    cells = [
        (scenario, profile, False, finding)
        for scenario in ("one", "two")
        for profile, finding in (("redis-hardened", LOST), ("amqp-classic", OK), ("amqp-quorum", OK))
    ]
    told = [one.text for one in conclusions(found(*cells))]
    assert told == [
        "From redis-hardened to amqp-classic and amqp-quorum, without the guard: one (lost → ok); two (lost → ok)."
    ]


def test_nothing_is_concluded_of_what_was_not_measured() -> None:
    """A cell that failed is neither good nor bad, and what is missing is said."""
    made = found(("s", "redis-late", False, LOST), ("s", "amqp-stock", False, OK))
    failed = Unmeasured(Cell("s", "amqp-late", guard=False), 1, "it failed", failed=True, command="")
    assert () == conclusions(replace(made, unmeasured=(failed,)))
    assert "1 whose experiment failed" in limits(replace(made, unmeasured=(failed,)))
    assert "" == limits(made)
    assert "stopped before its end" in limits(replace(made, interrupted=True))


def test_repetitions_that_differ_are_a_conclusion() -> None:
    """By the cell, and how often it found what."""
    told = conclusions(found(("s", "p", False, OK), ("s", "p", False, LOST)))
    assert [(Kind.UNSTEADY, ("s",))] == [(one.kind, one.scenarios) for one in told]
    assert "s/p/plain (lost in 1 of 2; ok in 1 of 2)" in told[0].text


def test_a_timeline_has_room_for_all() -> None:
    """Every mark lies in the drawing; overlapping runs, faults and names of any length have places of their own."""
    made = result(Cell("s", "p", guard=False), TWICE, notices=["late"], lanes=("a-very-long-name-" * 5, "healthy"))
    twice = made.accounts[0]
    same = tuple(replace(run, worker="healthy") for run in twice.story.runs)
    subject = replace(twice, story=replace(twice.story, runs=same))
    drawn = picture(replace(made, accounts=(subject, *made.accounts[1:])))
    subjects = [span for span in drawn.spans if "subject" in span.kind]
    assert 2 == len({span.y for span in subjects})
    for x in [mark.x for marks in drawn.marks.values() for mark in marks] + [one.x for one in drawn.spans]:
        assert drawn.margin <= x <= WIDTH
    assert all(one.x + one.width <= WIDTH for one in (*drawn.spans, *drawn.faults))
    assert len({label.y for label in drawn.fault_labels}) == len(drawn.fault_labels)
    assert all(len(lane.name.text) <= 22 for lane in drawn.lanes)
    assert drawn.margin < WIDTH / 2


@pytest.mark.parametrize("instants", ["none", "one"])
def test_a_timeline_of_nearly_nothing(instants: str) -> None:
    """A task that was never delivered, without any fault, has its drawing."""
    made = result(Cell("s", "p", guard=False), Finding(Word.REFUSED))
    accounts = made.accounts[:1] if instants == "one" else ()
    drawn = picture(replace(made, accounts=accounts, windows=(), lanes=()))
    assert drawn.ticks
    assert drawn.height > 0


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands on the terminal."""
    return capsys.readouterr().out


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the width of the terminal."""
    from rich.console import Console

    return lambda width: monkeypatch.setattr(show, "_data", lambda: Console(width=width))


@pytest.mark.parametrize("width", [80, 250])
def test_no_word_is_cut(capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None], width: int) -> None:
    """The matrix where there is room, a line for each cell elsewhere; nothing is wider than the terminal."""
    terminal(width)
    made = campaign()
    show.results(made)
    text = shown(capsys)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = set(text.split())
    for one in made.results:
        assert set(str(one.finding).split()) <= words
    for name in (*(one.name for one in SCENARIOS), *(one.name for one in PROFILES)):
        assert name in words
    assert (width == 250) == bool(re.search("redis-stock +redis-stock +redis-late", text))


def test_unexpected_ones_come_last_and_say_how_to_run_them(capsys: pytest.CaptureFixture[str]) -> None:
    """After the matrix and the sums; failed ones before them."""
    made = campaign()
    show.results(made)
    _, *told = shown(capsys).split("NOT AS EXPECTED ")
    assert [one.cell.name for one in made.unexpected] == [one.splitlines()[0] for one in told]
    assert all(one.command in text for one, text in zip(made.unexpected, told, strict=True))


def test_a_terminal_is_not_steered(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever an error or a title holds."""
    made = campaign()
    nasty = "\x1b[2J\u202e[bold]"
    show.results(replace(made, unmeasured=(replace(made.unmeasured[0], why=nasty),)))
    show.scenarios([About("s", nasty, nasty)])
    text = shown(capsys)
    assert "\x1b" not in text
    assert "\\x1b[2J\\u202e[bold]" in text


def test_repetitions(capsys: pytest.CaptureFixture[str]) -> None:
    """How many are equal, and which are not."""
    show.repetitions(found(*[("s", "p", False, OK)] * 2, ("s", "p", True, OK), ("s", "p", True, LOST)))
    text = shown(capsys)
    assert "1 of 2 repeated cells came out the same" in text
    assert "DIFFERS s/p/guarded: lost in 1 of 2; ok in 1 of 2" in text
    show.repetitions(campaign())
    assert "" == shown(capsys)


def test_scenarios_profiles_and_expectations(capsys: pytest.CaptureFixture[str]) -> None:
    """A line each."""
    show.scenarios(SCENARIOS)
    show.profiles(PROFILES)
    show.expectations({Cell("s", "amqp-late", guard=True): (HUNG, Finding(Word.OK))})
    text = shown(capsys)
    assert all(one.title in text for one in (*SCENARIOS, *PROFILES))
    assert re.search("amqp-late +guarded +✗ ok, worker hung or ok", text)
