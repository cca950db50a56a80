"""The statements of `repot demo`, from handmade results; `tests/chaos/test_matrix.py` runs the demo itself."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING

import pytest

from repot.chaos.demo import ADVICE, INCIDENT, TITLE, Evidence, cases, explanation
from repot.chaos.report.conclusions import ConclusionKind
from repot.chaos.report.html_report import as_html
from repot.chaos.report.result import About, CellVerdict
from repot.chaos.runner.verdict import Verdict
from support.campaigns import campaign, result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.chaos.report.result import Campaign

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
