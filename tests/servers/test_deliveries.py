"""Deliveries are counted in the lease store: what dies with its worker, less what is given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from repot.brokers.headers import REPLAY_HEADER
from repot.config import ExplicitSettings
from repot.worker.delivery_limit import Deliveries

if TYPE_CHECKING:
    from repot.testbed import Server


def _message(*, redelivered: bool = True, **headers: Any) -> Any:
    return SimpleNamespace(headers=headers, properties={}, delivery_info={"redelivered": redelivered})


def _deliveries(redis: Server, most: int, prefix: str) -> Deliveries:
    url = redis.url
    return Deliveries(
        ExplicitSettings(
            broker_url=url, result_backend=url, lease_prefix=prefix, max_deliveries=most, queue_names=("q",)
        )
    )


def test_the_limit_counts_the_first_delivery_and_what_was_given_back_is_taken_off(redis: Server) -> None:
    prefix = f"p-{uuid4()}"
    message, others = _message(id=str(uuid4())), _deliveries(redis, 3, prefix)
    assert not others.counts(_message(redelivered=False, id="first"))
    # the first of three was not counted; one worker counts for all
    assert [0, 0] == [_deliveries(redis, 3, prefix).beyond(message) for _ in range(2)]
    others.note_returned([message])
    others.record_returned()
    assert [0, 1, 2] == [others.beyond(message) for _ in range(3)]


def test_a_retry_and_a_replay_are_counted_from_the_start(redis: Server) -> None:
    deliveries, task = _deliveries(redis, 1, f"p-{uuid4()}"), str(uuid4())
    assert 1 == deliveries.beyond(_message(id=task))
    assert 2 == deliveries.beyond(_message(id=task))
    assert 1 == deliveries.beyond(_message(id=task, retries=1))
    replayed = _message(id=task)
    replayed.headers[REPLAY_HEADER] = "r1"
    assert 1 == deliveries.beyond(replayed)


def test_without_a_limit_an_id_or_a_store_nothing_is_counted(redis: Server) -> None:
    assert not _deliveries(redis, 0, "p").counts(_message(id="1"))
    assert 0 == _deliveries(redis, 1, "p").beyond(_message())
    away = ExplicitSettings(
        broker_url=redis.url, result_backend="redis://127.0.0.1:1/0", max_deliveries=1, queue_names=("q",)
    )
    assert [0, 0] == [Deliveries(away).beyond(_message(id="1")) for _ in range(2)]
