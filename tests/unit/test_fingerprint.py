"""The key of a call: what makes two the same work, and what does not."""

from __future__ import annotations

import math
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json

from repot.errors import InvalidIdempotencyKey
from repot.idempotency import TASK_ID, fingerprint
from repot.idempotency.canonical import canonical


def charge(order: str, amount: object = 1, *, note: str = "") -> None:
    """Stands for a task's code."""


def many(*orders: str, **options: object) -> None:
    """Takes any number."""


def key_of(*args: Any, function: Any = charge, **kwargs: Any) -> str:
    return fingerprint("shop.charge", function, args, kwargs).key


def test_positional_equals_keyword() -> None:
    """The flaw of a key that is made of keyword arguments alone: all positional calls were one."""
    assert key_of("o", 2) == key_of(order="o", amount=2) == key_of("o", amount=2)
    assert key_of("o", 2) != key_of("o", 3)


def test_a_default_equals_the_same_value_given() -> None:
    assert key_of("o") == key_of("o", 1) == key_of("o", 1, note="")


def test_any_number_of_arguments() -> None:
    assert key_of("a", "b", function=many) != key_of("b", "a", function=many)
    assert key_of("a", b=1, c=2, function=many) == key_of("a", c=2, b=1, function=many)


def test_names_and_namespaces_keep_keys_apart() -> None:
    def made(name: str, namespace: Any) -> str:
        return fingerprint(name, charge, ("o",), {}, namespace=namespace).key

    assert len({made("a", ""), made("b", ""), made("a", "tenant"), made("a", "tenant:v2")}) == 4
    assert made("a", "o") == made("a", lambda order, **_: order)


def test_a_key_is_a_whole_digest() -> None:
    """The flaw of a truncated hash, on which two payments collide and one is dropped."""
    found = fingerprint("shop.charge", charge, ("o",), {}, given="mine")
    assert (len(found.key), len(found.payload)) == (64, 64)
    assert len(key_of("o")) == 64


def test_a_key_of_chosen_fields_knows_no_others() -> None:
    def made(*args: Any, key: Any = ("order.id",), **kwargs: Any) -> str:
        return fingerprint("shop.charge", charge, args, kwargs, key=key).key

    assert made({"id": 1, "at": "now"}) == made({"id": 1, "at": "later"}, 5)
    assert made({"id": 1}) != made({"id": 2})
    with pytest.raises(InvalidIdempotencyKey, match=r"without 'order.id'"):
        made({"at": "now"})
    with pytest.raises(InvalidIdempotencyKey, match="without 'buyer'"):
        made("o", key=("buyer",))


def test_a_key_by_a_function_or_by_the_task() -> None:
    assert (
        fingerprint("t", charge, ("o",), {}, key=lambda order, **_: order.upper()).key
        == fingerprint("t", charge, ("O",), {}, key=lambda order, **_: order).key
    )
    assert (
        fingerprint("t", charge, ("a",), {}, key=TASK_ID, task_id="1")
        == fingerprint("t", charge, ("b",), {}, key=TASK_ID, task_id="1")
        != fingerprint("t", charge, ("b",), {}, key=TASK_ID, task_id="2")
    )


def test_a_callers_key_wins_and_keeps_the_payload_beside() -> None:
    first = fingerprint("t", charge, ("a",), {}, given="mine", key=TASK_ID, task_id="1")
    second = fingerprint("t", charge, ("b",), {}, given="mine")
    assert first.key == second.key
    assert first.payload != second.payload
    assert fingerprint("t", charge, ("a",), {}).payload == ""


def test_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(InvalidIdempotencyKey, match=r"do not fit shop\.charge: missing a required argument: 'order'"):
        key_of()


class _Colour(StrEnum):
    RED = "red"


class _Size(IntEnum):
    LARGE = 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0, -0.0),
        ((1, 2), [1, 2]),
        ({"a": 1, "b": 2}, OrderedDict([("b", 2), ("a", 1)])),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("0.00"), Decimal("-0")),
        (Decimal(100), Decimal("1E+2")),
        (
            datetime(2026, 1, 1, 12, tzinfo=UTC),
            datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
        ({3, 1, 2}, frozenset([1, 2, 3])),
        (b"x", bytearray(b"x")),
        (_Colour.RED, "red"),
        (_Size.LARGE, 3),
    ],
)
def test_what_is_the_same(one: object, other: object) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, True),
        (0, False),
        (None, "None"),
        (None, ""),
        ("", b""),
        ({1: "a"}, {"1": "a"}),
        ([1, [2]], [[1], 2]),
        (["ab"], ["a", "b"]),
        ([], {}),
        ([], ""),
        (Decimal(1), 1),
        (Decimal("0.1"), 0.1),
        (0.1, 0.1 + 1e-17 + 1e-16),
        (UUID(int=1), str(UUID(int=1))),
        (date(2026, 1, 1), datetime(2026, 1, 1)),  # noqa: DTZ001 - without an offset on purpose
        (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),  # noqa: DTZ001
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (time(1), timedelta(hours=1)),
        ("\u00e9", "e\u0301"),
        ({"a": None}, {}),
        ({1}, [1]),
    ],
)
def test_what_differs(one: object, other: object) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity")])
def test_what_equals_nothing_is_refused_where_it_stands(value: object) -> None:
    with pytest.raises(InvalidIdempotencyKey, match=r"the value\['prices'\]\[1\] is .*, which"):
        canonical({"prices": [1, value]})


def test_an_unknown_type_is_refused_where_it_stands() -> None:
    with pytest.raises(InvalidIdempotencyKey, match=r"the value\['a'\]\[0\] is a object"):
        canonical({"a": [object()]})


def test_what_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidIdempotencyKey, match="are recursive"):
        canonical(endless)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.datetimes(timezones=st.just(UTC))
    | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_VALUES)
def test_a_value_that_travelled_by_celerys_json_is_the_same(value: object) -> None:
    """So that a key made by the sender is the key made by the worker."""
    assert canonical(value) == canonical(json.loads(json.dumps(value)))


@given(_VALUES, _VALUES)
def test_two_values_have_one_text_only_if_they_are_equal(one: object, other: object) -> None:
    if canonical(one) == canonical(other):
        assert one == other
    # and equal ones of equal types have one
    if one == other and type(one) is type(other) and not isinstance(one, list | dict | tuple):
        assert canonical(one) == canonical(other)


def test_an_argument_without_a_parameter_hides_no_other() -> None:
    """`f(1, args=[9])` and `f(2, args=[9])` would be one otherwise."""

    def anything(*args: object, **kwargs: object) -> None:
        """Takes all."""

    def positional(a: int, /, **more: object) -> None:
        """Takes `a` twice."""

    assert key_of(1, function=anything, args=[9]) != key_of(2, function=anything, args=[9])
    assert key_of(1, function=positional, a=2) != key_of(3, function=positional, a=2)


def test_a_callers_key_needs_no_arguments_that_can_be_written() -> None:
    """Then it is unknown whether the payload is another one."""
    assert fingerprint("t", charge, (object(),), {}, given="mine").payload == ""
