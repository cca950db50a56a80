"""Parts of sending during a rollout that need no server: the breaker, and the queue behind an exchange and a key."""

from __future__ import annotations

from threading import Thread
from time import monotonic
from typing import Any

import pytest
from kombu import Exchange, Queue, binding

from repot.config import delays
from repot.routing import breaker as breaker_module
from repot.routing.breaker import FIRST_S, Breaker
from repot.routing.counters import Counters, SideCounts
from repot.routing.destination import only_queue_at
from repot.routing.side import Side


class Clock:
    """The time as a test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(breaker_module, "monotonic", found)
    return found


def test_a_breaker_opens_for_longer_after_each_failed_try(clock: Clock) -> None:
    breaker, pauses = Breaker(5), list[float]()
    assert breaker.allows()
    for _ in range(7):
        breaker.failed()
        begin = clock.now
        while not breaker.allows():
            clock.now += 0.01
        pauses.append(clock.now - begin)
    expected = [1, 2, 4, 8, 10, 10, 10]
    assert all(0.74 * least <= found <= 1.27 * least for least, found in zip(expected, pauses, strict=True)), pauses


def test_while_one_caller_tries_the_others_pass_by(clock: Clock) -> None:
    breaker = Breaker(5)
    breaker.failed()
    assert [breaker.allows(), breaker.allows()] == [False, False]
    clock.now += 2 * FIRST_S
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    # the one that tried was killed: another may
    clock.now += 5
    assert [breaker.allows() for _ in range(2)] == [True, False]
    assert breaker.succeeded()
    assert [breaker.allows() for _ in range(2)] == [True, True]
    assert not breaker.succeeded()


def test_failures_at_once_count_as_one(clock: Clock) -> None:
    """Many threads had connections when the broker went away."""
    breaker = Breaker(5)
    assert [breaker.failed() for _ in range(4)] == [True, False, False, False]
    clock.now += 1.3 * FIRST_S
    assert breaker.allows()


def test_counts_of_many_threads_are_complete() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(1000):
            counters.sent(Side.TARGET)
            counters.fell_back(Side.TARGET)
            counters.failed(Side.SOURCE)

    threads = [Thread(target=count) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert SideCounts(sent=4000, fallbacks=4000) == counters.of(Side.TARGET)
    assert SideCounts(publish_failures=4000) == counters.of(Side.SOURCE)


MEDIA, ALERTS, ALL = Exchange("media", type="topic"), Exchange("alerts", type="direct"), Exchange("all", type="fanout")
QUEUES = {
    queue.name: queue
    for queue in (
        Queue("plain"),
        Queue("video", MEDIA, routing_key="video.#"),
        Queue("image", MEDIA, routing_key="image.*"),
        Queue("old", MEDIA, routing_key="#.old"),
        Queue("alert", ALERTS, routing_key="alert"),
        Queue("copy", ALL),
        Queue("two", bindings=[binding(ALERTS, routing_key="two"), binding(MEDIA, routing_key="two.*.x")]),
    )
}


@pytest.mark.parametrize(
    ("exchange", "key", "expected"),
    [
        ("", "plain", ""),
        (None, None, ""),
        ("alerts", "alert", "alert"),
        ("alerts", "two", "two"),
        ("alerts", "other", None),
        ("unknown", "alert", None),
        (ALERTS, "alert", "alert"),
        ("all", "", "copy"),
        ("media", "video", "video"),
        ("media", "video.big.mp4", "video"),
        ("media", "videos", None),
        ("media", "image.png", "image"),
        ("media", "image", None),
        ("media", "image.a.b", None),
        ("media", "two.1.x", "two"),
        ("media", "very.old", "old"),
        ("media", "old", "old"),
        ("media", "video.old", None),  # two queues
        (delays.EXIT, delays.delayed_key("orders", 7), "orders"),
        (delays.EXIT, "0.1.other", None),
        # delays of two and of four seconds
        ("celery_delayed_0", delays.delayed_key("orders", 2), "orders"),
        ("celery_delayed_1", delays.delayed_key("orders", 4), "orders"),
        ("celery_delayed_0", "0.1.other", None),
    ],
)
def test_the_queue_behind_an_exchange_and_a_key(exchange: Any, key: str | None, expected: str | None) -> None:
    assert expected == only_queue_at(QUEUES, {"exchange": exchange, "routing_key": key})


def test_the_clock_of_a_breaker_is_the_real_one() -> None:
    breaker = Breaker(1)
    begin = monotonic()
    breaker.failed()
    while not breaker.allows():
        assert monotonic() - begin < 2
    assert monotonic() - begin >= 0.7
