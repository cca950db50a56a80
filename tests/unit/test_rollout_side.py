"""The choice of a side is stable, and raising a weight never takes a root id back."""

from __future__ import annotations

import subprocess
import sys
from math import nan, sqrt
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repot.brokers.headers import ROLLOUT_HEADER, RolloutStamp
from repot.routing.side import Side, Weights, position, side_of

ROOTS = st.uuids().map(str) | st.text()
WEIGHTS = st.floats(0, 1)


@given(ROOTS, WEIGHTS, WEIGHTS)
def test_raising_the_weight_never_takes_a_root_id_back(root: str, one: float, other: float) -> None:
    lower, higher = sorted((one, other))
    assert not (side_of("r", root, lower) is Side.TARGET and side_of("r", root, higher) is Side.SOURCE)


@given(ROOTS)
def test_nothing_goes_to_the_target_at_weight_0_and_all_at_weight_1(root: str) -> None:
    assert (side_of("r", root, 0), side_of("r", root, 1)) == (Side.SOURCE, Side.TARGET)


@given(ROOTS, st.text())
def test_a_position_is_within_0_and_1(root: str, rollout: str) -> None:
    assert 0 <= position(rollout, root) < 1


def test_every_process_and_version_chooses_alike() -> None:
    """Written down: a new hash would move every root id of a rollout under way."""
    expected = [0.7189, 0.7267, 0.7863]
    roots = ["a", "0d9b6a2e-8f0c-4b34-9f5e-3d0b7d1a8a11", "\N{SNOWMAN}"]
    assert expected == [round(position("shop", root), 4) for root in roots]
    code = f"from repot.routing.side import position; print([round(position('shop', r), 4) for r in {roots!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert str(expected) == done.stdout.strip()


@pytest.mark.parametrize("weight", [0.01, 0.05, 0.5, 0.9])
def test_the_share_is_the_weight(weight: float) -> None:
    """Within three standard deviations of a binomial distribution, for three rollouts that choose independently."""
    number = 20_000
    for rollout in ("a", "b", "c"):
        sent = sum(side_of(rollout, str(UUID(int=n)), weight) is Side.TARGET for n in range(number))
        assert abs(sent - number * weight) <= 3 * sqrt(number * weight * (1 - weight))


def test_a_task_s_weight_counts_before_its_queue_s_and_that_before_the_default() -> None:
    weights = Weights(0.1, queues={"mails": 0.2}, tasks={"pay": 0.3})
    assert [
        weights.of("pay", lambda: "mails"),
        weights.of("send", lambda: "mails"),
        weights.of("send", lambda: "orders"),
    ] == [0.3, 0.2, 0.1]


def test_the_queue_is_not_looked_up_without_weights_by_queue() -> None:
    def never() -> str:
        raise AssertionError

    assert Weights(0.1, tasks={"pay": 0.3}).of("send", never) == 0.1


@pytest.mark.parametrize("weight", [-0.1, 1.1, nan])
def test_a_weight_outside_the_range_is_refused(weight: float) -> None:
    for made in ({"default": weight}, {"queues": {"q": weight}}, {"tasks": {"t": weight}}):
        with pytest.raises(ValueError, match="is not within 0 and 1"):
            Weights(**made)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shop:7:target", RolloutStamp("shop", 7, "target")),
        ("shop:0:source", RolloutStamp("shop", 0, "source")),
        ("shop:7", None),
        ("shop:x:target", None),
        (":7:target", None),
        ("", None),
    ],
)
def test_a_stamp_is_read_as_it_was_written(text: str, expected: RolloutStamp | None) -> None:
    found = RolloutStamp.of({ROLLOUT_HEADER: text})
    assert expected == found
    assert found is None or text == str(found)
