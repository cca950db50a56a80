"""What a guarded task leaves when it retries, replaces itself, or ends without an answer, by the test double."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery

from repot.errors import ConfigInvalid, InvalidIdempotencyKey, OutcomeUnknown
from repot.idempotency import PARK, TASK_ID, IdempotentTask, Policy
from repot.idempotency.memory_store import MemoryLeaseStore, guarded_by
from repot.idempotency.records import State
from repot.submission import JobTask
from support.delivering import deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Declined(Exception):
    """A permanent failure."""


class Till:
    """An application whose tasks are guarded by the double."""

    def __init__(self) -> None:
        self.app = Celery("till", set_as_current=False, broker="memory://", backend="cache+memory://")
        self.store = MemoryLeaseStore()
        self.runs: list[Any] = []

    @property
    def states(self) -> list[State]:
        """Of all records."""
        found = (self.store.inspect(key) for key in self.store.keys())  # noqa: SIM118 - no mapping
        return [one.state for one in found if one]

    def task(self, run: Callable[..., Any], *, base: type = IdempotentTask, **options: Any) -> Any:
        """A guarded task."""
        decorate: Any = self.app.task(base=base, bind=True, shared=False, name=f"t{uuid4().hex}", **options)
        return decorate(run)


@pytest.fixture
def till() -> Iterator[Till]:
    found = Till()
    with guarded_by(found.app, found.store):
        yield found


@pytest.mark.parametrize(
    "options", [{"autoretry_for": (Exception,)}, {"transient": (Exception,)}], ids=["autoretry_for", "transient"]
)
@pytest.mark.parametrize("error", [SoftTimeLimitExceeded, Declined])
def test_what_is_unknown_or_permanent_is_not_retried(till: Till, options: Any, error: type[Exception]) -> None:
    """Whichever way retries are asked for: the effect may have happened, or cannot happen."""

    def charge(_: Any, order: str) -> None:
        till.runs.append(order)
        raise error

    task = till.task(charge, idempotency=Policy(on_unknown=PARK), permanent=(Declined,), **options)
    assert deliver(task, "o", message="1")[0] == "FAILURE"
    assert till.states == [State.FAILED if error is Declined else State.UNKNOWN]
    state, second = deliver(task, "o", message="2")
    assert (state, till.runs) == ("FAILURE", ["o"])
    assert isinstance(second, OutcomeUnknown) is (error is not Declined)


def test_a_task_may_retry_such_an_error_itself(till: Till) -> None:
    def charge(self: Any) -> None:
        raise self.retry(exc=SoftTimeLimitExceeded(), countdown=0)

    assert deliver(till.task(charge))[0] == "RETRY"


def test_a_replacement_that_is_delivered_again_does_not_run_again(till: Till) -> None:
    """As a later task of a chain, which has the number of an earlier one's replacement."""

    def step(self: Any) -> None:
        till.runs.append(self.request.replaced_task_nesting)
        raise self.replace(self.s())

    task = till.task(step, idempotency=Policy(key=TASK_ID))
    for nesting in (1, 1, 2, 2, 1):
        deliver(task, message="1", replaced_task_nesting=nesting)
    assert till.runs == [1, 2]


@pytest.mark.parametrize("found", [None, "", " "])
def test_a_function_that_names_nothing_makes_no_key(till: Till, found: Any) -> None:
    def charge(_: Any, order: int) -> int:
        return order

    for policy in (Policy(key=lambda **_: found), Policy(namespace=lambda **_: found)):
        assert isinstance(deliver(till.task(charge, idempotency=policy), 1)[1], InvalidIdempotencyKey)


def test_a_retry_whose_lease_was_lost_is_sent_once(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(till.app.amqp, "send_task_message", lambda *_, **__: sent.append(1))

    def charge(self: Any, order: str) -> str:
        if not till.runs:
            till.runs.append(order)
            till.store.advance(3600)
            assert deliver(task, order, message="2") == ("SUCCESS", "paid")
            self.ensure_lease_held()
        return "paid"

    task = till.task(charge, transient=(Exception,))
    assert deliver(task, "o", message="1")[0] == "RETRY"
    assert len(sent) == 1


def test_the_lease_is_that_of_coroutines_and_greenlets_as_well(till: Till) -> None:
    greenlet = pytest.importorskip("sqlalchemy.util")

    async def inner(self: Any) -> int:
        return int(await greenlet.greenlet_spawn(lambda: self.fencing_token))

    def charge(self: Any) -> bool:
        return bool(self.fencing_token == asyncio.run(inner(self)) > 0)

    task = till.task(charge)
    assert deliver(task) == ("SUCCESS", True)
    assert task.lease is None


def test_a_result_is_recorded_within_a_transaction(till: Till) -> None:
    def charge(self: Any) -> None:
        self.record_result("paid")

    assert isinstance(deliver(till.task(charge))[1], ConfigInvalid)


def test_the_key_of_a_job_is_its_id_whatever_its_policy_says(till: Till) -> None:
    def build(_: Any, project: int) -> int:
        return project

    task = till.task(build, base=JobTask, idempotency=Policy())
    keys = []
    for job in ("1", "2"):
        task.push_request(id=job, headers={"repot_job": {"tenant": "", "scope": ""}})
        keys.append(task.fingerprint((7,), {}).key)
        task.pop_request()
    assert len({*keys}) == 2
