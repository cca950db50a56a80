"""Handmade campaigns with every verdict, worker outcome and special case that a report must show."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING
from zlib import crc32

from repot.chaos.report.result import (
    About,
    Campaign,
    Cell,
    CellVerdict,
    Notice,
    Result,
    TaskResult,
    Times,
    Unmeasured,
    Window,
    WorkerOutcome,
)
from repot.chaos.runner.verdict import Delivery, Effect, Run, Sending, TaskHistory, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

LANES = ("target@worker-host", "control@worker-host")
COMMAND = "repot chaos run {0.scenario} --profile {0.profile} --guard {1} --seed 7"
PROFILES = (
    About("redis-stock", "Redis, Celery's defaults: early acks, no timeouts", ""),
    About("redis-late", "Redis, Celery's defaults with late acks", ""),
    About("redis-hardened", "Redis, repot's settings", ""),
    About("amqp-stock", "RabbitMQ, Celery's defaults: early acks, no confirms", ""),
    About("amqp-late", "RabbitMQ, Celery's defaults with late acks", ""),
    About("amqp-classic", "RabbitMQ, repot's settings, classic queues", ""),
    About("amqp-quorum", "RabbitMQ, repot's settings, quorum queues", ""),
)
SCENARIOS = (
    About("ack-cut", "The task is done; its ACK never arrives", "The link dies between the effect and the ACK."),
    About("link-reset", "The link is reset while the task runs", "Reconnecting works at once."),
    About("worker-killed", "The worker's main process is killed with SIGKILL", "Its pool ends with it."),
    About("broker-restarted", "The broker is restarted while a task runs", "It keeps what it wrote to disk."),
    About("publish-into-silence", "The task is sent into a link that carries nothing", ""),
)
#: What a log may hold; the first is an attack, the rest are accidents.
NOTICES = (
    "<script>document.title = 'planted'</script> & \"quotes\" 'too' ]]> <!-- x -->",
    "ConnectionResetError(104, 'Connection reset by peer') from redis://worker:s3cret-planted@127.0.0.1:6379/0",
    "consumer: Cannot connect: \x1b[31mred\x1b[0m, a tab\t, \u202eturned\u202c, 漢字, 🐇, café, {{ 7 * 7 }}, |pipes|",
    'Traceback (most recent call last):\n  File "x.py", line 1\nOSError: ' + "far-too-long-word" * 20,
)


def task_result(role: str, verdict: Verdict, *, task: str, sent_at: float = 0, busy_s: float = 6) -> TaskResult:
    """Return a task result whose history fits its verdict."""
    lost, times = (
        verdict in (Verdict.LOST, Verdict.REFUSED, Verdict.LEFT),
        1 + (verdict in (Verdict.REDELIVERED, Verdict.DUPLICATED)),
    )
    begun = sent_at + 0.05
    runs = [Run(LANES[0], 4711, begun, begun + busy_s, "SUCCESS" if not lost else "killed")]
    if verdict is Verdict.DUPLICATED:
        runs.append(Run(LANES[1], 4712, begun + 2, begun + 2 + busy_s, "SUCCESS"))
    if verdict in (Verdict.REFUSED, Verdict.LEFT):
        runs = []
    deliveries = [Delivery(LANES[n], begun + 2 * n - 0.02, redelivered=n > 0, tag=str(n + 1)) for n in range(times)]
    sending = {
        Verdict.REFUSED: Sending.UNKNOWN,
        Verdict.RECOVERED: Sending.UNKNOWN,
        Verdict.UNEXPECTED: Sending.NEVER,
    }.get(verdict)
    effects = [Effect(run.worker, run.ended - 0.1) for run in runs if run.ended and run.state == "SUCCESS"]
    return TaskResult(
        role,
        verdict,
        sending or Sending.ACCEPTED,
        "OperationalError: timed out <b>" if verdict in (Verdict.REFUSED, Verdict.RECOVERED) else "",
        sent_at,
        len(effects),
        TaskHistory(task, tuple(deliveries if runs else ()), tuple(runs), tuple(effects)),
    )


def result(
    cell: Cell,
    verdict: CellVerdict,
    *,
    expected: CellVerdict | None = None,
    number: int = 1,
    notices: Iterable[str] = (),
    left: str = "",
    lanes: tuple[str, ...] = LANES,
) -> Result:
    """Return a run with this verdict, a fault window from 1 to 9 s and six tasks."""
    prefix = f"{crc32(cell.name.encode()):08x}-3f1a-4c55-9d2e-00000000000"
    task_results = (
        task_result("under test", verdict.task, task=f"{prefix}0"),
        task_result("before", Verdict.OK, task=f"{prefix}1", sent_at=-1.5, busy_s=0.3),
        task_result("before", Verdict.OK, task=f"{prefix}2", sent_at=-1.4, busy_s=0.3),
        task_result("waiting", verdict.others, task=f"{prefix}3", sent_at=0.1, busy_s=1),
        task_result("waiting", Verdict.OK, task=f"{prefix}4", sent_at=0.2, busy_s=1),
        task_result("after", Verdict.OK, task=f"{prefix}5", sent_at=14, busy_s=0.2),
    )
    windows = (
        Window("bytes to and from the broker are dropped", 1, 9),
        Window("Toxiproxy refuses connections", 3, 9.5),
    )
    hung = verdict.worker is WorkerOutcome.HUNG
    return Result(
        cell,
        number,
        seed=7,
        product="RabbitMQ" if cell.profile.startswith("amqp") else "Redis",
        version="4.3.0",
        verdict=verdict,
        expected=expected,
        task_results=task_results,
        windows=windows,
        notices=tuple(Notice(2 + place, text) for place, text in enumerate(notices)),
        times=Times(None if hung else 3.02, 8.41, None if hung else 14.3, 61.5 if hung else 0.4),
        left=left,
        lanes=lanes,
        command=COMMAND.format(cell, "on" if cell.guard else "off"),
        took_s=21.25,
    )


def campaign(*, repeat: int = 1, scenarios: tuple[About, ...] = SCENARIOS) -> Campaign:
    """Every scenario on every profile with and without the guard, but for some cells of the last scenario.

    All verdicts and worker outcomes occur; of three cells one fails, one means nothing and one was
    not run; some are not as expected; with repetitions, one cell differs.
    """
    found = cycle(
        (
            CellVerdict(Verdict.DUPLICATED),
            CellVerdict(Verdict.OK),
            CellVerdict(Verdict.LOST, others=Verdict.LOST),
            CellVerdict(Verdict.REDELIVERED),
            CellVerdict(Verdict.OK, worker=WorkerOutcome.HUNG),
            CellVerdict(Verdict.PARKED),
            CellVerdict(Verdict.RECOVERED),
            CellVerdict(Verdict.REFUSED),
            CellVerdict(Verdict.OK, others=Verdict.DUPLICATED, worker=WorkerOutcome.EXITED),
            CellVerdict(Verdict.LEFT),
            CellVerdict(Verdict.UNEXPECTED),
        )
    )
    cells = [
        Cell(scenario.name, profile.name, guard)
        for scenario in scenarios
        for profile in PROFILES
        for guard in (False, True)
    ]
    results = [
        _one(cell, verdict, place, number)
        for place, (cell, verdict) in enumerate(zip(cells[:-3], found, strict=False))
        for number in range(1, repeat + 1)
    ]
    return Campaign(
        created="2026-11-21T21:37:41+00:00",
        took_s=3725.5,
        seed=7,
        versions={"repot": "0.1.0", "celery": "5.7.0", "kombu": "5.7.1", "Python": "3.11.7", "RabbitMQ": "4.3.0"},
        scaled={"visibility_timeout": 8, "heartbeat": 2, "restore_interval": 0.5},
        scenarios=scenarios,
        profiles=PROFILES,
        results=tuple(results),
        unmeasured=(
            Unmeasured(
                cells[-3], 1, "a worker did not come up: <b>& \x00 that</b>", failed=True, command="repot again"
            ),
            Unmeasured(cells[-2], 1, "Redis has no confirms", failed=False, command=""),
        ),
        interrupted=True,
        app="shop.app:app shop.charge",
    )


def _one(cell: Cell, verdict: CellVerdict, place: int, number: int) -> Result:
    """Every ninth is not as expected, the fourth differs in its second run, and every tenth has no entry."""
    found = CellVerdict(Verdict.LOST) if place == 3 and number == 2 else verdict
    expected = CellVerdict(Verdict.OK) if place % 9 == 0 else None if place % 10 == 5 and not verdict.is_bad else found
    notices = NOTICES if place % 4 == 0 else ()
    left = "1 message in celery, unacked by target" if found.task is Verdict.LEFT else ""
    return result(cell, found, expected=expected, number=number, notices=notices, left=left)
