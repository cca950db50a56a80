"""Workers of guarded tasks, killed at random instants: `benchmarks/kills.py`, for a short while."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from repot.testbed import executables
from support.installed import require

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "kills.py"
SERVERS = {"redis": executables.REDIS, "amqp": executables.RABBITMQ}
KILLS = 6


@pytest.mark.parametrize("broker", SERVERS)
def test_no_order_is_lost_and_none_runs_twice_without_an_unknown_outcome(broker: str) -> None:
    """Every order has its effect once, or once more per unknown outcome, or is parked; every caller gets an answer."""
    require(SERVERS[broker])
    require(executables.REDIS)
    # on RabbitMQ the lease store also answers with errors
    storm = ["--storm"] if broker == "amqp" else []
    command = [sys.executable, str(PROGRAM), "--kills", str(KILLS), "--broker", broker, "--json", *storm]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode in (0, 4), ended.stderr
    (report,) = json.loads(ended.stdout)
    assert sum(report["hits"].values()) == KILLS
    for found in report["policies"].values():
        assert [found[name] for name in ("LOST", "DUPLICATED, OUTCOME KNOWN", "UNACCOUNTED")] == [0, 0, 0], json.dumps(
            report["odd"]
        )
        # Redis may lose a message whose worker dies before it has recorded it as unacknowledged
        verdicts = ("ok", "duplicated, outcome unknown", "parked", "lost by the transport")
        of_storms = ("done, unknown on record", "parked, known later to be not done") if storm else ()
        assert 0 < found["orders"] == sum(found[name] for name in (*verdicts, *of_storms))
        assert found["ok"] > 0
    assert [report["overlaps"], report["won_twice"], report["differing_answers"]] == [[], [], 0]
    if broker == "amqp":
        assert report["vanished"] == 0
    assert (bool(storm), 0) == (bool(report["store_errors"]), report["dead_threads"])
    assert ended.returncode == 0, ended.stdout
