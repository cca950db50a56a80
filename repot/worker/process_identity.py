"""Identify a process: a process id alone may be used again, and means nothing in another container."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """The worker's process. All but `pid`, which may be used again, come from Linux and are empty elsewhere.

    `start_ticks` is its start time in the kernel's ticks, `pid_namespace` and `boot_id` are the kernel's names.
    """

    pid: int
    start_ticks: str
    pid_namespace: str
    boot_id: str


def this_process() -> Process:
    """Return what tells this process from all others."""
    pid = os.getpid()
    return Process(pid, start_ticks(pid), pid_namespace(), boot_id())


def start_ticks(pid: int) -> str:
    """Return the start time of a process in the kernel's ticks; empty if it is gone or the system does not tell."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def process_state(pid: int) -> str:
    """Return the kernel's code for a process' state, T for stopped, Z for ended; empty if the system does not tell."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def pid_namespace() -> str:
    """Return the kernel's name of this process id namespace, one for each container; empty where there are none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def boot_id() -> str:
    """Return the kernel's name of this boot, since which its clock counts; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of proc(5)'s stat behind the name, which may hold any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
