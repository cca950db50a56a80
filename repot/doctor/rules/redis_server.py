"""RPT7xx: how the Redis itself is set up. All of them need --live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.facts import known, release_of
from repot.doctor.rule import ERROR, REDIS, WARNING, Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.doctor.facts import Facts

_FULL = 0.75
_CROWDED = 0.8
#: Redis' own limit for those who listen to events and control messages.
_PUBSUB_HARD_BYTES = 32 << 20
#: Beyond this, visibility timeouts of seconds are off by as much.
_CLOCK_APART_S = 5
_OLDEST = (6, 0)


@rule(
    "RPT701",
    "Redis may evict queues",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="CONFIG SET maxmemory-policy noeviction  # and in redis.conf; keep caches on another server",
    evidence=(
        "https://redis.io/docs/latest/develop/reference/eviction",
        "measured: a queue of 500 tasks was gone, producers saw no error",
    ),
)
def eviction(facts: Facts) -> Iterator[Finding]:
    """A queue is one key, and so are the messages in workers' hands: when memory is short Redis deletes them whole.

    Nobody is told, and producers go on.
    """
    policy = facts.redis.parameter("maxmemory-policy")
    if policy and policy != "noeviction":
        yield Finding(f"maxmemory-policy is {policy}")


@rule(
    "RPT702",
    "Redis keeps nothing over a restart",
    WARNING,
    brokers=REDIS,
    live=True,
    fix="""
    CONFIG SET appendonly yes  # and in redis.conf
    CONFIG SET appendfsync everysec
    """,
    evidence=(
        "https://redis.io/docs/latest/operate/oss_and_stack/management/persistence",
        "measured: of 5000 tasks 0 were left after kill -9",
    ),
)
def no_persistence(facts: Facts) -> Iterator[Finding]:
    """Without an append-only file a crash loses every task since the last snapshot, minutes ago or never.

    With one that is synced each second it loses a second.
    """
    if facts.redis.parameter("appendonly") == "no":
        yield Finding("appendonly is no")


@rule(
    "RPT703",
    "Redis cuts slow listeners off",
    WARNING,
    brokers=REDIS,
    live=True,
    fix="CONFIG SET client-output-buffer-limit 'normal 0 0 0 pubsub 33554432 8388608 60'",
    evidence="https://redis.io/docs/latest/develop/reference/clients#output-buffer-limits",
)
def output_buffer_limits(facts: Facts) -> Iterator[Finding]:
    """Workers and monitors that fall behind on events or control messages are disconnected at a limit of their buffer.

    A limit for normal clients also cuts a worker that fetches large tasks.
    """
    words = facts.redis.parameter("client-output-buffer-limit").split()
    limits = {words[place]: words[place + 1 : place + 4] for place in range(0, len(words) - 3, 4)}
    if limits.get("normal", ["0"])[0] != "0":
        yield Finding(f"normal clients are cut at {limits['normal'][0]} bytes")
    pubsub = int(limits.get("pubsub", ["0"])[0])
    if 0 < pubsub < _PUBSUB_HARD_BYTES:
        yield Finding(f"listeners are cut at {pubsub} bytes; Redis' default is {_PUBSUB_HARD_BYTES}")


@rule(
    "RPT704",
    "Redis is nearly full",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="CONFIG SET maxmemory 4gb  # and find out what fills it: redis-cli --memkeys",
    evidence="measured: at the limit each worker exited with 1 and lost the task it had just fetched",
)
def memory_full(facts: Facts) -> Iterator[Finding]:
    """At `maxmemory` without eviction every write fails.

    Producers cannot send, and a worker dies of the message it has fetched and cannot record.
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
    """`timeout` ends connections that say nothing for so long, and a producer's pool is idle most of the time.

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
    """At `maxclients` Redis refuses newcomers: workers that reconnect, web processes that send.

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
    """What workers hold is in one hash for all applications of a database, and each sweep restores everybody's.

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
    "This Redis is a replica",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="""
    app.conf.broker_url = 'sentinel://host:26379/0'  # asks the sentinels for the master
    app.conf.broker_transport_options |= {'master_name': 'mymaster'}
    """,
    evidence=(
        "https://redis.io/docs/latest/operate/oss_and_stack/management/replication",
        "https://github.com/celery/celery/issues/7946",
        "docs/scenarios.md: primary-demoted",
    ),
)
def replica(facts: Facts) -> Iterator[Finding]:
    """A replica refuses writes (READONLY), and fetching a task is one: a worker ends, or never gets a task.

    After a failover the primary of before is a replica that is alive: the address must lead to the new primary.
    """
    info = known(facts.redis.info)
    if facts.redis.is_replica:
        yield Finding(f"it follows {info.get('master_host', 'another server')}")


@rule(
    "RPT710",
    "Redis is too old for this redis-py",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="# Redis 6 or newer, or pip install 'redis<8'",
    evidence="redis/connection.py: AbstractConnection.on_connect_check_health (HELLO 3)",
)
def too_old(facts: Facts) -> Iterator[Finding]:
    """redis-py 8 opens each connection with HELLO 3, which Redis knows from 6.0 on.

    Older servers and some proxies answer with an error.
    """
    known(facts.redis.info)
    if facts.has_version("redis", 8, 0) and release_of(facts.redis.version) < _OLDEST:
        yield Finding(f"Redis {facts.redis.version} with redis-py {facts.versions.redis}")


@rule(
    "RPT711",
    "This Redis is a cluster",
    ERROR,
    brokers=REDIS,
    live=True,
    fix="# a Redis without cluster mode for the broker, or RabbitMQ",
    evidence="kombu/transport/__init__.py: TRANSPORT_ALIASES",
)
def cluster(facts: Facts) -> Iterator[Finding]:
    """Kombu moves a message between keys of different slots, and has no transport for a cluster.

    Commands fail with CROSSSLOT or MOVED as soon as keys lie on different nodes.
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
    """A worker stamps a delivery with its own clock, and another compares that with its own.

    Where they differ, the visibility timeout is that much shorter or longer.
    """
    apart = known(facts.redis.clock_ahead_s)
    if abs(apart) > _CLOCK_APART_S:
        yield Finding(f"Redis' clock is {abs(apart):.0f} s {'ahead' if apart > 0 else 'behind'}")


@rule(
    "RPT713",
    "The lease store is a replica",
    ERROR,
    live=True,
    fix="WORKER_LEASE_STORE=sentinel://host:26379/0  # and WORKER_SENTINEL_MASTER, or the address of the primary",
    evidence=(
        "https://redis.io/docs/latest/operate/oss_and_stack/management/replication",
        "tests/servers/test_doctor.py: test_a_broker_and_a_lease_store_that_are_demoted",
    ),
)
def store_replica(facts: Facts) -> Iterator[Finding]:
    """A replica refuses writes (READONLY), and a claim is one: no guarded task runs, and no job is accepted.

    Nothing runs twice for it. A replica that takes writes loses them with its next synchronization.
    """
    if facts.store_is_replica is not None and known(facts.store_is_replica):
        yield Finding("it says that it is a replica")
