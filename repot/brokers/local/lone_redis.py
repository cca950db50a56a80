"""A lone Redis that is there to be harmed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.brokers.local import programs
from repot.brokers.local.launching import free_port
from repot.brokers.local.lone import LoneGround
from repot.brokers.local.nodes import Node, running
from repot.brokers.local.redis_harm import RedisHarm
from repot.brokers.local.redis_node import launch_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers.local.process import GuardedFolder


class LoneRedis(RedisHarm, LoneGround):
    """One Redis or Valkey."""


@contextmanager
def redis_ground(*options: str, program: str = "") -> Iterator[LoneRedis]:
    """A private Redis or Valkey, as `redis_server` starts it.

    Raises:
        ProgramMissing: neither is installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    program = program or programs.REDIS.find()

    def make(home: GuardedFolder) -> LoneRedis:
        words = list(options)
        return LoneRedis([redis_node(home, "redis", program, words)], words)

    with running("redis", make) as ground:
        yield ground


def redis_node(home: GuardedFolder, name: str, program: str, options: list[str]) -> Node:
    """A server in a folder of its own within `home`; `options` are read anew at each start."""
    folder = home.path / name
    folder.mkdir()
    port = free_port()
    return Node(name, lambda: launch_redis(program, folder, port, options, home=home), folder, (port,))
