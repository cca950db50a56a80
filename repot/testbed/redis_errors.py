"""Make a private Redis or Valkey answer with a real error reply, and put it right afterwards.

The server itself produces each reply: nothing here forges one.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import redis

from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed.servers import Server

_WITHIN_S = 20.0

#: A client of redis-py, whose annotations do not fit its answers.
Admin = Any


@contextmanager
def answering(server: Server, word: str, user: str = "default") -> Iterator[None]:
    """Let the server answer with the error reply that begins with `word` for the duration of a `with`.

    Which commands meet it: every one for MASTERDOWN and BUSY, every write for the others. For NOPERM `user` may not
    write, for NOEVAL (which is answered as NOPERM) it may not run scripts.
    """
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    try:
        with _WAYS[word](client, user):
            yield
    finally:
        client.close()


@contextmanager
def _misconf(client: Admin, _: str) -> Iterator[None]:
    """A save that failed: a directory has the name of its file."""
    place = Path(client.config_get("dir")["dir"]) / client.config_get("dbfilename")["dbfilename"]
    place.unlink(missing_ok=True)
    (place / "full").mkdir(parents=True)
    try:
        with _set(client, "save", "3600 1"):
            client.bgsave()
            wait_until(lambda: _status(client) == "err", within_s=_WITHIN_S, what="a save fails")
            yield
    finally:
        shutil.rmtree(place)
        # a save that succeeds ends the error
        client.bgsave()
        wait_until(lambda: _status(client) == "ok", within_s=_WITHIN_S, what="a save succeeds")
        place.unlink()


def _status(client: Admin) -> str:
    return str(client.info("persistence")["rdb_last_bgsave_status"])


@contextmanager
def _noreplicas(client: Admin, _: str) -> Iterator[None]:
    with _set(client, "min-replicas-to-write", 1):
        yield


@contextmanager
def _oom(client: Admin, _: str) -> Iterator[None]:
    with _set(client, "maxmemory-policy", "noeviction"), _set(client, "maxmemory", 1):
        yield


@contextmanager
def _readonly(client: Admin, _: str) -> Iterator[None]:
    """A primary that was demoted to the replica of one that is not there."""
    client.execute_command("REPLICAOF", "127.0.0.1", 1)
    try:
        yield
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")


@contextmanager
def _masterdown(client: Admin, user: str) -> Iterator[None]:
    with _set(client, "replica-serve-stale-data", "no"), _readonly(client, user):
        yield


@contextmanager
def _noperm(client: Admin, user: str) -> Iterator[None]:
    with _rights(client, user, "-@write"):
        yield


@contextmanager
def _noeval(client: Admin, user: str) -> Iterator[None]:
    with _rights(client, user, "-@scripting"):
        yield


@contextmanager
def _busy(client: Admin, _: str) -> Iterator[None]:
    """A script of another client that does not end."""
    with _set(client, "busy-reply-threshold", 10), ExitStack() as stack:
        spinning = Thread(target=_spin, args=(client.connection_pool.connection_kwargs,))
        spinning.start()
        stack.callback(spinning.join)
        stack.callback(client.script_kill)
        wait_until(lambda: _is_busy(client), within_s=_WITHIN_S, what="the server is busy")
        yield


def _spin(address: dict[str, Any]) -> None:
    with redis.Redis(host=address["host"], port=address["port"]) as client, suppress(redis.ResponseError):
        client.eval("while true do end", 0)


def _is_busy(client: Admin) -> bool:
    try:
        client.get("repot:nothing")
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


@contextmanager
def _set(client: Admin, name: str, value: object) -> Iterator[None]:
    before = client.config_get(name)[name]
    client.config_set(name, value)
    try:
        yield
    finally:
        client.config_set(name, before)


@contextmanager
def _rights(client: Admin, user: str, rule: str) -> Iterator[None]:
    """Add a rule to those of a user, then put the old ones back."""
    rules = next(line.split()[2:] for line in client.acl_list() if line.split()[1] == user)
    client.execute_command("ACL", "SETUSER", user, rule)
    try:
        yield
    finally:
        client.execute_command("ACL", "SETUSER", user, "reset", *rules)


_WAYS = {
    "MISCONF": _misconf,
    "NOREPLICAS": _noreplicas,
    "OOM": _oom,
    "READONLY": _readonly,
    "MASTERDOWN": _masterdown,
    "NOPERM": _noperm,
    "NOEVAL": _noeval,
    "BUSY": _busy,
}

#: What can be asked for.
WORDS = tuple(_WAYS)
