"""Deliveries are counted in the lease store: what dies with its worker, less what is given back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from sqlalchemy import select, update

from repot.brokers.headers import REPLAY_HEADER
from repot.config import ExplicitSettings
from repot.database.connection import Database
from repot.database.job_tables import deliveries
from repot.database.migrate import Migrations
from repot.waiting import wait_until
from repot.worker.database_delivery_counts import DatabaseDeliveryCounts
from repot.worker.delivery_limit import Deliveries
from support.databases import private_postgresql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = pytest.mark.promise("redis", "postgresql")


def _message(*, redelivered: bool = True, **headers: Any) -> Any:
    return SimpleNamespace(headers=headers, properties={}, delivery_info={"redelivered": redelivered})


@pytest.fixture(params=["redis", "sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    """The address of a lease store."""
    found: str = request.getfixturevalue(request.param).url
    if request.param != "redis":
        with closing(Database(ExplicitSettings(lease_store=found))) as database:
            Migrations(database).apply()
    return found


@pytest.fixture
def opened() -> Iterator[Callable[..., Deliveries]]:
    """Open the counts of one worker."""
    found: list[Deliveries] = []

    def begin(url: str, most: int, prefix: str, **changes: Any) -> Deliveries:
        settings = ExplicitSettings(
            lease_store=url, lease_prefix=prefix, max_deliveries=most, queue_names=("q",), **changes
        )
        found.append(Deliveries(settings))
        return found[-1]

    yield begin
    for one in found:
        one.close()


def test_the_limit_counts_the_first_delivery_and_what_was_given_back_is_taken_off(
    url: str, opened: Callable[..., Deliveries]
) -> None:
    prefix = f"p-{uuid4()}"
    message, others = _message(id=str(uuid4())), opened(url, 3, prefix)
    assert not others.counts(_message(redelivered=False, id="first"))
    # the first of three was not counted; one worker counts for all
    assert [opened(url, 3, prefix).beyond(message) for _ in range(2)] == [0, 0]
    others.note_returned([message])
    others.record_returned()
    assert [others.beyond(message) for _ in range(3)] == [0, 1, 2]


def test_a_retry_and_a_replay_are_counted_from_the_start(url: str, opened: Callable[..., Deliveries]) -> None:
    mine, task = opened(url, 1, f"p-{uuid4()}"), str(uuid4())
    assert mine.beyond(_message(id=task)) == 1
    assert mine.beyond(_message(id=task)) == 2
    assert mine.beyond(_message(id=task, retries=1)) == 1
    replayed = _message(id=task)
    replayed.headers[REPLAY_HEADER] = "r1"
    assert mine.beyond(replayed) == 1


def test_without_a_limit_an_id_or_a_store_nothing_is_counted(url: str, opened: Callable[..., Deliveries]) -> None:
    assert not opened(url, 0, "p").counts(_message(id="1"))
    assert opened(url, 1, "p").beyond(_message()) == 0


@pytest.mark.parametrize("store", ["redis://127.0.0.1:1/0", "postgresql+psycopg://127.0.0.1:1/shop"])
def test_a_store_that_is_away_is_asked_once_and_named(
    store: str, opened: Callable[..., Deliveries], caplog: pytest.LogCaptureFixture
) -> None:
    away = opened(store, 1, "p")
    assert [away.beyond(_message(id="1")) for _ in range(2)] == [0, 0]
    assert caplog.text.count("deliveries are not counted") == 1
    assert f"the lease store {store} did not answer" in caplog.text


def test_a_count_whose_retention_is_over_starts_again_and_is_deleted(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis forgets by itself."""
    for name in ("sqlite", "postgresql", "mariadb"):
        settings = ExplicitSettings(lease_store=request.getfixturevalue(name).url, lease_prefix=f"p-{uuid4()}")
        counts = DatabaseDeliveryCounts(settings, 3600)
        with closing(counts.database) as database:
            Migrations(database).apply()
            assert [counts.delivered("one") for _ in range(2)] == [1, 2]
            counts.returned(["two", "one"])
            own = deliveries.c.prefix == settings.lease_prefix
            past = update(deliveries).where(own).values(deleted_at=deliveries.c.deleted_at - 7200)
            database.transact(lambda connection, past=past: connection.execute(past))  # type: ignore[misc]
            assert counts.delivered("one") == 1
            names = select(deliveries.c.name).where(own)
            assert len(database.read(lambda connection, names=names: connection.execute(names).all())) == 2  # type: ignore[misc]
            monkeypatch.setattr(counts, "_cleans_at", 0)
            assert counts.delivered("one") == 2
            wait_until(
                lambda database=database, names=names: (  # type: ignore[misc]
                    len(database.read(lambda connection: connection.execute(names).all())) == 1
                ),
                within_s=30,
                what="the row is deleted",
            )


def test_workers_that_count_the_same_messages_at_once_lose_no_count(
    url: str, opened: Callable[..., Deliveries]
) -> None:
    prefix, task = f"p-{uuid4()}", str(uuid4())

    def count(_: int) -> list[int]:
        mine = opened(url, 1, prefix)
        return [mine.beyond(_message(id=task)) for _ in range(5)]

    with ThreadPoolExecutor(8) as threads:
        found = [one for counted in threads.map(count, range(8)) for one in counted]
    assert list(range(1, 41)) == sorted(found)


def test_a_database_that_is_frozen_does_not_hold_the_event_loop(
    opened: Callable[..., Deliveries], caplog: pytest.LogCaptureFixture
) -> None:
    """Its machine still takes what is sent, so a driver waits for `WORKER_SOCKET_TIMEOUT`, or for ever."""
    with private_postgresql() as server, closing(Database(ExplicitSettings(lease_store=server.url))) as database:
        Migrations(database).apply()
        mine = opened(server.url, 1, "p", socket_connect_timeout=4)
        assert mine.beyond(_message(id="1")) == 1
        with server.frozen():
            assert mine.beyond(_message(id="1")) == 0
        assert "did not answer within 4 s" in caplog.text
