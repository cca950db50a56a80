"""What a webhook receives of a rollout: it listens on a socket, and the store is a file."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from repot.config import ExplicitSettings
from repot.rollout import notify
from repot.rollout.notify import Notifier
from repot.rollout.phases import Phase, Plan
from repot.rollout.rollout import Rollout, open_rollout
from repot.routing.looks import LastLook
from repot.routing.record import Change
from repot.routing.side import Weights
from repot.testbed import LOOPBACK
from repot.waiting import wait_until
from support.databases import with_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.databases import FileDatabase

NAME, SECRET = "friday", "B0T-hook-s3cret"
STEP = Change("controller", "the target is ready", phase=Phase.CANARY, weights=Weights(0.25))


@dataclass
class Webhook:
    """Receives; answers with the codes of `answers`, and then with 200."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    got: list[tuple[int, dict[str, str], dict[str, Any]]] = field(default_factory=list)

    def taken(self) -> list[str]:
        """The reasons that were taken, in their order."""
        return [body["why"] for code, _, body in self.got if code == 200]


@contextmanager
def receiving() -> Iterator[Webhook]:
    webhook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            code = webhook.answers.pop(0) if webhook.answers else 200
            webhook.got.append((code, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(code)
            if code == 302:
                self.send_header("location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    webhook.url = f"http://{LOOPBACK}:{server.server_port}/hooks/{SECRET}"
    try:
        yield webhook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.setattr(notify, "_EVERY_S", 0.01)
    monkeypatch.setattr(notify, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(notify, "_LONGER_BY_S", 0)
    with receiving() as found:
        yield found


@pytest.fixture
def rollout(sqlite: FileDatabase) -> Iterator[Rollout]:
    """A rollout that is being prepared."""
    settings = ExplicitSettings(lease_store=with_tables(sqlite).url, lease_prefix="test")
    with open_rollout(NAME, settings) as found:
        found.store.put_plan(Plan(steps=(0.25, 1.0), bake_s=0))
        found.records.create(NAME, "redis://a", "amqp://b", Change("ann", "begun", phase=Phase.PREPARE))
        yield found


def told(rollout: Rollout, *urls: str) -> Notifier:
    return Notifier(rollout, urls)


def change(rollout: Rollout, made: Change) -> None:
    rollout.records.change(rollout.record(), made)


def await_told(webhook: Webhook, *reasons: str) -> None:
    wait_until(lambda: webhook.taken() == list(reasons), within_s=20, what=f"it has taken {reasons}")


def test_each_change_is_sent_once_and_in_order_by_whichever_controller(rollout: Rollout, webhook: Webhook) -> None:
    with told(rollout, webhook.url):
        await_told(webhook, "begun")
        change(rollout, STEP)
        change(rollout, Change("ann", "lunch", phase=Phase.PAUSED))
    # what changed before the end is sent after it
    assert webhook.taken() == ["begun", "the target is ready", "lunch"]
    change(rollout, Change("ann", "back", phase=Phase.CANARY))
    with told(rollout, webhook.url):
        await_told(webhook, "begun", "the target is ready", "lunch", "back")
    assert len({headers["ce-id"] for _, headers, _ in webhook.got}) == 4


def test_it_is_a_cloud_event_with_a_text_for_people(rollout: Rollout, webhook: Webhook) -> None:
    change(rollout, Change("ann", "the password=hunter2 was wrong", phase=Phase.PAUSED))
    with told(rollout, webhook.url):
        pass
    ((_, headers, body),) = webhook.got
    record = rollout.record()
    assert (
        headers.items()
        >= {
            "content-type": "application/json",
            "ce-specversion": "1.0",
            "ce-type": "repot.rollout.changed",
            "ce-source": "/repot/rollouts/friday",
            "ce-id": f"2-{int(record.updated_at * 1000)}",
        }.items()
    )
    assert body["text"] == "rollout friday: paused at 0% by ann: the password=** was wrong; it waits for a person"
    assert (body["rollout"], body["phase"], body["generation"], body["needs_person"]) == (NAME, "paused", 2, True)
    assert (body["source"], body["target"]) == ("redis://a", "amqp://b")


def test_a_webhook_that_begins_in_the_middle_does_not_get_all_that_was_before(
    rollout: Rollout, webhook: Webhook
) -> None:
    change(rollout, STEP)
    with told(rollout, webhook.url):
        pass
    assert webhook.taken() == ["the target is ready"]


def test_each_webhook_has_its_own_account(rollout: Rollout, webhook: Webhook) -> None:
    with receiving() as other:
        with told(rollout, webhook.url, other.url):
            await_told(other, "begun")
            change(rollout, STEP)
        assert ["begun", "the target is ready"] == webhook.taken() == other.taken()


@pytest.mark.parametrize("answers", [[503, 500], [429], [408, 425]])
def test_an_answer_that_may_change_is_asked_for_again(rollout: Rollout, webhook: Webhook, answers: list[int]) -> None:
    webhook.answers = list(answers)
    with told(rollout, webhook.url):
        change(rollout, STEP)
        await_told(webhook, "begun", "the target is ready")
    ids = [headers["ce-id"] for _, headers, _ in webhook.got]
    assert len(answers) + 2 == len(ids)
    assert len(set(ids[: len(answers) + 1])) == 1


@pytest.mark.parametrize("answer", [404, 401, 302])
def test_a_refusal_is_said_and_the_next_change_is_told(
    rollout: Rollout, webhook: Webhook, answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    webhook.answers = [answer]
    with caplog.at_level(logging.WARNING), told(rollout, webhook.url):
        change(rollout, STEP)
        await_told(webhook, "the target is ready")
    assert len(webhook.got) == 2
    (said,) = [one.getMessage() for one in caplog.records]
    assert f"the webhook at {LOOPBACK} does not take 'rollout friday: prepare at 0% by ann: begun': {answer}" in said
    assert SECRET not in caplog.text


def test_one_that_is_away_holds_nothing_up_and_the_end_is_bounded(
    rollout: Rollout, webhook: Webhook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notify, "_LAST_S", 0.2)
    webhook.answers = [503] * 100_000
    with caplog.at_level(logging.WARNING), told(rollout, webhook.url):
        wait_until(lambda: len(webhook.got) > 3, within_s=20, what="it is asked again and again")
        change(rollout, STEP)
    assert [f"the webhook at {LOOPBACK} did not get all"] == [one.getMessage() for one in caplog.records]
    # the next controller tells it
    webhook.answers = []
    with told(rollout, webhook.url):
        await_told(webhook, "begun", "the target is ready")


def test_an_event_whose_answer_was_lost_is_sent_again_under_its_id(
    rollout: Rollout, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the answer and the note of it."""
    with monkeypatch.context() as patch:
        patch.setattr(type(rollout.lease_store), "put", lambda *_: None)
        with told(rollout, webhook.url):
            wait_until(lambda: len(webhook.got) > 1, within_s=20, what="it comes again")
    assert len({headers["ce-id"] for _, headers, _ in webhook.got}) == 1


def test_a_step_that_waits_for_a_person_is_said_once(rollout: Rollout, webhook: Webhook) -> None:
    rollout.store.put_plan(Plan(steps=(0.25, 1.0), bake_s=0, manual=True))
    with told(rollout, webhook.url):
        await_told(webhook, "begun")
        looks = rollout.observations.looks
        looks.put(LastLook(1.0, 1, obstacles=("no worker",)))
        looks.put(LastLook(1.0, 1))
        wait_until(lambda: len(webhook.got) == 2, within_s=20, what="it waits")
        change(rollout, STEP)
        looks.put(LastLook(1.0, 2, findings=(("samples", "inconclusive", "too few"),)))
        wait_until(lambda: len(webhook.got) == 3, within_s=20, what="the step")
        looks.put(LastLook(1.0, 2, findings=(("samples", "pass", "enough"),)))
        wait_until(lambda: len(webhook.got) == 4, within_s=20, what="it waits again")
    said = [(headers["ce-type"], body["needs_person"]) for _, headers, body in webhook.got]
    assert said == [("repot.rollout.changed", False), ("repot.rollout.waits", True)] * 2
    assert webhook.got[1][2]["text"].endswith("the first step waits for `promote`; it waits for a person")
    assert len({headers["ce-id"] for _, headers, _ in webhook.got}) == 4
