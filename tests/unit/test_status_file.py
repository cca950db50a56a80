"""The status file, and the results of probes that read it without a worker."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from repot.config.probe import probe_settings
from repot.errors import ConfigInvalid, StatusFileUnreadable
from repot.healthcheck.broker_metrics import BROKER_GAUGES, QUEUE_GAUGES
from repot.healthcheck.liveness import find_status, liveness
from repot.healthcheck.metrics import Metrics
from repot.healthcheck.ping import PingOutcome, PingResult
from repot.healthcheck.probe_result import ProbeResult, WorkerState
from repot.healthcheck.readiness import SILENT_S, StallDetector, readiness_from_ping, readiness_from_status
from repot.healthcheck.worker_metrics import GAUGES, TASK_COUNTERS, TASK_HISTOGRAMS
from repot.healthcheck.worker_probe import Snapshot
from repot.idempotency.guard_events import GuardEvent
from repot.worker import status_file, task_outcomes
from repot.worker.process_identity import this_process
from repot.worker.status_file import (
    PAST_LIMIT_S,
    Link,
    Pool,
    ShutdownKind,
    Task,
    WorkerPhase,
    WorkerStatus,
    nodes,
    path_of,
    read,
)
from repot.worker.status_place import StatusPlace
from repot.worker.status_step import StatusStep
from repot.worker.task_counters import TaskCounters
from repot.worker.task_outcomes import OTHER, TaskDuration, TaskOutcome
from repot.worker.tcp_info import is_connected

LINK = Link("redis://h/0", "redis://h/0", "celery", {"visibility_timeout": 5}, queues=("q",))


def _status(**changes: object) -> WorkerStatus:
    now = monotonic()
    task = Task("shop.render", "1", now - 5, now + 5)
    found = WorkerStatus(
        node="w@h",
        process=this_process(),
        written_at=now,
        phase=WorkerPhase.RUNNING,
        phase_entered_at=now - 100,
        shutdown=ShutdownKind.NONE,
        started_at=now - 100,
        last_received_at=now - 5,
        last_wait_s=0.5,
        pool=Pool("prefork", 2, active=1, reserved=1, longest_running=task, next_deadline=task),
        link=LINK,
        counts={"shop.render": {"received": 1}},
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_status_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = _status()
    path_of(tmp_path, found.node).write_text(found.to_json())
    assert found == read(path_of(tmp_path, found.node))
    by_task = '{"counts": {"shop.mail": {"received": 2}}, "histograms": {}, "costs": {}}'
    path_of(tmp_path, found.node).write_text(found.to_json(by_task))
    assert replace(found, counts={"shop.mail": {"received": 2}}) == read(path_of(tmp_path, found.node))
    few = replace(found, pool=replace(found.pool, running={"shop.mail": [1]})).without_counts()
    assert ({}, {}, found.link) == (few.counts, few.pool.running, few.link)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"node": "w@h"}',
        "\x00" * 100,
        "[" * 100_000,
        _status().to_json().replace('"written_at": ', '"written_at": "x", "old": '),
        _status(written_at=float("nan")).to_json(),
        _status(process=replace(this_process(), pid="one")).to_json(),  # type: ignore[arg-type]
    ],
    ids=[f"text {number}" for number in range(11)],
)
def test_a_malformed_status_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = path_of(tmp_path, "w@h")
    path.write_text(text)
    with pytest.raises(StatusFileUnreadable):
        read(path)
    assert liveness(find_status(tmp_path, "w@h"), 60).state == "status_unreadable"


def test_a_name_stays_in_its_directory_and_is_found_there(tmp_path: Path) -> None:
    names = ["../../etc/w@h", ".hidden@h", "..@h", "a/b@h", "a_b@h"]
    assert len(names) == len({path_of(tmp_path, name) for name in names})
    for name in names:
        assert tmp_path == path_of(tmp_path, name).parent
        path_of(tmp_path, name).write_text(_status(node=name).to_json())
        found = find_status(tmp_path, name)
        assert isinstance(found, WorkerStatus)
        assert name == found.node
    assert sorted(names) == nodes(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (True, WorkerPhase.RUNNING)),
        ({"written_at": monotonic() - 61}, (False, "frozen")),
        ({"phase": WorkerPhase.STOPPED}, (False, "gone")),
        (
            {"phase": WorkerPhase.STOPPING, "shutdown": ShutdownKind.SOFT, "written_at": monotonic() - 1000},
            (True, WorkerPhase.STOPPING),
        ),
        ({"phase": WorkerPhase.CONNECTING}, (True, WorkerPhase.CONNECTING)),
        ({"written_at": monotonic() + 1000}, (False, "gone")),
        ({"process": replace(this_process(), start_ticks="1")}, (False, "gone")),
        ({"process": replace(this_process(), boot_id="another")}, (False, "gone")),
        # of another container, whose process ids mean nothing here: its age has to do
        (
            {"process": replace(this_process(), pid=1, start_ticks="1", pid_namespace="pid:[1]")},
            (True, WorkerPhase.RUNNING),
        ),
        (
            {"process": replace(this_process(), pid_namespace="pid:[1]"), "written_at": monotonic() - 61},
            (False, "frozen"),
        ),
    ],
)
def test_liveness(changes: dict[str, object], expected: tuple[bool, str]) -> None:
    found = liveness(_status(**changes), 60)
    assert expected == (found.ok, found.state)


def test_a_process_that_is_gone_is_not_alive() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    process = replace(this_process(), pid=child)
    assert liveness(_status(process=process), 60).state == "gone"
    os.waitpid(child, 0)
    assert liveness(_status(process=process), 60).state == "gone"


def test_a_blocked_solo_worker_is_busy_until_its_limit_is_long_over() -> None:
    now = monotonic()
    for deadline, expected in ((None, "busy"), (now - 1, "busy"), (now - PAST_LIMIT_S - 1, "pool_stuck")):
        task = Task("shop.render", "1", now - 500, deadline)
        pool = Pool("solo", 1, active=1, reserved=1, longest_running=task, next_deadline=task if deadline else None)
        found = liveness(_status(pool=pool, written_at=now - 500), 60)
        assert expected == found.state
        assert found.ok is (expected == "busy")


@pytest.mark.parametrize("kind", ["gevent", "eventlet", "prefork"])
def test_a_frozen_loop_that_runs_tasks_says_what_may_hold_it_and_what_to_set(kind: str) -> None:
    found = liveness(_status(pool=Pool(kind, 2), written_at=monotonic() - 95), 90)
    assert (found.ok, found.state) == (False, "frozen")
    said = (f"its {kind} pool runs tasks in the event loop", "raise HEALTHCHECK_STATUS_TIMEOUT", "-P prefork")
    assert [kind != "prefork"] * 3 == [text in found.reason for text in said]


def test_the_kernel_tells_whether_a_connection_is_open() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as listening:
            peer = listening.getsockname()[:2]
            assert not is_connected(os.getpid(), [peer])
            with socket.create_connection(peer) as connection:
                accepted = listening.accept()[0]
                assert is_connected(os.getpid(), [peer])
                assert not is_connected(os.getpid(), [(host, 1)])
                port = connection.getsockname()[1]
                assert is_connected(os.getpid(), [peer], port)
                assert not is_connected(os.getpid(), [peer], peer[1])
                accepted.close()
                assert connection.recv(1) == b""
                # closed by the other side, not by this one
                assert not is_connected(os.getpid(), [peer])
    assert is_connected(2**22 + 1, [peer]) is None
    # a socket file has no such address
    assert is_connected(os.getpid(), []) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"phase": WorkerPhase.STARTING}, (False, WorkerPhase.STARTING)),
        ({"phase": WorkerPhase.STOPPING, "shutdown": ShutdownKind.WARM}, (False, WorkerPhase.STOPPING)),
        ({"phase": WorkerPhase.CONNECTING}, (False, "broker_unreachable")),
        ({"phase": WorkerPhase.CONNECTING, "link": replace(LINK, refusal="ACCESS_REFUSED")}, (False, "broker_refused")),
        # while it consumes, what was once refused says nothing
        ({"link": replace(LINK, refusal="ACCESS_REFUSED")}, None),
        ({"link": replace(LINK, cancelled_queues=("q",))}, (False, "not_consuming")),
        (
            {"pool": Pool("prefork", 2, 1, 1, next_deadline=Task("t", "1", 0, monotonic() - PAST_LIMIT_S - 1))},
            (False, "pool_stuck"),
        ),
        ({"pool": Pool("prefork", 2, 1, 1, next_deadline=Task("t", "1", 0, monotonic() + 1000))}, None),
        ({"pool": Pool("prefork", 2, crash_loop_at=monotonic() - 60, crashes=3)}, (False, "pool_crash_loop")),
        # a process or two, and what has not lasted, are accidents; these are made long before the test
        ({"pool": Pool("prefork", 2, crash_loop_at=monotonic() - 60, crashes=2)}, None),
        ({"pool": Pool("prefork", 2, crash_loop_at=monotonic() + 1000, crashes=9)}, None),
        ({"pool": Pool("prefork", 2, 0, 1, idle_at=monotonic() - 61)}, (False, "pool_stuck")),
        ({"pool": Pool("prefork", 2, 0, 1, idle_at=monotonic() + 1000)}, None),
        (
            {"pool": Pool("prefork", 2, 1, 1, missing_result=Task("t", "1", monotonic() - 61, None))},
            (False, "pool_stuck"),
        ),
        ({"pool": Pool("prefork", 2, 1, 1, missing_result=Task("t", "1", monotonic() + 1000, None))}, None),
        ({"link": replace(LINK, write_url="amqp://h", last_contact_at=monotonic() + 1000)}, (True, "ready")),
        ({"link": replace(LINK, write_url="amqp://h", last_contact_at=None)}, (True, "ready")),
        (
            {"link": replace(LINK, write_url="amqp://h", last_contact_at=monotonic() - SILENT_S - 1)},
            (False, "broker_unreachable"),
        ),
    ],
)
def test_readiness_from_the_status_file(changes: dict[str, object], expected: tuple[bool, str] | None) -> None:
    found = _status(**changes)
    answer = readiness_from_status(found, liveness(found, 60))
    assert expected == (answer and (answer.ok, answer.state))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (PingOutcome.ANSWERED, (True, "ready")),
        (PingOutcome.TIMEOUT, (False, "not_answering")),
        (PingOutcome.BLOCKED, (True, "broker_alarm")),
        (PingOutcome.UNREACHABLE, (False, "broker_unreachable")),
        (PingOutcome.REFUSED, (False, "broker_refused")),
    ],
)
def test_readiness_from_a_ping(outcome: PingOutcome, expected: tuple[bool, str]) -> None:
    answer = readiness_from_ping(_status(), PingResult(outcome, 0.1))
    assert expected == (answer.ok, answer.state)


@pytest.mark.parametrize(
    ("silent_s", "expected"),
    [
        (SILENT_S - 30, (True, "ready")),
        (SILENT_S + 1, (False, "broker_refused")),
        (None, (False, "broker_refused")),
    ],
)
def test_a_worker_whose_broker_refuses_the_probe_is_judged_by_its_open_connection(
    silent_s: float | None, expected: tuple[bool, str]
) -> None:
    last_contact_at = None if silent_s is None else monotonic() - silent_s
    found = _status(link=replace(LINK, last_contact_at=last_contact_at))
    answer = readiness_from_ping(found, PingResult(PingOutcome.REFUSED, 0.1, "ACCESS_REFUSED"))
    assert expected == (answer.ok, answer.state)
    assert "ACCESS_REFUSED; it would refuse a new connection of w@h as well" in answer.reason


def test_a_stall_takes_two_probes_with_nothing_received_between() -> None:
    now = monotonic()
    watch = StallDetector(stall_s=60)
    quiet = _status(last_received_at=now - 61, pool=Pool("prefork", 2))
    assert watch.suspects(quiet)
    assert not watch.suspects(_status(last_received_at=now - 61, pool=Pool("prefork", 2, 2, 2)))
    assert not watch.suspects(_status(last_received_at=now - 59, pool=Pool("prefork", 2)))
    # what waits for its rate limit holds the prefetch
    assert not watch.suspects(_status(last_received_at=now - 61, pool=Pool("prefork", 2, rate_limited=1)))
    # as long as it has not been up for so long itself
    assert not watch.suspects(_status(last_received_at=None, phase_entered_at=now - 59, pool=Pool("prefork", 2)))
    assert not watch.is_stalled(quiet, waiting=3)
    assert watch.needs_confirmation
    watch.confirm_s = 0
    assert watch.is_stalled(quiet, waiting=3)
    assert not watch.is_stalled(replace(quiet, last_received_at=now), waiting=3)
    assert not watch.is_stalled(quiet, waiting=0)


def test_no_status_file_and_no_name(tmp_path: Path) -> None:
    found = find_status(tmp_path, "")
    assert isinstance(found, ProbeResult)
    assert ("no_worker", str(tmp_path)) == (found.state, found.reason.split()[-2])
    assert "w@h has not written" in liveness(find_status(tmp_path, "w@h"), 60).reason


def test_the_only_living_worker_is_taken_and_two_are_ambiguous(tmp_path: Path) -> None:
    for node, phase in (("a@h", WorkerPhase.STOPPED), ("b@h", WorkerPhase.RUNNING)):
        path_of(tmp_path, node).write_text(_status(node=node, phase=phase).to_json())
    found = find_status(tmp_path, "")
    assert isinstance(found, WorkerStatus)
    assert found.node == "b@h"
    path_of(tmp_path, "c@h").write_text(_status(node="c@h").to_json())
    both = find_status(tmp_path, "")
    assert isinstance(both, ProbeResult)
    assert both.state == "ambiguous"
    assert "b@h, c@h" in both.reason


_GONE = replace(this_process(), start_ticks="1")
_BUSY = Pool("solo", 1, active=1, reserved=1, longest_running=Task("shop.render", "1", 0, None))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {}, "ambiguous"),
        # it may be the one that is meant
        ({"process": _GONE}, {}, "ambiguous"),
        ({}, {"process": _GONE}, "ambiguous"),
        ({"process": _GONE}, {"process": _GONE}, "gone"),
        # it has ended by itself, makes way, or is from before the machine's last start
        ({"process": _GONE, "phase": WorkerPhase.STOPPED}, {}, "running"),
        ({"phase": WorkerPhase.STOPPING}, {}, "running"),
        # it was killed when it took too long
        ({"process": _GONE, "phase": WorkerPhase.STOPPING}, {}, "running"),
        ({"process": replace(_GONE, boot_id="another")}, {}, "running"),
    ],
)
def test_two_processes_of_one_name_do_not_answer_for_each_other(
    tmp_path: Path, first: dict[str, object], second: dict[str, object], expected: str
) -> None:
    for number, changes in enumerate((first, second), start=1):
        path_of(tmp_path, "w@h", number).write_text(_status(**changes).to_json())
    path_of(tmp_path, "w@h+2+more").write_text(_status(node="w@h+2+more").to_json())
    answer = liveness(find_status(tmp_path, "w@h"), 60)
    assert expected == answer.state
    assert answer.ok is (expected == "running")
    if expected == "ambiguous":
        assert "several processes of the name w@h have a status file" in answer.reason
        assert "celery worker -n" in answer.reason


def test_the_status_file_of_a_killed_container_does_not_count(tmp_path: Path) -> None:
    """In a directory that containers share, one that was killed cannot be told from a living one but by its age."""
    other = replace(this_process(), pid_namespace="pid:[1]")
    path_of(tmp_path, "old@h").write_text(_status(node="old@h", process=other, written_at=monotonic() - 61).to_json())
    path_of(tmp_path, "new@h").write_text(_status(node="new@h").to_json())
    found = find_status(tmp_path, "")
    assert isinstance(found, WorkerStatus)
    assert found.node == "new@h"


@pytest.mark.parametrize("changes", [{"pool": _BUSY}, {"phase": WorkerPhase.STOPPING}], ids=["busy", "stopping"])
def test_a_killed_worker_of_another_container_is_gone_however_old_its_file_may_be(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """Its process ids mean nothing here; the kernel knows whether one still holds the place of the file."""
    process = replace(this_process(), pid=1, start_ticks="1", pid_namespace="pid:[1]")
    written = _status(process=process, written_at=monotonic() - 3000, **changes)
    reads, writes = os.pipe()
    worker = os.fork()
    if not worker:
        StatusPlace.claim(tmp_path, written.node).write(written.to_json())
        os.write(writes, b"x")
        signal.pause()
    try:
        os.read(reads, 1)
        assert liveness(find_status(tmp_path, written.node), 60).ok
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    found = liveness(find_status(tmp_path, written.node), 60)
    assert (found.ok, found.state) == (False, "gone")


def test_an_unreadable_status_file_is_not_a_missing_one(tmp_path: Path) -> None:
    path_of(tmp_path, "w@h").write_text("of another version")
    found = find_status(tmp_path, "")
    assert isinstance(found, ProbeResult)
    assert found.state == "status_unreadable"


def test_a_worker_that_cannot_be_asked_is_judged_by_its_status() -> None:
    for link in (replace(LINK, can_be_pinged=False), replace(LINK, write_url="amqp://h")):
        found = _status(link=replace(link, last_contact_at=monotonic()))
        answer = readiness_from_status(found, liveness(found, 60))
        assert answer is not None
        assert (answer.ok, answer.state) == (True, "ready")


def test_a_node_is_named_as_celery_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "web1.example.org")
    for name, node in (
        ("w", "celery@w"),
        ("w@%h", "w@web1.example.org"),
        ("w@%n.%d", "w@web1.example.org"),
        ("%%w@x", "%w@x"),
    ):
        path_of(tmp_path, node).write_text(_status(node=node).to_json())
        found = find_status(tmp_path, name)
        assert isinstance(found, WorkerStatus)
        assert node == found.node


def test_counts_survive_the_process_that_made_them() -> None:
    counts = TaskCounters(["shop.render", "shop.mail"])
    for _ in range(3):
        child = os.fork()
        if not child:
            for _ in range(1000):
                counts.add("shop.render", "succeeded")
            counts.add("unknown.task", "failed")
            os._exit(0)
        os.waitpid(child, 0)
    found = counts.totals(2)
    assert {"shop.render", OTHER} == set(found)
    assert found["shop.render"]["succeeded"] == 3000
    assert found[OTHER]["failed"] == 3


def test_counted_tasks_keep_their_order_and_what_is_counted_its_number() -> None:
    """So what has series of its own keeps them, and an idle worker need not count again."""
    counts = TaskCounters(["a", "b", "c"])
    assert counts.changes(1) == 0
    for name, order in (("c", ["c"]), ("a", ["c", "a"]), ("b", ["c", "a", "b"])):
        before = counts.changes(1)
        counts.add(name, "received")
        assert before < counts.changes(1) == counts.changes(1)
        assert order == list(counts.totals(1))


def test_durations_of_all_processes_are_counted_in_buckets() -> None:
    counts = TaskCounters(["shop.render", "shop.mail"])
    for _ in range(2):
        child = os.fork()
        if not child:
            # on a bound, which belongs to its bucket; below the first; beyond the last
            for seconds in (0.25, 0, -1, 7200.5):
                counts.observe("shop.render", TaskDuration.RUNTIME, seconds)
            os._exit(0)
        os.waitpid(child, 0)
    counts.observe("not.registered", TaskDuration.QUEUE_WAIT, 3)
    counts.add("shop.render", "succeeded")
    found = counts.histograms(2)
    assert {TaskDuration.RUNTIME: {"shop.render"}, TaskDuration.QUEUE_WAIT: {OTHER}} == {
        kind: set(tasks) for kind, tasks in found.items()
    }
    *counted, beyond, sum_s = found[TaskDuration.RUNTIME]["shop.render"]
    bounds = task_outcomes.BUCKETS_S[TaskDuration.RUNTIME]
    assert {bounds[0]: 4, 0.25: 2} == {bound: count for bound, count in zip(bounds, counted, strict=True) if count}
    assert beyond == 2
    assert pytest.approx(sum_s) == 2 * 7200.75
    assert found[TaskDuration.QUEUE_WAIT][OTHER][:2] == [0, 1]
    counts.observe("not.registered", TaskDuration.QUEUE_WAIT, 3)
    assert counts.histograms(2)[TaskDuration.QUEUE_WAIT][OTHER][:2] == [0, 2]
    assert {name: found["succeeded"] for name, found in counts.totals(2).items()} == {"shop.render": 1}


def test_every_outcome_and_every_event_of_a_guard_is_a_metric() -> None:
    assert {event.value for event in GuardEvent} == {outcome.value for outcome in task_outcomes.GUARD_OUTCOMES}
    assert set(TaskOutcome) == set(TASK_COUNTERS)
    assert set(TaskDuration) == set(task_outcomes.BUCKETS_S) == set(TASK_HISTOGRAMS)


@pytest.mark.parametrize(("most", "shown"), [(3, {"a", "b", "c"}), (2, {"a", "c", OTHER}), (0, {OTHER})])
def test_further_tasks_share_their_series(most: int, shown: set[str]) -> None:
    """Those that were seen first have their own; nothing is lost from a sum."""
    status = _status(
        counts={name: {"received": number, "failed": 1} for number, name in enumerate(("c", "a", "b"), start=1)},
        histograms={"queue_wait": {"a": [1.0] * 11, "b": [2.0] * 11}, "runtime": {}},
        costs={"b": {"spent": 5_000_000}},
    )
    seen = Snapshot(monotonic(), status, ProbeResult(ok=True, state=WorkerState.RUNNING, reason=""))
    text = Metrics(most_tasks=most).render(seen, ()).decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]

    def values(name: str) -> dict[str, float]:
        return {one.labels["task"]: one.value for one in samples if one.name == name}

    assert shown == set(values("repot_tasks_received_total"))
    assert sum(values("repot_tasks_received_total").values()) == 6
    assert sum(values("repot_tasks_failed_total").values()) == 3
    assert sum(values("repot_task_queue_wait_seconds_count").values()) == 30
    assert sum(values("repot_task_queue_wait_seconds_sum").values()) == 3
    assert {"b" if "b" in shown else OTHER: 5} == values("repot_task_cost_total")


def test_a_task_has_as_many_series_as_the_page_says() -> None:
    # of a histogram: one more bucket, the count and the sum
    histograms = sum(len(bounds) + 3 for bounds in task_outcomes.BUCKETS_S.values())
    page = " ".join((Path(__file__).parents[2] / "docs" / "healthcheck.md").read_text().split())
    counters = len(TASK_COUNTERS)
    found = f"A task has {counters + histograms} series: {counters} of counters and {histograms} of the two histograms"
    assert found in page


def test_every_metric_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "healthcheck.md").read_text()
    gauges = {gauge.name for gauge in (*GAUGES, *QUEUE_GAUGES, *BROKER_GAUGES)}
    counters = {f"{name}_total" for name, _ in TASK_COUNTERS.values()}
    histograms = {name for name, _ in TASK_HISTOGRAMS.values()}
    assert set() == {name for name in gauges | counters | histograms if f"`{name}`" not in page}


def test_histograms_are_those_of_prometheus() -> None:
    """Buckets count what is below as well, and the last is the count of all."""
    bounds = task_outcomes.BUCKETS_S[TaskDuration.RUNTIME]
    counted = [0.0] * (len(bounds) + 2)
    counted[bounds.index(0.25)], counted[-2], counted[-1] = 3, 1, 7201.5
    seen = Snapshot(
        monotonic(),
        _status(histograms={TaskDuration.RUNTIME: {"shop.render": counted}}),
        ProbeResult(ok=True, state=WorkerState.RUNNING, reason=""),
    )
    families = {one.name: one for one in text_string_to_metric_families(Metrics().render(seen, ()).decode())}
    found = {(one.name, one.labels.get("le")): one.value for one in families["repot_task_runtime_seconds"].samples}
    name = "repot_task_runtime_seconds"
    assert tuple(found[f"{name}_bucket", bound] for bound in ("0.1", "0.25", "7200.0", "+Inf")) == (0, 3, 3, 4)
    assert (found[f"{name}_count", None], found[f"{name}_sum", None]) == (4, 7201.5)


def test_errors_of_connections_are_a_metric_before_the_first() -> None:
    for errors in ({}, {"TimeoutError": 2}):
        seen = Snapshot(
            monotonic(),
            _status(link=replace(LINK, connection_errors=errors)),
            ProbeResult(ok=True, state=WorkerState.RUNNING, reason=""),
        )
        families = {one.name: one for one in text_string_to_metric_families(Metrics().render(seen, ()).decode())}
        found = {one.labels["error"]: one.value for one in families["repot_broker_connection_errors"].samples}
        assert {OTHER: 0} | errors == found


@pytest.mark.parametrize(("age_s", "is_known"), [(1, True), (300, False)])
def test_the_last_contact_is_unknown_while_the_worker_does_not_look(age_s: float, is_known: bool) -> None:
    """A solo worker in its task writes nothing, and the age would be that of the task."""
    at = monotonic() - age_s
    status = _status(written_at=at, link=replace(LINK, last_contact_at=at))
    seen = Snapshot(monotonic(), status, ProbeResult(ok=True, state=WorkerState.BUSY, reason=""))
    assert is_known == (b"repot_broker_last_contact_age_seconds{" in Metrics().render(seen, ()))


def test_the_probe_reads_its_few_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(getattr(probe_settings(), name) for name in ("status_dir", "node", "status_timeout_s")) == (
        None,
        "",
        90,
    )
    monkeypatch.setenv("worker_status_dir", "/p")
    monkeypatch.setenv("HEALTHCHECK_NODE", "w@%h")
    monkeypatch.setenv("HEALTHCHECK_STATUS_TIMEOUT", "70")
    found = probe_settings()
    assert (Path("/p"), "w@%h", 70) == (found.status_dir, found.node, found.status_timeout_s)
    for wrong in ("soon", "0", "-1", "nan", "inf", "59"):
        monkeypatch.setenv("HEALTHCHECK_STATUS_TIMEOUT", wrong)
        with pytest.raises(ConfigInvalid, match="HEALTHCHECK_STATUS_TIMEOUT"):
            probe_settings()


def test_the_default_directory_belongs_to_one_application(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two that run under one user must not answer for each other; the password may change."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def directory(app: str, broker: str) -> Path:
        monkeypatch.setenv("WORKER_APP", app)
        monkeypatch.setenv("WORKER_BROKER_URL", broker)
        return status_file.default_dir()

    mine = directory("shop", "redis://u:one@h/0; redis://u:one@h2/0")
    assert mine.parent == tmp_path
    assert mine == directory("shop", "redis://u:two@h/0;redis://u:two@h2/0")
    others = {directory("shop", "redis://h/1"), directory("blog", "redis://h/0")}
    assert len(others | {mine}) == 3
    answer = find_status(None, "")
    assert isinstance(answer, ProbeResult)
    assert f"no worker has written a status file to {status_file.default_dir()} yet" == answer.reason
    mine.mkdir()
    status_file.path_of(mine, "celery@h").write_text("{}")
    answer = find_status(None, "")
    assert isinstance(answer, ProbeResult)
    assert f"workers with other settings have theirs in {mine}" in answer.reason
    assert answer.state == "no_worker"


def test_a_worker_without_a_place_for_its_file_starts_without_one() -> None:
    """As with a file system that is read-only; Celery makes each step before it asks whether to include it."""
    consumer: Any = SimpleNamespace(controller=SimpleNamespace())
    assert not StatusStep(consumer).include_if(consumer)
