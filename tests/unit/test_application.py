"""What an experiment keeps of an application, and what it says that it does not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

import repot
from repot.chaos.runner.application import inspect, shared_settings
from repot.config import ExplicitSettings
from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator


def work(*args: Any) -> None:
    """Do nothing."""


def by_arguments(name: str, args: tuple[Any, ...], *_: Any, **__: Any) -> dict[str, str]:
    """A router that says nothing without arguments: it raises."""
    return {"queue": args[0]} if name != "kept.plain" else {}


def application(**conf: Any) -> Celery:
    """Three tasks: of the default queue, of a route, and of an option of its own."""
    app = Celery("kept", broker="redis://localhost/0", set_as_current=False)
    app.conf.update(conf)
    app.task(name="kept.plain")(work)
    app.task(name="kept.routed")(work)
    app.task(name="kept.own", expires=60, time_limit=9)(work)
    app.finalize()
    # as options of the decorator they are deprecated
    vars(app.tasks["kept.own"]).update(queue="own", priority=3)
    return app


ROUTED = {"task_routes": {"kept.routed": {"queue": "routed", "routing_key": "r"}}}
DECLARED = {
    "task_queues": (Queue("a", Exchange("x", "topic"), routing_key="#"), Queue("celery")),
    "task_create_missing_queues": False,
}


@pytest.mark.parametrize(
    ("conf", "task", "queue", "queues", "options"),
    [
        ({}, "kept.plain", "celery", {"celery", "own"}, {}),
        (ROUTED, "kept.routed", "routed", {"celery", "own", "routed"}, {"routing_key": "r"}),
        (ROUTED, "kept.own", "own", {"celery", "own", "routed"}, {"priority": 3, "expires": 60, "time_limit": 9}),
        ({"task_default_queue": "mine"}, "kept.plain", "mine", {"mine", "own"}, {}),
        # a task with a queue that is not declared cannot be sent, and is no reason to declare it
        (DECLARED, "kept.plain", "celery", {"celery", "a"}, {}),
        # a router that wants arguments says nothing of other tasks
        ({"task_routes": [by_arguments]}, "kept.own", "own",
         {"celery", "own"}, {"priority": 3, "expires": 60, "time_limit": 9}),
    ],
)  # fmt: skip
def test_workers_consume_what_is_declared_and_what_tasks_are_routed_to(
    conf: dict[str, Any], task: str, queue: str, queues: set[str], options: dict[str, Any]
) -> None:
    found = inspect(application(**conf), task, ("own",), {})
    assert (queue, queues) == (found.queue, set(found.queues))
    assert {"serializer": "json", **options} == found.options


def test_a_task_that_no_worker_would_get_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="'celery', which no worker consumes") as caught:
        inspect(application(), "kept.plain", (), {}, ["own"])
    assert "--queues own,celery" in caught.value.hint
    with pytest.raises(ConfigInvalid, match=r"kept\.own cannot be sent"):
        inspect(application(**DECLARED), "kept.own", (), {})


@pytest.mark.parametrize(
    ("stated", "named", "pool"),
    [
        ("prefork", "", "prefork"),
        ("processes", "", "prefork"),
        ("gevent", "", "gevent"),
        ("celery.concurrency.gevent:TaskPool", "", "gevent"),
        ("celery.concurrency.prefork:TaskPool", "", "prefork"),
        ("mine:Pool", "threads", "threads"),
        ("mine:Pool", "", None),
        ("prefork", "custom", None),
    ],
)
def test_the_pool_is_the_applications_or_the_one_that_is_named(stated: str, named: str, pool: str | None) -> None:
    app = application(worker_pool=stated)
    if pool is None:
        with pytest.raises(ConfigInvalid, match=f"the pool '{named or stated}'"):
            inspect(app, "kept.plain", (), {}, pool=named)
    else:
        assert pool == inspect(app, "kept.plain", (), {}, pool=named).pool


@pytest.mark.parametrize(
    ("backend", "bare", "configured"),
    [
        (None, True, False),
        ("rpc://", True, True),
        ("file:///tmp/results", True, True),
        ("db+sqlite:///results.db", True, True),
        ("mine:Backend", True, True),
        ("db+postgresql://user@localhost/results", True, True),
        # a private one is started instead
        ("redis://localhost:6379/1", False, False),
        ("rediss://cache.example/1", False, False),
        ("redis", False, False),
        # perhaps in production
        ("db+postgresql://user@db.example/results", False, False),
        ("mongodb://db.example/results", False, False),
    ],
)
def test_a_result_backend_is_kept_where_that_harms_nothing(
    backend: str | None, *, bare: bool, configured: bool
) -> None:
    """Repot's settings have a Redis where the application states nothing."""
    found = inspect(application(result_backend=backend), "kept.plain", (), {})
    assert (bare, configured) == (found.keeps_backend(stated=False), found.keeps_backend(stated=True))
    named = [one for one in found.replaced if one.startswith("result_backend")]
    assert len(named) == (not bare)
    assert "example" not in "".join(named)


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ({"broker_use_ssl": True}, "TLS"),
        ({"broker_url": "rediss://x"}, "TLS"),
        ({"broker_read_url": "redis://a", "broker_write_url": "amqp://b"}, "one broker"),
        ({"broker_url": "redis://a;redis://b"}, "several addresses"),
        ({"broker_url": "sentinel://a"}, "several addresses"),
        ({"worker_concurrency": 8}, "1 and 2 in the place of 8"),
    ],
)
def test_what_is_replaced_is_named(conf: dict[str, Any], text: str) -> None:
    (found,) = inspect(application(**conf), "kept.plain", (), {}).replaced
    assert text in found


@pytest.fixture
def adopted() -> Iterator[Celery]:
    """An application that calls `repot.configure`, with one setting of its own."""
    app = application(task_serializer="pickle")
    repot.configure(app, ExplicitSettings(broker_url="redis://localhost", queue_names=("elsewhere",)))
    yield app
    app.close()


def test_a_producer_shares_what_the_application_states_itself(adopted: Celery) -> None:
    """Not what `repot.configure` made of the current environment."""
    assert shared_settings(adopted) == {"task_serializer": "pickle"}
    assert {"task_routes"} & set(shared_settings(application(**ROUTED))) == set()
    assert set(DECLARED) == set(shared_settings(application(**DECLARED)))
