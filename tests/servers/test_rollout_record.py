"""The record of a rollout in the lease store, and the thread that follows it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from threading import Thread
from time import monotonic, time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import redis as redis_client

from repot.chaos.runner.proxies import Proxy
from repot.config import ExplicitSettings, inherited_environment
from repot.errors import (
    RecordUnreadable,
    RolloutConflict,
    RolloutNotFound,
    StoreMisconfigured,
    StoreRefused,
    StoreUnreachable,
)
from repot.routing import follower as follower_module
from repot.routing.follower import _JITTER, FIRST_ANSWER_S, INTERVAL_S, Follower
from repot.routing.record import Change, RolloutRecord, RolloutRecords
from repot.routing.side import Weights
from repot.testbed import LOOPBACK, ReapedProcess, executables, free_port, redis_server
from repot.testbed.redis_errors import answering
from repot.waiting import wait_until
from repot.worker.rollout_store import rollout_records
from support import forked
from support.databases import DATABASES, with_tables
from support.lost_answers import LosingLink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server

pytestmark = pytest.mark.promise("redis", "postgresql")

SOURCE, TARGET = "redis://source/0", "amqp://me:**@target//"
FIRST = Change("ann", "the first step", phase="canary", weights=Weights(0.05))


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question waits until it is answered."""
    monkeypatch.setattr(follower_module, "FIRST_ANSWER_S", 60)


PATIENT = pytest.mark.usefixtures("_patient")


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is read again after a tenth of a second."""
    monkeypatch.setattr(follower_module, "INTERVAL_S", 0.1)


OFTEN = pytest.mark.usefixtures("_often")


def _records(url: str, **changes: Any) -> RolloutRecords:
    return rollout_records(ExplicitSettings(lease_store=url, lease_prefix=f"test-{uuid4()}", **changes))


@pytest.fixture(params=["redis", "valkey", *DATABASES])
def records(request: pytest.FixtureRequest) -> Iterator[RolloutRecords]:
    server = request.getfixturevalue(request.param)
    found = _records(with_tables(server).url if request.param in DATABASES else server.url)
    with closing(_store(found)):
        yield found


def test_a_new_record_is_read_as_it_was_made(records: RolloutRecords) -> None:
    assert records.read("shop") is None
    weights = Weights(0.05, queues={"mails": 0.5}, tasks={"pay": 0})
    made = records.create("shop", SOURCE, TARGET, Change("ann", "why", phase="canary", weights=weights))
    expected = RolloutRecord("shop", SOURCE, TARGET, "canary", 1, weights, False, "ann", "why", made.updated_at)
    assert expected == made == records.read("shop")
    assert abs(time() - made.updated_at) < 5
    with pytest.raises(RolloutConflict, match="is at generation 1"):
        records.create("shop", SOURCE, TARGET, FIRST)


def test_a_new_record_sends_nothing_to_the_target_unless_told(records: RolloutRecords) -> None:
    assert records.create("shop", SOURCE, TARGET, Change("ann", "why")).weights.default == 0


def test_a_change_keeps_what_it_does_not_name(records: RolloutRecords) -> None:
    first = records.create("shop", SOURCE, TARGET, FIRST)
    second = records.change(first, Change("bob", "more", weights=Weights(0.5)))
    third = records.change(second, Change("bob", "stop", phase="abort", weights=Weights(0), gather=True))
    assert [one.generation for one in (first, second, third)] == [1, 2, 3]
    assert [one.phase for one in (first, second, third)] == ["canary", "canary", "abort"]
    assert [one.gather for one in (first, second, third)] == [False, False, True]
    assert [first, second, third] == records.history("shop")


def test_of_two_who_read_the_same_generation_one_changes_it(records: RolloutRecords) -> None:
    first = records.create("shop", SOURCE, TARGET, FIRST)
    records.change(first, Change("ann", "mine", weights=Weights(0.5)))
    with pytest.raises(RolloutConflict, match="generation 2, not 1: ann, 'mine'"):
        records.change(first, Change("bob", "too late", weights=Weights(0.9)))
    found = records.read("shop")
    assert found is not None
    assert found.weights.default == 0.5


def test_many_who_change_at_once_lose_no_change(records: RolloutRecords) -> None:
    records.create("shop", SOURCE, TARGET, FIRST)
    conflicts: list[RolloutConflict] = []

    def change(who: str) -> None:
        done = 0
        while done < 10:
            found = records.read("shop")
            assert found is not None
            try:
                records.change(found, Change(who, str(done)))
                done += 1
            except RolloutConflict as conflict:
                conflicts.append(conflict)

    threads = [Thread(target=change, args=(str(number),)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert list(range(1, 42)) == [one.generation for one in records.history("shop")]
    assert conflicts


def test_a_controller_with_an_earlier_token_changes_nothing(records: RolloutRecords) -> None:
    first = records.create("shop", SOURCE, TARGET, FIRST)
    second = records.change(first, Change("new", "took over"), token=1_700_000_000_000_002)
    with pytest.raises(RolloutConflict, match="later than 1700000000000001"):
        records.change(second, Change("old", "was frozen", weights=Weights(1)), token=1_700_000_000_000_001)
    # a person needs no token
    third = records.change(second, Change("ann", "abort", phase="abort"))
    assert (third.generation, third.token) == (3, 1_700_000_000_000_002)


def test_a_record_that_was_deleted_cannot_be_changed(records: RolloutRecords) -> None:
    first = records.create("shop", SOURCE, TARGET, FIRST)
    _store(records).forget(records.key("shop"))
    with pytest.raises(RolloutNotFound):
        records.change(first, Change("ann", "why"))


def test_a_change_whose_answer_was_lost_is_made_once(redis: Server) -> None:
    """The answer is cut off on its way, and redis-py sends the request again."""
    with LosingLink(redis.port, changes=(b"once",)) as link, ThreadPoolExecutor(1) as pool:
        records = _records(redis.url_at(link.port), socket_timeout=1, lease=3)
        first = records.create("shop", SOURCE, TARGET, FIRST)
        with link.losing():
            changed = pool.submit(records.change, first, Change("bob", "once"))
            assert link.lost.wait(30)
        assert changed.result(30).generation == 2
    direct: Any = redis_client.Redis.from_url(redis.url, decode_responses=True)
    assert direct.hget(records.key("shop"), "generation") == "2"
    assert direct.llen(f"{records.key('shop')}:history") == 2


def test_a_value_of_another_type_is_not_read(redis: Server) -> None:
    records = _records(redis.url)
    _store(records).put_text(records.key("shop"), "x")
    asking: list[Any] = [lambda: records.read("shop"), lambda: records.create("shop", SOURCE, TARGET, FIRST)]
    for asked in asking:
        with pytest.raises(RecordUnreadable):
            asked()


@pytest.mark.parametrize(("word", "error"), [("NOPERM", StoreRefused), ("MISCONF", StoreUnreachable)])
def test_an_error_reply_has_the_meaning_that_it_has_for_leases(word: str, error: type[Exception]) -> None:
    with redis_server("--enable-debug-command", "yes") as server:
        records = _records(server.url)
        first = records.create("shop", SOURCE, TARGET, FIRST)
        with answering(server, word), pytest.raises(error):
            records.change(first, Change("ann", "why"))


def test_a_node_of_a_cluster_that_is_not_named_as_one_is_a_mistake(cluster: int) -> None:
    with pytest.raises((StoreMisconfigured, StoreUnreachable)):
        _records(f"redis://{LOOPBACK}:{cluster}/1").read("shop")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[int]:
    """The port of a cluster of one node."""
    port = free_port()
    program = executables.REDIS.find()
    options = ["--port", str(port), "--bind", LOOPBACK, "--dir", str(tmp_path), "--cluster-enabled", "yes"]
    with _process(program, *options, directory=tmp_path):
        client: Any = redis_client.Redis(port=port)
        wait_until(lambda: _answers(client), within_s=20, what="the node answers")
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: client.cluster("info")["cluster_state"] == "ok", within_s=20, what="the cluster is complete")
        yield port


def test_on_a_cluster(cluster: int) -> None:
    records = _records(f"redis+cluster://{LOOPBACK}:{cluster}")
    first = records.create("shop", SOURCE, TARGET, FIRST)
    records.change(first, Change("bob", "more"))
    assert [one.generation for one in records.history("shop")] == [1, 2]


def test_behind_sentinel(redis: Server, tmp_path: Path) -> None:
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind {LOOPBACK}\ndir {tmp_path}\nsentinel monitor shop {LOOPBACK} {redis.port} 1\n"
    )
    with _process(executables.REDIS.find(), str(configuration), "--sentinel", directory=tmp_path):
        records = _records(f"sentinel://{LOOPBACK}:{port}/0", sentinel_master="shop")
        client: Any = redis_client.Redis(port=port)
        wait_until(lambda: _answers(client), within_s=20, what="the sentinel answers")
        first = records.create("shop", SOURCE, TARGET, FIRST)
        assert first == records.read("shop")


@contextmanager
def _process(program: str, *options: str, directory: Path) -> Iterator[ReapedProcess]:
    found = ReapedProcess([program, *options], log=directory / "log", environment=inherited_environment(without=()))
    try:
        yield found
    finally:
        found.stop()


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis_client.RedisError:
        return False


def _store(records: RolloutRecords) -> Any:
    return records._store


@OFTEN
def test_a_change_is_followed(redis: Server) -> None:
    records = _records(redis.url)
    follower = Follower("shop", lambda: lambda: records.read("shop"))
    assert follower.record() is None
    made = records.create("shop", SOURCE, TARGET, FIRST)
    for number in range(3):
        wait_until(
            lambda made=made: follower.record() == made,  # type: ignore[misc]
            within_s=30,
            what=f"generation {made.generation} is followed",
        )
        made = records.change(made, Change("ann", "more", weights=Weights(0.1 * number)))
    follower.stop()


@PATIENT
def test_the_first_question_waits_for_the_answer(redis: Server) -> None:
    records = _records(redis.url)
    made = records.create("shop", SOURCE, TARGET, FIRST)
    follower = Follower("shop", lambda: lambda: records.read("shop"))
    assert made == follower.record()
    follower.stop()


def test_the_first_question_waits_half_a_second_at_most(redis: Server, toxiproxy: Server) -> None:
    """The store accepts connections and answers nothing."""
    proxy = Proxy.create(toxiproxy.url, f"silent-{uuid4()}", redis.port)
    records = _records(redis.url_at(proxy.port))
    with proxy.with_toxic("timeout", ["upstream", "downstream"], {"timeout": 0}):
        follower = Follower("shop", lambda: lambda: records.read("shop"))
        begin = monotonic()
        assert follower.record() is None
        waited = monotonic() - begin
        begin = monotonic()
        for _ in range(100):
            follower.record()
        # only the first one waits
        assert monotonic() - begin < 100 * FIRST_ANSWER_S
        follower.stop()
    proxy.delete()
    assert FIRST_ANSWER_S == 0.5
    assert 0.4 < waited < 10


@PATIENT
@OFTEN
def test_without_a_store_the_last_known_generation_holds(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged once, and so is its end."""
    caplog.set_level(logging.WARNING, logger="repot.routing.follower")
    with redis_server() as server:
        records = _records(server.url)
        made = records.create("shop", SOURCE, TARGET, FIRST)
        rounds = list[float]()

        def read() -> RolloutRecord | None:
            rounds.append(monotonic())
            return records.read("shop")

        follower = Follower("shop", lambda: read)
        assert made == follower.record()
        os.kill(server.process.pid, signal.SIGSTOP)
        os.kill(server.process.pid, signal.SIGKILL)
        number = len(rounds)
        wait_until(lambda: len(rounds) >= number + 3, within_s=60, what="it asked again")
        assert made == follower.record()
        follower.stop()
    lines = [line.getMessage() for line in caplog.records]
    (line,) = [one for one in lines if server.url in one]
    assert "generation 1 holds" in line


@PATIENT
@OFTEN
def test_a_record_that_was_deleted_holds(redis: Server) -> None:
    """A store that lost its data says nothing of the rollout."""
    records = _records(redis.url)
    made = records.create("shop", SOURCE, TARGET, FIRST)
    answers: list[RolloutRecord | None] = []

    def read() -> RolloutRecord | None:
        answers.append(records.read("shop"))
        return answers[-1]

    follower = Follower("shop", lambda: read)
    assert made == follower.record()
    _store(records).forget(records.key("shop"))
    wait_until(lambda: None in answers, within_s=30, what="it is read again")
    assert made == follower.record()
    follower.stop()


_FORKING = """
import os, sys, threading
from repot.config import ExplicitSettings
from repot.routing.follower import Follower
from repot.waiting import wait_until
from repot.worker.rollout_store import rollout_records
settings = ExplicitSettings(lease_store=sys.argv[1], lease_prefix=sys.argv[2])
records, opened = rollout_records(settings), []
def open_reader():
    opened.append(os.getpid())
    return lambda: records.read("shop")
follower = Follower("shop", open_reader)
wait_until(follower.record, within_s=20, what="the record is read")
assert follower.record().generation == 1
if os.fork() == 0:
    # the parent's thread is not here; its answer is
    assert not [one for one in threading.enumerate() if "repot" in one.name]
    generation = follower.record().generation
    assert opened[-1] == os.getpid()
    assert [one for one in threading.enumerate() if "repot" in one.name]
    os._exit(40 + generation)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("kind", ["redis", "postgresql", "mariadb"])
def test_a_forked_process_reads_for_itself(kind: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(kind)
    url = with_tables(server).url if kind in DATABASES else server.url
    prefix = f"test-{uuid4()}"
    settings = ExplicitSettings(lease_store=url, lease_prefix=prefix)
    records = rollout_records(settings)
    with closing(_store(records)):
        records.create("shop", SOURCE, TARGET, FIRST)
    done = forked.run(
        [sys.executable, "-c", _FORKING, url, prefix], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "41", done.stderr


@PATIENT
def test_many_threads_begin_one_thread(redis: Server) -> None:
    records = _records(redis.url)
    made = records.create("shop", SOURCE, TARGET, FIRST)
    opened: list[int] = []

    def open_reader() -> Any:
        opened.append(1)
        return lambda: records.read("shop")

    follower = Follower("shop", open_reader)
    found: list[RolloutRecord | None] = []
    threads = [Thread(target=lambda: found.append(follower.record())) for _ in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    follower.stop()
    assert ([1], [made] * 20) == (opened, found)


def test_producers_spread_over_the_interval() -> None:
    """Each asks within 2 s, as the docs say, and not all at the same instants."""
    times: list[float] = []
    follower = Follower("shop", lambda: lambda: times.append(monotonic()))  # type: ignore[arg-type, func-returns-value]
    follower.record()
    wait_until(lambda: len(times) >= 4, within_s=60, what="four questions")
    follower.stop()
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert INTERVAL_S * (1 + _JITTER) < 2
    assert min(pauses) > 0.7 * INTERVAL_S
    assert max(pauses) - min(pauses) > 0.01
