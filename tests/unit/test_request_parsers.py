"""Request parsers cut a client's stream into requests, ACKs among them, whatever its segmentation."""

from __future__ import annotations

from itertools import pairwise
from struct import pack
from typing import TYPE_CHECKING

import pytest
from amqp import spec
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import Connection

from repot.chaos.protocol.amqp import AmqpRequestParser
from repot.chaos.protocol.requests import Request
from repot.chaos.protocol.resp import RespRequestParser

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import DrawFn, SearchStrategy

    from repot.chaos.protocol.requests import RequestParser

GREETING = Request(b"AMQP\x00\x00\x09\x01")
INDEX, UNACKED = "shop-unacked_index", "shop-unacked"
#: Packs commands as the clients of an experiment do; never connects.
REDIS_PY = Connection()  # type: ignore[no-untyped-call]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def amqp_ack(tag: int, *, multiple: bool = False, channel: int = 1) -> Request:
    data = frame(1, channel, pack(">HHQB", *spec.Basic.Ack, tag, multiple))
    return Request(data, str(tag), multiple)


def command(*words: bytes | str) -> bytes:
    return b"".join(bytes(piece) for piece in REDIS_PY.pack_command(*words))  # type: ignore[no-untyped-call]


def resp_ack(tag: str, index: str = INDEX, unacked: str = UNACKED) -> Request:
    data = command("MULTI") + command("ZREM", index, tag) + command("HDEL", unacked, tag) + command("EXEC")
    return Request(data, tag)


AMQP_FRAMES = st.one_of(
    st.builds(frame, st.sampled_from((1, 2, 3)), st.integers(0, 9), st.binary(max_size=40)).map(Request),
    st.just(Request(frame(8, 0, b""))),
    st.builds(amqp_ack, st.integers(0, 2**64 - 1), multiple=st.booleans(), channel=st.integers(1, 2**16 - 1)),
).filter(lambda request: request.ack_of is not None or b"\x00\x3c\x00\x50" not in request.data)
AMQP = st.lists(AMQP_FRAMES, max_size=8).map(lambda frames: [GREETING, *frames])

#: Also those of an ACK in any order: only all four together are one.
WORDS = st.sampled_from(("MULTI", "EXEC", "ZREM", "HDEL", INDEX, UNACKED, "tag")) | st.binary(max_size=40)
COMMANDS = st.lists(WORDS, min_size=1, max_size=4).map(lambda words: Request(command(*words)))
ACKS = st.builds(resp_ack, st.uuids().map(str))


@st.composite
def resp(draw: DrawFn) -> list[Request]:
    """Commands and ACKs, without four plain commands that form an ACK by chance, and not ending in half of one."""
    found = draw(st.lists(COMMANDS | ACKS, max_size=8))
    plain = b"".join(request.data for request in found if request.ack_of is None)
    return [] if resp_ack("tag").data in plain else [*found, Request(command("PING"))]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the bytes in segments, as a network may deliver them."""
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(at)]


def fed(requests: RequestParser, chunks: list[bytes]) -> list[Request]:
    return [request for chunk in chunks for request in requests.feed(chunk)]


def resp_requests() -> RequestParser:
    return RespRequestParser(INDEX, UNACKED)


STREAMS = pytest.mark.parametrize(
    ("begin", "streams"), [(AmqpRequestParser, AMQP), (resp_requests, resp())], ids=["amqp", "resp"]
)
BEGINNINGS = pytest.mark.parametrize("begin", [AmqpRequestParser, resp_requests], ids=["amqp", "resp"])
CUTS = st.lists(st.integers(0, 2000), max_size=30)


@STREAMS
@given(data=st.data(), cuts=CUTS)
def test_any_cut_gives_the_same_requests(
    begin: Callable[[], RequestParser], streams: SearchStrategy[list[Request]], data: st.DataObject, cuts: list[int]
) -> None:
    sent = data.draw(streams)
    stream = b"".join(request.data for request in sent)
    requests = begin()
    assert sent == fed(requests, pieces(stream, cuts))
    assert requests.rest() == b""


@STREAMS
@given(data=st.data(), cuts=CUTS)
def test_nothing_is_lost_of_a_stream_that_ends_anywhere(
    begin: Callable[[], RequestParser], streams: SearchStrategy[list[Request]], data: st.DataObject, cuts: list[int]
) -> None:
    stream = b"".join(request.data for request in data.draw(streams))
    ended = stream[: data.draw(st.integers(0, len(stream)))]
    requests = begin()
    passed = b"".join(request.data for request in fed(requests, pieces(ended, cuts)))
    assert ended == passed + requests.rest()


@BEGINNINGS
@given(whole=st.binary(max_size=200), cuts=CUTS)
def test_garbage_passes_untouched(begin: Callable[[], RequestParser], whole: bytes, cuts: list[int]) -> None:
    requests = begin()
    found = fed(requests, pieces(whole, cuts))
    assert whole == b"".join(request.data for request in found) + requests.rest()
    assert not [request for request in found if request.ack_of]


@STREAMS
@given(data=st.data(), cuts=CUTS)
def test_after_garbage_nothing_is_taken_for_an_ack(
    begin: Callable[[], RequestParser], streams: SearchStrategy[list[Request]], data: st.DataObject, cuts: list[int]
) -> None:
    """No bytes are buffered: their meaning is unknown."""
    before, after = data.draw(streams), data.draw(streams)
    stream = b"".join(request.data for request in before) + b"\xff\r\n"
    requests = begin()
    fed(requests, pieces(stream, cuts))
    chunks = pieces(b"".join(request.data for request in after), cuts)
    if begin is AmqpRequestParser and not before:
        chunks = [GREETING.data, *chunks]
    assert [Request(chunk) for chunk in chunks] == fed(requests, chunks)
    assert requests.rest() == b""


def test_a_frame_without_its_end_mark_is_none() -> None:
    ack = amqp_ack(7).data[:-1] + b"\x00"
    assert [GREETING, Request(ack)] == AmqpRequestParser().feed(GREETING.data + ack)


def test_an_ack_of_several_says_so() -> None:
    requests = AmqpRequestParser()
    requests.feed(GREETING.data)
    (several,) = requests.feed(amqp_ack(7, multiple=True).data)
    assert (several.ack_of, several.multiple) == ("7", True)


@pytest.mark.parametrize(
    "other",
    [
        # a restore: the message goes back
        command("MULTI")
        + command("ZREM", INDEX, "t")
        + command("HDEL", UNACKED, "t")
        + command("RPUSH", "queue", "message")
        + command("EXEC"),
        # other keys: another deployment's ACK
        resp_ack("t", index="unacked_index").data,
        # of two deliveries
        command("MULTI") + command("ZREM", INDEX, "t") + command("HDEL", UNACKED, "u") + command("EXEC"),
        # a delivery is noted
        command("MULTI") + command("ZADD", INDEX, "1.5", "t") + command("HSET", UNACKED, "t", "m") + command("EXEC"),
    ],
    ids=["restore", "keys", "tags", "delivery"],
)
def test_other_transactions_are_no_acks(other: bytes) -> None:
    """Each command passes by itself."""
    found = resp_requests().feed(other)
    assert other == b"".join(request.data for request in found)
    assert not [request for request in found if request.ack_of]
    assert other.count(b"*") == len(found)


def test_a_large_command_comes_in_many_pieces() -> None:
    """As a task's megabytes do."""
    large = command("LPUSH", "queue", b"\r\n*$" * 500_000)
    chunks = [large[at : at + 65536] for at in range(0, len(large), 65536)]
    assert [Request(large)] == fed(resp_requests(), chunks)
