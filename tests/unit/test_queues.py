"""Which queues an application names, and what a choice of queues leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from repot.brokers import Depth, Unknown
from repot.brokers.held import Beside, Held
from repot.brokers.in_hand import answers_of
from repot.config import ExplicitSettings
from repot.queues import find_queues, queues_of
from repot.queues.deployment import notes, refusals, unknowns

# in Celery 5.7; what applications have
pytestmark = pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")


def application(**settings: Any) -> Celery:
    app = Celery("named", broker="memory://", set_as_current=False)
    app.conf.update(settings)

    @app.task(name="shop.charge", shared=False)
    def charge() -> None: ...

    @app.task(name="shop.report", queue="reports", shared=False)
    def report() -> None: ...

    return app


class Broker:
    """The far side of `HoldsQueues`."""

    product = "test"

    def __init__(self, **held: Any) -> None:
        self.found = Held(**held)

    def held(self) -> Held:
        return self.found


def asked(broker: Broker, app: Celery | None = None, **options: Any) -> Any:
    settings = options.pop("settings", ExplicitSettings())
    port: Any = broker
    return find_queues(port, settings, app, **{"readers": {}, "counted_within_s": 0, **options})


def routed(name: str, *_: Any, **__: Any) -> dict[str, str] | None:
    return {"queue": "by-router"} if name == "shop.charge" else None


def failing(name: str, *_: Any, **__: Any) -> None:
    raise RuntimeError(name)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, {"celery", "reports"}),
        ({"task_default_queue": "jobs"}, {"jobs", "reports"}),
        ({"task_queues": [Queue("fast"), Queue("slow")]}, {"celery", "fast", "slow", "reports"}),
        ({"task_routes": {"shop.charge": {"queue": "mail"}}}, {"celery", "mail", "reports"}),
        ({"task_routes": {"shop.charge": "mail"}}, {"celery", "mail", "reports"}),
        ({"task_routes": {"other.*": {"queue": Queue("far")}}}, {"celery", "far", "reports"}),
        ({"task_routes": [[("a.*", {"queue": "one"})], {"b.*": "two"}]}, {"celery", "one", "two", "reports"}),
        ({"task_routes": ([("a.*", {"queue": "one"})],)}, {"celery", "one", "reports"}),
        ({"task_routes": routed}, {"celery", "by-router", "reports"}),
        ({"task_routes": [routed]}, {"celery", "by-router", "reports"}),
        ({"task_routes": {"a.*": {"exchange": "x", "routing_key": "y"}}}, {"celery", "reports"}),
        (
            {"beat_schedule": {"nightly": {"task": "shop.charge", "schedule": 1, "options": {"queue": "night"}}}},
            {"celery", "night", "reports"},
        ),
    ],
)
def test_an_application_names_its_queues_in_many_ways(settings: dict[str, Any], names: set[str]) -> None:
    found, unknown = queues_of(application(**settings))
    assert names == set(found)
    assert unknown == ()


@pytest.mark.parametrize("routes", [[failing], [("not", "a", "route")]])
def test_a_router_that_fails_is_unknown_and_hides_nothing_else(routes: Any) -> None:
    found, unknown = queues_of(application(task_routes=routes, task_default_queue="jobs"))
    assert "jobs" in found
    assert any("routing fails for the task 'shop.charge'" in one for one in unknown)


def test_each_queue_knows_where_it_was_found() -> None:
    broker = Broker(queues={one: Depth(1, 0) for one in ("celery", "reports", "slow", "theirs")})
    found = asked(broker, application(), readers={"w@1": ["slow"]})
    assert found.queues["reports"].named_by == ("where shop.report is sent",)
    assert found.queues["slow"].named_by == ("read by w@1",)
    assert found.queues["theirs"].named_by == ()
    assert found.in_use == ("celery", "reports", "slow")
    assert [one.name for one in found.left_out(found.in_use)] == ["theirs"]


@pytest.mark.parametrize(
    ("held", "app", "settings", "expected"),
    [
        # neither messages nor workers: what the application names will be used
        ({}, application(), ExplicitSettings(), {"celery", "reports"}),
        (
            {"celery": Depth(0, 0)},
            application(task_default_queue="jobs"),
            ExplicitSettings(),
            {"jobs", "reports"},
        ),
        ({}, None, ExplicitSettings(), {"celery"}),
        ({"theirs": Depth(2, 0)}, None, ExplicitSettings(), {"celery"}),
        # something waits, or is stated
        ({"reports": Depth(1, 0)}, application(), ExplicitSettings(), {"reports"}),
        ({}, application(), ExplicitSettings(queue_names=("jobs",)), {"jobs"}),
    ],
)
def test_while_nothing_waits_all_that_is_named_is_expected(
    held: Any, app: Any, settings: Any, expected: set[str]
) -> None:
    """A plan named the default queue alone, and an application routes its tasks elsewhere."""
    assert expected == set(asked(Broker(queues=held), app, settings=settings).expected)


def test_a_default_that_holds_nothing_is_not_in_use() -> None:
    """The default queue of an application that routes all its tasks elsewhere needs no counterpart on a target."""
    found = asked(Broker(queues={"celery": Depth(0, 0), "reports": Depth(1, 0)}), application())
    assert found.in_use == ("reports",)
    named = asked(Broker(), settings=ExplicitSettings(queue_names=("jobs",)))
    assert named.in_use == ("jobs",)


def test_what_cannot_be_counted_is_not_empty() -> None:
    found = asked(Broker(queues={"reports": Unknown("no"), "theirs": Unknown("no")}), application())
    assert found.in_use == ("reports",)
    assert list(unknowns(found, found.in_use)) == ["'theirs' (on the broker): unknown how many messages: no"]
    assert list(refusals(found, found.in_use, on_purpose=False, options="--from-options")) == []


def test_dead_letters_are_no_tasks() -> None:
    broker = Broker(queues={one: Depth(1, 0) for one in ("jobs", "jobs.dead", "gone.dead", "named.dead")})
    settings = ExplicitSettings(queue_names=("jobs",), dead_letter_queue="{queue}.dead")
    found = asked(broker, settings=settings, readers={"w@1": ["named.dead"]})
    assert {"jobs.dead", "gone.dead"} == set(found.dead_letters)
    assert "named.dead" in found.in_use
    said = list(notes(found, found.in_use, on_purpose=False))
    assert ["the dead-letter queue 'jobs.dead' stays, with 1 dead letters" in said] == [True]
    shared = asked(broker, settings=ExplicitSettings(dead_letter_queue="jobs.dead"))
    assert {"jobs.dead"} == set(shared.dead_letters)
    assert asked(broker, settings=ExplicitSettings(dead_letter_queue="")).dead_letters == {}


def test_a_refusal_names_queue_count_and_the_next_step() -> None:
    beside = Beside("7 messages wait under the prefix 'shop:'", frozenset({"jobs"}), {"global_keyprefix": "shop:"})
    broker = Broker(queues={"jobs": Depth(1, 0), "slow": Depth(2, 3, delayed=1)}, beside=(beside,))
    found = asked(broker, settings=ExplicitSettings(queue_names=("jobs",)))
    reached, left = refusals(found, ["jobs"], on_purpose=False, options="--from-options")
    assert "'slow' (2 waiting, 3 in hand, 1 maybe delayed)" in left
    assert "--queue" in left
    assert 'give --from-options \'{"global_keyprefix": "shop:"}\' or -A' in reached
    # narrowed on purpose, the rest is named; its own messages under another prefix are still not reached
    assert [reached] == list(refusals(found, ["jobs"], on_purpose=True, options="--from-options"))
    assert any("not named by --queue, and stays: 'slow'" in one for one in notes(found, ["jobs"], on_purpose=True))
    # a prefix that is stated tells what is another application's
    stated = asked(broker, settings=ExplicitSettings(queue_names=("jobs", "slow")), prefix_is_stated=True)
    assert list(refusals(stated, stated.in_use, on_purpose=False, options="--from-options")) == []
    assert any("not of these queues" in one for one in notes(stated, stated.in_use, on_purpose=False))


def test_what_each_worker_gets_of_a_broadcast_is_no_queue_of_the_deployment() -> None:
    """It is one for each worker, on Redis not even a list, and no target has it."""

    class Asked(Broker):
        def ask_workers(self, *_: Any) -> Any:
            kinds = {"jobs": "direct", "news": "fanout", "bcast.3f2a": "fanout"}
            reply = [{"name": name, "exchange": {"name": name, "type": kind}} for name, kind in kinds.items()]
            return answers_of({"active_queues": [("w@1", reply)]}, 1)

    found = asked(Asked(queues={"jobs": Depth(0, 0)}), readers=None)
    assert found.in_use == ("jobs",)
    assert {"celery", "jobs"} == set(found.queues)


def test_what_is_delayed_for_any_queue_is_a_note() -> None:
    """RabbitMQ keeps it in one place for all queues, and does not say which one each message is for."""
    broker = Broker(queues={"jobs": Depth(1, 0, delayed=4), "theirs": Depth(0, 0, delayed=4)})
    found = asked(broker, settings=ExplicitSettings(queue_names=("jobs",)))
    assert list(refusals(found, ["jobs"], on_purpose=False)) == []
    (note,) = notes(found, ["jobs"], on_purpose=False)
    assert note.startswith("4 messages that are not due yet may be for 'theirs'")
