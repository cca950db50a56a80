"""The status file of a worker: one small file that the worker's own event loop replaces each second.

Other processes read it to learn that the worker lives, without asking a broker. Reading
it needs the standard library alone, so a probe is quick. Fields that end in `_at` are
seconds of the machine's monotonic clock, which all its processes share, those in
containers included; fields that end in `_s` are durations in seconds.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Any

from repot.config.probe import application_mark
from repot.errors import StatusFileUnreadable
from repot.worker.process_identity import Process

#: Seconds between two writes.
INTERVAL_S = 1.0

#: A worker no longer kills a task that is this much longer past its hard time limit.
PAST_LIMIT_S = 30

_SUFFIX = ".json"

#: The fields of a status that grow with the number of tasks.
BY_TASK = ("counts", "histograms", "costs")

#: The pool that runs its tasks in the thread of the event loop.
SOLO = "solo"

#: The pools that run their tasks in greenlets of the event loop.
GREEN = ("gevent", "eventlet")


class WorkerPhase(StrEnum):
    """What a worker does."""

    STARTING = "starting"
    #: It looks for its broker, for the first time or again.
    CONNECTING = "connecting"
    RUNNING = "running"
    #: It was asked to stop; running tasks may go on.
    STOPPING = "stopping"
    STOPPED = "stopped"


class ShutdownKind(StrEnum):
    """The kinds of shutdown that Celery knows; a later one in this list replaces an earlier one."""

    NONE = ""
    WARM = "warm"
    COLD = "cold"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class Task:
    """A running task; `deadline_at` is the moment of its hard time limit, None without one."""

    name: str
    id: str
    started_at: float
    deadline_at: float | None


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool and the tasks that the worker holds.

    `reserved` includes the active ones; `rate_limited` wait for their rate limit. `running` has for each task how many
    run, by the buckets of run times and how long they have taken. `next_deadline` is the running task with the nearest
    deadline. `oldest_received_at` is when the oldest message in hand arrived, scheduled ones included.

    For a pool of processes: `crash_loop_at` is when its processes began to do nothing but die, `crashes` how many have
    died since; the pool has held tasks and run none since `idle_at`; `missing_result` is a task that has ended, as
    noticed at its `started_at`, and whose result has not arrived.
    """

    kind: str
    processes: int
    active: int = 0
    reserved: int = 0
    scheduled: int = 0
    rate_limited: int = 0
    longest_running: Task | None = None
    next_deadline: Task | None = None
    oldest_received_at: float | None = None
    crash_loop_at: float | None = None
    crashes: int = 0
    idle_at: float | None = None
    missing_result: Task | None = None
    running: dict[str, list[int]] = field(default_factory=dict)

    @property
    def is_stuck(self) -> bool:
        """Whether a task runs so long past its hard limit that the worker no longer kills it."""
        deadline_at = self.next_deadline.deadline_at if self.next_deadline else None
        return deadline_at is not None and monotonic() - deadline_at > PAST_LIMIT_S

    @property
    def shares_the_loop(self) -> bool:
        """Whether its tasks run in the worker's event loop, and let it go on while they wait for something."""
        return self.kind in GREEN

    @property
    def blocks_the_loop(self) -> bool:
        """Whether a running task keeps the worker from writing its status, and from everything else."""
        return self.kind == SOLO


@dataclass(frozen=True, slots=True)
class Link:
    """The worker's connection to its broker.

    `url` and `write_url` are masked; `server` is the server of the list in use, as
    host:port. `transport_options` holds those that are plain data and no secret:
    every client of the same Redis must use the same ones. `can_be_pinged` is false
    without remote control or JSON. `last_contact_at` is None where the system does
    not tell. `refusal` is the broker's error if it refused the last login. `local_port`
    is this side's port of the connection that consumes; 0 where several do. `peers` are
    the servers' addresses as the worker resolved them when it connected.
    """

    url: str
    write_url: str
    control_exchange: str
    transport_options: dict[str, Any]
    can_be_pinged: bool = True
    server: str = ""
    queues: tuple[str, ...] = ()
    cancelled_queues: tuple[str, ...] = ()
    last_contact_at: float | None = None
    reconnects: int = 0
    refusal: str = ""
    local_port: int = 0
    peers: tuple[tuple[str, int], ...] = ()
    #: Lost connections and failed attempts, by the name of the exception.
    connection_errors: dict[str, int] = field(default_factory=dict)

    @property
    def all_queues(self) -> tuple[str, ...]:
        """The queues that it consumes or has consumed."""
        return tuple(sorted({*self.queues, *self.cancelled_queues}))

    @property
    def is_bridge(self) -> bool:
        """Whether it reads one broker and writes to another, where its replies to a ping go as well."""
        return self.url != self.write_url


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The content of a status file."""

    node: str
    process: Process
    written_at: float
    phase: WorkerPhase
    phase_entered_at: float
    #: The kind of shutdown in progress or done.
    shutdown: ShutdownKind
    started_at: float
    #: When it last received a task; None before the first.
    last_received_at: float | None
    #: How long the last task had waited; None if its message does not say when it was sent.
    last_wait_s: float | None
    pool: Pool
    link: Link
    #: Whether the worker can see the tasks that Celery deduplicates.
    counts_deduplicated: bool = False
    #: Counts of `repot.worker.task_outcomes.TaskOutcome` by name of the task.
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    #: By kind and task, as `repot.worker.task_counters.TaskCounters.histograms` returns them.
    histograms: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    #: By task, as `repot.worker.task_counters.TaskCounters.costs` returns them: in millionths.
    costs: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The file that it was read from; empty in the file itself.
    read_from: str = field(default="", compare=False)

    def to_json(self, by_task: str = "") -> str:
        """Return the text of the file; `by_task` is the text of the fields in `BY_TASK`, where it is known already."""
        by_task = by_task or json.dumps({name: getattr(self, name) for name in BY_TASK})
        fields = asdict(replace(self, counts={}, histograms={}, costs={}))
        others = json.dumps({name: value for name, value in fields.items() if name not in BY_TASK})
        return f"{others[:-1]}, {by_task[1:]}"

    def without_counts(self) -> WorkerStatus:
        """Return what the probes need, which takes little room however many tasks there are."""
        return replace(self, counts={}, histograms={}, costs={}, pool=replace(self.pool, running={}))


def default_dir() -> Path:
    """Return the directory of status files without WORKER_STATUS_DIR: one for each user and application."""
    return Path(tempfile.gettempdir()) / f"repot-{os.getuid()}-{application_mark()}"


def other_status_dirs(mine: Path) -> list[Path]:
    """Return the default directories of this user's other applications that hold a status file."""
    found = mine.parent.glob(f"repot-{os.getuid()}-*")
    return sorted(directory for directory in found if directory != mine and nodes(directory))


def path_of(directory: Path, node: str, number: int = 1) -> Path:
    """Return the path of a worker's status file; `number` tells processes apart that have one name at the same time."""
    # a node name becomes one segment of the path, and not a hidden one
    stem = re.sub(r"^\.|[/\x00]", lambda found: f"%{ord(found[0]):02x}", node)
    return directory / f"{stem}{f'+{number}' if number > 1 else ''}{_SUFFIX}"


def paths_of(directory: Path, node: str) -> list[Path]:
    """Return where the processes of one name may have their status files; another name may look like one of these."""
    first = path_of(directory, node)
    return [first, *sorted(directory.glob(f"{glob.escape(first.stem)}+*{_SUFFIX}"))]


def read(path: Path) -> WorkerStatus:
    """Read a status file.

    Raises:
        FileNotFoundError: no worker of that name has started here.
        StatusFileUnreadable: the file is not a status file of this version, or may not be read.
    """
    try:
        return replace(_parse(path.read_text()), read_from=str(path))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        message = f"{path} is not a worker's status file: {type(error).__name__}: {error}"
        raise StatusFileUnreadable(message, hint="Worker and probe must run the same version of repot.") from error


def _parse(text: str) -> WorkerStatus:
    found = json.loads(text, parse_constant=_reject_constant)
    for name in ("written_at", "phase_entered_at", "started_at"):
        found[name] = float(found[name])
    found["process"]["pid"] = int(found["process"]["pid"])
    pool, link = found["pool"], found["link"]
    tasks = ("longest_running", "next_deadline", "missing_result")
    lists: dict[str, Any] = {name: tuple(link[name]) for name in ("queues", "cancelled_queues")}
    lists["peers"] = tuple((str(host), int(port)) for host, port in link["peers"])
    return replace(
        WorkerStatus(**found),
        phase=WorkerPhase(found["phase"]),
        shutdown=ShutdownKind(found["shutdown"]),
        process=Process(**found["process"]),
        pool=Pool(**pool | {name: Task(**pool[name]) if pool[name] else None for name in tasks}),
        link=Link(**link | lists),
    )


def _reject_constant(constant: str) -> None:
    message = f"{constant} is not a time"
    raise ValueError(message)


def paths(directory: Path) -> list[Path]:
    """Return the status files of a directory."""
    return sorted(directory.glob(f"[!.]*{_SUFFIX}"))


def nodes(directory: Path) -> list[str]:
    """Return the names of the workers with a status file in `directory`, those that have stopped included."""
    found = (path.name.removesuffix(_SUFFIX) for path in paths(directory))
    return sorted(re.sub("%(00|2e|2f)", lambda escaped: chr(int(escaped[1], 16)), name) for name in found)
