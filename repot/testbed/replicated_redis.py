"""A Redis and its replica."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.testbed import executables
from repot.testbed.nodes import running
from repot.testbed.redis_faults import RedisFaults, connected
from repot.testbed.standalone_redis import redis_node
from repot.testbed.startup import LOOPBACK
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed.nodes import Node
    from repot.testbed.process import ReapedDirectory

#: A replica asks for all data at its first connection; without a disk, the primary would wait for more replicas.
_OPTIONS = ("--repl-diskless-sync-delay", "0")
_IN_SYNC_WITHIN_S = 20


class ReplicatedRedis(RedisFaults):
    """A primary and a replica."""

    @property
    def replica(self) -> Node:
        """Return the server that is not the primary."""
        return next(node for node in self.nodes if node is not self.primary)

    def begin(self) -> None:
        """Start both."""
        super().begin()
        self._attach()

    def start_again(self, *, wiped: bool = False) -> None:
        """Start the primary again; its replica follows it, with data or without."""
        super().start_again(wiped=wiped)
        self._attach()

    def fail_over(self, queue: str) -> None:
        """Kill the primary, and promote the replica with everything that it has received."""
        del queue
        if self._follows():
            # replication is asynchronous: a healthy replica would lose by chance what was sent a moment ago
            wait_until(self._is_in_sync, within_s=_IN_SYNC_WITHIN_S, what="the replica is in sync")
        promoted = self.replica
        self.primary.kill()
        with connected(promoted) as client:
            client.replicaof("NO", "ONE")
        self.primary = promoted

    def demote(self, queue: str) -> None:
        """Let the two change roles; both keep running."""
        del queue
        wait_until(self._is_in_sync, within_s=_IN_SYNC_WITHIN_S, what="the replica is in sync")
        former, promoted = self.primary, self.replica
        with connected(promoted) as client:
            client.replicaof("NO", "ONE")
        with connected(former) as client:
            client.replicaof(LOOPBACK, promoted.port)
        self.primary = promoted

    def lose_replica(self, queue: str) -> None:
        """Kill the replica."""
        del queue
        self.replica.kill()

    @contextmanager
    def lagging(self) -> Iterator[None]:
        """Stop replication; a replica that was not promoted meanwhile catches up at the end."""
        primary = self.primary
        wait_until(self._is_in_sync, within_s=_IN_SYNC_WITHIN_S, what="the replica is in sync")
        with connected(self.replica) as client:
            # not by SIGSTOP: the kernel would keep what the primary sends, and deliver it later
            client.replicaof("NO", "ONE")
        try:
            yield
        finally:
            if self.primary is primary and primary.runs:
                self._attach()

    def restore(self) -> None:
        """Give the present primary a replica."""
        self._attach()

    def _attach(self) -> None:
        # without data of its own: it takes all of the primary's
        self.replica.start_again(wiped=True)
        with connected(self.replica) as client:
            client.replicaof(LOOPBACK, self.primary.port)
        wait_until(self._is_in_sync, within_s=_IN_SYNC_WITHIN_S, what="the replica is in sync", poll_s=0.05)

    def _follows(self) -> bool:
        if not self.replica.runs:
            return False
        with connected(self.replica) as client:
            return bool(client.info("replication")["role"] == "slave")

    def _is_in_sync(self) -> bool:
        with connected(self.primary) as client:
            wanted = client.info("replication")["master_repl_offset"]
        with connected(self.replica) as client:
            found = client.info("replication")
        return bool(found.get("master_link_status") == "up" and found["slave_repl_offset"] >= wanted)


@contextmanager
def replicated_redis(*options: str, program: str = "") -> Iterator[ReplicatedRedis]:
    """Start a private primary and its replica; `options` and `program` as for `redis_server`.

    Raises:
        ProgramMissing: there is no Redis.
        ServerFailed: one did not come up; with the last lines of its log.
    """
    program = program or executables.REDIS.find()

    def make(home: ReapedDirectory) -> ReplicatedRedis:
        words = [*_OPTIONS, *options]
        return ReplicatedRedis([redis_node(home, name, program, words) for name in ("redis-a", "redis-b")], words)

    with running("redis", make) as test_broker:
        yield test_broker
