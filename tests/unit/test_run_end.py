"""Where Celery was when a task failed: in its body, before it, or after it; by Celery's own tracer."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.backends.base import DisabledBackend
from kombu.exceptions import OperationalError

from repot.upstream.run_end import has_run_to_its_end

#: Celery warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:Exception raised outside body")


class Stores(DisabledBackend):
    """A backend that fails at one step."""

    def __init__(self, app: Any, fails: str = "") -> None:
        super().__init__(app)
        self.fails = fails

    def mark_as_done(self, *_: Any, **__: Any) -> None:
        self._fail("done")

    def store_result(self, *_: Any, **__: Any) -> None:
        self._fail("started")

    def mark_as_failure(self, *_: Any, **__: Any) -> None:
        self._fail("failure")

    def _fail(self, what: str) -> None:
        if what == self.fails:
            # the next one is Celery's report of this failure
            self.fails = ""
            message = "the store is away"
            raise ConnectionError(message)


def traced(body: Any, fails: str = "", **request: Any) -> str:
    """Run a task as a worker does, and return its traceback."""
    app = Celery(set_as_current=False)
    task = app.task(name="shop.charge", shared=False, track_started=True, backend=Stores(app, fails))(body)
    trace = build_tracer(task.name, task, app=app)
    found = trace("an id", [], {}, {"id": "an id", "delivery_info": {}, **request})
    return str(found[0].traceback)


def succeed() -> None:
    """The body of a task."""


def fail() -> None:
    message = "the card is refused"
    raise ValueError(message)


def away(*_: Any, **__: Any) -> None:
    message = "the broker is away"
    raise OperationalError(message)


def test_a_body_that_raises_has_not_run_to_its_end() -> None:
    assert not has_run_to_its_end(traced(fail))
    assert not has_run_to_its_end(traced(away))
    # in Celery's handling of it as well
    assert not has_run_to_its_end(traced(fail, "failure"))


def test_a_task_that_did_not_begin_has_not_run_to_its_end() -> None:
    assert not has_run_to_its_end(traced(succeed, "started"))


def test_a_result_that_is_not_stored_says_that_the_body_returned() -> None:
    assert has_run_to_its_end(traced(succeed, "done"))


def test_a_chain_that_cannot_be_sent_says_that_the_body_returned() -> None:
    app = Celery(set_as_current=False)
    step: Any = app.signature("shop.mail")
    step.apply_async = away
    assert has_run_to_its_end(traced(succeed, chain=[step]))
    assert has_run_to_its_end(traced(succeed, callbacks=[step]))


@pytest.mark.parametrize("traceback", ["", "None", "ValueError: mark_as_done("])
def test_what_does_not_say_it_is_a_failure(traceback: str) -> None:
    assert not has_run_to_its_end(traceback)
