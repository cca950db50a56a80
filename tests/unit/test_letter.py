"""Letters: what is written, what is read, who is dead, what may be shown."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from billiard import einfo
from celery import Celery
from celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils.serialization import get_pickleable_exception
from hypothesis import given
from hypothesis import strategies as st

from messages import messages
from repot.brokers.message import Message
from repot.brokers.sweep import Forward
from repot.config import ExplicitSettings
from repot.deadletter import letter
from repot.deadletter.judging import name_of, reason_of, text_of
from repot.deadletter.letter import Death, Letter
from repot.deadletter.redaction import Redaction
from repot.deadletter.rounds import EXPIRED, NO_QUEUE, NOT_A_TASK, Replay
from repot.deadletter.search import Wanted, box_names
from repot.deadletter.shown import duration, whole
from repot.errors import OutcomeUnknown, ResultExpired
from repot.worker.burying import malformation, queue_of

if TYPE_CHECKING:
    from repot.deadletter.search import Box

TASK = Message(
    b'[["a"], {}, {}]',
    "application/json",
    "utf-8",
    {"task": "shop.pay", "id": "one", "retries": 2, "argsrepr": "('a',)"},
    {"priority": 0, "correlation_id": "one", "delivery_mode": 2, "timestamp": 100},
)


@given(message=messages(), text=st.text(), traceback=st.text())
def test_a_letter_holds_its_message_as_it_was(message: Message, text: str, traceback: str) -> None:
    """Only the time to live is taken off, which is remembered; and replaying takes the letter off again."""
    death = Death(letter.FAILED, "queue", died_at=5.0, exception="E", message=text, traceback=traceback, attempts=3)
    written = letter.write(message, death)
    found = letter.read(written, "queue.dead")
    assert (message.body, message.content_type, message.content_encoding) == (
        written.body,
        written.content_type,
        written.content_encoding,
    )
    assert {**message.headers, letter.HEADER: written.headers[letter.HEADER]} == written.headers
    expected = {name: value for name, value in message.properties.items() if name != "expiration"}
    assert {**expected, "delivery_mode": 2} == written.properties
    assert message.properties.get("expiration") == found.death.ttl_ms
    assert ("failed", "queue", 3, 5.0) == (
        found.death.reason,
        found.death.queue,
        found.death.attempts,
        found.death.died_at,
    )
    again = letter.to_replay(found)
    assert letter.HEADER not in again.headers
    assert 1 == again.headers[letter.REPLAY_HEADER]
    assert message.body == again.body


def test_a_letter_fits_into_a_header() -> None:
    """All headers of a message share one AMQP frame: of a long traceback the end is kept."""
    written = letter.write(TASK, Death(letter.FAILED, "q", message="m" * 10**6, traceback="x" * 10**6 + "the end"))
    assert len(written.headers[letter.HEADER]) < 10_000
    assert letter.read(written, "q.dead").death.traceback.endswith("the end")


def test_replays_are_counted_on() -> None:
    first = letter.to_replay(letter.read(letter.write(TASK, Death(letter.FAILED, "q")), "q.dead"))
    second = letter.to_replay(letter.read(letter.write(first, Death(letter.FAILED, "q")), "q.dead"))
    assert (1, 2) == (first.headers[letter.REPLAY_HEADER], second.headers[letter.REPLAY_HEADER])
    assert (0, 0) == (first.headers["retries"], second.headers["retries"])


def test_what_rabbitmq_says_is_read_and_taken_off() -> None:
    death = {"reason": "delivery_limit", "queue": "work", "time": datetime(2026, 1, 1), "count": 1}  # noqa: DTZ001 - as py-amqp reads it
    headers = {**TASK.headers, "x-death": [death], "x-first-death-queue": "work", "x-delivery-count": 21}
    found = letter.read(replace(TASK, headers=headers), "work.dead")
    assert (letter.DELIVERY_LIMIT, "work", 3) == (found.death.reason, found.death.queue, found.death.attempts)
    assert datetime(2026, 1, 1, tzinfo=UTC).timestamp() == found.death.died_at
    assert {*TASK.headers, letter.REPLAY_HEADER} == letter.to_replay(found).headers.keys()


@pytest.mark.parametrize("header", ["", "{", "[]", "5", '{"queue": "q"}', '{"reason": "x", "unheard": 1}'])
def test_a_header_that_is_not_ours_is_no_error(header: str) -> None:
    found = letter.read(replace(TASK, headers={**TASK.headers, letter.HEADER: header}), "q.dead", "q")
    assert ("q", "one") == (found.death.queue, found.id)


def test_what_has_no_id_has_a_fingerprint() -> None:
    first, second = (letter.read(Message(body), "q.dead") for body in (b"1", b"2"))
    assert first.id.startswith("m-")
    assert first.id == letter.read(Message(b"1"), "q.dead").id != second.id


class Permanent(Exception):
    """Of a task's attribute."""


class Expected(Exception):
    """Of a task's `throws`."""


class Unpicklable(Exception):
    """Comes out of the pool as a name; with a base that can be pickled, it would come as that."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(first)
        self.second = [second, lambda: None]


def task(**changes: Any) -> Any:
    return SimpleNamespace(**{"max_retries": 3, "throws": (Expected,), "permanent": (Permanent, Unpicklable)} | changes)


@pytest.mark.parametrize(
    ("raised", "retries", "expected"),
    [
        (ValueError("x"), 0, letter.FAILED),
        (ValueError("x"), 3, letter.RETRIES_EXHAUSTED),
        (ValueError("x"), 2, letter.FAILED),
        (MaxRetriesExceededError(), 1, letter.RETRIES_EXHAUSTED),
        (Permanent(), 3, letter.PERMANENT),
        (get_pickleable_exception(Unpicklable(1, 2)), 0, letter.PERMANENT),
        (OutcomeUnknown("x"), 3, letter.UNKNOWN_OUTCOME),
        (WorkerLostError(), 0, letter.WORKER_LOST),
        (SystemExit(1), 0, letter.WORKER_LOST),
        (TimeLimitExceeded(1), 3, letter.TIME_LIMIT),
        (Reject("x", requeue=False), 0, letter.REJECTED),
        (Reject(OutcomeUnknown("x"), requeue=False), 0, letter.UNKNOWN_OUTCOME),
        (Reject("x", requeue=True), 0, None),
        (Ignore(), 0, None),
        (Retry(), 0, None),
        (Terminated(), 0, None),
        (MemoryError(), 0, None),
        (Expected(), 3, None),
        (ResultExpired("x"), 0, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_who_is_dead_and_of_what(raised: BaseException, retries: int, expected: str | None) -> None:
    assert expected == reason_of(raised, task(), retries)
    assert reason_of(raised, task(dead_letter=False), retries) is None


def test_a_task_without_a_limit_of_retries_is_never_spent() -> None:
    assert letter.FAILED == reason_of(ValueError(), task(max_retries=None), 100)
    assert letter.FAILED == reason_of(ValueError(), task(max_retries=0), 0)


def test_an_exception_is_named_also_through_a_pipe() -> None:
    through = get_pickleable_exception(Unpicklable(1, 2))
    wrapped: Any = einfo.ExceptionWithTraceback(Unpicklable(1, 2), "")  # type: ignore[attr-defined]
    assert "Unpicklable" == name_of(through).rpartition(".")[2]
    assert letter.PERMANENT == reason_of(wrapped, task(), 0)


def test_an_exception_whose_text_fails_has_none() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert "boom" == text_of(RuntimeError("boom"))
    assert isinstance(text_of(Mute()), str)
    assert "not mine" == text_of(Reject("not mine"))


def dead(sent: Message = TASK, /, **death: Any) -> Letter:
    return Letter(sent, Death(**{"reason": letter.FAILED, "queue": "q"} | death), "q.dead")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), True),
        (Wanted(ids=("on",)), True),
        (Wanted(ids=("two", "one")), True),
        (Wanted(ids=("two",)), False),
        (Wanted(tasks=("shop.pay",)), True),
        (Wanted(tasks=("shop",)), False),
        (Wanted(reasons=(letter.FAILED,)), True),
        (Wanted(reasons=(letter.PERMANENT,)), False),
        (Wanted(older_than_s=99), True),
        (Wanted(older_than_s=101), False),
        (Wanted(newer_than_s=101), True),
        (Wanted(newer_than_s=99), False),
        (Wanted(older_than_s=50, newer_than_s=150), True),
    ],
    ids=str,
)
def test_filters(wanted: Wanted, *, expected: bool) -> None:
    assert expected is wanted.matches(dead(died_at=900.0), now=1000)


def test_an_unknown_age_is_neither_old_nor_new() -> None:
    assert not Wanted(older_than_s=1).matches(dead(), now=1000)
    assert not Wanted(newer_than_s=10**9).matches(dead(), now=1000)


def test_replay_refuses_what_would_vanish() -> None:
    past = replace(TASK, headers={**TASK.headers, "expires": "2020-01-01T00:00:00"})
    assert EXPIRED == Replay().decide(dead(past))
    assert isinstance(Replay(forget_expiry=True).decide(dead(past)), Forward)
    assert NOT_A_TASK == Replay().decide(dead(reason=letter.UNDECODABLE))
    assert isinstance(Replay(by_name=True).decide(dead(reason=letter.UNDECODABLE)), Forward)
    assert NO_QUEUE == Replay().decide(dead(queue=""))
    forward = Replay(to="other").decide(dead(queue=""))
    assert isinstance(forward, Forward)
    assert "other" == forward.queue


def test_queues_of_dead_letters() -> None:
    settings = ExplicitSettings(queue_names=("mail", "bulk"))
    assert {"mail.dead": "mail", "bulk.dead": "bulk"} == box_names(settings, settings.queue_names, ())
    assert {"bulk.dead": "bulk", "x": ""} == box_names(settings, (), ("bulk.dead", "x"))
    shared = settings.replace(dead_letter_queue="dead")
    assert {"dead": ""} == box_names(shared, shared.queue_names, ())
    assert {} == box_names(settings.replace(dead_letter_queue=""), settings.queue_names, ())


PLANTED = "hunter2-s3cret"


@pytest.mark.parametrize(
    "body",
    [
        [[PLANTED], {}, {}],
        [[["x", [PLANTED]]], {}, {}],
        [[{"Card": PLANTED}], {}, {}],
        [[], {"card": {"number": PLANTED}}, {}],
        [[], {"order": [{"card": [PLANTED]}], "note": f"paid with {PLANTED}"}, {}],
        {"card": PLANTED},
        PLANTED,
    ],
    ids=str,
)
def test_what_is_to_be_hidden_is_shown_nowhere(body: object) -> None:
    message = replace(TASK, body=json.dumps(body).encode(), headers={**TASK.headers, "note": PLANTED})
    found = dead(message, message=f"refused: {PLANTED}", traceback=f"raise X({PLANTED!r})")
    box: Box = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    shown = json.dumps(whole(found, box, Redaction.of(("CARD",)), payload=True))
    assert PLANTED not in shown
    assert "refused: **" in shown
    assert PLANTED in json.dumps(whole(found, box, Redaction(), payload=True))


def test_an_exception_of_a_sealed_payload_is_hidden_whole() -> None:
    """Nobody knows which of its words stand in the payload."""
    message = replace(TASK, content_type="application/x-python-serialize", body=b"\x80")
    box: Box = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    shown = whole(dead(message, message=PLANTED, traceback=PLANTED), box, Redaction.of(("card",)), payload=True)
    assert PLANTED not in json.dumps(shown)


def test_representations_of_arguments_are_never_shown() -> None:
    box: Box = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    assert "argsrepr" not in whole(dead(), box, Redaction(), payload=True)["headers"]


@pytest.mark.parametrize(("seconds", "expected"), [(5, "5s"), (300, "5m"), (7200, "2h"), (200_000, "2d"), (-1, "0s")])
def test_durations(seconds: float, expected: str) -> None:
    assert expected == duration(seconds)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"consumer_tag": "2", "routing_key": "0.1.mail"}, "mail"),
        ({"consumer_tag": "9", "routing_key": "bulk"}, "bulk"),
        ({"exchange": "shop", "routing_key": "letters"}, "mail"),
        ({"exchange": "else", "routing_key": "letters"}, "letters"),
        ({}, ""),
    ],
    ids=str,
)
def test_the_queue_a_message_came_from(info: dict[str, str], expected: str) -> None:
    """By the consumer, by a queue's name, by a binding; else the routing key."""

    def queue(name: str, exchange: str, key: str) -> Any:
        return SimpleNamespace(name=name, exchange=SimpleNamespace(name=exchange), routing_key=key)

    consumer = SimpleNamespace(
        _active_tags={"mail": "2", "bulk": "3"}, queues=[queue("mail", "shop", "letters"), queue("bulk", "", "bulk")]
    )
    assert expected == queue_of(SimpleNamespace(delivery_info=info), consumer)


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        ({"task": "t", "id": "1"}, [[], {}, {}]),
        ({"task": "t", "id": "1"}, [[], {}, None]),
        ({}, {"task": "t", "id": "1", "args": [], "kwargs": {}}),
        ({}, {"task": "t", "id": "1"}),
        ({}, "somebody else's"),
        ({}, 5),
    ],
    ids=str,
)
def test_what_celery_can_handle_is_left_to_it(headers: dict[str, Any], payload: object) -> None:
    assert "" == malformation(SimpleNamespace(headers=headers, payload=payload))


def test_a_request_class_of_an_applications_own_is_left_alone() -> None:
    from celery.worker.request import Request

    from repot.worker.burying import _give_requests
    from repot.worker.request import BuryingRequest

    app = Celery("own", set_as_current=False)

    class Own(Request):
        """Somebody's."""

    def run() -> None:
        """Do nothing."""

    app.task(name="plain", shared=False)(run)
    app.task(name="special", Request=Own, shared=False)(run)
    app.finalize()
    for _ in range(2):
        # a consumer that is made again
        _give_requests(app, SimpleNamespace())  # type: ignore[arg-type]
    found: dict[str, Any] = {name: app.tasks[name].Request for name in ("plain", "special")}
    assert issubclass(found["plain"], BuryingRequest)
    assert found["special"] is Own
