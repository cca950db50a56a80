"""Many processes that submit jobs for the same scopes while the broker's link is cut, on private servers.

    python benchmarks/submission.py [--broker redis|rabbitmq] [--processes 50] [--submissions 200] [--scopes 100]
        [--workers 4] [--seed 1] [--calm]

Starts a broker, a store, a worker and Toxiproxy of its own. Each process submits through the routes of an application
of its own; the link between them and the broker is cut for 0.3 s each second, unless `--calm`. Prints the answers
by status and their times, and whether two jobs held a scope at once, an accepted job did not run, or a scope stayed
blocked. Exits with 1 if so.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import TYPE_CHECKING
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from repot.chaos.runner.proxies import Proxy
from repot.testbed import rabbitmq_server, redis_server, toxiproxy_server
from support.shop import APPS, Shop
from support.submitting import ACCEPTED, TAKEN, UNAVAILABLE, Outcomes, breaking, mistakes, submitters

if TYPE_CHECKING:
    from argparse import Namespace

_SERVERS = {"redis": redis_server, "rabbitmq": rabbitmq_server}


def main() -> None:
    """Run the benchmark, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=_SERVERS, default="redis")
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--submissions", type=int, default=200)
    parser.add_argument("--scopes", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", action="store_true")
    options = parser.parse_args()
    # where workers find `job_app`
    os.environ["PYTHONPATH"] = APPS
    print(f"{options.broker}, seed {options.seed}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_server() as results,
        _SERVERS[options.broker]() as server,
        toxiproxy_server() as toxiproxy,
    ):
        proxy = Proxy.create(toxiproxy.url, f"p-{uuid4()}", server.port)
        shop = Shop(server, results, Path(folder), app="support.job_app", lease=10, visibility_timeout=3600)
        shop.start(options.workers)
        through = shop.settings.replace(broker_url=server.url_at(proxy.port))
        begun = perf_counter()
        with submitters(
            through, Path(folder), options.processes, options.submissions, options.scopes, options.seed
        ) as process:
            cuts = 0 if options.calm else breaking(proxy, 1.0, 0.3, lambda: process.exit_code is not None)
        took_s = perf_counter() - begun
        outcomes = Outcomes.read(Path(folder))
        _print(outcomes, took_s, cuts, options)
        found = mistakes(shop, outcomes, options.scopes)
        if any(status not in (ACCEPTED, TAKEN, UNAVAILABLE) for status in outcomes.answers):
            said = process.log_tail(100_000).splitlines()
            print("\n".join([line for line in said if not line.startswith(("a job was not", "hint:"))][-80:]))
        shop.stop()
    print(
        "\n".join(found) or "no generation accepted twice, no overlapping jobs, no lost job, no blocked scope, no 500"
    )
    sys.exit(1 if found else 0)


def _print(outcomes: Outcomes, took_s: float, cuts: int, options: Namespace) -> None:
    number = options.processes * options.submissions
    cut = quantiles(outcomes.times_s, n=100)
    print(f"{options.processes} processes x {options.submissions} submissions of {options.scopes} scopes")
    print(f"in {took_s:.1f} s ({number / took_s:.0f}/s), link cut {cuts} times")
    print("  ".join(f"{status}: {answers}" for status, answers in sorted(outcomes.answers.items())))
    print(f"at most {outcomes.away_in_a_row} times 503 in a row")
    generations = max((generation for _, generation in outcomes.accepted.values()), default=0)
    print(f"up to {generations} generations a scope; answers p50 {cut[49] * 1000:.1f} ms, p99 {cut[98] * 1000:.1f} ms")


if __name__ == "__main__":
    main()
