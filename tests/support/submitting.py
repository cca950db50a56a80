"""Many processes that submit jobs for few scopes at once, each through the routes of an application of its own.

    python tests/support/submitting.py PROCESSES SUBMISSIONS SCOPES SEED DIRECTORY

Settings come from WORKER_*, as a worker's. Each process writes what it was answered into a file of DIRECTORY, a JSON
object a line. Used by the tests and by `benchmarks/submission.py`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

from repot.chaos.instruments.journal import EFFECT
from repot.config import child_environment
from repot.errors import ScopeConflict
from repot.submission import Jobs, Status
from repot.testbed import ReapedProcess
from repot.waiting import wait_until
from support.appended import appended_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier

    from repot.chaos.runner.proxies import Proxy
    from repot.config import WorkerSettings
    from support.shop import Shop

#: The line of a run's end, of `job_app`, which cannot be imported without a worker's settings.
OVER = "body over"

#: What a submission may be answered with; anything else is a fault of ours.
ACCEPTED, TAKEN, UNAVAILABLE = 202, 409, 503


@dataclass(slots=True)
class Outcomes:
    """What all processes were answered."""

    answers: Counter[int] = field(default_factory=Counter)
    #: Scope and generation of each accepted job, by its id.
    accepted: dict[str, tuple[str, int]] = field(default_factory=dict)
    #: Jobs that refusals named.
    active: set[str] = field(default_factory=set)
    #: Seconds that each answer took.
    times_s: list[float] = field(default_factory=list)
    #: The highest number of 503 answers in a row to one process.
    away_in_a_row: int = 0

    @classmethod
    def read(cls, directory: Path) -> Outcomes:
        """All of them."""
        found = cls()
        for path in directory.glob("answers-*"):
            in_a_row = 0
            for line in appended_lines(path):
                one = json.loads(line)
                in_a_row = in_a_row + 1 if one["status"] == UNAVAILABLE else 0
                found.away_in_a_row = max(found.away_in_a_row, in_a_row)
                found.answers[one["status"]] += 1
                found.times_s.append(one["s"])
                if one["status"] == ACCEPTED:
                    found.accepted[one["id"]] = (one["scope"], one["generation"])
                elif one["status"] == TAKEN:
                    found.active.add(one["active"])
        return found

    @property
    def twice(self) -> list[tuple[str, int]]:
        """Scopes and generations that were accepted more than once: what must not be."""
        return [pair for pair, number in Counter(self.accepted.values()).items() if number > 1]


@contextmanager
def submitters(
    settings: WorkerSettings, directory: Path, processes: int, submissions: int, scopes: int, seed: int
) -> Any:
    """The processes, until the last one has ended."""
    numbers = [str(number) for number in (processes, submissions, scopes, seed)]
    command = [sys.executable, __file__, *numbers, str(directory)]
    environment = child_environment(settings)
    with ReapedProcess(command, log=directory / "submitters.log", environment=environment) as process:
        yield process
        wait_until(lambda: process.exit_code is not None, within_s=600, what="all have submitted")
        assert process.exit_code == 0, process.log_tail(40)


def breaking(proxy: Proxy, every_s: float, for_s: float, until: Callable[[], bool]) -> int:
    """Cut a link again and again; how often. Connections are reset and no new ones taken."""
    pause, times = Event(), 0
    while not until():
        pause.wait(every_s)
        proxy.enable(enabled=False)
        pause.wait(for_s)
        proxy.enable(enabled=True)
        times += 1
    return times


def mistakes(shop: Shop, outcomes: Outcomes, scopes: int) -> list[str]:
    """What must not be; a worker of the shop still runs."""
    jobs = Jobs(shop.client, "jobs.render", scope="project")
    found = [f"answered with {status}" for status in outcomes.answers if status not in (ACCEPTED, TAKEN, UNAVAILABLE)]
    found += [f"let in twice: {scope}, generation {generation}" for scope, generation in outcomes.twice]
    for job, (scope, _) in outcomes.accepted.items():
        wait_until(lambda job=job: jobs.get(job).ended_at, within_s=120, what=f"job {job} has ended")  # type: ignore[misc]
        if jobs.get(job).status is not Status.SUCCEEDED:
            found.append(f"{scope}: job {job} is {jobs.get(job).status.value}")
    effects = Counter(line.task for line in shop.lines(EFFECT))
    found += [f"job {job} had {effects[job]} effects" for job in outcomes.accepted if effects[job] != 1]
    found += [f"{job} ran and was not accepted" for job in effects.keys() - outcomes.accepted.keys()]
    found += [f"two jobs at once for {scope}" for scope in _overlapping(shop)]
    for number in range(scopes):
        try:
            jobs.submit({"project": f"project-{number}"})
        except ScopeConflict as error:
            found.append(f"blocked: {error}")
    return found


def _overlapping(shop: Shop) -> list[str]:
    """Scopes for which a job ran when another did."""
    inside: Counter[str] = Counter()
    found = []
    for line in shop.journal.read():
        if line.kind in (EFFECT, OVER):
            scope = line.details["value"]
            inside[scope] += 1 if line.kind == EFFECT else -1
            if inside[scope] > 1:
                found.append(scope)
    return found


def main() -> None:
    """Submit."""
    processes, submissions, scopes, seed = map(int, sys.argv[1:5])
    directory = Path(sys.argv[5])
    # imported once, before the processes part
    import repot.submission.router  # noqa: F401

    context = multiprocessing.get_context("fork")
    together = context.Barrier(processes)
    all_of_them = [
        context.Process(target=_submit, args=(number, submissions, scopes, seed, directory, together))
        for number in range(processes)
    ]
    for process in all_of_them:
        process.start()
    for process in all_of_them:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in all_of_them))


def _submit(number: int, submissions: int, scopes: int, seed: int, directory: Path, together: Barrier) -> None:
    asyncio.run(_submit_all(number, submissions, scopes, seed, directory, together))


async def _submit_all(
    number: int, submissions: int, scopes: int, seed: int, directory: Path, together: Barrier
) -> None:
    from celery import Celery
    from fastapi import FastAPI

    from repot.config import Role
    from repot.submission import Jobs
    from repot.submission.router import job_router
    from repot.worker.configure import configure

    celery = Celery("submitter", set_as_current=False)
    configure(celery, role=Role.CLIENT)
    web = FastAPI()
    web.include_router(job_router(Jobs(celery, "jobs.render", scope="project", cost=0.5)), prefix="/jobs")
    # S311: which scope, repeatably
    random = Random(seed * 1000 + number)  # noqa: S311
    together.wait()
    with (directory / f"answers-{number}").open("w") as answers:
        for _ in range(submissions):
            scope = f"project-{random.randrange(scopes)}"
            begun = perf_counter()
            status, body = await _post(web, {"project": scope, "seconds": 0.02})
            one = {"status": status, "scope": scope, "s": perf_counter() - begun}
            if status == ACCEPTED:
                one |= {"id": body["id"], "generation": body["generation"]}
            elif status == TAKEN:
                one |= {"active": body["active_job"]["id"]}
            answers.write(json.dumps(one) + "\n")


async def _post(web: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """What the application answers; as a server of ASGI calls it, without a socket."""
    sent: list[dict[str, Any]] = []
    content = json.dumps(body).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/jobs",
        "raw_path": b"/jobs",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    try:
        await web(scope, receive, send)
    except Exception:  # noqa: BLE001 - a server answers 500 then
        sys.excepthook(*sys.exc_info())
        return 500, {}
    return sent[0]["status"], json.loads(b"".join(part.get("body", b"") for part in sent[1:]))


if __name__ == "__main__":
    main()
