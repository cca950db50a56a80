"""Large bodies: what the target does not take is quarantined, and a window is as small as its messages are large."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
import redis as redis_py

from repot.config import inherited_environment
from repot.errors import DepthUnknown
from repot.waiting import wait_until
from support.moves import Way, places, read, task, way

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server

#: Above the 128 MiB of RabbitMQ before 4.0, and the 16 MiB since.
LARGE = 140_000_000
#: Redis takes it; each MB costs the machine, which has other tests to run.
LARGE_ENOUGH = 40_000_000
MB = 1_000_000

#: Pushes the text of a key; no client ever holds all of it.
_PUSH = "redis.call('LPUSH', KEYS[1], redis.call('GET', KEYS[2])); redis.call('DEL', KEYS[2])"
_LENGTH = "return #redis.call('LINDEX', KEYS[1], ARGV[1])"
#: Runs a command, and prints the most memory that it had, in KB. A child's count begins with that of its parent.
_MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""


@pytest.fixture
def path(request: pytest.FixtureRequest, redis: Server) -> Way:
    source, target = map(request.getfixturevalue, request.param.split("-"))
    return way(source, target, redis)


def run(path: Way, directory: Path, *words: str) -> tuple[Any, int]:
    """Run `repot move ...` in a process of its own; return its JSON, and the most memory that it had in MB."""
    command = [sys.executable, "-m", "repot", "move", *words, "--from", path.source.url, "--to", path.target.url]
    command += ["--from-management", path.source.management_url, "--to-management", path.target.management_url]
    command += ["--queue", path.queue, "--map", f"{path.queue}={path.goal}", "--json"]
    environment = {"WORKER_MOVE_DIR": str(directory), "WORKER_LEASE_STORE": path.store.url}
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *command],
        env=inherited_environment(without=()) | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # what it met, if the test fails
    sys.stderr.write(done.stderr[-3000:])
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout), int(done.stderr.split()[-1]) // 1024


@pytest.mark.parametrize(
    ("path", "size"), [("redis-rabbitmq", LARGE), ("redis-redis", LARGE_ENOUGH)], indirect=["path"]
)
def test_a_large_body_is_delivered_or_quarantined_by_the_limit_of_the_target(
    path: Way, size: int, tmp_path: Path
) -> None:
    """RabbitMQ does not take it, so it is kept on the source; Redis takes it. Memory holds it some five times."""
    most_memory = 400 + 6 * size // MB
    rest = {"content-type": "application/json", "content-encoding": "utf-8", "headers": {"id": "large", "task": "t"}}
    rest["properties"] = {"body_encoding": "base64", "delivery_tag": "t", "priority": 0}
    path.fill([task(0)])
    # a busy machine takes longer for 140 MB than the 5 s that redis-py waits by itself
    with redis_py.Redis.from_url(path.source.url, socket_timeout=60) as client:
        # three characters in Base64, after `"xx`
        client.append(key := f"large-{path.queue}", '{"body": "Inh4')
        for _ in range(size // MB):
            client.append(key, "eHh4" * (MB // 3))
        client.append(key, f'eHgi", {json.dumps(rest)[1:]}')
        client.eval(_PUSH, 2, path.queue, key)
        path.fill([task(1)])
        is_delivered = path.target.name != "RabbitMQ"
        planned, memory = run(path, tmp_path, "plan")
        (queue,) = planned["queues"]
        assert ({} if is_delivered else {"too_large": 1}) == queue["tasks"]["t"]["quarantined"]
        assert queue["tasks"]["t"]["largest_bytes"] > size - 1000
        assert memory < most_memory
        found, memory = run(path, tmp_path, "start", "--name", path.name, "--execute")
        assert memory < most_memory
        assert (3, 0, not is_delivered) == (found["reserved"], found["still_reserved"], found["quarantined"])
        where, place = (path.goal, 1) if is_delivered else (f"{path.queue}.dead", 0)
        assert int(str(client.eval(_LENGTH, 1, where, str(place)))) > size * 1.33
        client.delete(where)


@pytest.mark.parametrize("path", ["redis-redis", "rabbitmq-redis"], indirect=True)
def test_a_window_of_large_messages_has_few_of_them(path: Way, tmp_path: Path) -> None:
    """200 MB in 40 messages, which a window of 500 would hold at once, and some of it several times."""
    for start in range(0, 40, 8):
        path.fill([task(place, size=5 * MB) for place in range(start, start + 8)])
    wait_until(lambda: count(path) == 40, within_s=30, what="they are counted", poll_s=0.2)
    found, memory = run(path, tmp_path, "start", "--name", path.name, "--execute", "--sample", "5")
    assert (found["reserved"], found["delivered"]) == (40, 40)
    assert memory < 400
    arrived = sorted(places(read(path.target, path.goal)))
    assert list(range(40)) == arrived


def count(path: Way) -> int:
    """The messages of the source queue; RabbitMQ counts them, and how large they are, some seconds later."""
    with closing(path.source.open()) as broker, suppress(DepthUnknown):
        return broker.depth(path.queue).ready
    return 0
