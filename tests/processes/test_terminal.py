"""A real terminal: its width is asked for, and colours come by themselves."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest


@pytest.mark.parametrize(("width", "variables"), [(60, {}), (90, {"NO_COLOR": "1"})])
def test_a_terminal_has_lines_of_its_width(width: int, variables: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    command = [sys.executable, "-m", "repot", "doctor", "explain", "RPT101"]
    # some lines: the terminal's buffer has room for them
    subprocess.run(command, stdout=theirs, env={"TERM": "xterm", **variables}, check=True)
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as read:
        text = read.read(1 << 16).decode().replace("\r\n", "\n")
    lines = text.partition("\nWrite:")[0].splitlines()
    assert width - 15 < max(map(len, lines[2:])) <= width
    assert ("\x1b[1m" in text) == (not variables)
