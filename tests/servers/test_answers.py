"""What a caller waits for is not overwritten by the RETRY of a run that came before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.exceptions import BackendStoreError

from repot.config import ExplicitSettings, Role
from repot.worker.configure import configure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

# Celery's own way to store a result
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture
def backends(redis: Server) -> Iterator[tuple[Any, Any]]:
    """Of two processes on one server."""
    apps = [Celery(f"test{number}", set_as_current=False) for number in range(2)]
    for app in apps:
        configure(app, ExplicitSettings(broker_url=redis.url, result_backend=redis.results_url), Role.CLIENT)
    yield apps[0].backend, apps[1].backend
    for app in apps:
        app.close()


def _retried_while(backend: Any, between: Any) -> None:
    """Store RETRY; `between` happens after Celery has read the result, and before it writes."""
    read = backend._get_task_meta_for

    def read_early(task_id: str) -> Any:
        found = read(task_id)
        between()
        return found

    backend._get_task_meta_for = read_early


def test_a_success_that_comes_while_retry_is_stored_stays(backends: tuple[Any, Any]) -> None:
    mine, others = backends
    task_id = str(uuid4())
    _retried_while(mine, lambda: others.mark_as_done(task_id, 42))
    mine.mark_as_retry(task_id, ValueError("killed"))
    assert (others.get_state(task_id), others.get_result(task_id)) == (states.SUCCESS, 42)


def test_a_failure_that_comes_while_retry_is_stored_stays(backends: tuple[Any, Any]) -> None:
    mine, others = backends
    task_id = str(uuid4())
    _retried_while(mine, lambda: others.mark_as_failure(task_id, KeyError("spent")))
    mine.mark_as_retry(task_id, ValueError("killed"))
    assert others.get_state(task_id) == states.FAILURE


def test_retry_is_stored_where_no_answer_is_known(backends: tuple[Any, Any]) -> None:
    mine, others = backends
    task_id = str(uuid4())
    told: list[str] = []
    channel = others.client.pubsub()
    channel.subscribe(mine.get_key_for_task(task_id))
    mine.store_result(task_id, {}, states.STARTED)
    mine.mark_as_retry(task_id, ValueError("killed"))
    assert others.get_state(task_id) == states.RETRY
    assert 0 < others.client.ttl(mine.get_key_for_task(task_id)) <= mine.expires
    while len(told) < 2:
        message = channel.get_message(ignore_subscribe_messages=True, timeout=5)
        if message:
            told.append(others.decode_result(message["data"])["status"])
    assert told == [states.STARTED, states.RETRY]
    channel.close()


def test_an_answer_between_the_look_and_the_write_stays(backends: tuple[Any, Any]) -> None:
    mine, others = backends
    task_id = str(uuid4())
    others.store_result(task_id, {}, states.STARTED)
    looks: list[str] = []
    decode = mine.decode_result

    def decode_late(payload: Any) -> Any:
        looks.append(decode(payload)["status"])
        if len(looks) == 2:
            others.mark_as_done(task_id, 42)
        return decode(payload)

    mine.decode_result = decode_late
    mine.mark_as_retry(task_id, ValueError("killed"))
    # Celery's look, ours, and ours after the transaction was refused
    assert looks == [states.STARTED, states.STARTED, states.SUCCESS]
    assert others.get_state(task_id) == states.SUCCESS


def test_a_retry_that_no_redis_takes_is_refused_as_celery_refuses_it(backends: tuple[Any, Any]) -> None:
    """With a bound of 1 KiB in the place of 512 MB."""
    mine, others = backends
    task_id = str(uuid4())
    mine._MAX_STR_VALUE_SIZE = 1024
    with pytest.raises(BackendStoreError, match="too large"):
        mine.mark_as_retry(task_id, ValueError("x" * 1025))
    assert others.client.get(mine.get_key_for_task(task_id)) is None
    mine.mark_as_retry(task_id, ValueError("killed"))
    assert others.get_state(task_id) == states.RETRY
