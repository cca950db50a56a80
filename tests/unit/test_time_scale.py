"""A run shorter than an application's visibility timeout is shorter in an experiment, and a longer one is longer."""

from __future__ import annotations

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from repot.chaos.instruments.journal import ENDED, REACHED, RELEASED, STARTED, JournalEvent
from repot.chaos.runner.time_scale import RETRY_DELAY, TimeoutTooShort, TimeScale, counts_run_time
from repot.chaos.runner.verdict import run_time, task_history
from repot.chaos.scenarios.profiles import PROFILES, SCALED
from repot.errors import Inconclusive

LEAST = SCALED["visibility_timeout"]


def times(timeout: float | None, factor: float | None = None, profile: str = "redis-late") -> TimeScale:
    app = Celery("x", set_as_current=False)
    if timeout is not None:
        app.conf.broker_transport_options = {"visibility_timeout": timeout}
    return TimeScale.of(PROFILES[profile], app, factor)


def attempted(scale: TimeScale, run_s: float) -> TimeScale:
    """The times of the attempt in which a task could run for so long."""
    for _ in range(20):
        try:
            scale.require_room(run_s)
        except TimeoutTooShort as found:
            scale = scale.longer(found.run_s)
        else:
            return scale
    pytest.fail("it never ends")


@given(timeout=st.floats(1, 1e5), run_s=st.floats(0, 1e5))
def test_a_run_is_longer_than_the_timeout_where_it_is_in_the_application(timeout: float, run_s: float) -> None:
    found = attempted(times(timeout), run_s)
    # the room for delivery may be missing where the application has as little
    assert (run_s < timeout) == (run_s < found.timeout_s) or timeout - 1 <= run_s <= timeout + 1
    assert found.timeout_s <= timeout + 1


@pytest.mark.parametrize(
    ("timeout", "factor", "used"),
    [
        # kombu's default is an hour
        (None, None, LEAST),
        (3600, None, LEAST),
        (5, None, 5),
        (3600, 1, 3600),
        (3600, 100, 36),
        (3600, 1000, LEAST),
    ],
)
def test_the_timeout_of_the_workers(timeout: float | None, factor: float | None, used: float) -> None:
    found = times(timeout, factor)
    assert used == found.timeout_s
    assert found.factor == pytest.approx((timeout or 3600) / used)
    assert found.stretch == max(1, used / LEAST)
    assert (factor != 1) == found.is_scaled


@pytest.mark.parametrize("profile", ["redis-hardened", "amqp-quorum", "redis-stock", "amqp-stock"])
def test_times_that_the_broker_has_are_the_applications_own_without_a_scale(profile: str) -> None:
    real, default = times(None, 1, profile), times(None, None, profile)
    assert {name: real.used[name] for name in real.own} == dict(real.own)
    # shared tasks of other modules have a delay
    least = {**SCALED, **({RETRY_DELAY: 1} if RETRY_DELAY in default.own else {})}
    assert least == dict(default.used)
    assert {one.name for one in default.shown()} == {name for name in default.own if default.own[name] != least[name]}
    on_redis = profile.startswith("redis")
    assert on_redis == ("visibility_timeout" in default.own)
    assert on_redis == ("heartbeat" not in default.own)


def test_repots_own_task_has_the_times_of_the_table() -> None:
    assert TimeScale().used == SCALED
    assert (TimeScale().stretch, TimeScale().patience, TimeScale().settled_within_s) == (1, 1, 60)


def test_a_fault_that_comes_when_the_timeout_is_over_has_no_verdict() -> None:
    times(3600).require_in_time(6, "case")
    with pytest.raises(Inconclusive, match=r"inconclusive: case: the fault would come 7\.5 s after"):
        times(3600).require_in_time(7.5, "case")


@pytest.mark.parametrize(
    ("profile", "counts"),
    [("redis-stock", True), ("redis-brpop", True), ("redis-hardened", False), ("amqp-late", False)],
)
def test_where_a_visibility_timeout_counts(profile: str, *, counts: bool) -> None:
    """An atomic claim is renewed, and RabbitMQ has none."""
    known = PROFILES[profile]
    assert counts == counts_run_time(known.worker_settings(broker_url=f"{known.kind.scheme}://localhost"), known)


def test_the_time_at_a_failpoint_is_no_run_time() -> None:
    def event(at: float, kind: str, **details: object) -> JournalEvent:
        return JournalEvent(at, kind, "w", 1, "t", details)

    events = [event(0, STARTED), event(2, REACHED), event(12, RELEASED), event(15, ENDED, state="SUCCESS")]
    assert run_time(task_history("t", events), events, 99) == 5
    # it still waits
    assert run_time(task_history("t", events[:2]), events[:2], 99) == 2
    assert run_time(task_history("t", []), [], 99) == 0
