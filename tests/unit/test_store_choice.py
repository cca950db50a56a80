"""Which lease store is opened: for leases, jobs, rollouts, the journal of a move and counts of deliveries."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from repot.brokers.journal import Direction
from repot.config import ExplicitSettings
from repot.errors import ConfigInvalid
from repot.idempotency.lease_store import RedisLeaseStore
from repot.idempotency.stores import open_store
from repot.migrate.journal_store import journal_in_store
from repot.submission.redis_job_store import RedisJobStore
from repot.submission.stores import open_job_store
from repot.worker.delivery_counts import RedisDeliveryCounts, open_counts
from repot.worker.rollout_store import RedisRolloutStore, open_rollout_store

if TYPE_CHECKING:
    from collections.abc import Callable

#: What opens a store, the adapter for Redis, and the module of the one for databases.
OPENERS: dict[str, tuple[Callable[[Any], Any], type | None, str]] = {
    "leases": (open_store, RedisLeaseStore, "repot.idempotency.database_store"),
    "jobs": (open_job_store, RedisJobStore, "repot.submission.database_job_store"),
    "rollouts": (open_rollout_store, RedisRolloutStore, "repot.routing.database_store"),
    "deliveries": (lambda one: open_counts(one, 60), RedisDeliveryCounts, "repot.worker.database_delivery_counts"),
    "journal": (lambda one: journal_in_store(one, "m", Direction.FORTH), None, "repot.migrate.database_journal"),
}


@pytest.mark.parametrize("name", OPENERS)
def test_a_database_needs_its_extra_and_the_error_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, _, module = OPENERS[name]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigInvalid, match="WORKER_LEASE_STORE=sqlite:// needs SQLAlchemy") as caught:
        opened(ExplicitSettings(lease_store="sqlite://"))
    assert caught.value.hint == "pip install 'repot[database]'"


@pytest.mark.parametrize("name", [name for name, (_, adapter, _) in OPENERS.items() if adapter])
def test_the_address_decides(name: str) -> None:
    opened, adapter, module = OPENERS[name]
    assert type(opened(ExplicitSettings(lease_store="redis://127.0.0.1:1/0"))) is adapter
    with closing(opened(ExplicitSettings(lease_store="sqlite://"))) as found:
        assert type(found).__module__ == module


def test_a_journal_needs_a_store_that_keeps_one() -> None:
    settings = ExplicitSettings(lease_store="redis+cluster://127.0.0.1:1")
    with pytest.raises(ConfigInvalid, match="neither a database nor a single Redis"):
        journal_in_store(settings, "m", Direction.FORTH)
