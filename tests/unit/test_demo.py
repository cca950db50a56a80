"""The statements of `repot demo`, from handmade results; `tests/chaos/test_matrix.py` runs the demo itself."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from repot.chaos.demo import ADVICE, INCIDENT, TITLE, Evidence, cases, explanation
from repot.chaos.report.conclusions import ConclusionKind
from repot.chaos.report.html_report import as_html
from repot.chaos.report.result import About, Cell, CellVerdict
from repot.chaos.runner.verdict import Verdict
from repot.chaos.scenarios.expectations import expectation, parse
from support.campaigns import campaign, result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.chaos.report.result import Campaign

DOCS = Path(__file__).parents[2] / "docs"

#: Without the guard; with it every task is redelivered.
VERDICTS = {
    "visibility-timeout/redis-late": Verdict.DUPLICATED,
    "visibility-timeout/amqp-late": Verdict.OK,
    "dropped-ack/redis-late": Verdict.DUPLICATED,
    "dropped-ack/amqp-late": Verdict.DUPLICATED,
    "dropped-ack/redis-hardened": Verdict.REDELIVERED,
    "dropped-ack/amqp-quorum": Verdict.REDELIVERED,
    "connection-reset/redis-brpop": Verdict.DUPLICATED,
    "connection-reset/redis-hardened": Verdict.OK,
    "connection-reset/amqp-quorum": Verdict.DUPLICATED,
}


FIXED, NOT_FIXED, WORSE = "What moving to RabbitMQ fixes", "What moving does not fix", "What moving makes worse"
GUARD, CLAIM = "What the guard fixes", "What the atomic claim fixes on Redis"


def demonstrated(changed: Mapping[str, Verdict], *, redelivered_s: float | None = 4.6) -> Campaign:
    """Return a demo with the expected verdicts; `changed` replaces some by cell."""
    found = []
    for case in (*cases(0), *cases(1)):
        name = case.cell.name
        expected = Verdict.REDELIVERED if case.guard else VERDICTS[name.removesuffix("/plain")]
        one = result(case.cell, CellVerdict(changed.get(name, expected)))
        found.append(replace(one, times=replace(one.times, redelivered=redelivered_s)))
    named = {case.scenario.name: About(case.scenario.name, "", "") for case in (*cases(0), *cases(1))}
    profiles = {one.cell.profile: About(one.cell.profile, "", "") for one in found}
    return replace(
        campaign(), scenarios=tuple(named.values()), profiles=tuple(profiles.values()), results=tuple(found),
        unmeasured=(), interrupted=False,
    )  # fmt: skip


def unproved(changed: Mapping[str, Verdict], *, redelivered_s: float | None = 4.6) -> list[str]:
    """Return the headings of the statements that results do not prove."""
    statements = Evidence(demonstrated(changed, redelivered_s=redelivered_s).results).statements()
    return [heading for heading, ones in statements.items() for one in ones if not one.proved]


def test_the_expected_verdicts_prove_every_statement() -> None:
    assert unproved({}) == []


@pytest.mark.parametrize(
    ("cell", "verdict", "headings"),
    [
        ("visibility-timeout/redis-late/plain", Verdict.OK, [FIXED]),
        ("visibility-timeout/amqp-late/plain", Verdict.DUPLICATED, [FIXED]),
        ("dropped-ack/amqp-late/plain", Verdict.OK, [NOT_FIXED]),
        ("dropped-ack/redis-hardened/plain", Verdict.DUPLICATED, [NOT_FIXED]),
        ("connection-reset/amqp-quorum/plain", Verdict.OK, [NOT_FIXED, WORSE]),
        ("connection-reset/redis-brpop/guarded", Verdict.DUPLICATED, [GUARD]),
        ("connection-reset/redis-hardened/plain", Verdict.DUPLICATED, [WORSE, CLAIM]),
        ("connection-reset/amqp-quorum/guarded", Verdict.LOST, [GUARD]),
    ],
)
def test_another_verdict_leaves_its_statements_unproved(cell: str, verdict: Verdict, headings: list[str]) -> None:
    assert unproved({cell: verdict}) == headings


@pytest.mark.parametrize("redelivered_s", [None, 9.0])
def test_a_late_or_missing_redelivery_on_rabbitmq_is_not_detected_by_heartbeats(redelivered_s: float | None) -> None:
    assert FIXED in unproved({}, redelivered_s=redelivered_s)


def test_the_page_tells_what_the_terminal_tells() -> None:
    """Its conclusions are the statements, under the same headings, and not what is derived from the cells."""
    found = demonstrated({"dropped-ack/amqp-late/plain": Verdict.OK})
    statements = Evidence(found.results).statements()
    page = unescape(" ".join(as_html(found, explanation(statements)).split()))
    for text in (TITLE, *INCIDENT.splitlines(), *statements, ADVICE):
        assert text in page
    for one in (one for ones in statements.values() for one in ones):
        assert f"{'' if one.proved else '<em>not proved by this run:</em> '}{one.text}</li>" in page
    assert ConclusionKind.FIXED not in page


def session() -> str:
    """What the demo prints, as docs/demo.md has it."""
    return (DOCS / "demo.md").read_text().partition("```text\n")[2].partition("\n```")[0]


def words(text: str) -> list[str]:
    """The words of a session; what differs between runs, as a port and a time, is left out."""
    return re.sub(r"\b\d+(?:\.\d+)?(?= s\b)|(?<=:)\d{4,5}\b", "N", text).split()


def test_the_page_shows_each_cell_with_the_expected_verdict() -> None:
    """The tables of both halves: a row for each scenario, a column for each profile, without and with the guard."""
    found: dict[Cell, tuple[str, str]] = {}
    for product, half in re.findall(r"(\w+) is the broker\n(.*?)\n✓", session(), re.DOTALL):
        profiles, guards, *rows = (re.split(r"\s{2,}", line.strip()) for line in half.splitlines())
        columns = [(profile, guard == "guarded") for profile, guard in zip(profiles, guards[1:], strict=True)]
        for scenario, *verdicts in rows:
            shown = zip(columns, verdicts, strict=True)
            found |= {Cell(scenario, *column): (product, text) for column, text in shown if text != "·"}
    assert {*found} == {case.cell for case in (*cases(0), *cases(1))}
    for cell, (product, text) in found.items():
        assert parse(text[2:]) in (expectation(cell, product, "3.10") or ())
    assert len(found) == 11
    assert "These are eleven of" in (DOCS / "demo.md").read_text()


def test_the_page_has_each_statement_under_its_heading() -> None:
    text = " ".join(session().split())
    statements = Evidence(demonstrated({}).results).statements()
    for heading, ones in statements.items():
        assert heading in text
        for one in ones:
            assert " ".join(words(one.text)[:6]) in " ".join(words(text))
    assert ADVICE in text


def test_the_picture_shows_the_same_session() -> None:
    svg = ET.fromstring((DOCS / "pictures" / "demo.svg").read_text())  # noqa: S314 - our own
    shown = " ".join("".join(one.itertext()) for one in svg.iter("{http://www.w3.org/2000/svg}text"))
    assert words(shown.removeprefix("$ repot demo ")) == words(session())


def test_the_readme_quotes_the_session() -> None:
    quoted = (DOCS.parent / "README.md").read_text().partition("From the end of `make demo`:")[2]
    parts = quoted.partition("```text\n")[2].partition("\n```")[0].split("[...]")
    assert len(parts) > 1
    assert all(" ".join(words(part)) in " ".join(words(session())) for part in parts)
