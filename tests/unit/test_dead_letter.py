"""Dead letters: what is written, what is read, who is dead, what may be shown."""

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
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection, Exchange, Queue, binding

from repot.brokers.browse import Forward
from repot.brokers.headers import REPLAY_HEADER, UNDECIDED_HEADER
from repot.brokers.message import Message
from repot.cli.main import main
from repot.config import ExplicitSettings
from repot.deadletter import dead_letter
from repot.deadletter.classify import name_of, reason_of, text_of
from repot.deadletter.dead_letter import DeadLetter, Death
from repot.deadletter.presentation import details, duration, row, summary
from repot.deadletter.query import DeadLetterQuery, dlq_names
from repot.deadletter.reason import Reason
from repot.deadletter.redaction import Redaction
from repot.deadletter.replay import EXPIRED, HAS_RUN, MAY_HAVE_RUN, NO_QUEUE, NOT_A_TASK, Replay
from repot.errors import OutcomeUnknown, ResultExpired
from repot.worker.dead_lettering import DeadLettering
from repot.worker.message_validation import find_defect
from repot.worker.queue_resolver import QueueResolver
from support.messages import messages

if TYPE_CHECKING:
    from repot.deadletter.query import DlqHandle

TASK = Message(
    b'[["a"], {}, {}]',
    "application/json",
    "utf-8",
    {"task": "shop.pay", "id": "one", "retries": 2, "argsrepr": "('a',)"},
    {"priority": 0, "correlation_id": "one", "delivery_mode": 2, "timestamp": 100},
)


@given(message=messages(), text=st.text(), traceback=st.text())
def test_a_dead_letter_holds_its_message_as_it_was(message: Message, text: str, traceback: str) -> None:
    """Only the time to live is moved into the header; a replay removes the header."""
    death = Death(Reason.FAILED, "queue", died_at=5.0, exception="E", message=text, traceback=traceback, attempts=3)
    written = dead_letter.make_dead_letter(message, death)
    found = dead_letter.read_dead_letter(written, "queue.dead")
    assert (message.body, message.content_type, message.content_encoding) == (
        written.body,
        written.content_type,
        written.content_encoding,
    )
    assert {**message.headers, dead_letter.HEADER: written.headers[dead_letter.HEADER]} == written.headers
    expected = {name: value for name, value in message.properties.items() if name != "expiration"}
    assert {**expected, "delivery_mode": 2} == written.properties
    assert message.properties.get("expiration") == found.death.ttl_ms
    assert (
        found.death.reason,
        found.death.queue,
        found.death.attempts,
        found.death.died_at,
    ) == ("failed", "queue", 3, 5.0)
    again = dead_letter.make_replay(found)
    assert dead_letter.HEADER not in again.headers
    assert again.headers[dead_letter.REPLAYS_HEADER] == 1
    assert message.body == again.body


def test_a_dead_letter_fits_into_a_header() -> None:
    """All headers of a message share one AMQP frame: of a long traceback the end is kept."""
    written = dead_letter.make_dead_letter(
        TASK, Death(Reason.FAILED, "q", message="m" * 10**6, traceback="x" * 10**6 + "the end")
    )
    assert len(written.headers[dead_letter.HEADER]) < 10_000
    assert dead_letter.read_dead_letter(written, "q.dead").death.traceback.endswith("the end")


def test_replays_are_counted_on() -> None:
    first = dead_letter.make_replay(
        dead_letter.read_dead_letter(dead_letter.make_dead_letter(TASK, Death(Reason.FAILED, "q")), "q.dead")
    )
    second = dead_letter.make_replay(
        dead_letter.read_dead_letter(dead_letter.make_dead_letter(first, Death(Reason.FAILED, "q")), "q.dead")
    )
    assert (first.headers[dead_letter.REPLAYS_HEADER], second.headers[dead_letter.REPLAYS_HEADER]) == (1, 2)
    assert (first.headers["retries"], second.headers["retries"]) == (0, 0)


def test_a_replay_by_id_takes_the_mark_of_an_earlier_one_off() -> None:
    among_others = dead_letter.make_replay(dead(), decided=False)
    assert among_others.headers[UNDECIDED_HEADER] is True
    assert UNDECIDED_HEADER not in dead_letter.make_replay(dead(among_others)).headers


def test_a_later_replay_has_the_larger_number() -> None:
    """It is the time, for any dead letter. If a clock was set back, it is one more than before."""
    begun = int(time() * 1000)
    first, second = (dead_letter.make_replay(dead()).headers[REPLAY_HEADER] for _ in range(2))
    assert begun <= first <= second <= int(time() * 1000)
    ahead = replace(TASK, headers={**TASK.headers, REPLAY_HEADER: begun + 10**9})
    assert dead_letter.make_replay(dead(ahead)).headers[REPLAY_HEADER] == begun + 10**9 + 1
    odd = replace(TASK, headers={**TASK.headers, REPLAY_HEADER: 2**80})
    assert dead_letter.make_replay(dead(odd)).headers[REPLAY_HEADER] < 2**53


def test_what_rabbitmq_says_is_read_and_taken_off() -> None:
    death = {"reason": "delivery_limit", "queue": "work", "time": datetime(2026, 1, 1), "count": 1}  # noqa: DTZ001 - as py-amqp reads it
    headers = {**TASK.headers, "x-death": [death], "x-first-death-queue": "work", "x-delivery-count": 21}
    found = dead_letter.read_dead_letter(replace(TASK, headers=headers), "work.dead")
    assert (found.death.reason, found.death.queue, found.death.attempts) == (Reason.DELIVERY_LIMIT, "work", 3)
    assert datetime(2026, 1, 1, tzinfo=UTC).timestamp() == found.death.died_at
    assert {*TASK.headers, REPLAY_HEADER, dead_letter.REPLAYS_HEADER} == dead_letter.make_replay(found).headers.keys()


@pytest.mark.parametrize("header", ["", "{", "[]", "5", '{"queue": "q"}', '{"reason": "x", "unheard": 1}'])
def test_a_header_that_is_not_ours_is_no_error(header: str) -> None:
    found = dead_letter.read_dead_letter(
        replace(TASK, headers={**TASK.headers, dead_letter.HEADER: header}), "q.dead", "q"
    )
    assert (found.death.queue, found.id) == ("q", "one")


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
    """A client with write access can write anything into the queue; it can be shown, replayed and filtered."""
    written = json.dumps({"reason": Reason.FAILED, "queue": "q"} | odd)
    found = dead_letter.read_dead_letter(
        replace(TASK, headers={**TASK.headers, dead_letter.HEADER: written}), "q.dead", "q"
    )
    assert found.death.reason == (Reason.FAILED if "reason" not in odd else Reason.UNKNOWN)
    assert (found.id, found.death.queue, found.death.replays, found.death.died_at) == ("one", "q", 0, None)
    dlq: DlqHandle = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    json.dumps(details(found, dlq, Redaction.of(("card",)), payload=True))
    assert row(summary(found, dlq, Redaction()), 0)
    assert not DeadLetterQuery(newer_than_s=1).matches(found, now=1000)
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
    found = dead_letter.read_dead_letter(replace(TASK, headers=headers), "q.dead", "q")
    assert (found.death.queue, found.death.died_at, found.death.ttl_ms) == ("q", None, None)


def test_a_payload_without_a_bottom_is_not_gone_through() -> None:
    dlq: DlqHandle = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    for depth in (900, 10**5):
        message = replace(TASK, body=b"[" * depth + b"]" * depth)
        assert "hidden" in details(dead(message), dlq, Redaction.of(("card",)), payload=True)["payload"]


def test_what_has_no_id_has_a_fingerprint() -> None:
    first, second = (dead_letter.read_dead_letter(Message(body), "q.dead") for body in (b"1", b"2"))
    assert first.id.startswith("m-")
    assert first.id == dead_letter.read_dead_letter(Message(b"1"), "q.dead").id != second.id


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
        (ValueError("x"), 0, Reason.FAILED),
        (ValueError("x"), 3, Reason.RETRIES_EXHAUSTED),
        (ValueError("x"), 2, Reason.FAILED),
        (MaxRetriesExceededError(), 1, Reason.RETRIES_EXHAUSTED),
        (Permanent(), 3, Reason.PERMANENT),
        (get_pickleable_exception(Unpicklable(1, 2)), 0, Reason.PERMANENT),
        (OutcomeUnknown("x"), 3, Reason.UNKNOWN_OUTCOME),
        (WorkerLostError(), 0, Reason.WORKER_LOST),
        (SystemExit(1), 0, Reason.WORKER_LOST),
        (TimeLimitExceeded(1), 3, Reason.TIME_LIMIT),
        (Reject("x", requeue=False), 0, Reason.REJECTED),
        (Reject(OutcomeUnknown("x"), requeue=False), 0, Reason.UNKNOWN_OUTCOME),
        (Reject("x", requeue=True), 0, None),
        (Ignore(), 0, None),
        (Retry(), 0, None),
        (Terminated(), 0, None),
        (MemoryError(), 0, Reason.FAILED),
        (Expected(), 3, None),
        (ResultExpired("x"), 0, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_who_is_dead_and_of_what(raised: BaseException, retries: int, expected: str | None) -> None:
    assert expected == reason_of(raised, task(), retries)
    assert reason_of(raised, task(dead_letter=False), retries) is None


def test_a_result_that_expired_is_a_death_where_no_other_message_carries_on() -> None:
    """Of the run's own continuation; the mark comes through the pool's pipe."""
    mine, anothers = ResultExpired("x", hint="y"), ResultExpired("x", hint="y")
    vars(mine)["own"] = True
    for error, expected in ((mine, Reason.FAILED), (anothers, None)):
        through = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        for one in (error, through, Reject(error, requeue=False), get_pickleable_exception(error)):
            found = reason_of(one, task(), 0)
            assert found == (Reason.REJECTED if expected and isinstance(one, Reject) else expected)


def test_a_task_without_a_limit_of_retries_is_never_spent() -> None:
    assert reason_of(ValueError(), task(max_retries=None), 100) == Reason.FAILED
    assert reason_of(ValueError(), task(max_retries=0), 0) == Reason.FAILED


def test_attributes_that_are_no_exceptions_hide_no_death() -> None:
    """The application wrote something else there: it is no reason to know nothing of a failure."""
    for odd in (5, "ValueError", [ValueError, "x"], (int,)):
        assert reason_of(RuntimeError(), task(throws=odd, permanent=odd), 0) == Reason.FAILED
    assert reason_of(ValueError(), task(permanent=[ValueError, "x"]), 0) == Reason.PERMANENT


def test_an_exception_is_named_also_through_a_pipe() -> None:
    through = get_pickleable_exception(Unpicklable(1, 2))
    wrapped: Any = einfo.ExceptionWithTraceback(Unpicklable(1, 2), "")  # type: ignore[attr-defined]
    assert name_of(through).rpartition(".")[2] == "Unpicklable"
    assert reason_of(wrapped, task(), 0) == Reason.PERMANENT


def test_an_exception_whose_text_fails_has_none() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert text_of(RuntimeError("boom")) == "boom"
    assert isinstance(text_of(Mute()), str)
    assert text_of(Reject("not mine")) == "not mine"


def dead(sent: Message = TASK, /, **death: Any) -> DeadLetter:
    return DeadLetter(sent, Death(**{"reason": Reason.FAILED, "queue": "q"} | death), "q.dead")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (DeadLetterQuery(), True),
        (DeadLetterQuery(ids=("on",)), False),
        (DeadLetterQuery(ids=("two", "one")), True),
        (DeadLetterQuery(ids=("two",)), False),
        (DeadLetterQuery(tasks=("shop.pay",)), True),
        (DeadLetterQuery(tasks=("shop",)), False),
        (DeadLetterQuery(reasons=(Reason.FAILED,)), True),
        (DeadLetterQuery(reasons=(Reason.PERMANENT,)), False),
        (DeadLetterQuery(older_than_s=99), True),
        (DeadLetterQuery(older_than_s=101), False),
        (DeadLetterQuery(newer_than_s=101), True),
        (DeadLetterQuery(newer_than_s=99), False),
        (DeadLetterQuery(older_than_s=50, newer_than_s=150), True),
    ],
    ids=str,
)
def test_filters(query: DeadLetterQuery, *, expected: bool) -> None:
    assert expected is query.matches(dead(died_at=900.0), now=1000)


@pytest.mark.parametrize(
    ("given", "id_", "expected"),
    [
        ("order-1", "order-1", True),
        ("order-1", "order-10", False),
        ("3fa85f64", "3fa85f64-5717-4562-b3fc-2c963f66afa6", True),
        ("3fa85f64", "3FA85F64-5717-4562-B3FC-2C963F66AFA6", False),
        ("3fa85f64", "3fa85f6457174562b3fc2c963f66afa6", True),
        ("3fa85f64-5717", "3fa85f64-5717-4562-b3fc-2c963f66afa6-10", False),
        ("m-0123", "m-0123456789abcdef", False),
    ],
)
def test_a_text_is_a_prefix_of_uuids_alone(given: str, id_: str, *, expected: bool) -> None:
    found = dead(replace(TASK, headers={**TASK.headers, "id": id_}))
    assert expected is DeadLetterQuery(ids=(given,)).matches(found, now=0)


@pytest.mark.parametrize("died_at", [1000.0, 1060.0], ids=["now", "by a clock that is ahead"])
def test_an_age_of_zero_is_newer_than_any(died_at: float) -> None:
    found = dead(died_at=died_at)
    assert DeadLetterQuery(newer_than_s=60).matches(found, now=1000)
    assert not DeadLetterQuery(newer_than_s=0).matches(found, now=1000)
    assert not DeadLetterQuery(older_than_s=0).matches(found, now=1000)


def test_an_unknown_age_is_neither_old_nor_new() -> None:
    assert not DeadLetterQuery(older_than_s=1).matches(dead(), now=1000)
    assert not DeadLetterQuery(newer_than_s=10**9).matches(dead(), now=1000)


def test_replay_refuses_what_would_vanish() -> None:
    past = replace(TASK, headers={**TASK.headers, "expires": "2020-01-01T00:00:00"})
    assert Replay().decide(dead(past)) == EXPIRED
    assert isinstance(Replay(forget_expiry=True).decide(dead(past)), Forward)
    assert Replay().decide(dead(reason=Reason.UNDECODABLE)) == NOT_A_TASK
    assert isinstance(Replay(selected=True).decide(dead(reason=Reason.UNDECODABLE)), Forward)
    assert Replay().decide(dead(reason=Reason.RESULT_NOT_STORED)) == HAS_RUN
    assert isinstance(Replay(selected=True).decide(dead(reason=Reason.RESULT_NOT_STORED)), Forward)
    assert Replay().decide(dead(reason=Reason.UNKNOWN_OUTCOME)) == MAY_HAVE_RUN
    assert isinstance(Replay(selected=True).decide(dead(reason=Reason.UNKNOWN_OUTCOME)), Forward)
    assert Replay().decide(dead(queue="")) == NO_QUEUE
    forward = Replay(to="other").decide(dead(queue=""))
    assert isinstance(forward, Forward)
    assert forward.queue == "other"


def test_queues_of_dead_letters() -> None:
    settings = ExplicitSettings(queue_names=("mail", "bulk"))
    assert dlq_names(settings, settings.queue_names, ()) == {"mail.dead": "mail", "bulk.dead": "bulk"}
    assert dlq_names(settings, (), ("bulk.dead", "x")) == {"bulk.dead": "bulk", "x": ""}
    shared = settings.replace(dead_letter_queue="dead")
    assert dlq_names(shared, shared.queue_names, ()) == {"dead": ""}
    assert dlq_names(settings.replace(dead_letter_queue=""), settings.queue_names, ()) == {}


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
    dlq: DlqHandle = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    shown = json.dumps(details(found, dlq, Redaction.of(("CARD",)), payload=True))
    assert PLANTED not in shown
    assert "refused: **" in shown
    assert PLANTED in json.dumps(details(found, dlq, Redaction(), payload=True))


def test_an_exception_of_a_sealed_payload_is_hidden_whole() -> None:
    """Which of its words stand in the payload is unknown."""
    message = replace(TASK, content_type="application/x-python-serialize", body=b"\x80")
    dlq: DlqHandle = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    shown = details(dead(message, message=PLANTED, traceback=PLANTED), dlq, Redaction.of(("card",)), payload=True)
    assert PLANTED not in json.dumps(shown)


def test_representations_of_arguments_are_never_shown() -> None:
    dlq: DlqHandle = SimpleNamespace(address="redis://")  # type: ignore[assignment]
    assert "argsrepr" not in details(dead(), dlq, Redaction(), payload=True)["headers"]


@pytest.mark.parametrize(("seconds", "expected"), [(5, "5s"), (300, "5m"), (7200, "2h"), (200_000, "2d"), (-1, "0s")])
def test_durations(seconds: float, expected: str) -> None:
    assert expected == duration(seconds)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"consumer_tag": "2", "routing_key": "0.1.mail"}, "mail"),
        ({"consumer_tag": "9", "routing_key": "bulk"}, "bulk"),
        ({"exchange": "shop", "routing_key": "mails"}, "mail"),
        ({"exchange": "many", "routing_key": "b"}, "listed"),
        ({"exchange": "media", "routing_key": "media.image"}, "media"),
        # a queue that another application reads is also bound
        ({"exchange": "else", "routing_key": "mails"}, "bulk"),
        ({"exchange": "gone", "routing_key": "mails"}, "mail"),
        ({}, "mail"),
    ],
    ids=str,
)
def test_the_queue_a_message_came_from(info: dict[str, str], expected: str) -> None:
    """By the consumer, by a binding, by kombu's own routing; never one that is not consumed."""
    resolver = QueueResolver()
    assert info.get("routing_key", "") == resolver.queue_of(SimpleNamespace(delivery_info=info, channel=None))
    resolver.note(
        SimpleNamespace(
            _active_tags={"mail": "2", "bulk": "3", "listed": "4", "media": "5"},
            queues=[
                Queue("mail", Exchange("shop"), "mails"),
                Queue("bulk"),
                Queue("listed", bindings=[binding(Exchange("many"), routing_key=key) for key in ("a", "b")]),
                Queue("media", Exchange("media", type="topic"), "media.#"),
            ],
        )
    )
    # a worker that leaves
    resolver.note(None)
    resolver.note(SimpleNamespace(_active_tags={}, queues=[]))
    with Connection("memory://") as connection:
        channel: Any = connection.default_channel
        Queue("media", Exchange("media", type="topic"), "media.#")(channel).declare()
        for name in ("theirs", "bulk"):
            Queue(name, Exchange("else"), "mails")(channel).declare()
        assert expected == resolver.queue_of(SimpleNamespace(delivery_info=info, channel=channel))


def test_a_broker_that_is_away_leaves_the_queue_to_be_guessed() -> None:
    def lookup(*_: object) -> None:
        raise ConnectionError

    resolver = QueueResolver()
    resolver.note(SimpleNamespace(_active_tags={"mail": "2"}, queues=[Queue("mail")]))
    message = SimpleNamespace(
        delivery_info={"exchange": "x", "routing_key": "y"}, channel=SimpleNamespace(_lookup=lookup)
    )
    assert resolver.queue_of(message) == "mail"


def test_what_cannot_be_dead_lettered_is_requeued() -> None:
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
    lettering = DeadLettering(consumer, ExplicitSettings(queue_names=("mail",)))
    settled: list[bool] = []
    assert lettering.dead_letter(SimpleNamespace(), Death(Reason.FAILED, ""), settled.append)
    ((delay_s, call, arguments),) = later
    # its task would fail the same way at once, again and again
    assert (delay_s, settled) == (10, [])
    call(*arguments)
    assert settled == [False]
    del consumer.timer
    assert lettering.dead_letter(SimpleNamespace(), Death(Reason.FAILED, ""), settled.append)
    assert settled == [False, False]
    assert lettering.dead_letter(SimpleNamespace(), Death(Reason.FAILED, ""))

    def refuse(_: bool) -> None:
        raise RuntimeError

    lettering.dead_letter(SimpleNamespace(), Death(Reason.FAILED, ""), refuse)


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        ({"task": "t", "id": "1"}, [[], {}, {}]),
        ({"task": "t", "id": "1"}, [[], {}, None]),
        ({}, {"task": "t", "id": "1", "args": [], "kwargs": {}}),
        ({}, {"task": "t", "id": "1"}),
        ({}, "another program's"),
        ({}, 5),
    ],
    ids=str,
)
def test_what_celery_can_handle_is_left_to_it(headers: dict[str, Any], payload: object) -> None:
    assert find_defect(SimpleNamespace(headers=headers, payload=payload)) == ""


def test_a_request_class_of_an_applications_own_is_left_alone() -> None:
    from celery.worker.request import Request

    from repot.upstream.task_request import use_request
    from repot.worker.request import DeadLetteringRequest

    app = Celery("own", set_as_current=False)

    class Own(Request):
        """The application's."""

    def run() -> None:
        """Do nothing."""

    app.task(name="plain", shared=False)(run)
    app.task(name="special", Request=Own, shared=False)(run)
    app.finalize()
    for _ in range(2):
        # a consumer that is made again
        use_request(app, DeadLetteringRequest, dead_lettering=SimpleNamespace())
    found: dict[str, Any] = {name: app.tasks[name].Request for name in ("plain", "special")}
    assert issubclass(found["plain"], DeadLetteringRequest)
    assert found["special"] is Own


def test_a_reason_of_the_commands_is_one_of_a_list() -> None:
    """A typo must not select nothing: the error lists every reason."""
    result = CliRunner().invoke(main, ["dlq", "list", "--reason", "worker-lost"])
    assert result.exit_code == 2
    assert "Invalid value for '--reason': 'worker-lost' is not one of" in result.stderr
    assert all(f"'{reason}'" in result.stderr for reason in Reason)
