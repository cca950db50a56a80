"""RPT7xx: the configuration of the Redis server. All of these rules need --live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.facts import known, release_of
from repot.doctor.rule import ERROR, REDIS, WARNING, Finding, rule
from repot.doctor.rules.fixes import APPEND_ONLY, NO_EVICTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts

_FULL = 0.75
_CROWDED = 0.8
#: Redis' default limit for subscribers.
_PUBSUB_HARD_BYTES = 32 << 20
#: A larger difference makes a visibility timeout of seconds useless.
_CLOCK_APART_S = 5
_OLDEST = (6, 0)


@rule(
    "RPT701",
    "Redis may evict queues",
    ERROR,
    brokers=REDIS,
    live=True,
    fix=NO_EVICTION,
    evidence=(
        "https://redis.io/docs/latest/develop/reference/eviction",
        "measured: a queue of 500 tasks was gone, producers saw no error",
    ),
)
def eviction(facts: Facts) -> Iterator[Finding]:
    """A queue is one key, and so are the messages that workers hold: if memory is short, Redis deletes them whole.

    Producers see no error. The policies `volatile-*` delete only keys that expire, as a queue with `x-expires` does.
    """
    policy = facts.redis.parameter("maxmemory-policy")
    if policy.startswith("allkeys"):
        yield Finding(f"maxmemory-policy is {policy}")
    elif policy.startswith("volatile"):
        for queue in facts.queues:
            if queue.arguments.get("x-expires"):
                yield Finding(f"maxmemory-policy is {policy}, and {queue.name!r} expires")


@rule(
    "RPT702",
    "Redis does not persist messages",
    WARNING,
    brokers=REDIS,
    live=True,
    fix=APPEND_ONLY,
    evidence=(
        "https://redis.io/docs/latest/operate/oss_and_stack/management/persistence",
        "measured: of 5000 tasks 0 were left after kill -9",
    ),
)
def no_persistence(facts: Facts) -> Iterator[Finding]:
    """Without an append-only file a crash loses every task since the last snapshot, if there is one.

    With a file that is synced each second, it loses one second.
    """
    if facts.redis.parameter("appendonly") == "no":
        yield Finding("appendonly is no")


@rule(
    "RPT703",
    "Redis disconnects slow subscribers",
    WARNING,
    brokers=REDIS,
    live=True,
    fix="CONFIG SET client-output-buffer-limit 'normal 0 0 0 pubsub 33554432 8388608 60'",
    evidence="https://redis.io/docs/latest/develop/reference/clients#output-buffer-limits",
)
def output_buffer_limits(facts: Facts) -> Iterator[Finding]:
    """Redis disconnects workers and monitors whose buffer of events or control messages reaches the limit.

    A limit for normal clients also disconnects a worker that fetches large tasks.
    """
    words = facts.redis.parameter("client-output-buffer-limit").split()
    limits = {words[index]: words[index + 1 : index + 4] for index in range(0, len(words) - 3, 4)}
    if limits.get("normal", ["0"])[0] != "0":
        yield Finding(f"normal clients are disconnected at {limits['normal'][0]} bytes")
    pubsub = int(limits.get("pubsub", ["0"])[0])
    if 0 < pubsub < _PUBSUB_HARD_BYTES:
        yield Finding(f"subscribers are disconnected at {pubsub} bytes; Redis' default is {_PUBSUB_HARD_BYTES}")


@rule(
    "RPT704",
    "Redis is nearly full",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="CONFIG SET maxmemory 4gb  # and find the largest keys: redis-cli --memkeys",
    evidence="measured: at the limit each worker exited with 1 and lost the task it had just fetched",
)
def memory_full(facts: Facts) -> Iterator[Finding]:
    """At `maxmemory` without eviction every write fails.

    Producers cannot send, and a worker exits when it cannot record the message it has fetched.
    """
    used, most = int(known(facts.redis.info).get("used_memory", 0)), int(facts.redis.parameter("maxmemory") or 0)
    if most and used > _FULL * most:
        yield Finding(f"{used} of {most} bytes are used")


@rule(
    "RPT705",
    "Redis closes idle connections",
    WARNING,
    brokers=REDIS,
    live=True,
    fix="CONFIG SET timeout 0  # tcp-keepalive finds dead ones",
    evidence="https://redis.io/docs/latest/develop/reference/clients#client-timeouts",
)
def idle_timeout(facts: Facts) -> Iterator[Finding]:
    """`timeout` closes connections that are idle for so long, and a producer's pool is idle most of the time.

    Its next publish fails once.
    """
    timeout = int(facts.redis.parameter("timeout") or 0)
    if timeout:
        yield Finding(f"timeout is {timeout} s")


@rule(
    "RPT706",
    "Redis cannot save",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="redis-cli LASTSAVE; df -h  # room on the disk, then BGSAVE",
    evidence="https://redis.io/docs/latest/operate/oss_and_stack/management/persistence",
)
def cannot_save(facts: Facts) -> Iterator[Finding]:
    """After a failed snapshot Redis refuses every write (MISCONF) until one succeeds.

    No task can be sent or fetched.
    """
    for key in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"):
        status = known(facts.redis.info).get(key, "ok")
        if status != "ok":
            yield Finding(f"{key} is {status}")


@rule(
    "RPT707",
    "Redis is nearly out of connections",
    WARNING,
    brokers=REDIS,
    live=True,
    fix="CONFIG SET maxclients 20000  # and fewer connections: broker_pool_limit, max_connections",
    evidence="https://redis.io/docs/latest/develop/reference/clients#maximum-concurrent-connected-clients",
)
def connections_full(facts: Facts) -> Iterator[Finding]:
    """At `maxclients` Redis refuses new connections, from workers that reconnect and from web processes that send.

    Each worker holds about ten connections.
    """
    used, most = int(known(facts.redis.info).get("connected_clients", 0)), int(facts.redis.parameter("maxclients") or 0)
    if most and used > _CROWDED * most:
        yield Finding(f"{used} of {most} are in use")


@rule(
    "RPT708",
    "Another application uses this Redis database",
    WARNING,
    brokers=REDIS,
    live=True,
    fix="""
    app.conf.broker_url = 'redis://localhost:6379/2'  # a database of its own, or
    app.conf.broker_transport_options |= {'global_keyprefix': 'shop:'}
    """,
    evidence="kombu/transport/redis.py: Channel.unacked_key",
)
def shared_database(facts: Facts) -> Iterator[Finding]:
    """All applications of a database share one hash of unacknowledged messages, and each sweep restores all of them.

    The one with the shortest visibility timeout runs the others' tasks twice.
    """
    ours = {queue.exchange for queue in facts.queues} | {queue.name for queue in facts.queues}
    ours |= {str(facts[f"{kind}_exchange"]) for kind in ("control", "event", "result")}
    ours |= {"celery.pidbox", "reply.celery.pidbox", f"{facts['control_exchange']}.pidbox", "celery", "celeryev"}
    ours |= {f"reply.{facts['control_exchange']}.pidbox", str(facts["task_default_exchange"])}
    others = sorted(
        name for name in known(facts.redis.exchanges) - ours if not name.startswith(("celeryev", "celery_"))
    )
    if others:
        yield Finding(f"it holds bindings of {', '.join(repr(name) for name in others[:3])}")


@rule(
    "RPT709",
    "The broker is a Redis replica",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="""
    app.conf.broker_url = 'sentinel://host:26379/0'  # asks Sentinel for the primary
    app.conf.broker_transport_options |= {'master_name': 'mymaster'}
    """,
    evidence=(
        "https://redis.io/docs/latest/operate/oss_and_stack/management/replication",
        "https://github.com/celery/celery/issues/7946",
        "docs/scenarios.md: primary-demoted",
    ),
)
def replica(facts: Facts) -> Iterator[Finding]:
    """A replica refuses writes (READONLY), and fetching a task is a write: a worker exits or never receives a task.

    After a failover the former primary is a live replica: the address must lead to the new primary.
    """
    info = known(facts.redis.info)
    if facts.redis.is_replica:
        yield Finding(f"it follows {info.get('master_host', 'another server')}")


@rule(
    "RPT710",
    "Redis is too old for the installed redis-py",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="# Redis 6 or newer, or pip install 'redis<8'",
    evidence="redis/connection.py: AbstractConnection.on_connect_check_health (HELLO 3)",
)
def too_old(facts: Facts) -> Iterator[Finding]:
    """redis-py 8 opens each connection with HELLO 3, which Redis supports from 6.0 on.

    Older servers and some proxies answer with an error.
    """
    known(facts.redis.info)
    if facts.has_version("redis", 8, 0) and release_of(facts.redis.version) < _OLDEST:
        yield Finding(f"Redis {facts.redis.version} with redis-py {facts.versions.redis}")


@rule(
    "RPT711",
    "The broker is a Redis Cluster",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="# a Redis without cluster mode for the broker, or RabbitMQ",
    evidence="kombu/transport/__init__.py: TRANSPORT_ALIASES",
)
def cluster(facts: Facts) -> Iterator[Finding]:
    """Kombu moves a message between keys of different slots and has no transport for a cluster.

    Commands fail with CROSSSLOT or MOVED as soon as the keys lie on different nodes.
    """
    if int(known(facts.redis.info).get("cluster_enabled", 0)):
        yield Finding("cluster mode is enabled")


@rule(
    "RPT712",
    "The clocks of Redis and this machine differ",
    WARNING,
    brokers=REDIS,
    live=True,
    fix="timedatectl set-ntp true  # on every machine that runs a worker",
    evidence="kombu/transport/redis.py: QoS.append, QoS.restore_visible",
)
def clocks_apart(facts: Facts) -> Iterator[Finding]:
    """A worker stamps a delivery with its own clock, and another worker compares the stamp with its own.

    If the clocks differ, the visibility timeout is that much shorter or longer. Claims have the time of Redis
    (WORKER_REDIS_CLAIM=atomic).
    """
    if facts.claims_messages:
        return
    apart = known(facts.redis.clock_ahead_s)
    if abs(apart) > _CLOCK_APART_S:
        yield Finding(f"Redis' clock is {abs(apart):.0f} s {'ahead' if apart > 0 else 'behind'}")


@rule(
    "RPT714",
    "Redis cannot do what claims need",
    WARNING,
    brokers=REDIS,
    live=True,
    fix="ACL SETUSER worker +evalsha +eval +script|load +client|tracking +client|caching +time +exists +get +set +del "
    "+expire +lindex +llen +lpush +lpop +rpush +rpop +hget +hset +hdel +hexists +zadd +zrem +zscore +zrangebyscore  "
    "# and Redis 6 or newer, or Valkey",
    evidence=(
        "https://redis.io/docs/latest/commands/client-tracking/",
        "docs/redis-claims.md",
    ),
)
def claims_impossible(facts: Facts) -> Iterator[Finding]:
    """A worker claims messages by a script and waits for them with CLIENT TRACKING, which Redis has from 6.0 on.

    Where the server refuses one of them the worker falls back to BRPOP: it logs a warning (`claim_unavailable`), and a
    message that it takes when it dies is lost.
    """
    if not facts.claims_messages:
        return
    known(facts.redis.info)
    if release_of(facts.redis.version) < _OLDEST:
        yield Finding(f"it is Redis {facts.redis.version}")
        return
    refused = known(facts.redis.claims_refused)
    if refused:
        yield Finding(f"it refuses {refused}")


@rule(
    "RPT713",
    "The lease store is a replica, or read-only",
    ERROR,
    live=True,
    fix="WORKER_LEASE_STORE=sentinel://host:26379/0  # and WORKER_SENTINEL_MASTER, or the address of the primary",
    evidence=(
        "https://redis.io/docs/latest/operate/oss_and_stack/management/replication",
        "tests/servers/test_doctor.py: test_a_broker_and_a_lease_store_that_are_demoted",
    ),
)
def store_replica(facts: Facts) -> Iterator[Finding]:
    """A replica refuses writes, and claiming a lease is a write: no guarded task runs, no job is accepted.

    No task runs twice because of it. A replica that accepts writes loses them with its next synchronization. A database
    that is read-only is the same.
    """
    if facts.store_read_only is None:
        return
    reason = known(facts.store_read_only)
    if reason:
        fix = (
            "WORKER_LEASE_STORE=postgresql+psycopg://...  # the address of the primary"
            if facts.has_database_store
            else ""
        )
        yield Finding(reason, fix=fix)
