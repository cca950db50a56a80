"""What `repot move verify` says of messages that are gone, and of the account."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kombu import Connection

from repot.brokers.moving import HoldsDelayed
from repot.brokers.rabbitmq.staging import staging_name
from repot.cli.main import main
from repot.config.delays import EXIT, delayed_pattern
from repot.migrate import verify
from repot.migrate.identity import identity_of
from repot.testbed.rabbitmqctl import evaluate
from repot.upstream import delay_queues
from repot.waiting import wait_until
from support.live_consumer import LiveConsumer
from support.move_plans import brokers, policy
from support.moves import Way, consume, exists, task, use, way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from click.testing import Result

    from repot.brokers.message import Message
    from repot.testbed import Server


#: What RabbitMQ counts, and when it forgets it, is changed for the whole server.
pytestmark = pytest.mark.xdist_group("harmed rabbitmq")


@pytest.fixture
def path(redis: Server, harmed_rabbitmq: Server) -> Way:
    return way(redis, harmed_rabbitmq, redis)


@pytest.fixture
def repot(path: Way, tmp_path: Path) -> Callable[..., Result]:
    environment = {"WORKER_LEASE_STORE": path.store.url, "WORKER_MOVE_DIR": str(tmp_path)}
    return lambda *words: CliRunner().invoke(main, ["move", *words], env=environment)


def moved(path: Way, repot: Callable[..., Result], number: int) -> None:
    path.fill([task(place) for place in range(number)])
    result = repot("start", "--name", path.name, "--execute", *brokers(path))
    assert result.exit_code == 0, result.output


def ready(path: Way) -> int:
    with Connection(path.target.url) as connection:
        channel: Any = connection.default_channel
        return int(channel.queue_declare(path.goal, passive=True).message_count)


@pytest.fixture
def counted(harmed_rabbitmq: Server) -> Iterator[None]:
    """RabbitMQ forgets no counts: those of a channel that closed a moment before its sweep are gone otherwise."""
    evaluate(harmed_rabbitmq.variables, "sys:suspend(rabbit_core_metrics_gc).")
    yield
    evaluate(harmed_rabbitmq.variables, "sys:resume(rabbit_core_metrics_gc).")


@pytest.mark.promise
@pytest.mark.usefixtures("counted")
def test_what_a_queue_dropped_is_not_consumed(path: Way, repot: Callable[..., Result]) -> None:
    """A policy came while the move ran, or after it; no consumer ever was there."""
    moved(path, repot, 60)
    with policy(path, {"max-length": 10}):
        wait_until(lambda: ready(path) == 10, within_s=60, what="the queue has dropped its oldest messages")
        said = repot("verify", path.name)
        assert said.exit_code == 4, said.output
        assert said.stdout.startswith("the account does not close: 1 problem\n")
        assert "50 messages that were delivered are not in the target any more, and it has counted none that" in (
            said.stderr
        )
        assert "it dropped them (max-length 10, drop-head)" in said.stderr


@contextmanager
def forgotten(server: Server, counts: str) -> Iterator[None]:
    """RabbitMQ sweeps away the counts of channels that have closed before it looks for them."""
    collector = f"rabbit_mgmt_metrics_collector:name({counts})"
    evaluate(server.variables, f"sys:suspend({collector}).")
    try:
        yield
        # the sweep, an answer after which it is over, and only then the counts are looked for
        evaluate(server.variables, "rabbit_core_metrics_gc ! start_gc, sys:get_state(rabbit_core_metrics_gc).")
    finally:
        evaluate(server.variables, f"sys:resume({collector}).")


def test_a_consumer_whose_counts_are_forgotten_is_named_as_the_other_cause(
    path: Way, repot: Callable[..., Result]
) -> None:
    moved(path, repot, 30)
    with closing(path.target.open()) as broker:
        wait_until(lambda: use(broker, path.goal).arrived == 30, within_s=60, what="RabbitMQ has counted the arrivals")
        with forgotten(path.target, "channel_queue_metrics"):
            assert len(consume(broker, path.goal, 5)) == 5
    said = repot("verify", path.name)
    assert said.exit_code == 4, said.output
    assert "it dropped them, or has forgotten the counts of a consumer that was connected for seconds" in said.stderr


def test_without_counts_of_the_whole_move_nothing_is_called_dropped(path: Way, repot: Callable[..., Result]) -> None:
    with forgotten(path.target, "channel_queue_exchange_metrics"):
        moved(path, repot, 20)
    with policy(path, {"max-length": 5}):
        wait_until(lambda: ready(path) == 5, within_s=60, what="the queue has dropped its oldest messages")
        said = repot("verify", path.name)
    assert said.exit_code == 0, said.output
    assert "15 delivered messages are not in the target any more: consumed, or lost" in said.stdout


@pytest.mark.usefixtures("counted")
def test_what_verify_itself_holds_is_held_by_no_consumer(
    path: Way, repot: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ counts what is held every few seconds, now and then at the moment of a look."""
    moved(path, repot, 60)
    with closing(path.target.open()) as broker, policy(path, {"max-length": 10}):

        def look(message: Message) -> str:
            wait_until(
                lambda: use(broker, path.goal).held == 10,
                within_s=60,
                what="RabbitMQ has counted what the look holds",
                poll_s=0.2,
            )
            return identity_of(message)

        wait_until(lambda: ready(path) == 10, within_s=60, what="the queue has dropped its oldest messages")
        monkeypatch.setattr(verify, "identity_of", look)
        (check,) = json.loads(repot("verify", path.name, "--json").stdout)
    assert (check["present"], check["gone"], check["is_dropped"]) == (10, 50, True)


@pytest.mark.usefixtures("counted")
def test_what_may_have_been_consumed_is_not_called_lost(path: Way, repot: Callable[..., Result]) -> None:
    """Acknowledged a moment ago, when RabbitMQ has not counted it; or held by a worker."""
    moved(path, repot, 30)
    with closing(path.target.open()) as broker:
        assert len(consume(broker, path.goal, 5)) == 5
    said = repot("verify", path.name)
    assert said.exit_code == 0, said.output
    first, second = said.stdout.splitlines()
    assert first == "the account closes; 5 delivered messages are not in the target any more: consumed, or lost"
    assert f"{path.queue} -> {path.goal}: 30 delivered, 25 in the target, 5 gone" == second


def test_what_a_worker_holds_is_not_called_lost(path: Way, repot: Callable[..., Result]) -> None:
    moved(path, repot, 30)
    with Connection(path.target.url) as connection:
        channel: Any = connection.default_channel
        held = [channel.basic_get(path.goal) for _ in range(5)]
        assert None not in held
        said = repot("verify", path.name)
        assert said.exit_code == 0, said.output
        assert "5 delivered messages are not in the target any more: consumed, or lost" in said.stdout


def test_what_the_target_holds_until_it_is_due_is_there(path: Way, repot: Callable[..., Result]) -> None:
    """And stays there, also where workers of the target read its queue already."""
    with Connection(path.target.url) as connection:
        delay_queues.declare(connection, "quorum")
        channel: Any = connection.default_channel
        channel.queue_bind(path.goal, EXIT, delayed_pattern(path.goal))
    path.fill([task(place, headers={"eta": "2099-01-01T00:00:00+00:00"}) for place in range(3)])
    moved(path, repot, 2)
    with closing(path.target.open()) as broker:
        assert isinstance(broker, HoldsDelayed)
        wait_until(lambda: broker.depth(path.goal).delayed == 3, within_s=60, what="they are held", poll_s=0.5)
    first = f"{path.queue} -> {path.goal}: 5 delivered"
    assert f"{first}, 5 in the target\n" in repot("verify", path.name).stdout
    with LiveConsumer(path.target.url, path.goal, is_free=True) as worker:
        wait_until(lambda: len(worker.ran) == 2, within_s=60, what="it has what is due")
        for _ in range(2):
            said = repot("verify", path.name)
            assert said.exit_code == 0, said.output
            assert f"{first}, 3 in the target, 2 gone\n" in said.stdout
    with closing(path.target.open()) as broker:
        wait_until(lambda: broker.depth(path.goal).delayed == 3, within_s=60, what="they are held again", poll_s=0.5)
    assert not exists(path.target, staging_name(path.goal))


def test_the_first_line_says_whether_the_account_closes(path: Way, repot: Callable[..., Result]) -> None:
    """Digests and lists of ids are for programs, and for those who ask."""
    moved(path, repot, 4)
    said = repot("verify", path.name)
    assert [
        "the account closes: each message that left the source is in the target, or quarantined",
        f"{path.queue} -> {path.goal}: 4 delivered, 4 in the target",
    ] == said.stdout.splitlines()
    assert "source_digest" in repot("verify", path.name, "-v").stdout
