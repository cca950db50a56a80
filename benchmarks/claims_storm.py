"""Kill, freeze and cut off workers that claim messages, beside a stock worker, and count what is lost.

    python benchmarks/claims_storm.py [--faults 1000] [--seed 1] [--json]

Starts a private Redis and workers of its own: three of repot's, each over a link of its own through Toxiproxy, and a
stock one, which is stopped and started again but never killed: it would lose what it pops. Sends tasks to three
queues in four priorities all the time, and

- kills a worker of repot's and its pool (SIGKILL), and starts it again;
- stops one (SIGSTOP) for less or more than its lease;
- cuts its link, by closing all its connections or by dropping all bytes, for a moment or for more than its lease.

At the end it waits until the queues and `unacked` are empty. Exits with 4 if a task was sent and never ran.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import redis
from celery import Celery
from kombu import Connection

from repot.chaos.runner.proxies import Proxy
from repot.config import ExplicitSettings, child_environment
from repot.testbed import ReapedProcess, redis_server, toxiproxy_server
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.testbed import Server

_pause = Event().wait

_LEASE_S, _VISIBILITY_S, _OURS = 2, 30, 3
_QUEUES, _PRIORITIES = ("storm-a", "storm-b", "storm-c"), (0, 3, 6, 9)
_WAITING = 40
#: Faults between two restarts of the stock worker, and seconds without a message at the end.
_RESTARTS, _QUIET_S = 25, 5


def main() -> None:
    """Run the storm, and print what was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(redis_server())
        toxiproxy = stack.enter_context(toxiproxy_server())
        found = Storm(folder, broker, toxiproxy.url, random.Random(options.seed), stack).run(options.faults)  # noqa: S311
    print(json.dumps(found) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    sys.exit(4 if found["lost"] else 0)


class Storm:
    """The servers, the workers and the tasks."""

    def __init__(self, folder: Path, broker: Server, proxies: str, rng: random.Random, stack: ExitStack) -> None:
        self._folder, self._broker, self._rng, self._stack = folder, broker, rng, stack
        self._client = redis.Redis(port=broker.port, decode_responses=True)
        self._links = [Proxy.create(proxies, f"w{number}", broker.port) for number in range(_OURS)]
        self._sent: list[str] = []
        self._faults: Counter[str] = Counter()
        self._over = Event()
        self._workers = [self._start(number) for number in range(_OURS)]
        self._stock = self._start(None)

    def run(self, faults: int) -> dict[str, Any]:
        """Send tasks and inject faults; return what was sent, lost and run twice."""
        began = time.monotonic()
        sender = Thread(target=self._send, daemon=True)
        sender.start()
        for number in range(faults):
            _pause(self._rng.expovariate(1 / 0.45))
            kind = self._rng.choices(("kill", "freeze", "close", "drop"), (3, 3, 3, 2))[0]
            getattr(self, f"_{kind}")(self._rng.randrange(_OURS))
            self._faults[kind] += 1
            if number % _RESTARTS == _RESTARTS - 1:
                self._restart_stock()
            if not (number + 1) % 100:
                print(f"{number + 1} faults, {len(self._sent)} tasks, {len(self._ran())} runs", file=sys.stderr)
        self._over.set()
        sender.join()
        self._drain()
        ran = Counter(self._ran())
        for one in self._sent:
            if one not in ran:
                print("LOST", one, file=sys.stderr)
        return {
            "faults": dict(self._faults),
            "seconds": round(time.monotonic() - began),
            "sent": len(self._sent),
            "lost": sum(one not in ran for one in self._sent),
            "ran twice": sum(ran[one] > 1 for one in self._sent),
            "left in Redis": self._left(),
        }

    def _kill(self, number: int) -> None:
        worker = self._workers[number]
        self._signal(worker, signal.SIGKILL)
        worker.stop()
        self._workers[number] = self._start(number)

    def _freeze(self, number: int) -> None:
        worker = self._workers[number]
        self._signal(worker, signal.SIGSTOP)
        self._later(self._pause(), lambda: self._signal(worker, signal.SIGCONT))

    def _close(self, number: int) -> None:
        link = self._links[number]
        with suppress(Exception):
            link.enable(enabled=False)
        self._later(self._pause(), lambda: link.enable(enabled=True))

    def _drop(self, number: int) -> None:
        link, stream = self._links[number], self._rng.choice(("upstream", "downstream"))
        with suppress(Exception):
            name = link.add_toxic("timeout", stream, {"timeout": 0})
            self._later(self._pause(), lambda: link.remove_toxic(name))

    def _pause(self) -> float:
        return self._rng.choice((self._rng.uniform(0, 0.5), self._rng.uniform(_LEASE_S, 2 * _LEASE_S)))

    def _later(self, after_s: float, act: Callable[[], object]) -> None:
        def wait() -> None:
            _pause(after_s)
            with suppress(Exception):
                act()

        Thread(target=wait, daemon=True).start()

    def _signal(self, worker: ReapedProcess, number: int) -> None:
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(worker.pid)
            for process in (main, *main.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def _restart_stock(self) -> None:
        """End it as an operator does, and start it again: killed, it would lose what it has popped."""
        os.kill(self._stock.pid, signal.SIGTERM)
        wait_until(lambda: self._stock.exit_code is not None, within_s=60, what="the stock worker ends")
        self._stock.stop()
        self._stock = self._start(None)

    def _send(self) -> None:
        app, rng = Celery("sender", set_as_current=False), random.Random(0)  # noqa: S311
        with Connection(self._broker.url) as connection:
            producer = connection.Producer(serializer="json")
            while not self._over.wait(0.005):
                if sum(self._client.llen(key) for key in self._lists()) < _WAITING:
                    name = str(uuid4())
                    message = app.amqp.as_task_v2(name, "storm.run", (name, rng.choice((0, 0, 0.05, 0.3))), {})
                    producer.publish(
                        message.body,
                        exchange="",
                        routing_key=rng.choice(_QUEUES),
                        headers=message.headers,
                        priority=rng.choice(_PRIORITIES),
                        **message.properties,
                    )
                    self._sent.append(name)

    def _drain(self) -> None:
        for number in range(_OURS):
            self._signal(self._workers[number], signal.SIGCONT)
        deadline, empty_since = time.monotonic() + 180, time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - empty_since < _QUIET_S:
            if any(self._left().values()):
                empty_since = time.monotonic()
            _pause(0.2)

    def _left(self) -> dict[str, int]:
        ready = sum(self._client.llen(key) for key in self._lists())
        return {
            "ready": ready,
            "unacked": self._client.hlen("unacked"),
            "unread": self._client.llen("unacked_unreadable"),
        }

    def _lists(self) -> list[str]:
        return [f"{queue}\x06\x16{step}" if step else queue for queue in _QUEUES for step in _PRIORITIES]

    def _ran(self) -> list[str]:
        path = self._folder / "ran"
        return path.read_text().split() if path.exists() else []

    def _start(self, number: int | None) -> ReapedProcess:
        name = "stock" if number is None else f"w{number}"
        port = self._broker.port if number is None else self._links[number].port
        settings = ExplicitSettings(
            app="claims_storm_app:stock" if number is None else "claims_storm_app:ours",
            broker_url=f"redis://127.0.0.1:{port}/0",  # type: ignore[arg-type]
            result_backend=f"redis://127.0.0.1:{self._broker.port}/1",  # type: ignore[arg-type]
            queue_names=_QUEUES,
            visibility_timeout=_VISIBILITY_S,
            restore_interval=1,
            redis_claim_lease=_LEASE_S,
            socket_timeout=1,
            socket_connect_timeout=1,
            health_check_interval=2,
            status_dir=self._folder / name,
        )
        environment = child_environment(settings) | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RAN": str(self._folder / "ran"),
            # a worker that is killed leaves the directory of its pool
            "TMPDIR": str(self._folder),
        }
        command = [sys.executable, "-m", "celery", "--app", settings.app, "worker", "--hostname", name]
        command += [
            "--concurrency",
            "2",
            "--without-mingle",
            "--without-gossip",
            "--without-heartbeat",
            "--loglevel",
            "INFO",
        ]
        command += ["--queues", ",".join(_QUEUES)]
        process = ReapedProcess(command, log=self._folder / f"{name}-{time.time()}.log", environment=environment)
        self._stack.callback(process.stop)
        return process


if __name__ == "__main__":
    main()
