"""States of a rollout as `repot.rollout.snapshot` returns them, with their series, without brokers."""

from __future__ import annotations

from datetime import UTC, datetime
from math import sin
from typing import Any

#: 12:00 UTC.
BEGAN_AT = 1_795_780_800.0
STEPS = (0.01, 0.05, 0.25, 0.5, 1.0)
BAKE_S = 300.0
#: A long name without a blank, and one that is HTML.
LONG_TASK = "shop.warehouse.replenishment.forecasting.recalculate_everything_for_all_warehouses"
HTML_TASK = "shop.<img src=x onerror=alert(1)>"

_WHY_ABORTED = (
    "failed shop.charge: 41 of 130 roots on the target, 2 of 390 on the source; chance does not explain it "
    "(evidence 1.9e+23, needed 3.6e+05)"
)
_FIGURES = {"not_sent": 0, "redelivered": 0, "prevented": 0, "unknown_outcome": 0, "dead_lettered": 0}


def at(seconds: float) -> float:
    """Return the time so long after the rollout began."""
    return BEGAN_AT + seconds


def entry(seconds: float, phase: str, weight: float, why: str, who: str = "controller") -> dict[str, Any]:
    """Return an entry of the history."""
    updated_at = datetime.fromtimestamp(at(seconds), UTC).isoformat(timespec="seconds")
    return {"phase": phase, "weight": weight, "who": who, "why": why, "updated_at": updated_at}


def figures(seconds: float, share: float, *, fails: float = 0.0, waits_s: float = 1.0) -> dict[str, Any]:
    """Return the figures of a side that has had this share of 100 tasks a second."""
    finished = round(seconds * share * 100)
    durations = {"runtime_p95_s": 0.25, "queue_wait_p95_s": waits_s} if finished else {}
    counts = {"sent": finished + 12, "finished": finished, "failed": round(finished * fails), "retried": finished // 90}
    depths = {"ready": round(30 * share * (2 + sin(seconds / 40))), "in_hand": round(8 * share), "delayed": 3}
    return depths | counts | _FIGURES | {"runtime_p95_s": None, "queue_wait_p95_s": None} | durations


def series(until: float, weights: dict[float, float], fails_from: float = 1e9) -> list[dict[str, Any]]:
    """Return points of every two seconds; `weights` has the target's share by the second from which it holds."""
    found: list[dict[str, Any]] = []
    done = {"source": 0.0, "target": 0.0}
    failed = 0.0
    for second in range(0, round(until) + 1, 2):
        weight = next((share for begin, share in reversed(weights.items()) if second >= begin), 0.0)
        done["target"] += 200 * weight
        done["source"] += 200 * (1 - weight)
        failed += 200 * weight * (0.3 if second >= fails_from else 0.004)
        sides = {}
        for side, share in (("source", 1 - weight), ("target", weight)):
            one = figures(second, share, waits_s=5.0 if side == "source" and second > 400 else 1.0)
            one |= {"finished": round(done[side]), "failed": round(failed if side == "target" else done[side] * 0.004)}
            one |= {"sent": one["finished"] + 12, "retried": round(done[side] * 0.01)}
            if not done[side]:
                one |= {"runtime_p95_s": None, "queue_wait_p95_s": None}
            sides[side] = one
        if 300 <= second <= 330:
            # the target's broker did not say
            sides["target"] |= {"ready": None, "in_hand": None, "delayed": None}
        found.append({"at": at(second), "phase": "canary", "weight": weight, **sides})
    return found


def task(name: str, finished: int, failed: int = 0) -> dict[str, Any]:
    """Return the figures of one task."""
    source = {"finished": finished * 3, "failed": 2, "retried": 4}
    target = {"finished": finished, "failed": failed, "retried": 1}
    durations = {"runtime_p50_s": 0.021, "runtime_p90_s": 0.18, "queue_wait_p90_s": 1.0}
    return {"task": name, "source": source | durations, "target": target | durations}


FINDINGS = (
    ("samples", "pass", "the target finished 1432 runs, the source 4310"),
    ("failed", "pass", "failed: 6 of 1432 on the target, 18 of 4310 on the source"),
    ("retried", "pass", "retried: 15 of 1432 on the target, 47 of 4310 on the source"),
    ("redelivered", "pass", "redelivered: 0 of 1440 on the target, 1 of 4330 on the source"),
    ("run time", "pass", "run time: 95 % within 0.25 s on the target, 0.25 s on the source"),
    ("not judged", "pass", f"not judged: {LONG_TASK} (0 runs)"),
)
WAITS = (
    "run time shop.charge",
    "inconclusive",
    "run time shop.charge: half within 0.5 s on the target, half within 0.3 s on the source; chance may explain it",
)


def before_data() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a rollout that has just begun, before its controller has looked."""
    history = [entry(0, "prepare", 0.0, "begun", "ann")]
    return _state(3, history, judged=None, tasks=[], is_watched=False, figures_={}), []


def in_step(*findings: tuple[str, str, str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a rollout in the third step; `findings` beside those that pass."""
    points = series(780, {0: 0.0, 20: 0.01, 320: 0.05, 620: 0.25})
    state = _state(780, _to_third_step(), judged=[*FINDINGS, *findings], tasks=_tasks(), figures_=points[-1])
    return state, points


def paused() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return one whose third step waits for a person."""
    why = "a person must decide: the target finished 31 of 50 runs that a comparison needs"
    history = [*_to_third_step(), entry(1000, "paused", 0.25, why)]
    points = series(1120, {0: 0.0, 20: 0.01, 320: 0.05, 620: 0.25})
    state = _state(1120, history, judged=[*FINDINGS, WAITS], tasks=_tasks(), figures_=points[-1])
    return state | {"controller": None}, points


def aborted(phase: str = "aborted") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return one whose third step failed; `phase` is abort or aborted."""
    history = [*_to_third_step(), entry(750, "abort", 0.0, _WHY_ABORTED)]
    if phase == "aborted":
        account = "the target is empty: 3912 messages sent there, 3912 tasks finished there"
        history.append(entry(790, "aborted", 0.0, account))
    points = series(790, {0: 0.0, 20: 0.01, 320: 0.05, 620: 0.25, 750: 0.0}, fails_from=640)
    fails = ("failed shop.charge", "fail", _WHY_ABORTED)
    state = _state(950, history, judged=[*FINDINGS, fails], tasks=_tasks(41), figures_=points[-1], judged_at=749)
    return state, points


def done() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return one that is done."""
    history = [
        *_to_third_step(),
        entry(920, "canary", 0.5, "the judge passed the step"),
        entry(1220, "canary", 1.0, "the judge passed the step"),
        entry(1520, "drain", 1.0, f"the judge passed the step; not judged: {LONG_TASK} (0 runs)"),
        entry(1560, "done", 1.0, "the source is empty: 88231 messages sent there, 88231 tasks finished there"),
    ]
    points = series(1560, {0: 0.0, 20: 0.01, 320: 0.05, 620: 0.25, 920: 0.5, 1220: 1.0})
    state = _state(9000, history, judged=FINDINGS, tasks=_tasks(), figures_=points[-1], judged_at=1519)
    return state, points


def _to_third_step() -> list[dict[str, Any]]:
    return [
        entry(0, "prepare", 0.0, "begun", "ann"),
        entry(20, "canary", 0.01, "the target is ready"),
        entry(320, "canary", 0.05, "the judge passed the step"),
        entry(620, "canary", 0.25, "the judge passed the step"),
    ]


def _tasks(failed: int = 3) -> list[dict[str, Any]]:
    return [task("shop.charge", 130, failed), task("shop.mail", 74), task(LONG_TASK, 40), task(HTML_TASK, 4)]


def _step(history: list[dict[str, Any]], seconds: float) -> dict[str, Any] | None:
    steps = [one for one in history if one["phase"] == "canary"]
    if not steps:
        return None
    began_at = datetime.fromisoformat(steps[-1]["updated_at"]).timestamp()
    return {
        "weight": steps[-1]["weight"],
        "generation": history.index(steps[-1]) + 1,
        "began_at": began_at,
        "age_s": at(seconds) - began_at,
    }


def _state(
    seconds: float,
    history: list[dict[str, Any]],
    *,
    judged: Any,
    tasks: list[dict[str, Any]],
    figures_: dict[str, Any],
    is_watched: bool = True,
    judged_at: float | None = None,
) -> dict[str, Any]:
    last = history[-1]
    age_s = at(seconds) - datetime.fromisoformat(last["updated_at"]).timestamp()
    looked = seconds - 1 if judged_at is None else judged_at
    empty = figures(0, 0.0) | {"ready": 0, "delayed": 0, "sent": 0}
    is_over = last["phase"] in ("done", "aborted")
    look = {"at": at(looked), "faults": [], "obstacles": [], "left": [], "age_s": seconds - looked}
    return last | {
        "name": "friday",
        "source": "redis://old.example:6379/0",
        "target": "amqp://new.example:5672/shop",
        "generation": len(history),
        "at": at(seconds),
        "age_s": age_s,
        "phase_age_s": seconds - 20 if last["phase"] == "canary" else age_s,
        "is_over": is_over,
        "steps": list(STEPS),
        "manual": False,
        "bake_s": BAKE_S,
        "patience_s": 3600.0,
        "step": _step(history, seconds),
        "acts": [],
        "controller": None if is_over else "the rollout 'friday' of process 4711 on ops-1",
        "beat": "the beat of process 12 on web-2",
        "look": look | {"findings": judged} if judged and judged_at is None else None,
        "judged": look | {"findings": judged, "is_now": judged_at is None} if judged else None,
        "depths": {
            "source": {"orders": [31, 6, 3], "reports": [0, 0, 0]},
            "target": {"orders": [12, 2, 0], "reports": [0, 0, 0]},
        },
        "sides": {side: figures_.get(side, empty) for side in ("source", "target")},
        "tasks": {"busiest": tasks, "more": 7 if tasks else 0},
        "moves": [],
        "synthetic": {},
        "workers": [
            {
                "node": f"{side}@worker-{side}-7f9c5d8b6-x2x4q",
                "side": side,
                "phase": "running",
                "queues": ["orders", "reports"],
                "age_s": 0.6,
            }
            for side in ("source", "target")
        ]
        if is_watched
        else [],
        "history": history,
    }
