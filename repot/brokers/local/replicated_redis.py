"""A Redis and its replica."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.brokers.local import programs
from repot.brokers.local.launching import LOOPBACK
from repot.brokers.local.lone_redis import redis_node
from repot.brokers.local.nodes import running
from repot.brokers.local.redis_harm import RedisHarm, connected
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers.local.nodes import Node
    from repot.brokers.local.process import GuardedFolder

#: A replica asks for all data at its first connection, and a primary that answers without a disk waits for others.
_OPTIONS = ("--repl-diskless-sync-delay", "0")
_IN_STEP_WITHIN_S = 20


class ReplicatedRedis(RedisHarm):
    """A primary, which is in charge, and a replica."""

    @property
    def spare(self) -> Node:
        """The one that is not in charge."""
        return next(node for node in self.nodes if node is not self.in_charge)

    def begin(self) -> None:
        """Start both."""
        super().begin()
        self._attach()

    def start_again(self, *, wiped: bool = False) -> None:
        """Start the primary anew; its replica follows it, with data or without."""
        super().start_again(wiped=wiped)
        self._attach()

    def fail_over(self, queue: str) -> None:
        """Lose the primary; the replica becomes one, with all that it has learned."""
        del queue
        if self._follows():
            # replication is asynchronous; what a healthy replica would learn a moment later is not to be lost by chance
            wait_until(self._is_in_step, within_s=_IN_STEP_WITHIN_S, what="the replica is in step")
        heir = self.spare
        self.in_charge.kill()
        with connected(heir) as client:
            client.replicaof("NO", "ONE")
        self.in_charge = heir

    def demote(self, queue: str) -> None:
        """Let the two change places; both live."""
        del queue
        wait_until(self._is_in_step, within_s=_IN_STEP_WITHIN_S, what="the replica is in step")
        former, heir = self.in_charge, self.spare
        with connected(heir) as client:
            client.replicaof("NO", "ONE")
        with connected(former) as client:
            client.replicaof(LOOPBACK, heir.port)
        self.in_charge = heir

    def lose_spare(self, queue: str) -> None:
        """Lose the replica."""
        del queue
        self.spare.kill()

    @contextmanager
    def lagging(self) -> Iterator[None]:
        """Cut the replica off at this point; if it is still one at the end, it learns what it missed."""
        primary = self.in_charge
        wait_until(self._is_in_step, within_s=_IN_STEP_WITHIN_S, what="the replica is in step")
        with connected(self.spare) as client:
            # not frozen: the kernel would keep what the primary sends, and hand it over later
            client.replicaof("NO", "ONE")
        try:
            yield
        finally:
            if self.in_charge is primary and primary.runs:
                self._attach()

    def mend(self) -> None:
        """Give the present primary a replica."""
        self._attach()

    def _attach(self) -> None:
        # without data of its own: it takes all of the primary's
        self.spare.start_again(wiped=True)
        with connected(self.spare) as client:
            client.replicaof(LOOPBACK, self.in_charge.port)
        wait_until(self._is_in_step, within_s=_IN_STEP_WITHIN_S, what="the replica is in step", poll_s=0.05)

    def _follows(self) -> bool:
        if not self.spare.runs:
            return False
        with connected(self.spare) as client:
            return bool(client.info("replication")["role"] == "slave")

    def _is_in_step(self) -> bool:
        with connected(self.in_charge) as client:
            wanted = client.info("replication")["master_repl_offset"]
        with connected(self.spare) as client:
            found = client.info("replication")
        return bool(found.get("master_link_status") == "up" and found["slave_repl_offset"] >= wanted)


@contextmanager
def replicated_redis_ground(*options: str, program: str = "") -> Iterator[ReplicatedRedis]:
    """A private primary and its replica; `options` and `program` as for `redis_server`.

    Raises:
        ProgramMissing: there is no Redis.
        ServerFailed: one did not come up; with the last lines of its log.
    """
    program = program or programs.REDIS.find()

    def make(home: GuardedFolder) -> ReplicatedRedis:
        words = [*_OPTIONS, *options]
        return ReplicatedRedis([redis_node(home, name, program, words) for name in ("redis-a", "redis-b")], words)

    with running("redis", make) as ground:
        yield ground
