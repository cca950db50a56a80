"""The result of a probe."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WorkerState(StrEnum):
    """What a probe can find; the first five are the phases in a worker's status file."""

    STARTING = "starting"
    CONNECTING = "connecting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    READY = "ready"
    #: A solo worker in its task.
    BUSY = "busy"

    #: No status file.
    NO_WORKER = "no_worker"
    STATUS_UNREADABLE = "status_unreadable"
    #: Several workers, and none is named.
    AMBIGUOUS = "ambiguous"
    #: Its process has ended.
    GONE = "gone"
    #: Its process is there, and its status file is too old.
    FROZEN = "frozen"

    BROKER_UNREACHABLE = "broker_unreachable"
    BROKER_REFUSED = "broker_refused"
    BROKER_ALARM = "broker_alarm"
    POOL_CRASH_LOOP = "pool_crash_loop"
    POOL_STUCK = "pool_stuck"
    NOT_ANSWERING = "not_answering"
    NOT_CONSUMING = "not_consuming"
    #: Probe and worker have different brokers.
    MISCONFIGURED = "misconfigured"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Yes or no, the state for machines, and a sentence for people."""

    ok: bool
    state: WorkerState
    reason: str
