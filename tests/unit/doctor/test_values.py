"""Values go from an application to the doctor as JSON, and arrive as Python has them."""

from __future__ import annotations

import json
import ssl
from collections import OrderedDict
from datetime import timedelta
from enum import Enum, StrEnum

import pytest
from celery.schedules import crontab
from hypothesis import given
from hypothesis import strategies as st
from kombu import Queue

from repot.doctor.values import Opaque, decode
from repot.upstream.collector import encode

_KEYS = st.one_of(st.text(), st.integers(), st.booleans())
_PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.timedeltas(min_value=timedelta(0)),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(_KEYS, inner)),
)


def sent(value: object) -> object:
    return decode(json.loads(json.dumps(encode(value))))


@given(_PLAIN)
def test_what_json_can_say_arrives_as_it_is(value: object) -> None:
    assert value == sent(value)


class Colour(StrEnum):
    """A member is a text."""

    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ssl.CERT_REQUIRED, 2),
        (Colour.RED, "red"),
        (("json", "pickle"), ["json", "pickle"]),
        ({"b", "a"}, ["a", "b"]),
        (OrderedDict(a=1), {"a": 1}),
        ({"$object": 3}, {"$object": 3}),
        ({("a", 1): 2}, {("a", 1): 2}),
        (crontab(minute="0"), Opaque("celery.schedules.crontab")),
        ([Queue("shop")], [Opaque("kombu.entity.Queue")]),
        (b"redis://localhost", Opaque("builtins.bytes")),
    ],
)
def test_what_json_cannot_say_becomes_the_nearest(value: object, expected: object) -> None:
    assert expected == sent(value)
    assert not isinstance(sent(value), Enum)


def test_a_circle_has_an_end() -> None:
    inner: list[object] = []
    inner.append(inner)
    assert "builtins.list" in json.dumps(encode(inner))
