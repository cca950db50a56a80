"""Movers of two releases on one journal in Redis: that of the release before `repot.store`, and this one's."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import redis

from repot.brokers.journal import Direction, Lines
from repot.brokers.journal_hashes import JournalHashes
from repot.brokers.redis.journal import RedisJournal
from repot.errors import AlreadyMoving, LeaseLost
from support.earlier_release.moves import EarlierJournal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

MOVED = Lines("orders", add={"moved": 3})


@pytest.fixture(params=[EarlierJournal, RedisJournal], ids=["the earlier release begins", "this release begins"])
def journals(request: pytest.FixtureRequest, redis: Server) -> Iterator[tuple[RedisJournal, RedisJournal]]:
    """The same journal in the hands of both releases; the first one begins."""
    first: type[RedisJournal] = request.param
    second = RedisJournal if first is EarlierJournal else EarlierJournal
    hashes = JournalHashes.of("m", f"{uuid4()}-", Direction.FORTH)
    with closing(client_of(redis)) as client:
        assert first(client, hashes, lambda ask: ask()).create({"owner": "", "token": "0"})
        yield tuple(one(client, hashes, lambda ask: ask()) for one in (first, second))  # type: ignore[misc]


def client_of(server: Server) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


def test_a_mover_waits_for_the_lease_of_the_other_release(journals: tuple[RedisJournal, RedisJournal]) -> None:
    """Whose owner has ended is replaced at once; each token is larger than the one before."""
    first, second = journals
    tokens = [first.acquire("a", 60)]
    with pytest.raises(AlreadyMoving, match="a"):
        second.acquire("b", 60)
    tokens.append(second.acquire("b", 60, replaced="a"))
    with pytest.raises(AlreadyMoving, match="b"):
        first.acquire("a", 60)
    second.release(tokens[-1])
    tokens.append(first.acquire("a", 60))
    # its own release, at its next start
    tokens.append(second.acquire("a", 60))
    first.release(tokens[-1])
    tokens.append(second.acquire("c", 60))
    assert [int(one) for one in tokens] == [1, 2, 3, 4, 5]


def test_a_step_with_the_token_of_the_other_release_counts_while_it_is_the_last(
    journals: tuple[RedisJournal, RedisJournal],
) -> None:
    first, second = journals
    stale = first.acquire("a", 60)
    first.apply(first.step(stale, MOVED), 60)
    token = second.acquire("b", 60, replaced="a")
    with pytest.raises(LeaseLost):
        first.apply(first.step(stale, MOVED), 60)
    second.apply(second.step(token, MOVED), 60)
    assert first.read() == second.read()
    assert first.read()["moved:orders"] == "6"
    with pytest.raises(AlreadyMoving):
        first.acquire("a", 60)
