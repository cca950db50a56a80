"""Decide whether the worker is alive, from its process and its status file; no broker is asked.

An orchestrator restarts a worker that is not alive. A restart helps if the process is
gone or its event loop hangs; it never repairs a broker.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from repot.errors import StatusFileUnreadable
from repot.healthcheck.probe_result import ProbeResult, WorkerState
from repot.worker import process_identity, status_file
from repot.worker.status_file import WorkerPhase, WorkerStatus
from repot.worker.status_place import StatusPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: A worker of another container is not counted as living once its status file is older, unless it holds its lock.
STALE_S = 60


def find_status(directory: Path | None, node: str) -> WorkerStatus | ProbeResult:
    """Return the status of the named worker, or of the only one here; a negative result if no worker is here."""
    place = directory or status_file.default_dir()
    named = full_node_name(node) if node else ""
    statuses = _meant(_statuses(place, named))
    if len(statuses) == 1:
        return statuses[0]
    if statuses:
        return _no(WorkerState.AMBIGUOUS, _several(statuses, place))
    # if no status file can be read, any of them explains why
    names = [named] if named else status_file.nodes(place)[:1]
    if not names:
        others = [] if directory else status_file.other_status_dirs(place)
        elsewhere = f"; workers with other settings have theirs in {', '.join(map(str, others))}" if others else ""
        return _no(WorkerState.NO_WORKER, f"no worker has written a status file to {place} yet{elsewhere}")
    try:
        return status_file.read(status_file.path_of(place, names[0]))
    except FileNotFoundError:
        return _no(WorkerState.NO_WORKER, f"{names[0]} has not written a status file to {place} yet")
    except StatusFileUnreadable as error:
        return _no(WorkerState.STATUS_UNREADABLE, error.message)


def liveness(status: WorkerStatus | ProbeResult, timeout_s: float) -> ProbeResult:
    """Decide whether the worker is alive; its status file may be `timeout_s` old."""
    if isinstance(status, ProbeResult):
        return status
    age_s = monotonic() - status.written_at
    gone = _why_gone(status, age_s)
    if gone:
        return _no(WorkerState.GONE, gone)
    is_held = _is_held(status)
    if status.phase is WorkerPhase.STOPPING and not is_held:
        # a soft shutdown and a pool of threads wait without an event loop; the supervisor limits how long
        reason = f"{status.node} is stopping ({status.shutdown} shutdown)"
        return ProbeResult(ok=True, state=WorkerState.STOPPING, reason=reason)
    task = status.pool.longest_running
    if status.pool.blocks_the_loop and task and not is_held:
        return _blocked(status, task.name, monotonic() - task.started_at)
    if age_s > timeout_s:
        what = "is stopped by a signal" if is_held else "hangs"
        reason = f"{status.node} {what}: its status file is {age_s:.0f} s old, {timeout_s:g} are allowed"
        return _no(WorkerState.FROZEN, reason + ("" if is_held else _held_by_a_task(status)))
    reason = f"{status.node} wrote its status file {age_s:.1f} s ago"
    return ProbeResult(ok=True, state=WorkerState(status.phase), reason=reason)


def _no(state: WorkerState, reason: str) -> ProbeResult:
    return ProbeResult(ok=False, state=state, reason=reason)


def _blocked(status: WorkerStatus, name: str, runtime_s: float) -> ProbeResult:
    """Judge a solo worker in its task: it cannot write its status, and Celery cannot enforce a time limit there."""
    running = f"{status.node} has run {name} for {runtime_s:.0f} s"
    if status.pool.is_stuck:
        reason = f"{running}, past its hard time limit, and cannot stop it (solo pool)"
        return _no(WorkerState.POOL_STUCK, reason)
    reason = f"{running} and cannot write its status file meanwhile (solo pool)"
    return ProbeResult(ok=True, state=WorkerState.BUSY, reason=reason)


def _held_by_a_task(status: WorkerStatus) -> str:
    """Return what else may hold the event loop, where tasks run in it; empty for other pools.

    The file does not name a task that began after it was written and has made no pause since.
    """
    if not status.pool.shares_the_loop:
        return ""
    cause = f"its {status.pool.kind} pool runs tasks in the event loop, and one that computes without a pause holds it"
    instead = "give such tasks a pool of processes (-P prefork), or raise HEALTHCHECK_STATUS_TIMEOUT above their time"
    return f"; {cause}: {instead}"


def _why_gone(status: WorkerStatus, age_s: float) -> str:
    """Return why the process no longer exists; empty if it does, or if that cannot be seen from here."""
    if status.phase is WorkerPhase.STOPPED:
        return f"{status.node} has ended ({status.shutdown or 'warm'} shutdown)"
    process = status.process
    if age_s < 0 or process.boot_id != process_identity.boot_id():
        return f"the status file of {status.node} is from before this machine's last start"
    if process.pid_namespace != process_identity.pid_namespace():
        # the process ids of another container mean nothing here; the kernel knows who holds the lock
        is_gone = _holds_its_place(status) is False
        return f"the process of {status.node}, in another container, is gone" if is_gone else ""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return f"the process {process.pid} of {status.node} is gone"
    except PermissionError:
        pass
    has_ended = process_identity.process_state(process.pid) in ("Z", "X")
    if has_ended or process.start_ticks != process_identity.start_ticks(process.pid):
        return f"the process {process.pid} of {status.node} is gone"
    return ""


def _holds_its_place(status: WorkerStatus) -> bool | None:
    """Return whether the process still holds the place of its file, in whichever container; None if it is unknown."""
    return StatusPlace(Path(status.read_from)).is_held() if status.read_from else None


def _is_held(status: WorkerStatus) -> bool:
    """Return whether SIGSTOP or a debugger holds the process."""
    process = status.process
    is_here = process.pid_namespace == process_identity.pid_namespace()
    return is_here and process_identity.process_state(process.pid) in ("T", "t")


def living_in(directory: Path | None) -> list[WorkerStatus]:
    """Return the status of each living worker with a status file in `directory`; None is the default directory."""
    return [status for status in _statuses(directory or status_file.default_dir()) if _may_live(status)]


def _meant(statuses: Iterable[WorkerStatus]) -> list[WorkerStatus]:
    """Return the living workers, and if there are none the last one that wrote.

    Of one name, a worker that stops makes way for another; one that was killed does not, as it may be the one that is
    meant.
    """
    by_age = sorted(statuses, key=lambda status: status.written_at)
    living = [status for status in by_age if _may_live(status)]
    names = {status.node for status in living if status.phase is not WorkerPhase.STOPPING}
    left = [status for status in living if status.phase is not WorkerPhase.STOPPING or status.node not in names]
    killed = [status for status in by_age if status.node in names and status not in living and _was_killed(status)]
    return [*left, *killed] or by_age[-1:]


def _was_killed(status: WorkerStatus) -> bool:
    """Return whether a worker that lives no more was to go on, since this machine's last start."""
    was_to_go_on = status.phase not in (WorkerPhase.STOPPING, WorkerPhase.STOPPED)
    return was_to_go_on and status.process.boot_id == process_identity.boot_id()


def _several(statuses: Iterable[WorkerStatus], place: Path) -> str:
    """Return why one of several workers must be named, or what to do if they have one name."""
    pids: dict[str, list[str]] = {}
    for status in statuses:
        pids.setdefault(status.node, []).append(f"{status.process.pid}{'' if _may_live(status) else ', which is gone'}")
    for node, processes in pids.items():
        if len(processes) > 1:
            return (
                f"several processes of the name {node} have a status file in {place}: {'; '.join(processes)}; "
                "give each worker a name of its own (celery worker -n), or its WORKER_STATUS_DIR"
            )
    return f"several workers have a status file in {place}: {', '.join(sorted(pids))}; name one in HEALTHCHECK_NODE"


def _may_live(status: WorkerStatus) -> bool:
    """Return whether a worker may be alive; without locks, in another container only the age of its file can tell."""
    age_s = monotonic() - status.written_at
    if _why_gone(status, age_s):
        return False
    is_here = status.process.pid_namespace == process_identity.pid_namespace()
    return is_here or age_s < STALE_S or bool(_holds_its_place(status))


def _statuses(directory: Path, named: str = "") -> Iterator[WorkerStatus]:
    """Yield what the workers of a directory, or those of one name, have written, where it can be read."""
    paths = status_file.paths_of(directory, named) if named else status_file.paths(directory)
    for path in paths:
        with suppress(FileNotFoundError, StatusFileUnreadable):
            status = status_file.read(path)
            if named in ("", status.node):
                yield status


def full_node_name(node: str) -> str:
    """Expand the abbreviations of a node name that `celery worker -n` takes: %h, %n, %d and %%."""
    if "@" not in node:
        # as `celery worker -n` completes it
        node = f"celery@{node}"
    host = socket.gethostname()
    name, _, domain = host.partition(".")
    full = {"h": host, "n": name, "d": domain, "%": "%"}
    return re.sub("%([hnd%])", lambda found: full[found[1]], node)
