"""What runs cost: all of them, those that may have been paid for before, and those that a guard prevented."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from repot.healthcheck.worker_metrics import worker_metrics
from repot.waiting import wait_until
from repot.worker import status_file
from repot.worker.cost import MILLIONTHS, Cost
from support.shop import SHORT_LEASE_S, Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server


#: What each task of a shop had cost when a test began.
BEFORE = dict[str, tuple[float, float, float]]()


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def opened_once(
    request: pytest.FixtureRequest, redis: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """A shop in which nothing lapses: a run that lost its lease or its connection would be repeated."""
    server = request.getfixturevalue(request.param)
    with opened_shop(server, redis, tmp_path_factory.mktemp("priced"), lease=60) as found:
        yield found


@pytest.fixture
def priced(opened_once: Shop) -> Shop:
    """The same for each test, whose costs begin at 0."""
    BEFORE.clear()
    BEFORE.update({task: costs(opened_once, task) for task in TASKS})
    return opened_once


@contextmanager
def opened_shop(server: Server, redis: Server, directory: Path, *, lease: float) -> Iterator[Shop]:
    waits: dict[str, Any] = {"visibility_timeout": 3600, "heartbeat": 60, "lease": lease}
    found = Shop(server, redis, directory, app="support.priced_app", **waits)
    try:
        found.start(2)
        yield found
    finally:
        found.stop()


#: The tasks of `priced_app` that cost something.
TASKS = ("flat", "redelivered", "timed", "guarded", "guarded_and_timed")


def costs(shop: Shop, task: str) -> tuple[float, float, float]:
    """Spent, repeated, prevented; by the worker's status."""
    directory = shop.settings.status_dir
    assert directory is not None
    (node,) = status_file.nodes(directory)
    found = status_file.read(status_file.path_of(directory, node)).costs.get(f"{shop.settings.app}.{task}", {})
    before = BEFORE.get(task, (0, 0, 0))
    kinds = zip(("spent", "repeated", "prevented"), before, strict=True)
    spent, repeated, prevented = (found.get(kind, 0) / MILLIONTHS - was for kind, was in kinds)
    return spent, repeated, prevented


def await_costs(shop: Shop, task: str, expected: tuple[float, float, float]) -> None:
    try:
        wait_until(lambda: costs(shop, task) == expected, within_s=30, what=f"the costs of {task}")
    except Exception as error:
        error.add_note(f"found: {costs(shop, task)}, expected: {expected}")
        raise


@pytest.mark.promise
def test_each_run_costs_what_its_task_states(priced: Shop) -> None:
    for task in [*(priced.send("flat") for _ in range(3)), priced.send("free"), priced.send("wrong")]:
        priced.get(task)
    await_costs(priced, "flat", (6, 0, 0))
    assert (0, 0, 0) == costs(priced, "free") == costs(priced, "wrong")
    priced.get(priced.send("timed", 0.5))
    wait_until(lambda: costs(priced, "timed")[0], within_s=30, what="its cost is counted")
    spent, repeated, prevented = costs(priced, "timed")
    # as long as the test waits at most
    assert 1 + 10 * 0.5 <= spent < 1 + 10 * 30
    assert (repeated, prevented) == (0, 0)


def test_a_run_that_is_killed_and_done_again_is_paid_for_twice(server: Server, redis: Server, tmp_path: Path) -> None:
    BEFORE.clear()
    # the lease of the killed run lapses
    with opened_shop(server, redis, tmp_path, lease=SHORT_LEASE_S) as priced:
        priced.get(priced.send("flat", str(priced.file())))
        await_costs(priced, "flat", (4, 2, 0))
        priced.get(priced.send("guarded", uuid4().hex, str(priced.file())))
        await_costs(priced, "guarded", (6, 3, 0))


def test_a_run_after_a_redelivery_is_a_repeated_one(priced: Shop) -> None:
    """The run that its worker gave back is not measured."""
    priced.get(priced.send("redelivered", str(priced.file())))
    await_costs(priced, "redelivered", (2, 2, 0))


@pytest.mark.promise
def test_a_prevented_run_is_not_paid_for(priced: Shop) -> None:
    order = uuid4().hex
    for _ in range(3):
        assert order == priced.get(priced.send("guarded", order))
    await_costs(priced, "guarded", (3, 0, 6))
    for _ in range(4):
        priced.get(priced.send("guarded_and_timed", order))
    # what was prevented takes no time, and does not count in the mean
    wait_until(
        lambda: (found := costs(priced, "guarded_and_timed"))[2] >= 2.5 * found[0] > 0,
        within_s=30,
        what="the cost of three runs is estimated",
    )
    spent, repeated, prevented = costs(priced, "guarded_and_timed")
    assert repeated == 0
    assert 3 <= spent < 10 * 30
    assert prevented == pytest.approx(3 * spent)


def test_metrics_have_the_costs_by_kind(priced: Shop) -> None:
    priced.get(priced.send("flat"))
    await_costs(priced, "flat", (2, 0, 0))
    directory = priced.settings.status_dir
    assert directory is not None
    (node,) = status_file.nodes(directory)
    (family,) = (
        one
        for one in worker_metrics(status_file.read(status_file.path_of(directory, node)))
        if one.name == "repot_task_cost"
    )
    found = {one.labels["kind"]: one.value for one in family.samples if one.labels["task"].endswith(".flat")}
    assert {
        kind: found[kind] - was for kind, was in zip(("spent", "repeated", "prevented"), BEFORE["flat"], strict=True)
    } == {"spent": 2, "repeated": 0, "prevented": 0}


def test_a_value_that_is_no_price_is_named_in_the_log(priced: Shop) -> None:
    priced.get(priced.send("wrong"))
    log = "".join(path.read_text() for path in priced.directory.rglob("*log*") if path.is_file())
    assert "the costs of support.priced_app.wrong are not counted" in log


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf"), True, "2", None])
def test_a_price_is_a_number_of_at_least_zero(price: object) -> None:
    with pytest.raises(ValueError, match="must be a number of at least 0"):
        Cost(per_second=price)  # type: ignore[arg-type]
