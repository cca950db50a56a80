"""Campaigns made by hand, with every word, fate and oddity that a report must show."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING
from zlib import crc32

from repot.chaos.result import (
    About,
    Account,
    Campaign,
    Cell,
    Fate,
    Finding,
    Notice,
    Result,
    Times,
    Unmeasured,
    Window,
)
from repot.chaos.verdict import Delivery, Effect, Run, Sending, Story, Word

if TYPE_CHECKING:
    from collections.abc import Iterable

LANES = ("cut-off@worker-host", "healthy@worker-host")
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


def account(role: str, word: Word, *, task: str, sent_at: float = 0, busy_s: float = 6) -> Account:
    """An account whose story fits its word."""
    lost, times = word in (Word.LOST, Word.REFUSED, Word.LEFT), 1 + (word in (Word.REDELIVERED, Word.DUPLICATED))
    begun = sent_at + 0.05
    runs = [Run(LANES[0], 4711, begun, begun + busy_s, "SUCCESS" if not lost else "killed")]
    if word is Word.DUPLICATED:
        runs.append(Run(LANES[1], 4712, begun + 2, begun + 2 + busy_s, "SUCCESS"))
    if word in (Word.REFUSED, Word.LEFT):
        runs = []
    deliveries = [Delivery(LANES[n], begun + 2 * n - 0.02, redelivered=n > 0, tag=str(n + 1)) for n in range(times)]
    sending = {Word.REFUSED: Sending.UNKNOWN, Word.RECOVERED: Sending.UNKNOWN, Word.UNEXPECTED: Sending.NEVER}.get(word)
    effects = [Effect(run.worker, run.ended - 0.1) for run in runs if run.ended and run.state == "SUCCESS"]
    return Account(
        role,
        word,
        sending or Sending.ACCEPTED,
        "OperationalError: timed out <b>" if word in (Word.REFUSED, Word.RECOVERED) else "",
        sent_at,
        len(effects),
        Story(task, tuple(deliveries if runs else ()), tuple(runs), tuple(effects)),
    )


def result(
    cell: Cell,
    finding: Finding,
    *,
    expected: Finding | None = None,
    number: int = 1,
    notices: Iterable[str] = (),
    left: str = "",
    lanes: tuple[str, ...] = LANES,
) -> Result:
    """A run that found this, with a fault window from 1 to 9 s and six tasks."""
    prefix = f"{crc32(cell.name.encode()):08x}-3f1a-4c55-9d2e-00000000000"
    accounts = (
        account("subject", finding.subject, task=f"{prefix}0"),
        account("before", Word.OK, task=f"{prefix}1", sent_at=-1.5, busy_s=0.3),
        account("before", Word.OK, task=f"{prefix}2", sent_at=-1.4, busy_s=0.3),
        account("waiting", finding.others, task=f"{prefix}3", sent_at=0.1, busy_s=1),
        account("waiting", Word.OK, task=f"{prefix}4", sent_at=0.2, busy_s=1),
        account("after", Word.OK, task=f"{prefix}5", sent_at=14, busy_s=0.2),
    )
    windows = (
        Window("the cut-off worker's link carries nothing in either direction", 1, 9),
        Window("Toxiproxy refuses connections", 3, 9.5),
    )
    hung = finding.worker is Fate.HUNG
    return Result(
        cell,
        number,
        seed=7,
        product="RabbitMQ" if cell.profile.startswith("amqp") else "Redis",
        version="4.3.0",
        finding=finding,
        expected=expected,
        accounts=accounts,
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

    All words and fates occur; of three cells one fails, one means nothing and one was
    not run; some are not as expected; with repetitions, one cell differs.
    """
    found = cycle(
        (
            Finding(Word.DUPLICATED),
            Finding(Word.OK),
            Finding(Word.LOST, others=Word.LOST),
            Finding(Word.REDELIVERED),
            Finding(Word.OK, worker=Fate.HUNG),
            Finding(Word.SET_ASIDE),
            Finding(Word.RECOVERED),
            Finding(Word.REFUSED),
            Finding(Word.OK, others=Word.DUPLICATED, worker=Fate.EXITED),
            Finding(Word.LEFT),
            Finding(Word.UNEXPECTED),
        )
    )
    cells = [
        Cell(scenario.name, profile.name, guard)
        for scenario in scenarios
        for profile in PROFILES
        for guard in (False, True)
    ]
    results = [
        _one(cell, finding, place, number)
        for place, (cell, finding) in enumerate(zip(cells[:-3], found, strict=False))
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


def _one(cell: Cell, finding: Finding, place: int, number: int) -> Result:
    """Every ninth is not as expected, the fourth differs in its second run, and every tenth has no entry."""
    found = Finding(Word.LOST) if place == 3 and number == 2 else finding
    expected = Finding(Word.OK) if place % 9 == 0 else None if place % 10 == 5 and not finding.is_bad else found
    notices = NOTICES if place % 4 == 0 else ()
    left = "1 message in celery, unacked by cut-off" if found.subject is Word.LEFT else ""
    return result(cell, found, expected=expected, number=number, notices=notices, left=left)
