"""Pools whose threads are greenlets: a task that blocks its process does not keep repot from renewing what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from redis import Redis

from repot.brokers.redis.claims import Claim
from repot.idempotency.records import State
from repot.waiting import wait_until
from support.servers import migrated

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.testbed import Server
    from support.shop import Shop

pytestmark = pytest.mark.real_start

_GREEN = ["gevent", "eventlet"]
_BLOCKS = ["call", "loop"]
_LEASE_S = 3.0

SHOP = {
    "app": "support.blocking_app",
    "visibility_timeout": 3600,
    "redis_claim_lease": _LEASE_S,
    "lease": _LEASE_S,
    "dead_letter_queue": "",
}


def _renewed_for_s(client: Any) -> float:
    """Return for how long the only claim has been renewed; 0 without a claim."""
    entries = client.zrange("unacked_index", 0, -1, withscores=True)
    claims = [(Claim.of(tag.decode()), score) for tag, score in entries]
    return max((score - claim.claimed_at for claim, score in claims if claim), default=0.0)


@pytest.mark.parametrize("how", _BLOCKS)
@pytest.mark.parametrize("pool", _GREEN)
def test_a_claim_is_renewed_while_its_task_blocks_the_process(
    own: Server, opened: Callable[..., Shop], pool: str, how: str
) -> None:
    """Without that, the other worker begins the task a second time, beside the first run."""
    shop = opened(own, own)
    hold, value = shop.file(), str(uuid4())
    shop.start(4, "--pool", pool)
    shop.start(4, "--pool", pool)
    task = shop.send("block", value, str(hold), how)
    shop.await_effects(value)
    client = Redis.from_url(own.url)
    wait_until(
        lambda: _renewed_for_s(client) > 2 * _LEASE_S or len(shop.effects(value)) > 1,
        within_s=60,
        what="the claim is renewed, or handed out again",
    )
    hold.touch()
    shop.get(task)
    wait_until(lambda: not client.exists("unacked_index"), within_s=30, what="the message is acknowledged")
    assert len(shop.effects(value)) == 1


@pytest.mark.parametrize("how", _BLOCKS)
@pytest.mark.parametrize("pool", _GREEN)
@pytest.mark.parametrize("store", ["redis", "postgresql", "mariadb"])
def test_a_lease_is_renewed_while_its_task_blocks_the_process(
    request: pytest.FixtureRequest, redis: Server, opened: Callable[..., Shop], store: str, pool: str, how: str
) -> None:
    shop = opened(redis, migrated(request.getfixturevalue(store)), redis_claim_lease=60)
    hold, value = shop.file(), str(uuid4())
    shop.start(4, "--pool", pool)
    task = shop.send("guarded", value, str(hold), how)
    shop.await_effects(value)
    begun, owner = shop.record.started_at, shop.record.owner
    wait_until(
        lambda: shop.store.now() + shop.record.remaining_s > begun + 3 * _LEASE_S or shop.record.state is State.UNKNOWN,
        within_s=60,
        what="the lease is renewed, or has expired",
    )
    assert (State.RUNNING, owner) == (shop.record.state, shop.record.owner)
    hold.touch()
    shop.get(task)
    assert (shop.record.state, shop.record.unknown_outcomes) == (State.DONE, 0)
