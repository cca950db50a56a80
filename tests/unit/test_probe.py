"""Effects by the application's own measure, fresh arguments, and what removes an earlier run's traces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from repot.chaos.runner.probe import UNNAMED, Probe, expected_effects
from repot.chaos.runner.target_task import Target
from repot.chaos.runner.verdict import EffectCount
from repot.errors import ConfigInvalid, ExperimentFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROOT_ID = "5d4e"


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("3", {UNNAMED: 3}),
        ("3 ledger", {UNNAMED: 3}),
        ("""'{"payments": 1, "rows": 3}'""", {"payments": 1, "rows": 3}),
    ],
)
def test_a_command_prints_a_number_or_numbers_by_name(printed: str, expected: dict[str, int]) -> None:
    assert expected == Probe(f"echo {printed}").count(ROOT_ID, (), {})


@pytest.mark.parametrize(("found", "expected"), [(2, {UNNAMED: 2}), ({"rows": 0}, {"rows": 0})], ids=str)
def test_a_function_returns_a_number_or_numbers_by_name(found: object, expected: dict[str, int]) -> None:
    assert expected == Probe(lambda *_: found).count(ROOT_ID, (), {})


COMMANDS = (
    "false", "ls /", "echo", "echo 1 2", "echo '{}'", """echo '{"rows": -1}'""", """echo '{"rows": true}'""",
    """echo '{"rows": "3"}'""", "echo '{'", "no-such-program", "echo 'unclosed",
)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., object]] = {
    "None": lambda *_: None,
    "-1": lambda *_: -1,
    "{}": lambda *_: {},
    "True": lambda *_: True,
    "of no arguments": lambda: 1,
}


@pytest.mark.parametrize("how", [*COMMANDS, *(pytest.param(one, id=name) for name, one in FUNCTIONS.items())])
def test_what_is_no_count_is_an_error_that_says_what_to_give(how: str | Callable[..., object]) -> None:
    with pytest.raises(ExperimentFailed, match="did not count the effects") as caught:
        Probe(how).count(ROOT_ID, (), {})
    assert "a JSON object of whole numbers by name" in str(caught.value.hint)


def test_a_probe_learns_the_root_id_and_the_arguments(tmp_path: Path) -> None:
    told: list[Any] = []

    def count(*given: object) -> int:
        told.append(given)
        return 0

    Probe(count).count(ROOT_ID, (1, "a"), {"b": 2})
    assert told == [(ROOT_ID, (1, "a"), {"b": 2})]
    written = tmp_path / "told"
    Probe(f"""sh -c 'echo "$REPOT_ROOT_ID $REPOT_ARGUMENTS" > {written}; echo 0'""").count(ROOT_ID, (1, "a"), {"b": 2})
    root_id, _, arguments = written.read_text().partition(" ")
    assert root_id == ROOT_ID
    assert json.loads(arguments) == {"args": [1, "a"], "kwargs": {"b": 2}}


def test_effects_are_what_came_since_beside_what_was_expected() -> None:
    probe = Probe("", {"payments": 1, "rows": 3})
    found = probe.since({"payments": 1, "rows": 3}, {"payments": 3, "rows": 6})
    assert (EffectCount("payments", 2, 1), EffectCount("rows", 3, 3)) == found
    assert ", ".join(map(str, found)) == "payments 2 of 1, rows 3 of 3"
    # without an expectation: one of each
    assert (EffectCount("mails", 1, 1),) == Probe("").since({"mails": 4}, {"mails": 5})


def test_fewer_than_before_is_no_count() -> None:
    with pytest.raises(ExperimentFailed, match="fewer rows than before"):
        Probe("").since({"rows": 2}, {"rows": 1})


def test_other_effects_than_expected_are_an_error_that_names_both() -> None:
    with pytest.raises(ExperimentFailed, match="it counted mails, and --expect has payments, rows"):
        Probe(lambda *_: {"mails": 1}, {"payments": 1, "rows": 3}).count(ROOT_ID, (), {})
    with pytest.raises(ExperimentFailed, match="it counted one number, and --expect has rows"):
        Probe(lambda *_: 1, {"rows": 3}).count(ROOT_ID, (), {})


@pytest.mark.parametrize(
    ("text", "expected"), [(None, {}), ("3", {UNNAMED: 3}), ("0", {UNNAMED: 0}), ('{"rows": 3}', {"rows": 3})]
)
def test_what_is_expected_is_a_number_or_numbers_by_name(text: str | None, expected: dict[str, int]) -> None:
    assert expected == expected_effects(text)


@pytest.mark.parametrize("text", ["three", "-1", "1.5", "true", "[1]", "{}", '{"rows": "3"}', '{"rows": -3}'])
def test_another_expectation_is_an_error(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="--expect is neither"):
        expected_effects(text)


@pytest.mark.parametrize(
    ("made", "args", "kwargs"),
    [
        ([1, 2], (1, 2), {}),
        ((1, 2), (1, 2), {}),
        ({"order": 1}, (), {"order": 1}),
        (([1], {"order": 2}), (1,), {"order": 2}),
    ],
)
def test_arguments_are_made_for_each_run(made: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    times = 0

    def make() -> object:
        nonlocal times
        times += 1
        return made

    target = Target("shop:app", "shop.charge", make=make, made_by="shop:make")
    found = target.fresh()
    assert (args, kwargs) == (found.args, found.kwargs)
    target.fresh()
    assert times == 2
    assert "--arguments shop:make" in target.options
    assert "--args" not in target.options


@pytest.mark.parametrize("made", [None, "order-7", 7])
def test_what_makes_no_arguments_is_named(made: object) -> None:
    target = Target("shop:app", "shop.charge", make=lambda: made, made_by="shop:make")
    with pytest.raises(ExperimentFailed, match=f"shop:make made no arguments: it returned {type(made).__name__}"):
        target.fresh()


def test_a_reset_is_called_before_each_run_and_its_failure_is_named(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("order-7")
    Target("shop:app", "shop.charge", reset=f"rm {ledger}").fresh()
    assert not ledger.exists()
    with pytest.raises(ExperimentFailed, match=r"--reset failed: .*ledger"):
        Target("shop:app", "shop.charge", reset=f"rm {ledger}").fresh()
    with pytest.raises(ExperimentFailed, match="--reset failed: ZeroDivisionError"):
        Target("shop:app", "shop.charge", reset=lambda: 1 / 0).fresh()
