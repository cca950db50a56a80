"""Waiting ends with the condition, with the deadline, or when a stop is requested."""

from __future__ import annotations

import random
import signal
from threading import Event, Thread

import pytest

from repot.errors import DeadlineExceeded, Interrupted
from repot.idempotency import Backoff
from repot.waiting import spread, stop_on_signal, uninterrupted, wait_until


def test_it_returns_the_first_true_answer() -> None:
    answers = iter([None, 0, "yes", "later"])
    assert wait_until(lambda: next(answers), within_s=5, what="an answer") == "yes"


def test_it_names_what_did_not_happen() -> None:
    with pytest.raises(DeadlineExceeded, match=r"the sky falls: not within 0\.05 s"):
        wait_until(lambda: False, within_s=0.05, what="the sky falls")


def test_it_stops_when_asked() -> None:
    stop = Event()
    stop.set()
    with pytest.raises(Interrupted):
        wait_until(lambda: False, within_s=60, what="nothing", stop=stop)


def test_what_the_condition_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, within_s=5, what="nothing")


def test_a_signal_asks_to_stop_and_a_third_is_not_caught() -> None:
    """The second one restores the old handlers."""
    stop, before = Event(), signal.getsignal(signal.SIGINT)
    with stop_on_signal(stop):
        assert not stop.is_set()
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        assert before is not signal.getsignal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert before is signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert before is signal.getsignal(signal.SIGINT)


def test_outside_of_the_main_thread_no_handler_is_changed() -> None:
    seen: list[object] = []

    def work() -> None:
        with stop_on_signal(Event()):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_spread_leaves_the_sequence_of_the_application_as_it_was_seeded() -> None:
    before = random.getstate()
    assert {0.0} != {spread(0, 1) for _ in range(3)}
    Backoff(base_s=1, cap_s=2).delay_s(3)
    assert before == random.getstate()


def test_a_signal_waits_for_the_end_of_what_must_not_be_interrupted() -> None:
    done: list[str] = []

    def end(*_: object) -> None:
        done.append("ended")
        raise SystemExit

    def work() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            done.extend(("sent", "stored"))

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit):
            work()
        assert done == ["sent", "stored", "ended"]
        assert end is signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_of_the_main_thread_no_signal_waits() -> None:
    done: list[str] = []

    def work() -> None:
        with uninterrupted():
            done.append("sent")

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["sent"]
