"""Who moves: a text that names the process, and tells another one on the same machine whether it has ended."""

from __future__ import annotations

import getpass
import json
import os
import socket
from contextlib import suppress
from pathlib import Path


def this_mover(name: str) -> str:
    """Return the text for this process and the name of its move."""
    pid = os.getpid()
    return json.dumps(
        {
            "move": name,
            "user": _user(),
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": pid,
            "started": _started(pid),
        }
    )


def has_ended(holder: str) -> bool:
    """Return whether the process of a text is known to have ended; False for one on another machine."""
    try:
        found = json.loads(holder)
        here = bool(_machine()) and found["machine"] == _machine() and found["host"] == socket.gethostname()
        return here and _started(int(found["pid"])) != str(found["started"])
    except (ValueError, KeyError, TypeError):
        return False


def described(holder: str) -> str:
    """Return a text for people."""
    try:
        found = json.loads(holder)
        return f"the move {found['move']!r}, process {found['pid']} of {found['user']} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return holder or "an unknown process"


def _machine() -> str:
    """Return what this boot and these process ids belong to; empty where the platform does not say."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; empty if it has ended."""
    with suppress(OSError):
        # the second field, a name in parentheses, may contain spaces
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state == "Z" else rest[18]
    return ""


def _user() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "an unknown user"
