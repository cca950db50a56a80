"""Move backlogs that other releases of Celery wrote there and back, and compare what each message is.

    python benchmarks/backlogs.py [--celery 5.2 ...] [--directory DIR] [--json]

Makes an environment for each release (`python -m venv`, pip) with the kombu of its time, by the first Python of
`PYTHONS` that is installed. There `backlogs_writer.py` writes to a private Redis and a private RabbitMQ: protocols 1
and 2, JSON, pickle, YAML, msgpack, uncompressed, gzip and zstd, priorities, ETA, expires, chains and chords. On Redis
once with kombu's steps of priorities and separator, once with a step for each priority and another separator. `repot
move start --raw` takes all of it to the other broker, and a second move brings it back. Before, in between and at the
end the queues are read with redis-py and py-amqp alone: each id that the writer named has to be there once, with the
same body, ETA, expiry and rank: Redis' priorities count from 0 up, RabbitMQ's from 9 down. Exits with 4 if one is not.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import amqp
from redis import Redis

from repot.config import inherited_environment
from repot.config.endpoints import endpoints
from repot.testbed import rabbitmq_server, redis_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

HERE = Path(__file__).parent
#: Pythons that a release supports, by their versions.
PYTHONS = {
    "5.2": ("3.10", "3.9", "3.8"),
    "5.4": ("3.12", "3.11", "3.10"),
    "5.5": ("3.12", "3.11", "3.10"),
    "5.6": ("3.13", "3.12", "3.11"),
    "5.7": ("3.13", "3.12", "3.11"),
}
QUEUES = ("protocol1", "protocol2")
#: A step for each priority, and another separator than kombu's.
STEPS = {"priority_steps": list(range(10)), "sep": ":"}
#: id -> the message without what a broker changes, and how often it is there.
Ledger = dict[str, Counter[str]]


def python_of(versions: tuple[str, ...]) -> str:
    """Return the path of the first of these Pythons that is installed, also below pyenv."""
    for version in versions:
        below = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))
        found = str(below[-1]) if below else shutil.which(f"python{version}")
        if found:
            return found
    message = f"none of these Pythons is installed: {', '.join(versions)}"
    raise SystemExit(message)


def environment_of(celery: str, directory: Path) -> Path:
    """Return the Python of an environment with this release, which is made if it is not there.

    kombu 5.2 imports setuptools or packaging without requiring them.
    """
    found = directory / f"celery-{celery}"
    if not (found / "bin" / "celery").exists():
        subprocess.run([python_of(PYTHONS[celery]), "-m", "venv", str(found)], check=True)
        # the kombu of that time, which any later release would satisfy as well
        kombu = f"kombu[redis,yaml,msgpack]=={celery}.*"
        # zstd is the one or the other
        packages = [f"celery=={celery}.*", kombu, "zstandard", "backports.zstd", "packaging", "setuptools"]
        pip = [str(found / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
    return found / "bin" / "python"


def write(python: Path, server: Server, results: Server, options: dict[str, Any]) -> tuple[str, Counter[str]]:
    """Let a release write its backlog; return the exact release and the ids."""
    is_redis = server.url.startswith("redis")
    words = [server.url, f"{results.url[:-1]}9", json.dumps(options), "0" if is_redis else "9"]
    # without repot and its path
    environment = inherited_environment(without=("PYTHON", "CELERY_", "WORKER_"))
    program = [str(python), str(HERE / "backlogs_writer.py"), *words]
    said = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    if said.returncode:
        raise SystemExit(said.stderr)
    release = subprocess.run(
        [str(python), "-c", "import celery; print(celery.__version__)"], capture_output=True, text=True, check=True
    )
    return release.stdout.strip(), Counter(json.loads(said.stdout.splitlines()[-1]))


def read(server: Server, options: dict[str, Any]) -> Ledger:
    """Return what is in the queues, which stays there."""
    found: Ledger = {}
    is_redis = server.url.startswith("redis")
    messages = _of_redis(server, options) if is_redis else _of_rabbitmq(server)
    for body, kind, encoding, headers, properties in messages:
        id_ = headers.get("id") or properties.get("correlation_id")
        priority = int(properties.get("priority") or 0)
        stated = [
            kind,
            encoding,
            priority if is_redis else 9 - priority,
            *(str(headers.get(name)) for name in ("task", "eta", "expires", "compression", "lang")),
        ]
        digest = f"{sha256(body).hexdigest()} {json.dumps(stated)}"
        found.setdefault(str(id_), Counter())[digest] += 1
    return found


def _of_redis(
    server: Server, options: dict[str, Any]
) -> Iterator[tuple[bytes, Any, Any, dict[str, Any], dict[str, Any]]]:
    separator, steps = options.get("sep", "\x06\x16"), options.get("priority_steps", [0, 3, 6, 9])
    with Redis.from_url(server.url) as client:
        for queue in QUEUES:
            for step in steps:
                for element in client.lrange(f"{queue}{separator}{step}" if step else queue, 0, -1):
                    one = json.loads(element)
                    priority = int(one["properties"].get("priority") or 0)
                    assert step == max(one for one in steps if one <= priority), f"{priority} is in the list of {step}"
                    yield (
                        base64.b64decode(one["body"]),
                        one["content-type"],
                        one["content-encoding"],
                        one["headers"] or {},
                        one["properties"],
                    )


def _of_rabbitmq(server: Server) -> Iterator[tuple[bytes, Any, Any, dict[str, Any], dict[str, Any]]]:
    address = endpoints(server.url)[0]
    with amqp.Connection(f"{address.host}:{address.port}", "guest", "guest") as connection:
        channel: Any = connection.channel()
        channel.auto_decode = False
        for queue in QUEUES:
            while (one := channel.basic_get(queue)) is not None:
                fields = dict(one.properties)
                headers = fields.pop("application_headers", {})
                yield bytes(one.body), fields.get("content_type"), fields.get("content_encoding"), headers, fields


def move(name: str, source: Server, target: Server, given: dict[str, dict[str, Any]], store: Server) -> None:
    """Move both queues."""
    words = ["move", "start", "--name", name, "--raw", "--execute", "--from", source.url, "--to", target.url]
    words += [word for queue in QUEUES for word in ("--queue", queue)]
    for side, server in (("from", source), ("to", target)):
        words += [f"--{side}-management", server.management_url] if server.management_url else []
        words += [f"--{side}-options", json.dumps(given.get(server.url, {}))]
    environment = inherited_environment(without=()) | {"WORKER_LEASE_STORE": store.url}
    with tempfile.TemporaryDirectory() as directory:
        environment["WORKER_MOVE_DIR"] = directory
        program = [sys.executable, "-c", "from repot.cli.main import main; main()", *words]
        done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        message = f"{name}: {done.stdout}{done.stderr}"
        raise SystemExit(message)


def declare(server: Server, levels: int) -> None:
    """Declare the queues as the writer does; on Redis every name is one."""
    if server.url.startswith("redis"):
        return
    address = endpoints(server.url)[0]
    with amqp.Connection(f"{address.host}:{address.port}", "guest", "guest") as connection:
        channel: Any = connection.channel()
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True, auto_delete=False, arguments={"x-max-priority": levels})


def clear(*servers: Server) -> None:
    """Remove all messages."""
    for server in servers:
        if server.url.startswith("redis"):
            with Redis.from_url(server.url) as client:
                client.flushdb()
            continue
        address = endpoints(server.url)[0]
        with amqp.Connection(f"{address.host}:{address.port}", "guest", "guest") as connection:
            for queue in QUEUES:
                connection.channel().queue_delete(queue)


def differences(sent: Counter[str], before: Ledger, after: Ledger) -> int:
    """Return how many ids are not there once, or with another message than before."""
    wrong = [one for one in sent if sent[one] != 1 or after.get(one, Counter()).total() != 1]
    wrong += [one for one in {*before, *after} if before.get(one) != after.get(one) or one not in sent]
    return len(set(wrong))


def main() -> None:
    """Write, move there and back, compare, for each release and each broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--celery", action="append", choices=list(PYTHONS), default=[])
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "repot-backlogs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    with redis_server() as redis, rabbitmq_server() as rabbitmq, redis_server() as store:
        for celery in given.celery or PYTHONS:
            python = environment_of(celery, given.directory)
            for source, target, options in ((redis, rabbitmq, {}), (redis, rabbitmq, STEPS), (rabbitmq, redis, {})):
                rows.append(one_way(python, source, target, store, options))
                print(
                    json.dumps(rows[-1]) if given.json else "  ".join(f"{k} {v}" for k, v in rows[-1].items()),
                    flush=True,
                )
    sys.exit(4 if any(row["differ there"] or row["differ back"] for row in rows) else 0)


def one_way(python: Path, source: Server, target: Server, store: Server, options: dict[str, Any]) -> dict[str, Any]:
    """Write to a source, move to the target and back; return what differs."""
    clear(source, target)
    of = {server.url: options if server.url.startswith("redis") else {} for server in (source, target)}
    release, sent = write(python, source, store, of[source.url])
    declare(target, 9)
    before = read(source, of[source.url])
    name = f"{release}-{source.name}-{'steps' if options else 'usual'}".replace(".", "-")
    move(f"{name}-there", source, target, of, store)
    there = read(target, of[target.url])
    move(f"{name}-back", target, source, of, store)
    back = read(source, of[source.url])
    return {
        "celery": release,
        "from": source.name,
        "steps": "10" if options else "usual",
        "tasks": sent.total(),
        "differ there": differences(sent, before, there),
        "differ back": differences(sent, before, back),
    }


if __name__ == "__main__":
    main()
