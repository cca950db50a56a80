"""Read an application with its own interpreter, in whose environment nothing is installed and nothing is written.

The interpreter gets the text of `repot/upstream/collector.py` and the request by a pipe, and answers with one line of
JSON by another. Both hold the passwords of addresses, so neither is an argument, a variable or a file.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

from repot import errors
from repot.errors import AppFailed, AppUnusable, ConfigInvalid, RepotError
from repot.upstream import collector
from repot.worker.app_loader import load_error, not_an_app

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARK = b"repot-collector "
_OLDEST_PYTHON = (3, 6)
#: What any Python understands, also one that is too old for the collector.
_START = f"""
import sys
sys.stdout.write("{_MARK.decode()}%d.%d.%d\\n" % sys.version_info[:3])
sys.stdout.flush()
if sys.version_info >= {_OLDEST_PYTHON}:
    import json
    request = json.loads(sys.stdin.buffer.readline().decode())
    names = {{"__name__": "repot_collector"}}
    exec(compile(sys.stdin.buffer.read(), "repot/upstream/collector.py", "exec"), names)
    names["main"](request)
"""

#: How long an interpreter that has answered may take to end; what it does then concerns nothing.
_END_S = 5.0


#: What went wrong in the interpreter, by the step that the collector names: the error, its message and its hint.
_SENTENCES: dict[str, tuple[type[RepotError], str, str]] = {
    "celery": (
        ConfigInvalid,
        "--python: {python} has no Celery that can be imported: {text}",
        "Name the interpreter of the environment in which the workers run.",
    ),
    "old": (
        ConfigInvalid,
        "--python: {python} has Celery {text}; an application is read from {oldest} on",
        "Upgrade its Celery first.",
    ),
    "setting": (ConfigInvalid, "{text}", ""),
    "repot": (
        AppUnusable,
        "--target: the application is configured by the repot of its own environment",
        "Run `repot doctor -A {app} --target ...` in that environment.",
    ),
    "tasks": (AppFailed, "the tasks of {app!r} fail on import: {text}", "`celery -A {app} report` shows where."),
    "config": (
        AppFailed,
        "the configuration of {app!r} cannot be read: {text}",
        "`celery -A {app} report` shows where.",
    ),
}


def read_with(python: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Return the document of an application: `request` has its name (`app`), the project (`root`) and the `target`.

    The interpreter runs in this directory and with these variables.

    Raises:
        AppUnusable: the application cannot be loaded or read; or AppFailed, AppNotFound.
        ConfigInvalid: `python` is no interpreter, or has no Celery that can be read.
    """
    answer, version, ended = _run(python, request, timeout_s)
    if not version:
        message = f"--python: {python} is not a Python interpreter"
        raise ConfigInvalid(message, hint="Name the program itself, as `command -v python` shows it there.")
    if tuple(map(int, version.split(".")[:2])) < _OLDEST_PYTHON:
        message = f"--python: {python} is Python {version}; an application is read with Python 3.6 or newer"
        raise ConfigInvalid(message, hint="Name the interpreter that runs its workers.")
    if answer is None:
        name = request["app"]
        module = name.partition(":")[0]
        message = f"{python} {ended} while it read the application {name!r}"
        hint = f"`{python} -X faulthandler -c 'import {module}'` shows where; --timeout gives it more time."
        raise AppFailed(message, hint=hint)
    problem = answer.get("error")
    if problem:
        raise _error(python, request["app"], problem)
    return answer


def _run(python: str, request: Mapping[str, Any], timeout_s: float) -> tuple[dict[str, Any] | None, str, str]:
    """Return the answer, the interpreter's version, and how it ended without an answer."""
    text = json.dumps(request).encode() + b"\n" + Path(collector.__file__).read_bytes()
    try:
        # -B: an import writes no bytecode beside the application's modules
        process = subprocess.Popen([python, "-B", "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - the user names it
    except OSError as error:
        message = f"--python: {python} cannot be run: {error.strerror}"
        hint = "Name an interpreter, for example /srv/shop/venv/bin/python."
        raise ConfigInvalid(message, hint=hint) from error
    assert process.stdin is not None
    assert process.stdout is not None
    # reads end when the process does
    limit = Timer(timeout_s, process.kill)
    limit.start()
    version, answer = "", None
    try:
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(text)
        for line in process.stdout:
            if line.startswith(_MARK):
                version = line.removeprefix(_MARK).decode().strip()
            elif version and line.startswith(b"{"):
                answer = json.loads(line)
                break
        timed_out = answer is None and not limit.is_alive()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    finally:
        limit.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
    return answer, version, f"did not answer within {timeout_s:g} s and was ended" if timed_out else _end(process)


def _end(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _error(python: str, name: str, problem: Mapping[str, Any]) -> RepotError:
    """Return the error that the same application has where it is loaded in this process."""
    step, text = problem["step"], problem["text"]
    if step == "load":
        return load_error(name, problem["reason"], text)
    if step == "type":
        return not_an_app(name, text)
    if step == "own":
        kinds = (getattr(errors, kind, None) for kind in problem["kinds"])
        own: RepotError = next((one for one in kinds if one), AppUnusable)(text, hint=problem["hint"])
        return own
    kind, message, hint = _SENTENCES[step]
    given = {"python": python, "app": name, "text": text, "oldest": ".".join(map(str, collector.OLDEST))}
    return kind(message.format_map(given), hint=problem.get("hint") or hint.format_map(given))
