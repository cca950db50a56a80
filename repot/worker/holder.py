"""Who moves: a text that names the process, and tells another one on the same machine whether it has ended."""

from __future__ import annotations

import getpass
import json
import os
import socket
from contextlib import suppress
from typing import Any

from repot.worker.process_identity import boot_id, pid_namespace, process_state, start_ticks


def this_process(doing: str) -> str:
    """Return the text for this process and what it does: `the move 'friday'`."""
    return json.dumps({"doing": doing, **who(), "machine": _machine(), "started": _started(os.getpid())})


def who() -> dict[str, Any]:
    """Return the user, the host and the process id."""
    return {"user": user(), "host": socket.gethostname(), "pid": os.getpid()}


def has_ended(holder: str) -> bool:
    """Return whether the process of a text is known to have ended; False for one on another machine."""
    try:
        named = json.loads(holder)
        here = bool(boot_id()) and named["machine"] == _machine() and named["host"] == socket.gethostname()
        return here and _started(int(named["pid"])) != str(named["started"])
    except (ValueError, KeyError, TypeError):
        return False


def described(holder: str) -> str:
    """Return a text for people."""
    try:
        found = json.loads(holder)
        return f"{found['doing']}, process {found['pid']} of {found['user']} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return holder or "an unknown process"


def doing(holder: str) -> str:
    """Return what the process of a text does; the text if it does not say that."""
    try:
        return str(json.loads(holder)["doing"])
    except (ValueError, KeyError, TypeError):
        return holder


def _machine() -> str:
    """Return what this boot and these process ids belong to."""
    return f"{boot_id()} {pid_namespace()}"


def _started(pid: int) -> str:
    """Return when a process started; empty if it has ended."""
    return "" if process_state(pid) == "Z" else start_ticks(pid)


def user() -> str:
    """Return the name of the user."""
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "an unknown user"
