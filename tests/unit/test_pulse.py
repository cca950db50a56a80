"""The pulse as a file, and what probes make of it without a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
from prometheus_client.parser import text_string_to_metric_families

from repot.config.probe import probe_settings
from repot.errors import ConfigInvalid, PulseUnreadable
from repot.healthcheck import metrics
from repot.healthcheck.answer import Answer
from repot.healthcheck.inquiry import Heard, Outcome
from repot.healthcheck.liveness import find_pulse, liveness
from repot.healthcheck.metrics import Metrics
from repot.healthcheck.readiness import SILENT_S, StallWatch, after_asking, without_asking
from repot.healthcheck.watch import Look
from repot.idempotency import events
from repot.worker import outcomes, pulse
from repot.worker.counts import Counts
from repot.worker.outcomes import OTHER, QUEUE_WAIT, RUNTIME
from repot.worker.pulse import (
    CONNECTING,
    PAST_LIMIT_S,
    RUNNING,
    STARTING,
    STOPPED,
    STOPPING,
    Link,
    Pool,
    Pulse,
    Task,
    nodes,
    path_of,
    read,
    this_process,
)

LINK = Link("redis://h/0", "redis://h/0", "celery", {"visibility_timeout": 5}, queues=("q",))


def _pulse(**changes: object) -> Pulse:
    now = monotonic()
    task = Task("shop.render", "1", now - 5, now + 5)
    found = Pulse(
        node="w@h",
        process=this_process(),
        beat=now,
        phase=RUNNING,
        since=now - 100,
        stop="",
        started_at=now - 100,
        last_received=now - 5,
        last_wait_s=0.5,
        pool=Pool("prefork", 2, active=1, reserved=1, oldest=task, overdue=task),
        link=LINK,
        counts={"shop.render": {"received": 1}},
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_pulse_comes_back_as_it_was_written(tmp_path: Path) -> None:
    found = _pulse()
    path_of(tmp_path, found.node).write_text(found.written())
    assert found == read(path_of(tmp_path, found.node))


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
        _pulse().written().replace('"beat": ', '"beat": "x", "old": '),
        _pulse(beat=float("nan")).written(),
        _pulse(process=replace(this_process(), pid="one")).written(),  # type: ignore[arg-type]
    ],
    ids=[f"text {number}" for number in range(11)],
)
def test_what_is_no_pulse_is_said_and_not_taken_for_none(tmp_path: Path, text: str) -> None:
    path = path_of(tmp_path, "w@h")
    path.write_text(text)
    with pytest.raises(PulseUnreadable):
        read(path)
    assert "pulse_unreadable" == liveness(find_pulse(tmp_path, "w@h"), 60).state


def test_a_name_stays_in_its_folder_and_is_found_there(tmp_path: Path) -> None:
    names = ["../../etc/w@h", ".hidden@h", "..@h", "a/b@h", "a_b@h"]
    assert len(names) == len({path_of(tmp_path, name) for name in names})
    for name in names:
        assert tmp_path == path_of(tmp_path, name).parent
        path_of(tmp_path, name).write_text(_pulse(node=name).written())
        found = find_pulse(tmp_path, name)
        assert isinstance(found, Pulse)
        assert name == found.node
    assert sorted(names) == nodes(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (True, RUNNING)),
        ({"beat": monotonic() - 61}, (False, "frozen")),
        ({"phase": STOPPED}, (False, "gone")),
        ({"phase": STOPPING, "stop": "soft", "beat": monotonic() - 1000}, (True, STOPPING)),
        ({"phase": CONNECTING}, (True, CONNECTING)),
        ({"beat": monotonic() + 1000}, (False, "gone")),
        ({"process": replace(this_process(), started="1")}, (False, "gone")),
        ({"process": replace(this_process(), boot="another")}, (False, "gone")),
        # of another container, whose process ids mean nothing here: its beat has to do
        ({"process": replace(this_process(), pid=1, started="1", namespace="pid:[1]")}, (True, RUNNING)),
        (
            {"process": replace(this_process(), namespace="pid:[1]"), "beat": monotonic() - 61},
            (False, "frozen"),
        ),
    ],
)
def test_liveness(changes: dict[str, object], expected: tuple[bool, str]) -> None:
    found = liveness(_pulse(**changes), 60)
    assert expected == (found.ok, found.state)


def test_a_process_that_is_gone_is_not_alive() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    process = replace(this_process(), pid=child)
    assert "gone" == liveness(_pulse(process=process), 60).state
    os.waitpid(child, 0)
    assert "gone" == liveness(_pulse(process=process), 60).state


def test_a_blocked_solo_worker_is_busy_until_its_limit_is_long_over() -> None:
    now = monotonic()
    for deadline, expected in ((None, "busy"), (now - 1, "busy"), (now - PAST_LIMIT_S - 1, "pool_stuck")):
        task = Task("shop.render", "1", now - 500, deadline)
        pool = Pool("solo", 1, active=1, reserved=1, oldest=task, overdue=task if deadline else None)
        found = liveness(_pulse(pool=pool, beat=now - 500), 60)
        assert expected == found.state
        assert found.ok is (expected == "busy")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"phase": STARTING}, (False, STARTING)),
        ({"phase": STOPPING, "stop": "warm"}, (False, STOPPING)),
        ({"phase": CONNECTING}, (False, "broker_unreachable")),
        ({"phase": CONNECTING, "link": replace(LINK, refusal="ACCESS_REFUSED")}, (False, "broker_refused")),
        # while it consumes, what was once refused says nothing
        ({"link": replace(LINK, refusal="ACCESS_REFUSED")}, None),
        ({"link": replace(LINK, cancelled=("q",))}, (False, "not_consuming")),
        (
            {"pool": Pool("prefork", 2, 1, 1, overdue=Task("t", "1", 0, monotonic() - PAST_LIMIT_S - 1))},
            (False, "pool_stuck"),
        ),
        ({"pool": Pool("prefork", 2, 1, 1, overdue=Task("t", "1", 0, monotonic() + 1000))}, None),
        ({"pool": Pool("prefork", 2, dying_since=monotonic() - 60, deaths=3)}, (False, "pool_crash_loop")),
        # a process or two, and what has not lasted, are accidents; these are made long before the test
        ({"pool": Pool("prefork", 2, dying_since=monotonic() - 60, deaths=2)}, None),
        ({"pool": Pool("prefork", 2, dying_since=monotonic() + 1000, deaths=9)}, None),
        ({"pool": Pool("prefork", 2, 0, 1, idle_since=monotonic() - 61)}, (False, "pool_stuck")),
        ({"pool": Pool("prefork", 2, 0, 1, idle_since=monotonic() + 1000)}, None),
        ({"pool": Pool("prefork", 2, 1, 1, lost=Task("t", "1", monotonic() - 61, None))}, (False, "pool_stuck")),
        ({"pool": Pool("prefork", 2, 1, 1, lost=Task("t", "1", monotonic() + 1000, None))}, None),
        ({"link": replace(LINK, write_url="amqp://h", last_contact=monotonic() + 1000)}, (True, "ready")),
        ({"link": replace(LINK, write_url="amqp://h", last_contact=None)}, (True, "ready")),
        (
            {"link": replace(LINK, write_url="amqp://h", last_contact=monotonic() - SILENT_S - 1)},
            (False, "broker_unreachable"),
        ),
    ],
)
def test_readiness_that_the_pulse_knows(changes: dict[str, object], expected: tuple[bool, str] | None) -> None:
    found = _pulse(**changes)
    answer = without_asking(found, liveness(found, 60))
    assert expected == (answer and (answer.ok, answer.state))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.ANSWERED, (True, "ready")),
        (Outcome.SILENT, (False, "not_answering")),
        (Outcome.BLOCKED, (True, "broker_alarm")),
        (Outcome.UNREACHABLE, (False, "broker_unreachable")),
        (Outcome.REFUSED, (False, "broker_refused")),
    ],
)
def test_readiness_that_the_worker_knows(outcome: Outcome, expected: tuple[bool, str]) -> None:
    answer = after_asking(_pulse(), Heard(outcome, 0.1))
    assert expected == (answer.ok, answer.state)


def test_a_stall_takes_two_looks_with_nothing_received_between() -> None:
    now = monotonic()
    watch = StallWatch(stall_s=60)
    quiet = _pulse(last_received=now - 61, pool=Pool("prefork", 2))
    assert watch.suspects(quiet)
    assert not watch.suspects(_pulse(last_received=now - 61, pool=Pool("prefork", 2, 2, 2)))
    assert not watch.suspects(_pulse(last_received=now - 59, pool=Pool("prefork", 2)))
    # what waits for its rate limit holds the prefetch
    assert not watch.suspects(_pulse(last_received=now - 61, pool=Pool("prefork", 2, limited=1)))
    # as long as it has not been up for so long itself
    assert not watch.suspects(_pulse(last_received=None, since=now - 59, pool=Pool("prefork", 2)))
    assert not watch.is_stalled(quiet, waiting=3)
    assert watch.is_unsure
    watch.confirm_s = 0
    assert watch.is_stalled(quiet, waiting=3)
    assert not watch.is_stalled(replace(quiet, last_received=now), waiting=3)
    assert not watch.is_stalled(quiet, waiting=0)


def test_no_pulse_and_no_name(tmp_path: Path) -> None:
    found = find_pulse(tmp_path, "")
    assert isinstance(found, Answer)
    assert ("no_worker", str(tmp_path)) == (found.state, found.reason.split()[-2])
    assert "w@h has not beaten" in liveness(find_pulse(tmp_path, "w@h"), 60).reason


def test_the_one_that_lives_is_taken_and_two_are_too_many(tmp_path: Path) -> None:
    for node, phase in (("a@h", STOPPED), ("b@h", RUNNING)):
        path_of(tmp_path, node).write_text(_pulse(node=node, phase=phase).written())
    found = find_pulse(tmp_path, "")
    assert isinstance(found, Pulse)
    assert "b@h" == found.node
    path_of(tmp_path, "c@h").write_text(_pulse(node="c@h").written())
    both = find_pulse(tmp_path, "")
    assert isinstance(both, Answer)
    assert "ambiguous" == both.state
    assert "b@h, c@h" in both.reason


def test_what_a_killed_container_left_does_not_count(tmp_path: Path) -> None:
    """In a folder that containers share, one that was killed cannot be told from a living one but by its age."""
    other = replace(this_process(), namespace="pid:[1]")
    path_of(tmp_path, "old@h").write_text(_pulse(node="old@h", process=other, beat=monotonic() - 61).written())
    path_of(tmp_path, "new@h").write_text(_pulse(node="new@h").written())
    found = find_pulse(tmp_path, "")
    assert isinstance(found, Pulse)
    assert "new@h" == found.node


def test_a_pulse_that_cannot_be_read_is_not_none(tmp_path: Path) -> None:
    path_of(tmp_path, "w@h").write_text("of another version")
    found = find_pulse(tmp_path, "")
    assert isinstance(found, Answer)
    assert "pulse_unreadable" == found.state


def test_a_worker_that_cannot_be_asked_is_judged_by_its_pulse() -> None:
    for link in (replace(LINK, answers=False), replace(LINK, write_url="amqp://h")):
        found = _pulse(link=replace(link, last_contact=monotonic()))
        answer = without_asking(found, liveness(found, 60))
        assert answer is not None
        assert (True, "ready") == (answer.ok, answer.state)


def test_a_node_is_named_as_celery_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "web1.example.org")
    for name, node in (
        ("w", "celery@w"),
        ("w@%h", "w@web1.example.org"),
        ("w@%n.%d", "w@web1.example.org"),
        ("%%w@x", "%w@x"),
    ):
        path_of(tmp_path, node).write_text(_pulse(node=node).written())
        found = find_pulse(tmp_path, name)
        assert isinstance(found, Pulse)
        assert node == found.node


def test_counts_survive_the_process_that_made_them() -> None:
    counts = Counts(["shop.render", "shop.mail"])
    for _ in range(3):
        child = os.fork()
        if not child:
            for _ in range(1000):
                counts.add("shop.render", "succeeded")
            counts.add("nobody.knows", "failed")
            os._exit(0)
        os.waitpid(child, 0)
    found = counts.totals(2)
    assert {"shop.render", OTHER} == set(found)
    assert 3000 == found["shop.render"]["succeeded"]
    assert 3 == found[OTHER]["failed"]


def test_durations_of_all_processes_are_counted_in_buckets() -> None:
    counts = Counts(["shop.render", "shop.mail"])
    for _ in range(2):
        child = os.fork()
        if not child:
            # on a bound, which belongs to its bucket; below the first; beyond the last
            for seconds in (0.25, 0, -1, 7200.5):
                counts.observe("shop.render", RUNTIME, seconds)
            os._exit(0)
        os.waitpid(child, 0)
    counts.observe("not.registered", QUEUE_WAIT, 3)
    counts.add("shop.render", "succeeded")
    found = counts.histograms(2)
    assert {RUNTIME: {"shop.render"}, QUEUE_WAIT: {OTHER}} == {kind: set(tasks) for kind, tasks in found.items()}
    below, quarter, *between, beyond, sum_s = found[RUNTIME]["shop.render"]
    assert (4, 2, 0, 2) == (below, quarter, sum(between), beyond)
    assert 2 * 7200.75 == pytest.approx(sum_s)
    assert [0, 1] == found[QUEUE_WAIT][OTHER][:2]
    counts.observe("not.registered", QUEUE_WAIT, 3)
    assert [0, 2] == counts.histograms(2)[QUEUE_WAIT][OTHER][:2]
    assert {"shop.render": 1} == {name: found["succeeded"] for name, found in counts.totals(2).items()}


def test_every_outcome_and_every_event_of_a_guard_is_a_metric() -> None:
    assert set(events.EVENTS) == set(outcomes.GUARDED)
    assert set(outcomes.OUTCOMES) == set(metrics._OUTCOMES)
    assert set(outcomes.BUCKETS_S) == set(metrics._HISTOGRAMS)


def test_histograms_are_those_of_prometheus() -> None:
    """Buckets count what is below as well, and the last is the count of all."""
    counted = [0.0] * (len(outcomes.BUCKETS_S[RUNTIME]) + 2)
    counted[1], counted[-2], counted[-1] = 3, 1, 7201.5
    seen = Look(
        monotonic(), _pulse(histograms={RUNTIME: {"shop.render": counted}}), Answer(ok=True, state="", reason="")
    )
    families = {one.name: one for one in text_string_to_metric_families(Metrics().render(seen, ()).decode())}
    found = {(one.name, one.labels.get("le")): one.value for one in families["repot_task_runtime_seconds"].samples}
    name = "repot_task_runtime_seconds"
    assert (0, 3, 3, 4) == tuple(found[f"{name}_bucket", bound] for bound in ("0.05", "0.25", "7200.0", "+Inf"))
    assert (4, 7201.5) == (found[f"{name}_count", None], found[f"{name}_sum", None])


def test_errors_of_connections_are_a_metric_before_the_first() -> None:
    for errors in ({}, {"TimeoutError": 2}):
        seen = Look(monotonic(), _pulse(link=replace(LINK, connection_errors=errors)), Answer(True, "", ""))
        families = {one.name: one for one in text_string_to_metric_families(Metrics().render(seen, ()).decode())}
        found = {one.labels["error"]: one.value for one in families["repot_broker_connection_errors"].samples}
        assert {OTHER: 0} | errors == found


def test_the_probe_reads_its_few_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (None, "", 90) == tuple(getattr(probe_settings(), name) for name in ("folder", "node", "pulse_timeout_s"))
    monkeypatch.setenv("worker_pulse_folder", "/p")
    monkeypatch.setenv("HEALTHCHECK_NODE", "w@%h")
    monkeypatch.setenv("HEALTHCHECK_PULSE_TIMEOUT", "70")
    found = probe_settings()
    assert (Path("/p"), "w@%h", 70) == (found.folder, found.node, found.pulse_timeout_s)
    for wrong in ("soon", "0", "-1", "nan", "inf", "59"):
        monkeypatch.setenv("HEALTHCHECK_PULSE_TIMEOUT", wrong)
        with pytest.raises(ConfigInvalid, match="HEALTHCHECK_PULSE_TIMEOUT"):
            probe_settings()


def test_the_default_folder_is_one_applications(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two that run under one user must not answer for each other; the password may change."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def folder(app: str, broker: str) -> Path:
        monkeypatch.setenv("WORKER_APP", app)
        monkeypatch.setenv("WORKER_BROKER_URL", broker)
        return pulse.default_folder()

    mine = folder("shop", "redis://u:one@h/0; redis://u:one@h2/0")
    assert mine.parent == tmp_path
    assert mine == folder("shop", "redis://u:two@h/0;redis://u:two@h2/0")
    others = {folder("shop", "redis://h/1"), folder("blog", "redis://h/0")}
    assert len(others | {mine}) == 3
    answer = find_pulse(None, "")
    assert isinstance(answer, Answer)
    assert f"no worker has beaten in {pulse.default_folder()} yet" == answer.reason
    mine.mkdir()
    pulse.path_of(mine, "celery@h").write_text("{}")
    answer = find_pulse(None, "")
    assert isinstance(answer, Answer)
    assert f"with other settings, workers beat in {mine}" in answer.reason
    assert "no_worker" == answer.state


_EMBEDDED = """
import sys
from pathlib import Path
from threading import get_ident
from celery import Celery
from celery.contrib.testing.worker import start_worker
from repot.config import ExplicitSettings
from repot.worker.beating import Heart
from repot.worker.configure import configure

app = Celery("embedded")
addresses = {"broker_url": "memory://", "result_backend": "cache+memory://"}
configure(app, ExplicitSettings(**addresses, pulse_folder=Path(sys.argv[1])))
@app.task(name="nothing")
def nothing():
    pass
beaten = []
with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
    Heart.beat = lambda _: beaten.append(get_ident())
    nothing.apply()
nothing.apply()
print(beaten.count(get_ident()))
"""


def test_a_solo_worker_in_a_thread_beats_around_its_own_tasks_alone(tmp_path: Path) -> None:
    """As in an application's own tests, which run tasks eagerly beside such a worker, and after it."""
    command = [sys.executable, "-c", _EMBEDDED, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "0" == found.stdout.strip(), found.stderr
