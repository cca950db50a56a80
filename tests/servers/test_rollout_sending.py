"""Tasks of an application during a rollout: each reaches one broker, once, and its descendants stay with it."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from math import sqrt
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group
from kombu import Connection, Exchange, Producer, Queue

import repot
from repot.config import child_environment
from repot.routing.side import Side, Weights, side_of
from repot.testbed import ReapedProcess, redis_server
from repot.waiting import wait_until
from repot.worker.rollout import rollout_of
from support.releases import has
from support.rollouts import DIRECTIONS, NAME, TASKS, Rollout, doubled, following, rollout_between, split_roots
from support.traces import traced

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import Server

SOURCE, TARGET = Side.SOURCE, Side.TARGET


@pytest.fixture
def opened(redis: Server, tmp_path: Path) -> Iterator[Callable[..., Rollout]]:
    """Open a rollout between two addresses."""
    made: list[Rollout] = []

    def begin(source: str, target: str, store: Server = redis, **changes: Any) -> Rollout:
        made.append(Rollout(source, target, store, tmp_path, **changes))
        return made[-1]

    yield begin
    for one in made:
        one.stop()


@pytest.fixture(params=DIRECTIONS)
def rollout(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rollout]:
    """A rollout in each direction."""
    found = rollout_between(request, tmp_path)
    yield found
    found.stop()


def _nothing() -> None:
    """Is never run."""


def _send_everything(app: Any, number: int) -> list[str]:
    """Send by every way that Celery has, and return the labels that must run."""
    labels: list[str] = []
    for _ in range(number):
        labels += _send_single_tasks(app)
        labels += _send_canvas(app)
    return labels


def _task(app: Any, name: str, *args: Any, immutable: bool = False) -> Any:
    return app.signature(f"{TASKS}.{name}", args=args, immutable=immutable)


def _send_single_tasks(app: Any) -> list[str]:
    base = uuid4().hex[:8]
    _task(app, "note", f"{base}-delay").delay()
    _task(app, "note", f"{base}-async").apply_async()
    app.send_task(f"{TASKS}.note", [f"{base}-named"])
    _task(app, "note", f"{base}-countdown").apply_async(countdown=1)
    app.send_task(f"{TASKS}.note", [f"{base}-eta"], eta=datetime.now(UTC) + timedelta(seconds=2))
    _task(app, "again", base).delay()
    _task(app, "parent", f"{base}-parent").delay()
    children = ["child", "named", "group-0", "group-1", "chain-0", "chain-1", "head-0", "head-1", "body"]
    own = ["delay", "async", "named", "countdown", "eta", "0", "1", "parent", *(f"parent-{one}" for one in children)]
    return [f"{base}-{suffix}" for suffix in own]


def _send_canvas(app: Any) -> list[str]:
    base = uuid4().hex[:8]
    group([_task(app, "note", f"{base}-group-{number}") for number in range(3)]).apply_async()
    steps = [_task(app, "step", "", f"{base}-chain-{number}", immutable=True) for number in range(2)]
    chain(*steps, _task(app, "note", f"{base}-chain-2", immutable=True)).delay()
    heads = [_task(app, "step", f"{base}-head-{number}") for number in range(2)]
    chord(heads, _task(app, "step", "", f"{base}-body", immutable=True)).apply_async()
    suffixes = ["group-0", "group-1", "group-2", "chain-0", "chain-1", "chain-2", "head-0", "head-1", "body"]
    return [f"{base}-{suffix}" for suffix in suffixes]


@pytest.mark.promise("redis to rabbitmq")
def test_nothing_is_lost_or_doubled_and_no_root_id_is_split(rollout: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way of sending, at weight 0.5, with a worker on each side; Celery's own variable states the source."""
    monkeypatch.setenv("CELERY_BROKER_URL", rollout.settings.broker_url.reveal())
    rollout.begin(0.5)
    rollout.start_workers()
    app = rollout.producer()
    labels = _send_everything(app, 12)
    lines = rollout.await_ran(labels)
    assert (doubled(lines), split_roots(lines)) == ({}, {})
    assert sorted(labels) == sorted(line["label"] for line in lines)
    # each says to which side it was sent, and ran there; a pool process that has not read the record yet says 0
    assert not [line for line in lines if line["stamp"] not in {f"{NAME}:{one}:{line['side']}" for one in (0, 1)}]
    roots = {line["root"]: line["side"] for line in lines}
    assert roots == {root: side_of(NAME, root, 0.5) for root in roots}
    on_target = sum(side == TARGET for side in roots.values())
    # more is rarer than one in a billion
    assert abs(on_target - len(roots) / 2) <= 6 * sqrt(len(roots) / 4)
    counted = rollout_of(app)
    assert counted is not None
    sent = [counted.counters.of(side) for side in Side]
    assert (sum(one.fallbacks for one in sent), sum(one.publish_failures for one in sent)) == (0, 0)
    # with results in a database Celery sends a task more, which looks whether the parts of a chord have ended
    each = 14 if rollout.settings.result_backend.scheme.startswith("db+") else 13
    assert each * 12 == sum(one.sent for one in sent)


@pytest.mark.parametrize("rollout", ["rabbitmq to redis"], indirect=True)
def test_no_root_id_is_split_while_the_weight_changes(rollout: Rollout) -> None:
    """A chain goes on where it began, whatever the weight is by then."""
    rollout.begin(0.5)
    rollout.start_workers()
    app = rollout.producer()
    labels: list[str] = []
    for weight in (0.9, 0.1, 1.0, 0.0):
        labels += _send_everything(app, 3)
        made = rollout.change(weight=weight)
        _await_followed(app, made.generation)
    lines = rollout.await_ran(labels)
    assert (doubled(lines), split_roots(lines)) == ({}, {})
    assert len({line["stamp"].split(":")[1] for line in lines}) > 1


def _await_followed(app: Any, generation: int) -> None:
    sender = rollout_of(app)
    assert sender is not None
    known = sender
    wait_until(
        lambda: known.record is not None and known.record.generation == generation, within_s=30, what="it is followed"
    )


@pytest.mark.parametrize("rollout", ["redis to rabbitmq"], indirect=True)
def test_beat_sends_by_the_rollout(rollout: Rollout, tmp_path: Path) -> None:
    rollout.begin(0.5)
    rollout.start_workers(1)
    environment = child_environment(rollout.settings) | {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-m", "celery", "--app", TASKS, "beat", "--schedule", str(tmp_path / "schedule")]
    beat = ReapedProcess(command, log=tmp_path / "beat.log", environment=environment)
    try:
        wait_until(
            lambda: min(Counter(line["side"] for line in rollout.ran()).get(side, 0) for side in Side) >= 3,
            within_s=60,
            what="beat's tasks ran on both sides",
        )
    finally:
        beat.stop()
    lines = rollout.ran()
    assert split_roots(lines) == {}
    assert len(lines) == len({line["id"] for line in lines})
    # the first ones may be sent before the record is read
    assert not [
        line
        for line in lines
        if line["stamp"] not in {f"{NAME}:1:{side_of(NAME, line['root'], 0.5)}", f"{NAME}:0:{SOURCE}"}
    ]


@pytest.mark.parametrize("rollout", ["rabbitmq to redis"], indirect=True)
def test_the_task_of_a_killed_process_comes_back_on_its_side(rollout: Rollout) -> None:
    """The worker's main process sends it, which runs no task, after the weight has changed."""
    rollout.begin(1)
    rollout.start_workers(1)
    rollout.producer().send_task(f"{TASKS}.killed", ["k"])
    rollout.await_ran(["k-0"])
    rollout.change(weight=0.0)
    rollout.stop_tasks()
    lines = rollout.await_ran(["k-0", "k-1"])
    assert [line["side"] for line in lines] == ["target", "target"]
    assert len({line["root"] for line in lines}) == 1


@pytest.mark.parametrize("rollout", ["redis to rabbitmq", "rabbitmq to redis"], indirect=True)
def test_what_goes_on_leaves_the_side_when_roots_are_gathered(rollout: Rollout) -> None:
    """A retry, which carries exchange and routing key of the broker that it came from, and a task that sends itself."""
    rollout.begin(1)
    rollout.start_workers(1)
    app = rollout.producer()
    app.send_task(f"{TASKS}.again", ["r"], {"times": 20, "countdown": 1.5})
    app.send_task(f"{TASKS}.forever", ["f"])

    def lines_of(first: str) -> list[dict[str, Any]]:
        return [line for line in rollout.ran() if line["label"].startswith(first)]

    rollout.await_ran(["r-0"])
    wait_until(lambda: len(lines_of("f")) >= 3, within_s=30, what="it ran some times")
    assert {"target"} == {line["side"] for line in rollout.ran()}
    rollout.change(phase="abort", weight=0.0, gather=True)
    for label in ("f", "r"):
        wait_until(lambda: lines_of(label)[-1]["side"] == "source", within_s=60, what="it has left")  # noqa: B023
    number = len(lines_of("f"))
    wait_until(lambda: len(lines_of("f")) >= number + 3, within_s=30, what="it goes on")
    rollout.stop_tasks()
    sides = [line["side"] for line in lines_of("f")]
    assert sorted(sides, reverse=True) == sides, "it came back"
    retries = lines_of("r")
    assert doubled(retries) == {}
    assert (retries[0]["side"], retries[-1]["side"]) == ("target", "source")
    assert len({line["id"] for line in retries}) == 1


@pytest.mark.parametrize("rollout", ["redis to rabbitmq"], indirect=True)
def test_the_retry_of_a_delayed_message_goes_to_the_other_side_as_well(rollout: Rollout) -> None:
    """RabbitMQ delivers it under the exchange of the last delay: another one after an even number of seconds."""
    rollout.begin(1)
    rollout.start_workers(1)
    rollout.producer().send_task(f"{TASKS}.again", ["r"], {"times": 10, "countdown": 4})
    # that of the second run, which came out of a delay, is sent by then
    rollout.await_ran(["r-0", "r-1"])
    rollout.change(phase="abort", weight=0.0, gather=True)
    wait_until(lambda: rollout.ran()[-1]["side"] == "source", within_s=60, what="it has left")
    lines = rollout.ran()
    assert doubled(lines) == {}
    assert [lines[number]["side"] for number in (0, 1, -1)] == ["target", "target", "source"]


@pytest.mark.promise("redis to rabbitmq")
@pytest.mark.parametrize("rollout", ["redis to rabbitmq", "rabbitmq to redis"], indirect=True)
def test_a_change_of_the_weight_is_followed(rollout: Rollout) -> None:
    rollout.begin(0)
    app = rollout.producer()
    ids = {side: [] for side in Side}  # type: dict[Side, list[str]]
    for weight, side in ((0.0, SOURCE), (1.0, TARGET), (0.0, SOURCE)):
        rollout.change(weight=weight)
        wait_until(lambda side=side: _sent_to(app, ids) is side, within_s=30, what=f"{weight} is followed")  # type: ignore[misc]
    for side in Side:
        assert sorted(ids[side]) == sorted(rollout.ids(side))


def _sent_to(app: Any, ids: dict[Side, list[str]]) -> Side:
    """Send one task; return its side, by what the process counts."""
    found = rollout_of(app)
    assert found is not None
    before = found.counters.of(TARGET).sent
    sent = app.send_task("t", ignore_result=True)
    side = TARGET if found.counters.of(TARGET).sent > before else SOURCE
    ids[side].append(sent.id)
    return side


def test_a_message_to_either_side_has_the_trace_of_its_sender(rollout: Rollout, tmp_path: Path) -> None:
    rollout.begin(Weights(0, tasks={"always": 1.0}))
    app = rollout.producer()
    with traced(tmp_path) as traces:
        for task in ("t", "always"):
            app.send_task(task)
        spans = {one.attributes["celery.task_name"]: one for one in traces.here}
    for side, task in ((SOURCE, "t"), (TARGET, "always")):
        (message,) = rollout.waiting(side)
        trace_id, span_id = message.headers["traceparent"].split("-")[1:3]
        span = spans[task]
        assert (span.trace, span.id) == (f"0x{trace_id}", f"0x{span_id}")
        assert rollout.queue == span.attributes["messaging.destination.name"]
    assert len({span.trace for span in spans.values()}) == len(spans) == 2


@pytest.mark.promise("redis to rabbitmq")
def test_without_a_record_tasks_go_to_the_source(rollout: Rollout) -> None:
    sent = rollout.producer().send_task("t")
    (message,) = rollout.waiting(SOURCE)
    assert (sent.id, f"{NAME}:0:source") == (message.headers["id"], message.headers["repot_rollout"])


@pytest.mark.promise("redis to rabbitmq")
def test_a_record_of_other_brokers_is_not_followed(rollout: Rollout, caplog: pytest.LogCaptureFixture) -> None:
    rollout.records.create(NAME, "redis://elsewhere/0", "amqp://me:**@elsewhere//", rollout_change(1))
    app = rollout.producer()
    ids = [app.send_task("t").id for _ in range(3)]
    assert ids == rollout.ids(SOURCE)

    def said() -> list[logging.LogRecord]:
        return [line for line in caplog.records if line.name == "repot.worker.rollout"]

    wait_until(said, within_s=30, what="it is logged")
    (line,) = said()
    assert "leads from redis://elsewhere/0 to amqp://me:**@elsewhere//" in line.getMessage()
    assert "guest:guest" not in line.getMessage()


def rollout_change(weight: float) -> Any:
    from repot.routing.record import Change

    return Change("test", "why", weights=Weights(weight))


def test_the_store_is_gone_and_sending_goes_on(opened: Callable[..., Rollout], redis: Server, rabbitmq: Server) -> None:
    with redis_server() as store:
        rollout = opened(redis.url, rabbitmq.url, lease_store=store.url, result_backend=redis.results_url)
        rollout.begin(1)
        app = rollout.producer()
        first = app.send_task("t", ignore_result=True).id
        store.process.stop()
        begin = monotonic()
        later = [app.send_task("t", ignore_result=True).id for _ in range(50)]
        # half a second each, if they waited for it
        assert monotonic() - begin < 20
    assert sorted([first, *later]) == sorted(rollout.ids(TARGET))


def test_a_group_for_the_target_does_not_ask_the_source(opened: Callable[..., Rollout], redis: Server) -> None:
    """Outside a rollout a group is a confirm window on its application's own broker."""
    rollout = opened("amqp://guest:guest@127.0.0.1:1//", redis.url, management_url="http://127.0.0.1:1")
    rollout.begin(1)
    app = rollout.producer()
    parts = [app.signature("t", ignore_result=True) for _ in range(3)]
    sent: Any = group(parts, app=app).apply_async()
    assert [one.id for one in sent.children] == rollout.ids(TARGET)


def test_a_process_that_never_saw_the_store_sends_to_the_source(
    opened: Callable[..., Rollout], redis: Server, rabbitmq: Server
) -> None:
    with redis_server() as store:
        rollout = opened(redis.url, rabbitmq.url, lease_store=store.url, result_backend=redis.results_url)
        rollout.begin(1)
        store.process.stop()
    app = rollout.producer(follows=False)
    begin = monotonic()
    ids = [app.send_task("t", ignore_result=True).id for _ in range(50)]
    # half a second each, if they waited for it
    assert monotonic() - begin < 20
    assert sorted(ids) == sorted(rollout.ids(SOURCE))


@pytest.mark.promise("redis to rabbitmq")
@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_weights_by_task_and_by_queue(rollout: Rollout) -> None:
    rollout.begin(Weights(0, queues={rollout.queue: 0.0, f"{rollout.queue}-2": 1.0}, tasks={"always": 1.0}))
    queues = (rollout.queue, f"{rollout.queue}-2")
    own = Celery("routed", set_as_current=False)
    own.conf.task_routes = {"routed": {"queue": queues[1]}}
    own.task(name="of-class", queue=queues[1], shared=False)(_nothing)
    app = rollout.producer(own, queue_names=queues)
    app.finalize()
    # the queue of a task's class holds for its name since Celery 5.7
    by_name = app.send_task("of-class").id
    here, more = ([], [by_name]) if has("celery", "5.7") else ([by_name], [])
    here.append(app.send_task("t").id)
    there = [
        *more,
        app.send_task("always").id,
        app.send_task("routed").id,
        app.send_task("t", queue=queues[1]).id,
        app.send_task("t", queue=Queue(queues[1])).id,
        app.tasks["of-class"].delay().id,
    ]
    assert here == rollout.ids(SOURCE)
    assert sorted(there) == sorted([*rollout.ids(TARGET, queues[0]), *rollout.ids(TARGET, queues[1])])
    assert rollout.ids(SOURCE, queues[1]) == []


class Conf:
    """As the settings of a Django project are read: `config_from_object`, with a namespace."""

    CELERY_TASK_ROUTES = {"mails.*": {"queue": "mails"}}  # noqa: RUF012 - as such projects write it
    CELERY_TASK_COMPRESSION = "gzip"
    CELERY_TASK_SERIALIZER = "json"


def test_an_application_that_is_configured_from_an_object(rollout: Rollout) -> None:
    rollout.begin(0.5)
    own = Celery("django", set_as_current=False)
    own.config_from_object(Conf, namespace="CELERY")
    app = rollout.producer(own, queue_names=(rollout.queue, "mails"))
    ids = {name: {app.send_task(name).id for _ in range(30)} for name in ("orders.pay", "mails.send")}
    for name, queue in (("orders.pay", rollout.queue), ("mails.send", "mails")):
        found = {side: rollout.waiting(side, queue) for side in Side}
        assert ids[name] == {message.headers["id"] for side in Side for message in found[side]}
        assert all(found.values())
        assert {"application/x-gzip"} == {message.headers["compression"] for side in Side for message in found[side]}


def _with_own_queues(token: str) -> Celery:
    """Queues as objects, of three kinds of exchanges, with routes by exchange and key."""
    app = Celery("own", set_as_current=False)
    media, alerts = Exchange(f"{token}.media", type="topic"), Exchange(f"{token}.alerts", type="direct")
    app.conf.task_queues = [
        Queue(token),
        Queue(f"{token}.video", media, routing_key="video.#"),
        Queue(f"{token}.image", media, routing_key="image.*"),
        Queue(f"{token}.alert", alerts, routing_key="alert"),
    ]
    app.conf.task_default_queue = token
    app.conf.task_routes = {
        "video": {"exchange": f"{token}.media", "routing_key": "video.big.mp4"},
        "alert": {"queue": f"{token}.alert"},
    }
    return app


#: What a caller says, and the queue that it means; `{}` is the application's own prefix.
ADDRESSES: list[tuple[dict[str, str], str]] = [
    ({}, ""),
    ({"queue": "{}.video"}, ".video"),
    ({"exchange": "{}.media", "routing_key": "image.png"}, ".image"),
    ({"exchange": "{}.alerts", "routing_key": "alert"}, ".alert"),
    ({"name": "video"}, ".video"),
    ({"name": "alert"}, ".alert"),
]


def test_an_address_of_the_caller_leads_to_the_queue_of_the_same_name(rollout: Rollout) -> None:
    rollout.begin(1)
    settings = rollout.settings.replace(rollout_side="target")
    given = {name: value for name, value in settings.model_dump().items() if name in settings.model_fields_set}
    del given["queue_names"]
    apps: list[Any] = [_with_own_queues(rollout.token) for _ in range(3)]
    # as the workers of both sides declare them
    for app, side in zip(apps, Side, strict=False):
        repot.configure(app, type(settings)(**{**given, "rollout_side": side.value}))
        with app.connection_for_write() as connection:
            app.amqp.TaskConsumer(connection.default_channel)
    sender = apps[2]
    repot.configure(sender, type(settings)(**{**given, "rollout_side": "source"}))
    following(sender)
    for options, queue in ADDRESSES:
        filled = {name: value.format(rollout.token) for name, value in options.items()}
        ids = [sender.send_task(filled.pop("name", "t"), **filled).id]
        if filled.get("queue"):
            ids.append(sender.send_task("t", queue=sender.amqp.queues[filled["queue"]]).id)
        assert ids == rollout.ids(TARGET, rollout.queue + queue), options
    found = rollout_of(sender)
    assert found is not None
    assert found.counters.of(TARGET).fallbacks == 0
    found.stop()


def test_an_exchange_that_the_application_does_not_know_stays_at_home(
    rollout: Rollout, caplog: pytest.LogCaptureFixture
) -> None:
    """The other broker may not have it, and a message to an exchange without queues is lost."""
    rollout.begin(1)
    app = rollout.producer()
    exchange = Exchange(f"{rollout.token}.others", type="direct")
    other = Queue(f"{rollout.token}.other", exchange, routing_key="k")
    with app.connection_for_write() as connection:
        other(connection.default_channel).declare()
    sent = app.send_task("t", exchange=exchange.name, routing_key="k")
    assert [sent.id] == rollout.ids(SOURCE, other.name)
    assert any("stays on the source" in line.getMessage() for line in caplog.records)


def test_a_producer_of_another_broker_is_the_caller_s_will(rollout: Rollout) -> None:
    rollout.begin(1)
    app = rollout.producer()
    connection: Any
    with redis_server() as third, Connection(third.url) as connection:
        sent = app.send_task("t", connection=connection)
        again = app.send_task("t", producer=Producer(connection))
        found = [connection.default_channel.basic_get(rollout.queue, no_ack=True) for _ in range(2)]
    assert {sent.id, again.id} == {message.headers["id"] for message in found}
    assert not any("repot_rollout" in message.headers for message in found)
    assert (rollout.ids(SOURCE), rollout.ids(TARGET)) == ([], [])


def test_a_producer_of_the_application_s_own_broker_is_replaced(rollout: Rollout) -> None:
    """As canvas and beat give it."""
    rollout.begin(1)
    app = rollout.producer()
    with app.producer_pool.acquire(block=True) as pooled:
        ids = [app.send_task("t", producer=pooled).id]
    with app.connection_for_write() as connection:
        ids.append(app.send_task("t", connection=connection).id)
    with Connection(rollout.addresses[SOURCE]) as connection:
        ids.append(app.send_task("t", producer=Producer(connection)).id)
    assert sorted(ids) == sorted(rollout.ids(TARGET))


def test_a_confirm_window_goes_on(rollout: Rollout) -> None:
    """Messages to the other broker are confirmed one by one; the window of the own one is as before."""
    rollout.begin(0.5)
    app = rollout.producer()
    with repot.confirm_window(app):
        ids = [app.send_task("t", ignore_result=True).id for _ in range(100)]
        group([app.signature("t", ignore_result=True) for _ in range(20)]).apply_async()
    found = [*rollout.ids(SOURCE), *rollout.ids(TARGET)]
    assert len(found) == len(set(found)) == 120
    assert set(ids) <= set(found)
    counted = rollout_of(app)
    assert counted is not None
    assert 30 < counted.counters.of(TARGET).sent < 90


def test_a_second_call_without_a_rollout_ends_it(rollout: Rollout) -> None:
    rollout.begin(1)
    app = rollout.producer()
    first = app.send_task("t").id
    repot.configure(app, rollout.settings.replace(rollout=""))
    second = app.send_task("t").id
    assert ([first], [second]) == (rollout.ids(TARGET), rollout.ids(SOURCE))
    assert "send_task" not in vars(app)
    assert rollout_of(app) is None
