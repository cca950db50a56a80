"""What the health sidecar costs, side by side with `celery inspect ping`, on private servers.

    python benchmarks/healthcheck.py [--broker redis|rabbitmq] [--seconds 10] [--runs 20]

Starts a broker, a worker and a sidecar of its own. Prints, in one run:

- 200 connections that ask /ready without a pause, and 200 that ask once a second, as orchestrators do: the times to
  the answer, and how many pings they cost the worker;
- one `celery inspect ping` of the same worker against one /ready, in turns, as whole processes and as a library call;
- a probe of liveness as a process, the sidecar's start and its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import psutil

from repot.config import child_environment
from repot.testbed import rabbitmq_server, redis_server, toxiproxy_server
from support.sidecars import ProbedWorker

if TYPE_CHECKING:
    from collections.abc import Callable

_CONNECTIONS = 200
_SERVERS = {"redis": redis_server, "rabbitmq": rabbitmq_server}
_REQUEST = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=_SERVERS, default="redis")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    print(f"{options.broker}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_server() as results,
        _SERVERS[options.broker]() as server,
        toxiproxy_server() as toxiproxy,
        ProbedWorker(server, results, toxiproxy, Path(folder), sidecar={"HEALTHCHECK_CACHE": "1"}) as probed,
    ):
        probed.await_ready()
        for name, pause_s in (("without a pause", 0.0), ("once a second each", 1.0)):
            _print_load(probed, name, options.seconds, pause_s)
        _print_pings(probed, options.runs)
        _print_sidecar(probed, options.runs)


def _print_load(probed: ProbedWorker, name: str, seconds: float, pause_s: float) -> None:
    before = probed.metric("repot_pings_total", outcome="answered") or 0
    times = asyncio.run(_load(probed.port, seconds, pause_s))
    pings = (probed.metric("repot_pings_total", outcome="answered") or 0) - before
    cuts = quantiles(times, n=100)
    print(
        f"{_CONNECTIONS} connections, {name}, {seconds:g} s: {len(times) / seconds:.0f} answers/s, "
        f"p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms; {pings / seconds:.2f} pings/s"
    )


async def _load(port: int, seconds: float, pause_s: float) -> list[float]:
    times: list[float] = []
    end = perf_counter() + seconds

    async def ask(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # not all at the same moment
        await asyncio.sleep(pause_s * number / _CONNECTIONS)
        while perf_counter() < end:
            begun = perf_counter()
            writer.write(_REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
            times.append(perf_counter() - begun)
            await asyncio.sleep(max(0, pause_s - times[-1]))
        writer.close()

    await asyncio.gather(*(ask(number) for number in range(_CONNECTIONS)))
    return times


def _print_pings(probed: ProbedWorker, runs: int) -> None:
    node = probed.status.node
    inspect = [sys.executable, "-m", "celery", "--app", probed.settings.app, "inspect", "ping", "--destination", node]
    environment = child_environment(probed.settings)
    connection = HTTPConnection("127.0.0.1", probed.port)

    def ready() -> None:
        connection.request("GET", "/ready")
        connection.getresponse().read()
        # each on a connection of its own, as orchestrators ask
        connection.close()

    def command() -> None:
        subprocess.run(inspect, env=environment, check=True, capture_output=True)

    def call() -> None:
        assert probed.client.control.ping(destination=[node], timeout=5)

    asked, commanded, called = _in_turns(runs, ready, command, call)
    print(f"/ready {asked * 1000:.2f} ms; celery inspect ping {commanded * 1000:.0f} ms: {commanded / asked:.0f} times")
    print(f"app.control.ping(destination) in a process that has its connection: {called / asked:.1f} times /ready")


def _in_turns(runs: int, *actions: Callable[[], None]) -> list[float]:
    """The median time of each, measured in turns, so that other work on the machine hits all alike."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(runs):
        for action, found in zip(actions, times, strict=True):
            begun = perf_counter()
            action()
            found.append(perf_counter() - begun)
    return [median(found) for found in times]


def _print_sidecar(probed: ProbedWorker, runs: int) -> None:
    environment = child_environment(probed.settings)

    def process(*words: str) -> Callable[[], None]:
        command = [str(Path(sys.executable).with_name("repot")), *words]
        return lambda: subprocess.run(command, env=environment, check=True, capture_output=True) and None

    live, ready = _in_turns(runs, process("healthcheck", "live"), process("healthcheck", "probe", "--ready"))
    print(f"repot healthcheck live {live * 1000:.0f} ms, probe --ready {ready * 1000:.0f} ms, as whole processes")
    starts = []
    for _ in range(5):
        probed.sidecar.stop()
        begun = perf_counter()
        probed.sidecar = probed.start_sidecar()
        while True:
            try:
                probed.get("/live")
                break
            except OSError:
                continue
        starts.append(perf_counter() - begun)
    probed.await_ready()
    megabytes = psutil.Process(probed.sidecar.pid).memory_info().rss / 1e6
    print(f"the sidecar answers {median(starts):.2f} s after its start, and takes {megabytes:.0f} MB")


if __name__ == "__main__":
    main()
