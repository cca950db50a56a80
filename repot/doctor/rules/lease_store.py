"""RPT9xx: the store of leases and idempotency records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.facts import known
from repot.config.urls import STORE_SCHEMES
from repot.doctor.rule import ERROR, INFO, RABBITMQ, WARNING, Finding, rule
from repot.doctor.rules.fixes import APPEND_ONLY, NO_EVICTION
from repot.doctor.rules.redis_server import eviction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.config.endpoints import Endpoint
    from repot.doctor.facts import Facts

#: What to write in a database, by a word of the reason; {} is the reason's first word.
_BY_DATABASE = {
    "fsync": "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();",
    "synchronous_commit": "ALTER ROLE shop SET synchronous_commit = on;  -- the user of WORKER_LEASE_STORE",
    "UNLOGGED": "ALTER TABLE {} SET LOGGED;",
    "innodb_flush": "SET GLOBAL innodb_flush_log_at_trx_commit = 1;  -- and in my.cnf",
    "table of": "ALTER TABLE {} ENGINE = InnoDB;",
    "memory": "WORKER_LEASE_STORE=sqlite:////var/lib/shop/leases.db",
}


@rule(
    "RPT901",
    "The lease store may evict records",
    ERROR,
    live=True,
    fix=NO_EVICTION,
    evidence=(
        "https://redis.io/docs/latest/develop/reference/eviction",
        "docs/idempotency.md",
    ),
)
def evicts(facts: Facts) -> Iterator[Finding]:
    """An idempotency record that is dropped is work that was never done: its next delivery runs again.

    Every record has a time to live, so the volatile policies drop records first.
    """
    if facts.store_durability is None or (_is_live_broker(facts) and any(eviction.check(facts))):
        return
    for reason in known(facts.store_durability).evicts:
        yield Finding(reason)


@rule(
    "RPT902",
    "The lease store may lose records in a crash",
    WARNING,
    live=True,
    fix=APPEND_ONLY,
    evidence=(
        "https://redis.io/docs/latest/operate/oss_and_stack/management/persistence",
        "https://www.postgresql.org/docs/current/wal-async-commit.html",
        "tests/servers/test_store_facts.py",
    ),
)
def forgets(facts: Facts) -> Iterator[Finding]:
    """A record that is lost is work that was never done: a redelivery or a repeated call runs again.

    A database that loses a commit of `self.transaction()` loses the effect with it. A table that is emptied, or has no
    transactions, loses the record alone.
    """
    if facts.store_durability is None or _is_live_broker(facts):
        return
    for reason in known(facts.store_durability).forgets:
        fixes = (line for word, line in _BY_DATABASE.items() if facts.has_database_store and word in reason)
        yield Finding(reason, fix=next(fixes, "").format(reason.partition(" ")[0]))


@rule(
    "RPT903",
    "An idempotency record ends before a redelivery can come",
    WARNING,
    fix="WORKER_IDEMPOTENCY_RETENTION=604800  # above the visibility timeout plus the longest countdown",
    evidence="docs/idempotency.md",
)
def retention_too_short(facts: Facts) -> Iterator[Finding]:
    """A guard recognises a second delivery by the record of the first. After its end the task runs again.

    A redelivery comes after a countdown and, on Redis, up to a visibility timeout later.
    """
    if not any(task.guarded for task in facts.tasks) or (store := known(facts.store)) is None:
        return
    kept, horizon = store.retention_s, facts.redelivery_horizon_s()
    if kept < horizon:
        yield Finding(
            f"records are kept for {kept:g} s, a redelivery can come after {horizon:g} s",
            fix=f"WORKER_IDEMPOTENCY_RETENTION={int(horizon * 2)}",
        )


@rule(
    "RPT904",
    "The database of the lease store lacks the tables of this repot",
    ERROR,
    live=True,
    fix="repot store migrate --execute",
    evidence=("docs/database.md: The tables", "tests/servers/test_store_facts.py"),
)
def wrong_tables(facts: Facts) -> Iterator[Finding]:
    """Guarded tasks fail at once, and nothing of them runs, until the tables are those of this version."""
    if facts.store_tables is not None and (wrong := known(facts.store_tables)):
        # a newer repot made them
        fix = "pip install --upgrade repot" if "does not know" in wrong else ""
        yield Finding(wrong, fix=fix)


@rule(
    "RPT905",
    "Results still need a Redis",
    INFO,
    brokers=RABBITMQ,
    fix="WORKER_RESULT_BACKEND=db+postgresql+psycopg://shop:password@db.internal/shop",
    evidence="docs/database.md",
)
def needs_redis(facts: Facts) -> Iterator[Finding]:
    """With RabbitMQ as the broker and the lease store in a database, results are all that a Redis is left for.

    Celery stores them in the same database (`db+...`). WORKER_RESULT_BACKEND is a Redis unless it is set.
    """
    backend = facts.settings.get("result_backend")
    address = str(backend.value) if backend else ""
    if facts.has_database_store and address.partition("://")[0] in STORE_SCHEMES:
        assert backend is not None
        yield Finding(f"is {address}: {backend.origin}", setting="result_backend")


def _is_live_broker(facts: Facts) -> bool:
    """Return whether the lease store is the Redis of the broker, which the rules RPT7xx are about."""
    store = known(facts.store)
    if store is None or facts.live is None:
        return False
    return not {_address(one) for one in facts.servers}.isdisjoint(map(_address, store.servers))


def _address(server: Endpoint) -> tuple[str, int]:
    return "localhost" if server.is_local else server.host, server.port or 6379
