"""Alerts by Prometheus' own tool: raised once, and silent about what is right."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from repot.rollout.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

ALERTS = Path(__file__).parents[2] / "compose" / "prometheus" / "alerts.yml"

NOW_MINUTES = 65
#: From the beginning, for the last five minutes, and since this minute, as promtool's tests write samples.
ALWAYS, LATELY, JUST = "1x90", "_x60 1x30", "_x65 1x20"
#: Until five minutes ago, and until this minute.
GONE, JUST_GONE = "1x59 stale", "1x63 stale"
#: The same for what is 0 then.
NOT_UP = {ALWAYS: "0x90", LATELY: "1x59 0x30", JUST: "1x64 0x20"}


@dataclass(frozen=True, slots=True)
class Case:
    """An alert, with series that raise it and such that do not.

    Attributes:
        labels: of the alert.
        filled: what Prometheus fills into its texts.
        sources: the labels of those that are scraped, which have the same series unless a series names one.
    """

    labels: Mapping[str, str]
    filled: Mapping[str, str]
    raising: list[dict[str, str]]
    quiet: list[dict[str, str]]
    sources: tuple[str, ...] = field(default=("node='w1'", "node='w2'"))


FRIDAY = {"rollout": "friday"}
UP, CHANGED = (
    "repot_rollout_controller_up{rollout='friday'}",
    "repot_rollout_changed_timestamp_seconds{rollout='friday'}",
)
OVER = (Phase.DONE, Phase.ABORTED)
EMPTYING = (Phase.DRAIN, Phase.ABORT)
NAMED = {"{{ $labels.rollout }}": "friday"}


def in_phase(phase: str, since: str = ALWAYS) -> dict[str, str]:
    """Series of a rollout."""
    return {f"repot_rollout_phase{{rollout='friday', phase='{phase}'}}": since}


RELAYS = ("job='relay', namespace='shop', instance='r1'", "job='relay', namespace='shop', instance='r2'")
OUTBOX = {"job": "relay", "namespace": "shop"}


def relays(name: str, first: str, second: str) -> dict[str, str]:
    """Series of two relays."""
    values = zip(RELAYS, (first, second), strict=True)
    return {f"repot_outbox_{name}{{{source}}}": samples for source, samples in values if samples}


def outbox_case(
    filled: Mapping[str, str],
    raising: list[dict[str, str]],
    quiet: list[dict[str, str]],
    **labels: str,
) -> Case:
    """An alert of the outbox, whose series name their relay."""
    return Case({**OUTBOX, **labels}, filled, raising, quiet, sources=("",))


def waiting(seconds: int, minutes: int) -> dict[str, str]:
    """The age that both relays state for so long."""
    samples = f"_x{NOW_MINUTES - minutes} {seconds}x{minutes + 5}"
    return relays("oldest_age_seconds", samples, samples)


#: A worker, and what Prometheus fills in for it.
W1 = {"node": "w1", "instance": "i1"}
NAMED_NODE = {"{{ $labels.node }}": "w1"}


def series(name: str, *, where: str = "node='w1', instance='i1'", **labels: str) -> str:
    """The name of a series of a worker."""
    all_labels = ", ".join([where, *(f"{label}='{value}'" for label, value in labels.items())])
    return f"{name}{{{all_labels}}}"


def counted(task: str, started: str, *, name: str = "repot_tasks_redelivered_total") -> dict[str, str]:
    """A counter of a task, and when its worker started, by minutes."""
    return {series(name, task="shop.pay"): task, series("repot_worker_start_time_seconds"): started}


QUEUE = {"broker": "amqp://b", "queue": "mail"}


def queue(name: str, kind: str = "tasks", of: str = "mail", instance: str = "i1") -> str:
    """The name of a series of a queue."""
    return series(name, where=f"instance='{instance}'", broker="amqp://b", queue=of, kind=kind)


READY, CONSUMED = "repot_queue_messages_ready", "repot_queue_consumed"
OLDEST = "repot_queue_oldest_message_age_seconds"
ACTIVE = "repot_worker_tasks_active"
RECEIVED = series("repot_tasks_received_total", task="shop.pay")
WAITING = {queue(READY): "5x90"}

CASES: dict[str, Case] = {
    "WorkerNotReady": Case(
        W1,
        NAMED_NODE,
        [{series("repot_worker_up"): "1x90", series("repot_worker_ready"): "0x90"}],
        [
            {series("repot_worker_up"): "1x90", series("repot_worker_ready"): "1x90"},
            {series("repot_worker_up"): "1x90", series("repot_worker_ready"): "1x63 0x20"},
            # it finishes its tasks, which may take hours
            {
                series("repot_worker_up"): "1x90",
                series("repot_worker_ready"): "0x90",
                series("repot_worker_state", state="stopping"): "1x90",
            },
        ],
        sources=("",),
    ),
    "TasksRedelivered": Case(
        {**W1, "task": "shop.pay"},
        {**NAMED_NODE, "{{ $labels.task }}": "shop.pay"},
        [
            counted("1x60 2x30", "0x90"),
            counted("_x60 1x30", "0x90"),
            # the worker died of the message, and its successor has it now
            counted("1x60 1x30", "0x60 3660x30"),
            counted("1x58 _x2 1x30", "0x58 _x2 3660x30"),
        ],
        [counted("1x90", "0x90"), counted("0x90", "0x60 3660x30"), counted("1x20 1x70", "0x20 1260x70")],
        sources=("",),
    ),
    "NothingConsumed": Case(
        QUEUE,
        {"{{ $value }}": "5", "{{ $labels.queue }}": "mail", "{{ $labels.broker }}": "amqp://b"},
        [
            WAITING,
            # work elsewhere, as on the new broker
            WAITING | {queue(CONSUMED): "0x90", series(ACTIVE): "2x90", RECEIVED: "0+1x90"},
            WAITING | {queue(CONSUMED, of="other"): "1x90", queue(CONSUMED): "0x90", RECEIVED: "0+1x90"},
            WAITING | {queue(CONSUMED, instance="i2"): "1x90", RECEIVED: "0+1x90"},
            # who consumes it gets nothing
            WAITING | {queue(CONSUMED): "1x90", series(ACTIVE): "0x90", RECEIVED: "7x90"},
        ],
        [
            {queue(READY): "0x90"},
            {queue(READY, "dead_letters"): "5x90"},
            WAITING | {queue(CONSUMED): "1x90", series(ACTIVE): "2x90", RECEIVED: "7x90"},
            WAITING | {queue(CONSUMED): "1x90", series(ACTIVE): "0x90", RECEIVED: "0+1x90"},
            # workers that are not scraped take them
            {queue(READY): "100-1x90"},
        ],
        sources=("",),
    ),
    "QueueWaits": Case(
        QUEUE,
        {
            "{{ $value | humanizeDuration }}": "16m 40s",
            "{{ $labels.queue }}": "mail",
            "{{ $labels.broker }}": "amqp://b",
        },
        [{queue(OLDEST): "1000x90"}],
        [{queue(OLDEST): "800x90"}, {queue(OLDEST, "dead_letters"): "1000x90"}],
        sources=("",),
    ),
    "DeadLetters": Case(
        QUEUE | {"queue": "failed"},
        {"{{ $value }}": "2", "{{ $labels.queue }}": "failed"},
        [{queue(READY, "dead_letters", "failed"): "2x90"}],
        [{queue(READY, "dead_letters", "failed"): "0x90"}, {queue(READY, of="orders.dead"): "2x90"}],
        sources=("",),
    ),
    "RolloutWaitsForPerson": Case(
        FRIDAY,
        NAMED,
        [in_phase("paused", LATELY)],
        [in_phase("paused", JUST), *(in_phase(one) for one in Phase if one is not Phase.PAUSED)],
    ),
    "RolloutAborted": Case(
        FRIDAY,
        NAMED,
        [in_phase("abort", JUST), in_phase("aborted", JUST)],
        [in_phase(one) for one in Phase if one not in (Phase.ABORT, Phase.ABORTED)],
    ),
    "RolloutWithoutController": Case(
        FRIDAY,
        NAMED,
        [in_phase(one) | {UP: NOT_UP[LATELY]} for one in Phase if one not in OVER],
        [
            *(in_phase(one) | {UP: NOT_UP[ALWAYS]} for one in OVER),
            *(in_phase(one) | {UP: ALWAYS} for one in Phase),
            in_phase("canary") | {UP: NOT_UP[JUST]},
        ],
    ),
    "RolloutStandsStill": Case(
        FRIDAY,
        NAMED | {"{{ $value | humanizeDuration }}": "1h 5m 0s"},
        [in_phase(one) | {CHANGED: "0x90"} for one in EMPTYING],
        [
            *(in_phase(one) | {CHANGED: "0x90"} for one in Phase if one not in EMPTYING),
            # it began to become empty 55 minutes ago
            *(in_phase(one) | {CHANGED: f"{(NOW_MINUTES - 55) * 60}x90"} for one in EMPTYING),
        ],
    ),
    "OutboxWithoutRelay": outbox_case(
        {},
        [
            relays("relay_active", NOT_UP[ALWAYS], NOT_UP[ALWAYS]),
            relays("relay_active", NOT_UP[LATELY], NOT_UP[ALWAYS]),
            # nothing is scraped any more
            relays("relay_active", GONE, ""),
            relays("relay_active", GONE, NOT_UP[ALWAYS]),
        ],
        [
            {},
            relays("relay_active", ALWAYS, NOT_UP[ALWAYS]),
            # the other one took over
            relays("relay_active", NOT_UP[LATELY], "0x59 1x30"),
            relays("relay_active", GONE, "0x59 1x30"),
            relays("relay_active", NOT_UP[JUST], NOT_UP[ALWAYS]),
            relays("relay_active", JUST_GONE, ""),
        ],
    ),
    "OutboxRelayNotReady": outbox_case(
        {"{{ $labels.instance }}": "r1"},
        [relays("relay_ready", NOT_UP[ALWAYS], ALWAYS)],
        [{}, relays("relay_ready", ALWAYS, ALWAYS), relays("relay_ready", NOT_UP[JUST], ALWAYS)],
        instance="r1",
    ),
    "OutboxWaits": outbox_case(
        {"{{ $value | humanizeDuration }}": "6m 40s"},
        [waiting(400, minutes=5)],
        [{}, waiting(400, minutes=0), waiting(300, minutes=60), waiting(0, minutes=60)],
    ),
    "OutboxParked": outbox_case(
        {"{{ $value }}": "2"},
        [{f"repot_outbox_depth{{{one}, state='parked'}}": "2x90" for one in RELAYS}],
        [
            {},
            {
                f"repot_outbox_depth{{{one}, state='{state}'}}": f"{number}x90"
                for one in RELAYS
                for state, number in (("parked", 0), ("waiting", 7), ("delayed", 9))
            },
        ],
    ),
}


def _expected(alert: str, case: Case) -> dict[str, Any]:
    """Return the alert as promtool expects it."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rule = next(one for group in groups for one in group["rules"] if one.get("alert") == alert)
    filled = {**case.filled, "{{ $externalLabels.repot_docs }}": "https://docs.example"}
    annotations = {}
    for name, text in rule["annotations"].items():
        annotations[name] = reduce(lambda said, one: said.replace(*one), filled.items(), text)
    return {"exp_labels": {**case.labels, **rule["labels"]}, "exp_annotations": annotations}


def _with(series: str, source: str) -> str:
    return f"{series[:-1]}, {source}}}" if source else series


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_is_raised_once_and_else_silent(alert: str, tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path / "alerts.yml")
    case = CASES[alert]
    cases = [*((one, [_expected(alert, case)]) for one in case.raising), *((one, []) for one in case.quiet)]
    test = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "name": str(series),
                "interval": "1m",
                "external_labels": {"repot_docs": "https://docs.example"},
                "input_series": [
                    {"series": _with(name, source), "values": values}
                    for name, values in series.items()
                    for source in case.sources
                ],
                "alert_rule_test": [{"eval_time": f"{NOW_MINUTES}m", "alertname": alert, "exp_alerts": expected}],
            }
            for series, expected in cases
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(test))
    promtool = shutil.which("promtool")
    assert promtool, "install it: scripts/setup prometheus"
    ended = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_alert_on_rollouts_and_the_outbox_has_a_case() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    named = {one["alert"] for group in groups if group["name"] in ("rollouts", "outbox") for one in group["rules"]}
    assert named <= {*CASES}
