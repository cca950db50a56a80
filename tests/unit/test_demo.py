"""The statements of `repot demo`, from handmade results; `tests/chaos/test_matrix.py` runs the demo itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from repot.chaos.demo import Evidence, cases
from repot.chaos.report.result import CellVerdict
from repot.chaos.runner.verdict import Verdict
from support.campaigns import result

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


def unproved(changed: dict[str, Verdict], *, redelivered_s: float | None = 4.6) -> list[str]:
    """Return the beginnings of the statements that results do not prove; `changed` replaces verdicts by cell."""
    found = []
    for case in (*cases(0), *cases(1)):
        name = case.cell.name
        expected = Verdict.REDELIVERED if case.guard else VERDICTS[name.removesuffix("/plain")]
        one = result(case.cell, CellVerdict(changed.get(name, expected)))
        found.append(replace(one, times=replace(one.times, redelivered=redelivered_s)))
    statements = Evidence(found).statements()
    return [one.text.split()[0] for ones in statements.values() for one in ones if not one.proved]


def test_the_expected_verdicts_prove_every_statement() -> None:
    assert [] == unproved({})


@pytest.mark.parametrize(
    ("cell", "verdict", "statement"),
    [
        ("visibility-timeout/redis-late/plain", Verdict.OK, "RabbitMQ"),
        ("visibility-timeout/amqp-late/plain", Verdict.DUPLICATED, "RabbitMQ"),
        ("dropped-ack/amqp-late/plain", Verdict.OK, "A"),
        ("dropped-ack/redis-hardened/plain", Verdict.DUPLICATED, "A"),
        ("connection-reset/amqp-quorum/plain", Verdict.OK, "A"),
        ("connection-reset/redis-brpop/guarded", Verdict.DUPLICATED, "The"),
        ("connection-reset/redis-hardened/plain", Verdict.DUPLICATED, "The"),
        ("connection-reset/amqp-quorum/guarded", Verdict.LOST, "The"),
    ],
)
def test_another_verdict_leaves_its_statement_unproved(cell: str, verdict: Verdict, statement: str) -> None:
    assert [statement] == unproved({cell: verdict})


@pytest.mark.parametrize("redelivered_s", [None, 9.0])
def test_a_late_or_missing_redelivery_on_rabbitmq_is_not_detected_by_heartbeats(redelivered_s: float | None) -> None:
    assert "Heartbeats" in unproved({}, redelivered_s=redelivered_s)
