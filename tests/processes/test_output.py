"""A closed output pipe, as `head` leaves it, ends a command without a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from repot.cli.output import PIPE_CLOSED, closed_pipe_is_no_error

COMMANDS = (
    "-m repot config show",
    "-m repot config variables",
    "-m repot doctor --app repot.worker.app",
    "-m repot doctor rules",
    "-m repot chaos list",
    "-m repot completion bash",
    "-m repot --help",
    # what Python's streams could not write they hold, or do not
    "-u -m repot config variables",
    "-m celery --app repot.worker.app repot doctor",
)


def test_a_closed_pipe_is_no_error() -> None:
    """The pipe is closed before the first line, as `head -1` does before the second."""
    processes = [_unread(command.split()) for command in COMMANDS]
    said = [process.communicate()[1] for process in processes]
    assert [(command, PIPE_CLOSED, "") for command in COMMANDS] == [
        (command, process.returncode, text) for command, process, text in zip(COMMANDS, processes, said, strict=True)
    ]


def _unread(words: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={}
    )
    assert process.stdout
    # long before Python can have started in it
    process.stdout.close()
    process.stdout = None
    return process


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        found = subprocess.run(
            [sys.executable, "-m", "repot", "config", "variables"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={},
            check=False,
        )
    assert (found.returncode, found.stderr) == (1, "error: the output cannot be written: No space left on device\n")


def test_the_broken_pipe_of_a_broker_is_an_error() -> None:
    with pytest.raises(BrokenPipeError), closed_pipe_is_no_error():
        raise BrokenPipeError(32, "a broker's")
