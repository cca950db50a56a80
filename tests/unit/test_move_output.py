"""What people see of a move: tables, and a rate that was measured."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from repot.cli import move_progress
from repot.cli.move_output import print_status
from repot.migrate.status import audit_line, status
from repot.rollout import moves

if TYPE_CHECKING:
    import pytest

RECORD = {
    "name": "friday",
    "source": "redis://a",
    "target": "amqp://b",
    "queues": '{"celery": "celery", "mail": "post"}',
    "created_at": "now",
    "routed:other": "1",
    "reserved:celery": "7",
    "delivered:celery": "5",
    "quarantined:celery": "2",
    "reserved:mail": "3",
    "delivered:mail": "3",
}


def shown(record: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    print_status(status(record, 1000.0) | {"audit": [json.loads(audit_line("started"))]})
    return capsys.readouterr().out


def test_the_status_of_a_move_is_tables_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(RECORD, capsys)
    lines = [line.split() for line in text.splitlines()]
    assert not {"{", '"'} & {*text}
    assert ["queue", "to", "reserved", "delivered", "quarantined"] in lines
    assert ["celery", "celery", "7", "5", "2"] in lines
    assert ["mail", "post", "3", "3", "0"] in lines
    assert ["(all)", "10", "8", "2"] in lines
    assert ["closes:", "yes"] in lines
    assert ["when", "who", "what"] in lines
    assert lines[-1][-1] == "started"
    assert "given_back" not in text


def test_one_queue_has_no_sum_and_what_was_given_back_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    record = RECORD | {"queues": '{"celery": "celery"}', "back_reserved:celery": "1", "back_delivered:celery": "1"}
    text = shown(record, capsys)
    assert "(all)" not in text
    assert "given_back:      reserved 1, delivered 1" in text


#: Instants between two looks, and how many messages were moved meanwhile.
_LOOKS = st.lists(st.tuples(st.floats(0.0001, 5), st.integers(0, 1000)), min_size=1, max_size=20)


@given(_LOOKS, st.integers(0, 10**6))
def test_no_rate_is_shown_that_was_measured_over_an_instant(looks: list[tuple[float, int]], already: int) -> None:
    """What an earlier process moved is no rate either."""
    seen = move_progress._Shown()
    watch = moves._MoveWatch(SimpleNamespace(name="m"), SimpleNamespace())  # type: ignore[arg-type]
    now, moved = 100.0, already
    rates: list[tuple[Any, float]] = [
        (move_progress._rate(seen, now, moved), move_progress._PROGRESS_S),
        (watch._rate(now, moved), moves._MEASURED_S),
    ]
    assert [rate for rate, _ in rates] == [None, None]
    for passed, count in looks:
        now, moved = now + passed, moved + count
        rates += [
            (move_progress._rate(seen, now, moved), move_progress._PROGRESS_S),
            (watch._rate(now, moved), moves._MEASURED_S),
        ]
    most = moved - already
    assert all(rate is None or 0 <= rate <= most / over_s + 1e-6 for rate, over_s in rates)
