"""What a worker counts by root id: once for each root, in every process, whichever of its tasks came first."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from repot.idempotency.guard_events import GuardEvent
from repot.routing.synthetic import TASK as SYNTHETIC
from repot.worker.root_units import RootUnits
from repot.worker.task_outcomes import OTHER, bound_of, bucket_of

if TYPE_CHECKING:
    from collections.abc import Mapping

CHARGE, MAIL = "shop.charge", "shop.mail"


@pytest.fixture
def units() -> RootUnits:
    found = RootUnits([CHARGE, MAIL])
    # the first run of a process loads and connects, so its duration is left out
    run(found, CHARGE, "warm")
    found.drain(0)
    return found


def request(id_: str, root_id: str | None, *, again: bool = False, retries: int = 0) -> Any:
    return SimpleNamespace(id=id_, root_id=root_id, retries=retries, delivery_info={"redelivered": again})


def receive(
    units: RootUnits, name: str, id_: str, root_id: str | None = None, *, again: bool = False, retries: int = 0
) -> None:
    said = {"root_id": root_id or id_, "retries": retries}
    message = SimpleNamespace(properties={})
    found = SimpleNamespace(
        name=name, id=id_, request_dict=said, delivery_info={"redelivered": again}, message=message, eta=None
    )
    units._received(found)


def run(units: RootUnits, name: str, id_: str, root_id: str | None = None, state: str = "SUCCESS", **said: Any) -> None:
    task = SimpleNamespace(name=name, request=request(id_, root_id or id_, **said))
    units._prerun(id_, task)
    units._postrun(task, id_, state)


def without_durations(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if not name.startswith("units_")}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("SUCCESS", {"tried": 1, "ended": 1}),
        ("FAILURE", {"tried": 1, "ended": 1, "failed": 1}),
        ("RETRY", {"tried": 1, "retried": 1}),
        ("IGNORED", {"tried": 1}),
    ],
)
def test_a_roots_own_task_is_counted_at_once(units: RootUnits, state: str, expected: dict[str, int]) -> None:
    run(units, CHARGE, "a", state=state)
    seen = units.drain(0)
    assert not seen.once
    # by its name, and among all
    assert {f"units:{unit}:{task}": 1 for unit in expected for task in (CHARGE, "")} == without_durations(seen.counts)


def test_the_tasks_that_a_root_sent_are_one_for_the_store_to_count(units: RootUnits) -> None:
    for number in range(40):
        run(units, MAIL, f"child{number}", "a", state="FAILURE")
    run(units, MAIL, "child", "b")
    seen = units.drain(0)
    assert not seen.counts
    assert [fields for fields in seen.once.values() if "units:ended:>shop.mail" in fields] == [
        ("units:ended:>shop.mail", "units:failed:>shop.mail"),
        ("units:ended:>shop.mail",),
    ]
    # another worker gives it the same name
    other = RootUnits([MAIL, CHARGE, "shop.other"])
    run(other, MAIL, "another child", "a")
    assert set(other.drain(0).once) < set(seen.once)


def test_a_root_that_sends_tasks_of_its_own_name_is_one_of_each_kind(units: RootUnits) -> None:
    """Two that may end alike are never in one comparison."""
    run(units, CHARGE, "a")
    for id_ in ("b", "c"):
        run(units, CHARGE, id_, "a")
    seen = units.drain(0)
    assert seen.counts["units:ended:shop.charge"] == 1
    assert sum("units:ended:>shop.charge" in fields for fields in seen.once.values()) == 1


def test_the_end_of_a_retry_is_the_tasks_and_its_run_is_no_first_one(units: RootUnits) -> None:
    run(units, CHARGE, "a", state="RETRY")
    run(units, CHARGE, "a", state="FAILURE", retries=3)
    counts = without_durations(units.drain(0).counts)
    assert tuple(counts[f"units:{one}:shop.charge"] for one in ("tried", "retried", "ended", "failed")) == (1, 1, 1, 1)


def test_a_message_that_is_delivered_again_and_again_is_one_redelivery(units: RootUnits) -> None:
    receive(units, CHARGE, "a")
    first = units.drain(0)
    assert first.counts == {"units:delivered:shop.charge": 1, "units:delivered:": 1}
    for _ in range(20):
        receive(units, CHARGE, "a", again=True)
    seen = units.drain(0)
    assert not seen.counts
    assert list(seen.once.values()) == [
        ("units:delivered:shop.charge", "units:redelivered:shop.charge", "units:delivered:", "units:redelivered:")
    ]


def test_a_process_that_was_killed_leaves_a_failure(units: RootUnits) -> None:
    receive(units, MAIL, "child", "a")
    units.drain(0)
    units._failed(SimpleNamespace(name=MAIL), "child")
    fields = [one for found in units.drain(0).once.values() for one in found]
    assert fields == ["units:tried:>shop.mail", "units:ended:>shop.mail", "units:failed:>shop.mail"]


def test_a_process_that_was_killed_in_a_retry_had_its_first_run_before(units: RootUnits) -> None:
    receive(units, CHARGE, "a", retries=2)
    units._failed(SimpleNamespace(name=CHARGE), "a")
    counts = without_durations(units.drain(0).counts)
    assert {"units:ended:shop.charge", "units:failed:shop.charge", "units:ended:", "units:failed:"} == set(counts)


def test_dead_letters_and_unknown_outcomes_are_those_of_the_root(units: RootUnits) -> None:
    for number in range(3):
        receive(units, MAIL, f"child{number}", "a")
        units._dead_lettered(MAIL, f"child{number}")
        units._guarded(MAIL, GuardEvent.UNKNOWN_OUTCOME, f"child{number}")
        units._guarded(MAIL, GuardEvent.ACQUIRED, f"child{number}")
    fields = [one for found in units.drain(0).once.values() for one in found]
    assert fields == [
        "units:delivered:>shop.mail",
        "units:dead_lettered:>shop.mail",
        "units:unknown_outcome:>shop.mail",
    ]


def test_a_processs_first_run_has_no_duration() -> None:
    units = RootUnits([CHARGE])
    for id_ in "abc":
        run(units, CHARGE, id_)
    assert sum(count for name, count in units.drain(0).counts.items() if name.startswith("units_runtime:")) == 2


def test_synthetic_tasks_are_not_judged_so(units: RootUnits) -> None:
    run(units, SYNTHETIC, "a", state="FAILURE")
    seen = units.drain(0)
    assert (not seen.counts, not seen.once) == (True, True)


def test_a_task_that_no_one_knew_is_one_of_the_others(units: RootUnits) -> None:
    run(units, "shop.late", "a")
    assert f"units:tried:{OTHER}" in units.drain(0).counts


def test_a_child_process_counts_in_its_own_ring(units: RootUnits, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.fork()
    if not pid:
        monkeypatch.setattr("repot.worker.task_counters.process_index", lambda: 1)
        units.in_child()
        for number in range(2):
            run(units, CHARGE, f"child{number}")
        os._exit(0)
    os.waitpid(pid, 0)
    run(units, CHARGE, "a")
    assert units.drain(2).counts["units:tried:shop.charge"] == 3
    assert not units.drain(2).counts


def test_a_ring_that_was_overrun_has_the_latest(units: RootUnits) -> None:
    for number in range(2000):
        run(units, CHARGE, f"a{number}")
    assert units.drain(0).counts["units:tried:shop.charge"] == 256
    run(units, CHARGE, "last")
    assert units.drain(0).counts["units:tried:shop.charge"] == 1


@pytest.mark.parametrize("seconds", [1e-9, 0.0011, 0.06, 1.0, 25 * 60, 7200.5])
def test_a_bucket_is_as_wide_as_a_tenth(seconds: float) -> None:
    bucket = bucket_of(seconds)
    assert bound_of(bucket - 1) < max(seconds, 1e-4) <= bound_of(bucket) * 1.000001
    assert bound_of(bucket) / bound_of(bucket - 1) < 1.1
    assert bucket == bucket_of(bound_of(bucket))
