"""A worker's pulse: one small file that its own event loop writes anew each second.

It is how other processes know that the worker lives, without a broker between them.
Reading it needs the standard library alone, so that a probe is quick. Times are
seconds of the machine's monotonic clock, which all its processes share, those in
containers included.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from repot.config.probe import application_mark
from repot.errors import PulseUnreadable

#: Seconds between two beats.
INTERVAL_S = 1.0

#: Longer than this past its hard time limit, a task will not be killed by its worker any more.
PAST_LIMIT_S = 30

_SUFFIX = ".json"

#: The pool that runs its tasks in the thread of the event loop.
SOLO = "solo"

STARTING = "starting"
#: Looking for its broker, for the first time or again.
CONNECTING = "connecting"
RUNNING = "running"
#: Asked to leave; running tasks may go on.
STOPPING = "stopping"
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Process:
    """Which process beats. `started` and `namespace` are Linux's, empty elsewhere; a process id alone is used again."""

    pid: int
    started: str
    namespace: str
    boot: str


@dataclass(frozen=True, slots=True)
class Task:
    """A running task; `deadline` is the moment of its hard time limit, None without one."""

    name: str
    id: str
    started: float
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Pool:
    """What the worker holds.

    `reserved` counts the active ones, too, `limited` waits for its rate limit; `oldest` runs longest, `overdue` has
    the nearest deadline. `in_flight_since` is when the oldest of all messages in hand came, held ones included.

    Of a pool of processes: `dying_since` is when its processes began to do nothing but die, `deaths` how many have;
    since `idle_since` it has held tasks and run none; `lost` is a task that ended, at `started` of it, and whose result
    has not arrived.
    """

    kind: str
    processes: int
    active: int = 0
    reserved: int = 0
    scheduled: int = 0
    limited: int = 0
    oldest: Task | None = None
    overdue: Task | None = None
    in_flight_since: float | None = None
    dying_since: float | None = None
    deaths: int = 0
    idle_since: float | None = None
    lost: Task | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a task runs so long past its hard limit that the worker will not kill it any more."""
        deadline = self.overdue.deadline if self.overdue else None
        return deadline is not None and monotonic() - deadline > PAST_LIMIT_S

    @property
    def blocks_the_loop(self) -> bool:
        """Whether a running task keeps the worker from beating, and from anything else."""
        return self.kind == SOLO


@dataclass(frozen=True, slots=True)
class Link:
    """The worker's side of its broker.

    `url` and `write_url` are masked; `server` is the one of the list in use, as
    host:port. `options` are its transport options as far as they are plain and no
    secret: whoever talks to the same Redis must use the same.
    `answers` is whether it can be pinged at all. `last_contact` is None where it cannot be known.
    `refusal` is what the broker said to the last login if it refused it.
    """

    url: str
    write_url: str
    control_exchange: str
    options: dict[str, Any]
    answers: bool = True
    server: str = ""
    queues: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    last_contact: float | None = None
    reconnects: int = 0
    refusal: str = ""
    #: Connections lost and attempts that failed, by the name of the exception.
    connection_errors: dict[str, int] = field(default_factory=dict)

    @property
    def every_queue(self) -> tuple[str, ...]:
        """The queues it consumes or did consume."""
        return tuple(sorted({*self.queues, *self.cancelled}))

    @property
    def is_bridge(self) -> bool:
        """Whether it reads one broker and writes to another, so that its answers to a ping go elsewhere."""
        return self.url != self.write_url


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a worker said at its last beat."""

    node: str
    process: Process
    beat: float
    phase: str
    since: float
    #: The kind of stop (warm, soft, cold) while it stops.
    stop: str
    started_at: float
    #: When it last received a task; None before the first.
    last_received: float | None
    #: Seconds the last one had waited; None unless it said when it was sent.
    last_wait_s: float | None
    pool: Pool
    link: Link
    #: Whether the count of the deduplicated can be believed.
    sees_deduplicated: bool = False
    #: By name of the task: received, redelivered, succeeded, failed, retried, deduplicated.
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    #: By kind and task, as `repot.worker.counts.Counts.histograms` returns them.
    histograms: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def written(self) -> str:
        """The text of its file."""
        return json.dumps(asdict(self))


def default_folder() -> Path:
    """Where pulses are, unless WORKER_PULSE_FOLDER says otherwise: of this user and this application alone."""
    return Path(tempfile.gettempdir()) / f"repot-{os.getuid()}-{application_mark()}"


def folders_of_others(mine: Path) -> list[Path]:
    """The default folders of this user's other applications in which a worker has beaten."""
    found = mine.parent.glob(f"repot-{os.getuid()}-*")
    return sorted(folder for folder in found if folder != mine and nodes(folder))


def path_of(folder: Path, node: str) -> Path:
    """The file of one worker."""
    # a name is one segment of a path, and no hidden one
    return folder / (re.sub(r"^\.|[/\x00]", lambda found: f"%{ord(found[0]):02x}", node) + _SUFFIX)


def read(path: Path) -> Pulse:
    """The pulse in a file.

    Raises:
        FileNotFoundError: no worker of that name has started here.
        PulseUnreadable: it is no pulse, or may not be read.
    """
    try:
        found = json.loads(path.read_text(), parse_constant=_refuse)
        for name in ("beat", "since", "started_at"):
            found[name] = float(found[name])
        found["process"]["pid"] = int(found["process"]["pid"])
        pool, link = found["pool"], found["link"]
        tasks = {name: Task(**pool[name]) if pool[name] else None for name in ("oldest", "overdue", "lost")}
        lists = {name: tuple(link[name]) for name in ("queues", "cancelled")}
        return replace(
            Pulse(**found),
            process=Process(**found["process"]),
            pool=Pool(**pool | tasks),
            link=Link(**link | lists),
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        message = f"{path} is no pulse of a worker: {type(error).__name__}: {error}"
        raise PulseUnreadable(message, hint="Worker and probe must be of the same version of repot.") from error


def _refuse(constant: str) -> None:
    message = f"{constant} is no time"
    raise ValueError(message)


def nodes(folder: Path) -> list[str]:
    """The workers that have a pulse in the folder, those that ended included."""
    found = (path.name.removesuffix(_SUFFIX) for path in folder.glob(f"[!.]*{_SUFFIX}"))
    return sorted(re.sub("%(00|2e|2f)", lambda escaped: chr(int(escaped[1], 16)), name) for name in found)


def this_process() -> Process:
    """What tells this process from any other."""
    pid = os.getpid()
    return Process(pid, started(pid), namespace(), boot())


def started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty if it is gone or cannot be asked."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def condition(pid: int) -> str:
    """The kernel's letter for what a process does, T for stopped and Z for ended; empty if it cannot be asked."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def namespace() -> str:
    """The kernel's name for the process ids one sees, another in each container; empty where there is no such thing."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def boot() -> str:
    """The kernel's name for this boot: its clock begins anew with the next; empty where there is no such thing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """The fields of proc(5)'s stat behind the name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
