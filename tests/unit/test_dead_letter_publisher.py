"""A message is settled once its dead letter is confirmed, or refused for long; not before, and not in between."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from repot.brokers.message import Message
from repot.config import ExplicitSettings
from repot.deadletter import publisher as publisher_module
from repot.deadletter.publisher import DeadLetterPublisher, PendingDeadLetter
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Publishing:
    """What the broker says to each attempt: an error, or None for a confirm; and what was settled by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[Exception | None] = []
        self.settled: list[bool] = []
        self.seen: list[list[bool]] = []
        self.now = 1000.0
        app = Celery("shop", set_as_current=False, broker="memory://")
        self.publisher = DeadLetterPublisher(app, ExplicitSettings())
        monkeypatch.setattr(publisher_module, "_FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(publisher_module, "_MAX_PAUSE_S", 0.001)
        monkeypatch.setattr(publisher_module, "monotonic", lambda: self.now)
        monkeypatch.setattr(self.publisher, "_publish", self._publish)

    def _publish(self, _pending: PendingDeadLetter) -> None:
        self.seen.append(list(self.settled))
        # each attempt takes a while
        self.now += 4
        if not self.answers:
            # one attempt too many: the test ends here, and not at a time limit
            self.publisher.close()
            raise AssertionError
        answer = self.answers.pop(0)
        if answer:
            raise answer

    def send(self, *answers: Exception | None, settles: bool = True) -> None:
        self.answers += answers
        message = Message(b"", "application/json", "utf-8", {}, {})
        settle: Any = self.settled.append if settles else None
        pending = PendingDeadLetter(message, "orders.dead", settle, "pay", "1", "failed", "orders")
        self.publisher.publish_later(pending)
        thread = self.publisher._thread
        assert thread is not None
        wait_until(lambda: not (self.publisher.pending and thread.is_alive()), within_s=60, what="it is settled")
        assert not self.publisher.pending


@pytest.fixture
def publishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publishing]:
    found = Publishing(monkeypatch)
    yield found
    found.publisher.close()


def test_a_message_is_settled_after_the_confirm(publishing: Publishing) -> None:
    publishing.send(OperationalError("away"), RuntimeError("refused"), None)
    assert publishing.seen == [[], [], []]
    assert publishing.settled == [True]


def test_a_dead_letter_that_is_refused_for_ten_seconds_requeues_its_message(publishing: Publishing) -> None:
    publishing.send(*[RuntimeError("refused")] * 4)
    # since 4, 8, 12 and 16 seconds: the first refusal begins the time
    assert publishing.settled == [False]
    assert (publishing.answers, len(publishing.seen)) == ([], 4)


def test_a_broker_that_is_away_is_waited_for(publishing: Publishing) -> None:
    """Its dead letter would be lost with the acknowledged message, and delivered twice with a requeued one."""
    publishing.send(*[OperationalError("away")] * 20, None)
    assert publishing.settled == [True]


def test_refusals_before_the_broker_went_away_do_not_count(publishing: Publishing) -> None:
    publishing.send(*[RuntimeError("refused")] * 3, OperationalError("away"), *[RuntimeError("refused")] * 3, None)
    assert publishing.settled == [True]


def test_the_loss_of_what_was_acknowledged_early_is_said(
    publishing: Publishing, caplog: pytest.LogCaptureFixture
) -> None:
    publishing.send(*[RuntimeError("refused")] * 4, settles=False)
    assert "it was acknowledged early and IS LOST" in caplog.text


def test_what_fails_in_settling_stops_no_later_one(publishing: Publishing, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_confirmed: bool) -> None:
        raise RuntimeError

    settled, publishing.settled = publishing.settled, type("Failing", (list,), {"append": lambda _, one: fail(one)})()
    publishing.send(None)
    publishing.settled = settled
    publishing.send(None)
    assert settled == [True]
    assert "a message could not be settled" in caplog.text


def test_a_worker_that_leaves_tries_once_more(publishing: Publishing) -> None:
    publishing.publisher.leave()
    publishing.send(OperationalError("away"))
    assert publishing.settled == [False]


def test_a_worker_that_leaves_does_not_give_up_what_was_acknowledged_early(publishing: Publishing) -> None:
    publishing.publisher.leave()
    publishing.send(OperationalError("away"), OperationalError("away"), None, settles=False)
    assert publishing.answers == []


def test_a_closed_publisher_settles_nothing_more(publishing: Publishing) -> None:
    """The broker delivers the message again: the worker is about to end."""
    reached = Event()

    def close(pending: PendingDeadLetter) -> None:
        reached.set()
        publishing.publisher.close()
        publishing._publish(pending)

    publishing.publisher._publish = close  # type: ignore[method-assign]

    publishing.answers = [OperationalError("away")]
    pending = PendingDeadLetter(
        Message(b"", "application/json", "utf-8", {}, {}),
        "q.dead",
        publishing.settled.append,
        "pay",
        "1",
        "failed",
        "q",
    )
    publishing.publisher.publish_later(pending)
    assert reached.wait(60)
    thread = publishing.publisher._thread
    assert thread is not None
    thread.join(60)
    assert (publishing.settled, publishing.publisher.pending) == ([], 1)
