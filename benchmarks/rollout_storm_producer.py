"""A producer of `benchmarks/rollout_kills.py`; a process that may be killed.

    python benchmarks/rollout_storm_producer.py FILE TASKS_A_SECOND SEED [URL]

Before each unit it appends a line with the ids that must finish, after it a line with what became of the sending. With
the address of `rollout_storm_web.py` it is a client: it asks that application to send, whose answer has the ids.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from datetime import UTC, datetime, timedelta
from threading import Event
from time import monotonic, time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import Request, urlopen
from uuid import uuid4

from celery import chain, chord, group
from rollout_storm_app import again, note, parent, park, rerun

if TYPE_CHECKING:
    from collections.abc import Callable

    Unit = tuple[list[str], Callable[[], object]]

#: An ETA or a countdown is at most so far away, in seconds.
LONGEST_DELAY_S = 6


def _single(unit: str, rng: random.Random) -> Unit:
    return [unit], lambda: note.apply_async(kwargs={"after_s": rng.choice((0, 0, 0.1, 0.4))}, task_id=unit)


def _countdown(unit: str, rng: random.Random) -> Unit:
    return [unit], lambda: note.apply_async(countdown=rng.randint(1, LONGEST_DELAY_S), task_id=unit)


def _eta(unit: str, rng: random.Random) -> Unit:
    eta = datetime.now(UTC) + timedelta(seconds=rng.uniform(1, LONGEST_DELAY_S))
    return [unit], lambda: note.apply_async(eta=eta, task_id=unit)


def _retry(unit: str, rng: random.Random) -> Unit:
    return [unit], lambda: again.apply_async((rng.randint(1, 3),), task_id=unit)


def _parent(unit: str, _: random.Random) -> Unit:
    children = [f"{unit}-child-{number}" for number in range(2)]
    return [unit, *children], lambda: parent.apply_async((children,), task_id=unit)


def _parts(unit: str, name: str, count: int) -> tuple[list[str], list[Any]]:
    ids = [f"{unit}-{name}-{number}" for number in range(count)]
    return ids, [note.s().set(task_id=one) for one in ids]


def _group(unit: str, _: random.Random) -> Unit:
    ids, parts = _parts(unit, "part", 3)
    return ids, lambda: group(parts).apply_async()


def _chain(unit: str, _: random.Random) -> Unit:
    ids, links = _parts(unit, "link", 3)
    return ids, lambda: chain(*links).apply_async()


def _chord(unit: str, _: random.Random) -> Unit:
    ids, heads = _parts(unit, "head", 3)
    return [*ids, f"{unit}-body"], lambda: chord(heads)(note.s().set(task_id=f"{unit}-body"))


def _guarded(task: Any, unit: str, rng: random.Random) -> Unit:
    order = f"{unit}-order"
    options: Any = {"args": (order, rng.choice((0, 0.1, 0.5))), "kwargs": {"flaky": rng.random() < 0.2}}
    # some orders are submitted twice
    ids = [order, f"{order}-twice"] if rng.random() < 0.3 else [order]

    def send() -> None:
        for one in ids:
            task.apply_async(**options, task_id=one)

    # whichever of the two has the effect
    return [order], send


#: Kind -> how often of a hundred units.
KINDS: dict[str, tuple[int, Callable[[str, random.Random], Unit]]] = {
    "single": (25, _single),
    "countdown": (10, _countdown),
    "eta": (5, _eta),
    "retry": (10, _retry),
    "parent": (5, _parent),
    "group": (8, _group),
    "chain": (10, _chain),
    "chord": (7, _chord),
    "guarded, parked": (10, lambda unit, rng: _guarded(park, unit, rng)),
    "guarded, run again": (10, lambda unit, rng: _guarded(rerun, unit, rng)),
}


#: Seconds; an answer that comes later confirms nothing.
_ANSWERS_WITHIN_S = 120


def _asked(url: str, kind: str, unit: str) -> Unit:
    """Return a unit that the web application sends; its ids are known with the answer."""
    ids: list[str] = []

    def send() -> None:
        request = Request(f"{url}/units/{quote(kind)}/{unit}", method="POST")  # noqa: S310 - our own server
        with urlopen(request, timeout=_ANSWERS_WITHIN_S) as answer:  # noqa: S310
            ids.extend(json.load(answer))

    return ids, send


def main() -> None:
    """Send until SIGTERM."""
    path, rate, seed, *urls = sys.argv[1:]
    stop, rng = Event(), random.Random(seed)  # noqa: S311 - to be repeated
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log(**fields: Any) -> None:
        os.write(file, (json.dumps(fields | {"at": time()}) + "\n").encode())

    names, weights = list(KINDS), [weight for weight, _ in KINDS.values()]
    due = monotonic()
    while not stop.wait(max(0, due - monotonic())):
        kind = rng.choices(names, weights)[0]
        unit = uuid4().hex[:12]
        ids, send = _asked(urls[0], kind, unit) if urls else KINDS[kind][1](unit, rng)
        log(unit=unit, kind=kind, ids=ids)
        try:
            send()
        except Exception as error:  # noqa: BLE001 - whatever it is, the unit is unknown
            log(unit=unit, raised=repr(error)[:300])
        else:
            log(unit=unit, kind=kind, ids=ids, sent=True)
        # a broker that was away is no reason to send all that was missed at once
        due = max(due, monotonic() - 1) + max(len(ids), 1) / float(rate)


if __name__ == "__main__":
    main()
