"""How long a worker's pulse is silent while its link swallows everything: what HEALTHCHECK_STATUS_TIMEOUT must exceed.

    python benchmarks/blackhole.py [--broker redis|rabbitmq] [--seconds 140]

Starts a broker, a worker with the default timeouts and Toxiproxy of its own, and blackholes the link in mid-task.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from repot.config import ExplicitSettings
from repot.testbed import rabbitmq_server, redis_server, toxiproxy_server
from repot.waiting import wait_until
from support.sidecars import QUICK, ProbedWorker

_SERVERS = {"redis": redis_server, "rabbitmq": rabbitmq_server}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=_SERVERS, default="redis")
    parser.add_argument("--seconds", type=float, default=140)
    options = parser.parse_args()
    defaults = {name: getattr(ExplicitSettings(), name) for name in QUICK}
    patience = {"HEALTHCHECK_STATUS_TIMEOUT": "90"}
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_server() as results,
        _SERVERS[options.broker]() as server,
        toxiproxy_server() as toxiproxy,
        ProbedWorker(server, results, toxiproxy, Path(folder), sidecar=patience, **defaults) as probed,
    ):
        probed.await_ready()
        probed.send("repot.run", 2)
        wait_until(lambda: probed.status.pool.active, within_s=20, what="the task runs")
        for stream in ("upstream", "downstream"):
            probed.proxy.add_toxic("timeout", stream, {"timeout": 0})
        silences: list[float] = []
        end = monotonic() + options.seconds

        def over() -> bool:
            silences.append(monotonic() - probed.status.written_at)
            return monotonic() > end

        wait_until(over, within_s=options.seconds + 10, what="time passes", poll_s=0.1)
        print(
            f"{server.name} {server.version}, socket timeout {defaults['socket_timeout']:g} s, blackhole of "
            f"{options.seconds:g} s: the longest silence was {max(silences):.0f} s"
        )


if __name__ == "__main__":
    main()
