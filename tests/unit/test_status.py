"""`repot status`: the next command, and what a worker says about its software."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest
from celery import Celery

import repot
from repot.brokers.in_hand import WorkerRelease, releases_of
from repot.config import BrokerUrl, ExplicitSettings
from repot.overview.deployment import places_of
from repot.overview.facts import (
    BrokerStatus,
    DeadLettersStatus,
    LeasesStatus,
    MoveStatus,
    QueueStatus,
    RolloutStatus,
    Unread,
    WorkerStatus,
)
from repot.overview.next_step import next_step

QUEUE = QueueStatus("celery", 0, 0, 0, None, on_broker=True, read_by=["w"], named_by=["WORKER_QUEUE_NAMES"])
WORKER = WorkerStatus("w", answers=True, celery="5.7.0", repot=None, queues=["celery"])
BROKER = BrokerStatus(
    "redis://a/0", ["workers read it"], "Redis", "7.4", [QUEUE], [WORKER], [DeadLettersStatus("dead", 0)]
)
WAITING = replace(BROKER, queues=[replace(QUEUE, ready=1, read_by=[])])
FULL = replace(BROKER, dead_letters=[DeadLettersStatus("dead", 2)])
TARGET = replace(FULL, url="amqp://b//", roles=["target of a move"])
MOVE = MoveStatus("m", "ended", "run", False, "redis://a/0", "amqp://b//", 3, 2, "forth")
ROLLOUT = RolloutStatus(
    "r", "canary", 0.1, "redis://a/0", "amqp://b//", "now", "ann", "begun", is_over=False, controller=None
)

#: From the least urgent to the most: each is the next step although all before it are to be done as well.
URGENT: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "repot doctor -A shop --live"),
    ({"brokers": [BROKER, TARGET]}, "repot dlq stats -A shop --broker target"),
    ({"brokers": [FULL, TARGET]}, "repot dlq stats -A shop"),
    ({"brokers": [replace(WAITING, dead_letters=FULL.dead_letters)]}, "celery -A shop worker -Q celery"),
    ({"brokers": [replace(WAITING, workers=[replace(WORKER, answers=False)])]}, "repot inflight list -A shop"),
    ({"leases": LeasesStatus("redis://a/1", 1, 0, 5.0)}, "repot leases list -A shop --unknown-outcome"),
    ({"moves": [MOVE]}, "repot move resume m --execute"),
    ({"moves": [replace(MOVE, direction="back")]}, "repot move revert m --execute"),
    ({"moves": [replace(MOVE, is_alive=True)]}, "repot move status m"),
    ({"rollout": ROLLOUT}, "repot rollout resume r --execute"),
    ({"rollout": replace(ROLLOUT, controller="ann on a")}, "repot rollout status r"),
    ({"brokers": [BrokerStatus("redis://a/0", ["workers read it"])]}, "repot doctor -A shop --live"),
)


@pytest.mark.parametrize("place", range(len(URGENT)))
def test_the_most_urgent_command_is_the_next(place: int) -> None:
    found: dict[str, Any] = {"app": "shop", "brokers": [BROKER], "leases": None, "moves": [], "rollout": None}
    for changes, _ in URGENT[: place + 1]:
        found |= changes
    assert URGENT[place][1] == next_step(**found, unread=[]).command


def test_dead_letters_are_read_by_no_worker_also_where_the_application_names_their_queue() -> None:
    dead = replace(QUEUE, name="dead", ready=2, read_by=[])
    found: dict[str, Any] = {"app": "shop", "brokers": [replace(FULL, queues=[QUEUE, dead])], "leases": None}
    assert next_step(**found, moves=[], rollout=None, unread=[]).command == "repot dlq stats -A shop"


def test_both_brokers_of_a_bridge_are_those_of_the_command() -> None:
    writes = replace(FULL, url="amqp://b//", roles=["tasks are sent to it"])
    found: dict[str, Any] = {"app": None, "brokers": [BROKER, writes], "leases": None, "moves": [], "rollout": None}
    assert next_step(**found, unread=[]).command == "repot dlq stats"


def test_a_rollout_that_is_over_needs_nothing_and_what_is_unknown_is_said() -> None:
    found: dict[str, Any] = {"app": None, "brokers": [BROKER], "leases": LeasesStatus("redis://a/1", None), "moves": []}
    step = next_step(**found, rollout=replace(ROLLOUT, is_over=True), unread=[Unread("leases", "no answer")])
    assert step.command == "repot doctor -A APP --live"
    assert "unknown" in step.why


@pytest.mark.parametrize(
    ("conf", "address"),
    [
        ({}, "amqp://"),
        ({"broker_url": ["amqp://a//", "amqp://b//"]}, "amqp://a//;amqp://b//"),
        ({"broker_url": "redis://a/0"}, "redis://a/0"),
    ],
)
def test_each_form_of_an_applications_broker_is_an_address(conf: dict[str, Any], address: str) -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)
    (place,) = places_of(ExplicitSettings(), app)
    assert str(place.url) == str(BrokerUrl.parse(address))
    assert place.roles == ["workers read it"]


def test_tls_without_options_is_tls_on_rabbitmq() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update(broker_url="amqp://b//", broker_use_ssl=True)
    (place,) = places_of(ExplicitSettings(), app)
    assert place.tls == {}


def test_the_broker_that_an_application_writes_to_is_looked_at_as_well() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update(broker_read_url="redis://a/0", broker_url="amqp://b//", broker_use_ssl=True)
    read, written = places_of(ExplicitSettings(), app)
    # kombu passes over it
    assert (str(read.url), read.tls) == ("redis://a/0", None)
    assert (str(written.url), written.roles) == ("amqp://b//", ["tasks are sent to it"])


def test_the_bug_report_of_a_configured_application_names_repot_once() -> None:
    app = Celery("shop", set_as_current=False)
    assert "repot:" not in app.bugreport()
    for _ in range(2):
        repot.configure(app, ExplicitSettings())
    text = app.bugreport()
    assert text.count(f"repot:{version('repot')} ") == 1
    reply = ("worker", {"ok": text})
    assert {"worker": WorkerRelease(version("celery"), version("repot"))} == releases_of({"report": [reply]})


@pytest.mark.parametrize(
    ("reply", "celery"),
    [
        ({"ok": "\nsoftware -> celery:4.4.7 (cliffs) kombu:4.6.11 py:3.7.1\n"}, "4.4.7"),
        ({"ok": "\nsettings -> celery:1\n"}, ""),
        ({"ok": None}, ""),
        ({"error": "no such command"}, ""),
        (None, ""),
        ("software -> celery:5.0", ""),
    ],
)
def test_a_worker_without_repot_or_with_another_reply_states_no_release(reply: Any, celery: str) -> None:
    assert {"w": WorkerRelease(celery, "")} == releases_of({"report": [("w", reply)]})
    assert releases_of({}) == {}
