"""Workers that run one after another in one process, as an application's own tests start them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from repot.config import inherited_environment

if TYPE_CHECKING:
    from repot.testbed import Server

#: Runs three workers by `celery.contrib.testing`; prints what their tasks returned, and what the third one added to
#: what the second had left in the process: receivers of signals, threads, layers of functions and classes of the
#: libraries.
PROGRAM = """
import json, sys, threading
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker
from celery.utils.dispatch.signal import Signal
import repot
from repot.deadletter import dead_letter_events
from repot.idempotency import guard_events

LIBRARIES = ("amqp", "billiard", "celery", "kombu", "redis")
app = Celery("tested")
repot.configure(app)

@app.task
def add(a, b):
    return a + b

def layers(found):
    return len(found.__mro__) if isinstance(found, type) else 1 + layers(found.__wrapped__) \
        if hasattr(found, "__wrapped__") else 0

def left():
    found = {"steps": len(app.steps["consumer"]), "connection": layers(app.amqp.Connection)}
    threads = [one for one in threading.enumerate() if one.name.startswith("repot")]
    for one in threads:
        one.join(5)
    found["threads"] = sum(one.is_alive() for one in threads)
    for module in (signals, dead_letter_events, guard_events):
        signal = {name: one for name, one in vars(module).items() if isinstance(one, Signal)}
        found |= {name: len(one.receivers) for name, one in signal.items()}
    places = [(name, module) for name, module in sys.modules.items() if name.partition(".")[0] in LIBRARIES]
    classes = [one for _, module in places for one in vars(module).values() if isinstance(one, type)]
    for place in (app, *(module for _, module in places), *classes):
        named = getattr(place, "__name__", "app")
        found |= {f"{named}.{name}": layers(one) for name, one in list(vars(place).items())}
    return found

results, seen = [], []
for number in range(3):
    with start_worker(app, perform_ping_check=False, pool=sys.argv[1]):
        results.append(add.delay(number, 1).get(timeout=30))
    seen.append(left())
grown = {name: [one.get(name) for one in seen] for name in seen[2] if seen[2][name] > seen[1].get(name, 0)}
print(json.dumps([results, grown]))
"""


@pytest.mark.parametrize(("broker", "pool"), [("memory", "solo"), ("redis", "threads"), ("rabbitmq", "solo")])
def test_a_third_worker_changes_nothing_more(broker: str, pool: str, redis: Server, rabbitmq: Server) -> None:
    """Stock Celery runs any number of them."""
    url = {"memory": "memory://", "redis": redis.url, "rabbitmq": rabbitmq.url}[broker]
    variables = {"WORKER_BROKER_URL": url, "WORKER_RESULT_BACKEND": redis.url, "WORKER_LEASE_STORE": redis.url}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, pool],
        env=inherited_environment(without=("WORKER_", "CELERY_")) | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[1, 2, 3], {}]
