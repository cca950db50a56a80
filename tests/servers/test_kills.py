"""Workers of guarded tasks, killed at random instants: `benchmarks/kills.py`, for a short while."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from installed import require
from repot.brokers.local import programs

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "kills.py"
SERVERS = {"redis": programs.REDIS, "amqp": programs.RABBITMQ}
KILLS = 10


@pytest.mark.parametrize("broker", SERVERS)
def test_no_order_is_lost_and_none_runs_twice_without_doubt(broker: str) -> None:
    """Every order has its effect once, or as often as there were doubts, or waits for a person; all are answered."""
    require(SERVERS[broker])
    require(programs.REDIS)
    command = [sys.executable, str(PROGRAM), "--kills", str(KILLS), "--broker", broker, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode in (0, 4), ended.stderr
    (report,) = json.loads(ended.stdout)
    assert KILLS == sum(report["hits"].values())
    for found in report["policies"].values():
        assert [0, 0, 0] == [found[name] for name in ("LOST", "DUPLICATED WITHOUT DOUBT", "UNACCOUNTED")], report["odd"]
        # Redis may lose a message to a worker that dies before it has noted it: its guard never sees it
        counted = sum(found[name] for name in ("ok", "duplicated under doubt", "parked", "lost by the transport"))
        assert 0 < found["orders"] == counted
        assert found["ok"] > 0
    assert [[], [], 0] == [report["overlaps"], report["won_twice"], report["differing_answers"]]
    assert report["vanished"] == 0 or broker == "redis"
    assert 0 == ended.returncode, ended.stdout
