"""A backlog that no Celery has sent: it is planned, moved or quarantined, and nothing of it is lost."""

from __future__ import annotations

import base64
import json
import random
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import redis as redis_py
from click.testing import CliRunner
from kombu import Connection

from repot.cli.main import main
from support.moves import Way, task, way

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from repot.testbed import Server

pytestmark = pytest.mark.usefixtures("quick_plans")

#: Values for any field of an envelope, of its headers and of its properties.
VALUES: list[Any] = [
    None,
    True,
    -1,
    2**70,
    1e300,
    float("nan"),
    "",
    "\x00",
    "\ud800",
    "é\u2028😀",
    "x" * 300,
    "x" * 200_000,
    "2020-13-45T99:00:00",
    "9999-12-31T23:59:59.999999-23:59",
    [],
    [None, [[]], {"a": "\x00"}],
    {},
    {"": {}},
    {"x" * 300: 1},
    {str(number): number for number in range(5000)},
    "application/x-python-serialize",
    "utf-16",
    "no such encoding",
    "base64",
]
FIELDS = [
    ("body",),
    ("headers",),
    ("properties",),
    ("content-type",),
    ("content-encoding",),
    *(
        ("headers", one)
        for one in ("id", "task", "retries", "eta", "expires", "compression", "root_id", "", "repot_move")
    ),
    *(("headers", one) for one in ("repot_dead", "repot_maybe_twice", "redelivered", "x-death", "x-delivery-count")),
    *(("properties", one) for one in ("body_encoding", "priority", "expiration", "timestamp", "delivery_info")),
    *(
        ("properties", one)
        for one in ("delivery_mode", "delivery_tag", "correlation_id", "reply_to", "type", "unknown")
    ),
]
#: Elements that are no envelopes at all.
RAW = [
    b"",
    b"\xff\xfe\x00",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{}",
    b"[" * 100_000,
    b'{"properties": {}}',
    b"\x00",
    b"{" * 9,
]


def envelope(*changes: tuple[tuple[str, ...], Any]) -> bytes:
    """An envelope of kombu's with other values."""
    found: dict[str, Any] = {
        "body": base64.b64encode(b"[[], {}, {}]").decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": f"id-{uuid4()}", "task": "shop.charge", "retries": 0},
        "properties": {"body_encoding": "base64", "delivery_tag": "t", "priority": 0, "delivery_info": {}},
    }
    for place, value in changes:
        within = found
        for name in place[:-1]:
            if not isinstance(within.get(name), dict):
                within[name] = {}
            within = within[name]
        within[place[-1]] = value
    return json.dumps(found).encode()


def backlog() -> list[bytes]:
    """Each value in each field, and several at once."""
    rng = random.Random(17)  # noqa: S311 - to be repeated
    several = [
        envelope(*((rng.choice(FIELDS), rng.choice(VALUES)) for _ in range(rng.randint(2, 5)))) for _ in range(200)
    ]
    return [*RAW, *(envelope((field, value)) for field in FIELDS for value in VALUES), *several]


@pytest.fixture(params=["redis-rabbitmq", "redis-redis"])
def path(request: pytest.FixtureRequest, redis: Server) -> Way:
    source, target = map(request.getfixturevalue, request.param.split("-"))
    return way(source, target, redis)


@pytest.fixture
def command(path: Way, redis: Server, tmp_path: Path) -> Any:
    words = ["--from", path.source.url, "--to", path.target.url, "--to-management", path.target.management_url]
    queues = ["--map", f"{path.queue}={path.goal}", "--queue", path.queue]
    environment = {"WORKER_LEASE_STORE": redis.url, "WORKER_MOVE_DIR": str(tmp_path)}

    def run(*verb: str) -> Result:
        named = [] if verb[0] == "verify" else queues
        done = CliRunner().invoke(main, ["move", *verb, *words, *named], env=environment)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        assert "Traceback" not in done.output, done.output[-1500:]
        return done

    return run


def test_it_is_planned_and_moved_or_quarantined(path: Way, command: Any) -> None:
    elements = backlog()
    with redis_py.Redis.from_url(path.source.url) as client:
        for element in elements:
            client.lpush(path.queue, element)
        for words in (("plan",), ("plan", "--json", "--sample", "50000")):
            assert command(*words).exit_code in (0, 4)
        done = command("start", "--name", path.name, "--execute", "--allow-rpc", "--json", "--force")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (len(elements), 0) == (found["reserved"], found["still_reserved"])
        assert len(elements) == found["delivered"] + found["quarantined"]
        assert client.llen(path.queue) == 0
        assert found["quarantined"] == waiting(path.target, f"{path.goal}.dead") + client.llen(f"{path.queue}.dead")
    assert found["delivered"] == waiting(path.target, path.goal)
    assert command("verify", path.name).exit_code == 0


def waiting(server: Server, queue: str) -> int:
    with Connection(server.url) as connection:
        channel: Any = connection.default_channel
        return int(channel.queue_declare(queue, passive=True).message_count)


def test_a_key_that_is_no_list_ends_the_move_with_its_name(path: Way, command: Any) -> None:
    """Nothing is taken before it is gone; then everything is moved."""
    path.fill([task(place) for place in range(3)])
    with redis_py.Redis.from_url(path.source.url) as client:
        client.hset(f"{path.queue}\x06\x163", "field", "value")
        refused = command("start", "--name", path.name, "--execute")
        assert refused.exit_code in (1, 4)
        assert path.queue in refused.stderr
        assert "list" in refused.stderr
        assert client.llen(path.queue) == 3
        client.delete(f"{path.queue}\x06\x163")
    assert command("start", "--name", path.name, "--execute").exit_code == 0
    assert waiting(path.target, path.goal) == 3
