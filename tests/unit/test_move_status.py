"""What the journal of a move says of its mover."""

from __future__ import annotations

import json

import pytest

from repot.migrate.status import remembered, status
from repot.worker.holder import this_process

NOW = 1000.0
RUNS = this_process("the move 'friday'")
KILLED = json.dumps({**json.loads(RUNS), "started": "12"})
ELSEWHERE = json.dumps({**json.loads(RUNS), "host": "another", "started": "12"})


@pytest.mark.parametrize(
    ("owner", "lease_until", "is_alive"),
    [
        (RUNS, NOW + 30, True),
        (RUNS, NOW - 1, False),
        # its lease goes on for half a minute after it was killed
        (KILLED, NOW + 30, False),
        # of another machine nothing else is known
        (ELSEWHERE, NOW + 30, True),
        ("", 0.0, False),
    ],
    # a process' own number is another one in each of pytest's
    ids=["runs", "without a lease", "killed", "elsewhere", "none yet"],
)
def test_a_mover_that_was_killed_is_not_at_work(owner: str, lease_until: float, is_alive: bool) -> None:
    record = {"name": "friday", "source": "redis://a", "target": "amqp://b", "queues": "{}", "created_at": "now"}
    found = status(record | {"owner": owner, "lease_until": f"{lease_until * 1000:.0f}"}, NOW)
    assert is_alive == found["is_alive"]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"priority": "keep", "pace": '{"rate": 5.0}'}, {"priority": "keep", "rate": 5.0}),
        # of a release that kept no pace
        ({"priority": "keep"}, {"priority": "keep"}),
        ({}, {}),
    ],
)
def test_how_a_move_went_on_is_read(record: dict[str, str], expected: dict[str, object]) -> None:
    assert expected == remembered(record)
