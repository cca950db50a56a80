"""Kill chaos runs at random instants, and look for what they left behind.

    python benchmarks/interruptions.py [--runs 50] [--longest 20] [--seed 1]

Each run gets a folder of its own for temporary files, by which its processes are told
from others; it is killed with SIGKILL after a time that follows the seed. Exits with 4
if a process, a listening port or a folder is left 15 s later.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Event

import psutil

from repot.config import inherited_environment
from repot.errors import DeadlineExceeded
from repot.waiting import wait_until

_GONE_WITHIN_S = 15


def processes_of(folder: str) -> list[psutil.Process]:
    """Every process whose temporary files go into this folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and folder in str(process.environ()):
                found.append(process)
    return found


def ports_of(processes: list[psutil.Process]) -> set[int]:
    """The ports they listen on."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found |= {one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    return found


def listened_on() -> set[int]:
    """All ports that anybody listens on."""
    return {one.laddr.port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN}


def interrupted(after_s: float) -> tuple[int, int, list[str]]:
    """Run and kill; give how many processes and ports there were, and what is left."""
    folder = tempfile.mkdtemp(prefix="interrupted-")
    environment = inherited_environment(without=("WORKER_",)) | {"TMPDIR": folder}
    command = [sys.executable, "-m", "repot", "chaos", "run", "smoke", "--jobs", "4"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        Event().wait(after_s)
        there = processes_of(folder)
        ports = ports_of(there)
        run.kill()
    left: list[str] = []
    try:
        wait_until(lambda: not processes_of(folder), within_s=_GONE_WITHIN_S, what="every process is gone", poll_s=0.2)
    except DeadlineExceeded:
        left += [" ".join(process.cmdline()) for process in processes_of(folder)]
    left += [f"port {port}" for port in sorted(ports & listened_on())]
    left += [str(path) for path in Path(folder).iterdir()]
    if not left:
        shutil.rmtree(folder)
    return len(there), len(ports), left


def main() -> int:
    """Kill runs, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--longest", type=float, default=20, help="seconds until a run is killed, at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)  # noqa: S311 - to be repeated
    totals: Counter[str] = Counter()
    bad = 0
    for number in range(1, options.runs + 1):
        after_s = rng.uniform(0.1, options.longest)
        processes, ports, left = interrupted(after_s)
        totals.update(processes=processes, ports=ports)
        bad += bool(left)
        print(
            f"{number:3} killed after {after_s:4.1f} s: {processes} processes, {ports} ports",
            *left,
            sep="\n      LEFT ",
            flush=True,
        )
    print(f"{options.runs} runs, {totals['processes']} processes, {totals['ports']} ports; {bad} runs left something")
    return 4 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
