"""Letters: what is written, what is read, who is dead, what may be shown."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime
from time import time
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
from kombu import Connection, Exchange, Queue, binding

from messages import messages
from repot.brokers.headers import REPLAY_HEADER
from repot.brokers.message import Message
from repot.brokers.sweep import Forward
from repot.config import ExplicitSettings
from repot.deadletter import letter
from repot.deadletter.judging import name_of, reason_of, text_of
from repot.deadletter.letter import Death, Letter
from repot.deadletter.redaction import Redaction
from repot.deadletter.rounds import EXPIRED, NO_QUEUE, NOT_A_TASK, Replay
from repot.deadletter.search import Wanted, box_names
from repot.deadletter.shown import duration, row, summary, whole
from repot.errors import OutcomeUnknown, ResultExpired
from repot.worker.burying import Burial
from repot.worker.malformed import malformation
from repot.worker.origins import Origins

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
    assert 1 == again.headers[letter.REPLAYS_HEADER]
    assert message.body == again.body


def test_a_letter_fits_into_a_header() -> None:
    """All headers of a message share one AMQP frame: of a long traceback the end is kept."""
    written = letter.write(TASK, Death(letter.FAILED, "q", message="m" * 10**6, traceback="x" * 10**6 + "the end"))
    assert len(written.headers[letter.HEADER]) < 10_000
    assert letter.read(written, "q.dead").death.traceback.endswith("the end")


def test_replays_are_counted_on() -> None:
    first = letter.to_replay(letter.read(letter.write(TASK, Death(letter.FAILED, "q")), "q.dead"))
    second = letter.to_replay(letter.read(letter.write(first, Death(letter.FAILED, "q")), "q.dead"))
    assert (1, 2) == (first.headers[letter.REPLAYS_HEADER], second.headers[letter.REPLAYS_HEADER])
    assert (0, 0) == (first.headers["retries"], second.headers["retries"])


def test_a_later_replay_has_the_larger_number() -> None:
    """Of any letter: it is the time. Where a clock was set back, one more than before."""
    begun = int(time() * 1000)
    first, second = (letter.to_replay(dead()).headers[REPLAY_HEADER] for _ in range(2))
    assert begun <= first <= second <= int(time() * 1000)
    ahead = replace(TASK, headers={**TASK.headers, REPLAY_HEADER: begun + 10**9})
    assert begun + 10**9 + 1 == letter.to_replay(dead(ahead)).headers[REPLAY_HEADER]
    odd = replace(TASK, headers={**TASK.headers, REPLAY_HEADER: 2**80})
    assert letter.to_replay(dead(odd)).headers[REPLAY_HEADER] < 2**53


def test_what_rabbitmq_says_is_read_and_taken_off() -> None:
    death = {"reason": "delivery_limit", "queue": "work", "time": datetime(2026, 1, 1), "count": 1}  # noqa: DTZ001 - as py-amqp reads it
    headers = {**TASK.headers, "x-death": [death], "x-first-death-queue": "work", "x-delivery-count": 21}
    found = letter.read(replace(TASK, headers=headers), "work.dead")
    assert (letter.DELIVERY_LIMIT, "work", 3) == (found.death.reason, found.death.queue, found.death.attempts)
    assert datetime(2026, 1, 1, tzinfo=UTC).timestamp() == found.death.died_at
    assert {*TASK.headers, REPLAY_HEADER, letter.REPLAYS_HEADER} == letter.to_replay(found).headers.keys()


@pytest.mark.parametrize("header", ["", "{", "[]", "5", '{"queue": "q"}', '{"reason": "x", "unheard": 1}'])
def test_a_header_that_is_not_ours_is_no_error(header: str) -> None:
    found = letter.read(replace(TASK, headers={**TASK.headers, letter.HEADER: header}), "q.dead", "q")
    assert ("q", "one") == (found.death.queue, found.id)


ODD_TIMES: tuple[object, ...] = ("yesterday", 1e20, -1e20, 1e999, True, [], {}, None, 253_402_300_800)


@pytest.mark.parametrize(
    "odd",
    [
        {"reason": 5},
        {"reason": ["x"], "queue": 5, "message": {}, "traceback": 1, "exception": None, "worker": [], "ttl_ms": 5},
        *({"died_at": one, "sent_at": one} for one in ODD_TIMES),
        *({"replays": one, "attempts": one, "deliveries": one} for one in ("x", 1.5, -1, 10**30, True)),
    ],
    ids=str,
)
def test_an_odd_header_is_unknown_and_no_error(odd: dict[str, Any]) -> None:
    """Whoever can write to the queue can write anything there; it can be shown, replayed and filtered."""
    written = json.dumps({"reason": letter.FAILED, "queue": "q"} | odd)
    found = letter.read(replace(TASK, headers={**TASK.headers, letter.HEADER: written}), "q.dead", "q")
    assert found.death.reason == (letter.FAILED if "reason" not in odd else letter.UNKNOWN)
    assert ("one", "q", 0, None) == (found.id, found.death.queue, found.death.replays, found.death.died_at)
    box: Box = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    json.dumps(whole(found, box, Redaction.of(("card",)), payload=True))
    assert row(summary(found, box, Redaction()), 0)
    assert not Wanted(newer_than_s=1).matches(found, now=1000)
    assert isinstance(Replay().decide(found), Forward)


@pytest.mark.parametrize(
    "death",
    [
        {"reason": 5, "queue": [], "time": "now", "original-expiration": 5},
        {"reason": "expired", "queue": "q", "time": 1e20},
        {},
        5,
    ],
    ids=str,
)
def test_an_odd_death_of_rabbitmqs_is_unknown_and_no_error(death: object) -> None:
    headers = {**TASK.headers, "x-death": [death], "x-delivery-count": "x"}
    found = letter.read(replace(TASK, headers=headers), "q.dead", "q")
    assert ("q", None, None) == (found.death.queue, found.death.died_at, found.death.ttl_ms)


def test_a_payload_without_a_bottom_is_not_gone_through() -> None:
    box: Box = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    for depth in (900, 10**5):
        message = replace(TASK, body=b"[" * depth + b"]" * depth)
        assert "hidden" in whole(dead(message), box, Redaction.of(("card",)), payload=True)["payload"]


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


def test_a_result_that_expired_is_a_death_where_nobody_else_carries_on() -> None:
    """Of the run's own continuation; the mark comes through the pool's pipe."""
    mine, anothers = ResultExpired("x", hint="y"), ResultExpired("x", hint="y")
    vars(mine)["own"] = True
    for error, expected in ((mine, letter.FAILED), (anothers, None)):
        through = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        for one in (error, through, Reject(error, requeue=False), get_pickleable_exception(error)):
            found = reason_of(one, task(), 0)
            assert found == (letter.REJECTED if expected and isinstance(one, Reject) else expected)


def test_a_task_without_a_limit_of_retries_is_never_spent() -> None:
    assert letter.FAILED == reason_of(ValueError(), task(max_retries=None), 100)
    assert letter.FAILED == reason_of(ValueError(), task(max_retries=0), 0)


def test_attributes_that_are_no_exceptions_hide_no_death() -> None:
    """The application wrote something else there: it is no reason to know nothing of a failure."""
    for odd in (5, "ValueError", [ValueError, "x"], (int,)):
        assert letter.FAILED == reason_of(RuntimeError(), task(throws=odd, permanent=odd), 0)
    assert letter.PERMANENT == reason_of(ValueError(), task(permanent=[ValueError, "x"]), 0)


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
        ({"exchange": "many", "routing_key": "b"}, "listed"),
        ({"exchange": "media", "routing_key": "media.image"}, "media"),
        # a queue that somebody else reads is bound, too
        ({"exchange": "else", "routing_key": "letters"}, "bulk"),
        ({"exchange": "gone", "routing_key": "letters"}, "mail"),
        ({}, "mail"),
    ],
    ids=str,
)
def test_the_queue_a_message_came_from(info: dict[str, str], expected: str) -> None:
    """By the consumer, by a binding, by kombu's own routing; never one that is not consumed."""
    origins = Origins()
    assert info.get("routing_key", "") == origins.of(SimpleNamespace(delivery_info=info, channel=None))
    origins.note(
        SimpleNamespace(
            _active_tags={"mail": "2", "bulk": "3", "listed": "4", "media": "5"},
            queues=[
                Queue("mail", Exchange("shop"), "letters"),
                Queue("bulk"),
                Queue("listed", bindings=[binding(Exchange("many"), routing_key=key) for key in ("a", "b")]),
                Queue("media", Exchange("media", type="topic"), "media.#"),
            ],
        )
    )
    # a worker that leaves
    origins.note(None)
    origins.note(SimpleNamespace(_active_tags={}, queues=[]))
    with Connection("memory://") as connection:
        channel: Any = connection.default_channel
        Queue("media", Exchange("media", type="topic"), "media.#")(channel).declare()
        for name in ("theirs", "bulk"):
            Queue(name, Exchange("else"), "letters")(channel).declare()
        assert expected == origins.of(SimpleNamespace(delivery_info=info, channel=channel))


def test_a_broker_that_is_away_leaves_the_queue_to_be_guessed() -> None:
    def lookup(*_: object) -> None:
        raise ConnectionError

    origins = Origins()
    origins.note(SimpleNamespace(_active_tags={"mail": "2"}, queues=[Queue("mail")]))
    message = SimpleNamespace(
        delivery_info={"exchange": "x", "routing_key": "y"}, channel=SimpleNamespace(_lookup=lookup)
    )
    assert "mail" == origins.of(message)


def test_what_cannot_be_buried_is_given_back() -> None:
    """Whatever is wrong with a message: nothing is raised into Celery's callbacks, and it is not forgotten."""
    later: list[tuple[float, Any, tuple[Any, ...]]] = []
    consumer = SimpleNamespace(
        app=None,
        hub=None,
        task_consumer=None,
        hostname="w",
        timer=SimpleNamespace(call_after=lambda *given: later.append(given)),
        connection_errors=(),
        channel_errors=(),
    )
    burial = Burial(consumer, ExplicitSettings(queue_names=("mail",)))
    settled: list[bool] = []
    assert burial.bury(SimpleNamespace(), Death(letter.FAILED, ""), settled.append)
    ((delay_s, call, arguments),) = later
    # its task would fail the same way at once, again and again
    assert (delay_s, settled) == (10, [])
    call(*arguments)
    assert [False] == settled
    del consumer.timer
    assert burial.bury(SimpleNamespace(), Death(letter.FAILED, ""), settled.append)
    assert [False, False] == settled
    assert burial.bury(SimpleNamespace(), Death(letter.FAILED, ""))

    def refuse(_: bool) -> None:
        raise RuntimeError

    burial.bury(SimpleNamespace(), Death(letter.FAILED, ""), refuse)


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
