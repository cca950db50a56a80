"""Write a backlog with the Celery of this environment, and print the ids of its tasks as JSON.

    python backlogs_writer.py URL RESULT_URL OPTIONS LEVELS

OPTIONS are transport options as JSON, LEVELS is the `x-max-priority` of RabbitMQ's queues, or 0. It runs without repot,
under any Celery from 5.2 on.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery, chain, chord
from celery.signals import before_task_publish

#: Tasks with each combination of protocol, serializer and compression.
COUNT = 3
#: Celery's message protocols are 1 and 2.
NEWEST = 2
IDS: list[str] = []


def note(headers: dict[str, Any], body: Any, **_: object) -> None:  # noqa: ANN401 - of its protocol
    """Keep the id of a message that is published; protocol 1 has it in the body."""
    IDS.append(headers["id"] if headers and "id" in headers else body["id"])


def app_of(url: str, results: str, options: dict[str, Any], levels: int, protocol: int) -> Celery:
    """Return an application whose tasks go to the queue of its protocol."""
    app = Celery(f"protocol{protocol}", broker=url, backend=results, set_as_current=False)
    app.conf.update(
        task_protocol=protocol,
        task_default_queue=f"protocol{protocol}",
        broker_transport_options=options,
        task_queue_max_priority=levels or None,
        accept_content=["json", "pickle", "yaml", "msgpack"],
    )
    return app


def compressions() -> list[str | None]:
    """Return those that this release has."""
    from kombu.compression import encoders

    return [None, "gzip", *(["zstd"] if "application/zstd" in encoders() or "zstd" in encoders() else [])]


def write(charge: Any, protocol: int) -> None:  # noqa: ANN401 - a task
    """Send the tasks of one protocol."""
    for serializer in ("json", "pickle", "yaml", "msgpack"):
        for compression in compressions():
            for number in range(COUNT):
                charge.apply_async((number, "x" * 300), serializer=serializer, compression=compression)
    for priority in range(10):
        charge.apply_async((priority,), {"key": "ä☃"}, priority=priority)
    later = datetime.now(timezone.utc) + timedelta(hours=5)  # noqa: UP017 - Python 3.10
    for number in range(COUNT):
        charge.apply_async((number,), eta=later)
        charge.apply_async((number,), countdown=7200)
        charge.apply_async((number,), expires=86_400)
        charge.apply_async((number,), expires=later, eta=later - timedelta(hours=1))
    # canvas of today
    for number in range(COUNT if protocol == NEWEST else 0):
        chain(charge.s(number), charge.s(), charge.si(1)).apply_async(link_error=charge.si(0))
        chord([charge.s(number), charge.s(2)], charge.s()).apply_async()


def main() -> None:
    """Write to both queues."""
    url, results, options, levels = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    before_task_publish.connect(note)
    for protocol in (1, NEWEST):
        app = app_of(url, results, options, levels, protocol)

        @app.task(name="shop.charge")
        def charge(*args: object, **kwargs: object) -> None:
            """Is never run."""

        write(charge, protocol)
        app.close()
    print(json.dumps(IDS))


main()
