"""Messages of all kinds, for hypothesis."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from repot.brokers.message import Message

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_NAMES = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=20)
_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40)
#: What both AMQP tables and JSON can hold.
_VALUES: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=6,
)
_HEADERS = st.dictionaries(_NAMES.filter(lambda name: name not in ("compression", "redelivered")), _VALUES, max_size=5)
_PROPERTIES = st.fixed_dictionaries(
    {"priority": st.integers(0, 9), "delivery_mode": st.sampled_from((1, 2))},
    optional={
        "correlation_id": _NAMES,
        "reply_to": _NAMES,
        "expiration": st.integers(60_000, 10**9).map(str),
        "message_id": _NAMES,
        "timestamp": st.integers(0, 2**32),
        "type": _NAMES,
        "app_id": _NAMES,
    },
)


@st.composite
def messages(draw: Any) -> Message:
    """A message that a client of either broker could have sent."""
    kind, encoding, body = draw(
        st.sampled_from(
            (
                ("application/json", "utf-8", st.text(max_size=50).map(lambda text: text.encode("utf-8", "replace"))),
                ("application/x-python-serialize", "binary", st.binary(max_size=50)),
                ("application/data", "utf-8", st.binary(max_size=50)),
                (None, None, st.binary(max_size=50)),
            )
        )
    )
    content, headers = draw(body), draw(_HEADERS)
    if draw(st.booleans()):
        content, headers = zlib.compress(content), {**headers, "compression": "application/x-gzip"}
    return Message(content, kind, encoding, headers, draw(_PROPERTIES))
