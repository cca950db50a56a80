"""Is the worker alive? Its process and its pulse say so, and no broker is asked.

An orchestrator restarts what is not alive. A restart mends a process that is gone
or an event loop that hangs, never a broker.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from repot.errors import PulseUnreadable
from repot.healthcheck.answer import Answer
from repot.worker import pulse
from repot.worker.pulse import STOPPED, STOPPING, Pulse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: A worker of another container that has not beaten for longer is not counted among those that live here.
STALE_S = 60

#: States in which there is no worker to ask.
NO_WORKER = "no_worker"
UNREADABLE = "pulse_unreadable"
AMBIGUOUS = "ambiguous"
GONE = "gone"
FROZEN = "frozen"
#: A solo worker in its task.
BUSY = "busy"
POOL_STUCK = "pool_stuck"


def find_pulse(folder: Path | None, node: str) -> Pulse | Answer:
    """The pulse of the named worker, or of the only one here; an answer of "no" where there is none to be had."""
    place = folder or pulse.default_folder()
    # where none can be read, any of them says why
    names = [expanded(node)] if node else _living_or_last(place) or pulse.nodes(place)[:1]
    if not names:
        others = [] if folder else pulse.folders_of_others(place)
        elsewhere = f"; with other settings, workers beat in {', '.join(map(str, others))}" if others else ""
        return Answer(ok=False, state=NO_WORKER, reason=f"no worker has beaten in {place} yet{elsewhere}")
    if len(names) > 1:
        reason = f"several workers beat in {place}: {', '.join(names)}; name one in HEALTHCHECK_NODE"
        return Answer(ok=False, state=AMBIGUOUS, reason=reason)
    try:
        return pulse.read(pulse.path_of(place, names[0]))
    except FileNotFoundError:
        return Answer(ok=False, state=NO_WORKER, reason=f"{names[0]} has not beaten in {place} yet")
    except PulseUnreadable as error:
        return Answer(ok=False, state=UNREADABLE, reason=error.message)


def liveness(found: Pulse | Answer, timeout_s: float) -> Answer:
    """Whether the worker is alive; its pulse may be `timeout_s` old."""
    if isinstance(found, Answer):
        return found
    age = monotonic() - found.beat
    gone = _gone(found, age)
    if gone:
        return Answer(ok=False, state=GONE, reason=gone)
    is_held = _is_held(found)
    if found.phase == STOPPING and not is_held:
        # a soft shutdown and a pool of threads wait without an event loop; how long is the supervisor's to say
        return Answer(ok=True, state=STOPPING, reason=f"{found.node} is leaving ({found.stop} shutdown)")
    task = found.pool.oldest
    if found.pool.blocks_the_loop and task and not is_held:
        return _blocked(found, task.name, monotonic() - task.started)
    if age > timeout_s:
        what = "is stopped by a signal" if is_held else "hangs"
        reason = f"{found.node} {what}: its last beat was {age:.0f} s ago, {timeout_s:g} are allowed"
        return Answer(ok=False, state=FROZEN, reason=reason)
    return Answer(ok=True, state=found.phase, reason=f"{found.node} beats; the last was {age:.1f} s ago")


def _blocked(found: Pulse, name: str, for_s: float) -> Answer:
    """A solo worker in its task: it cannot beat, and Celery cannot enforce a time limit there."""
    if found.pool.is_stuck:
        reason = f"{found.node} runs {name} for {for_s:.0f} s, past its hard time limit, and cannot stop it (solo pool)"
        return Answer(ok=False, state=POOL_STUCK, reason=reason)
    reason = f"{found.node} runs {name} for {for_s:.0f} s and cannot beat meanwhile (solo pool)"
    return Answer(ok=True, state=BUSY, reason=reason)


def _gone(found: Pulse, age: float) -> str:
    """Why there is no such process any more; empty if there is, or nobody can tell from here."""
    if found.phase == STOPPED:
        return f"{found.node} has ended ({found.stop or 'warm'} shutdown)"
    process = found.process
    if age < 0 or process.boot != pulse.boot():
        return f"the pulse of {found.node} is from before this machine's last start"
    if process.namespace != pulse.namespace():
        # another container's: its process ids mean nothing here
        return ""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return f"the process {process.pid} of {found.node} is gone"
    except PermissionError:
        pass
    if pulse.condition(process.pid) in ("Z", "X") or process.started != pulse.started(process.pid):
        return f"the process {process.pid} of {found.node} is gone"
    return ""


def _is_held(found: Pulse) -> bool:
    """Whether SIGSTOP or a debugger holds the process."""
    process = found.process
    return process.namespace == pulse.namespace() and pulse.condition(process.pid) in ("T", "t")


def living_in(folder: Path | None) -> list[Pulse]:
    """The pulses of the workers that live and beat in a folder; None is the default one."""
    return [found for found in _beaten(folder or pulse.default_folder()) if _may_live(found)]


def _living_or_last(folder: Path) -> list[str]:
    """The workers that beat in a folder; if none lives, the one that did last."""
    beaten = sorted(_beaten(folder), key=lambda found: found.beat)
    living = sorted(found.node for found in beaten if _may_live(found))
    return living or [found.node for found in beaten[-1:]]


def _may_live(found: Pulse) -> bool:
    """Whether a pulse is a living worker's; of one in another container, which may be gone, only its age can tell."""
    age = monotonic() - found.beat
    return not _gone(found, age) and (found.process.namespace == pulse.namespace() or age < STALE_S)


def _beaten(folder: Path) -> Iterator[Pulse]:
    for node in pulse.nodes(folder):
        with suppress(FileNotFoundError, PulseUnreadable):
            yield pulse.read(pulse.path_of(folder, node))


def expanded(node: str) -> str:
    """A node's name with its abbreviations, as `celery worker -n` takes them: %h, %n, %d and %%."""
    if "@" not in node:
        # as `celery worker -n` completes it
        node = f"celery@{node}"
    host = socket.gethostname()
    name, _, domain = host.partition(".")
    full = {"h": host, "n": name, "d": domain, "%": "%"}
    return re.sub("%([hnd%])", lambda found: full[found[1]], node)
