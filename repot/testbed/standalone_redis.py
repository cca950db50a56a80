"""A standalone Redis for experiments."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.testbed import executables
from repot.testbed.nodes import Node, running
from repot.testbed.redis_faults import RedisFaults
from repot.testbed.redis_node import launch_redis
from repot.testbed.startup import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed.process import ReapedDirectory


class StandaloneRedis(RedisFaults):
    """One Redis or Valkey."""


@contextmanager
def standalone_redis(*options: str, program: str = "") -> Iterator[StandaloneRedis]:
    """Start a private Redis or Valkey, as `redis_server` does.

    Raises:
        ProgramMissing: neither is installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    program = program or executables.REDIS.find()

    def make(home: ReapedDirectory) -> StandaloneRedis:
        words = list(options)
        return StandaloneRedis([redis_node(home, "redis", program, words)], words)

    with running("redis", make) as test_broker:
        yield test_broker


def redis_node(home: ReapedDirectory, name: str, program: str, options: list[str]) -> Node:
    """Return a server in a directory of its own within `home`; `options` are read at each start."""
    directory = home.path / name
    directory.mkdir()
    port = free_port()
    return Node(name, lambda: launch_redis(program, directory, home, port, options), directory, (port,))
