#!/usr/bin/env python3
"""Make the pictures of the docs from what the demos print and write; `make pictures`.

Usage: scripts/pictures.py [DIRECTORY], by default docs/pictures. It runs `repot demo` and the rollout's demo, which
takes about four minutes, and needs a Chromium.

`demo.svg` is the session of `repot demo` as a terminal shows it: each line appears when it was printed, with shorter
pauses. It plays once; where a reader asks for less motion, it shows its end.
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from repot.config import inherited_environment
from repot.testbed.executables import Executable

if TYPE_CHECKING:
    from rich.color import Color

ROOT = Path(__file__).parents[1]
REPOT = Path(sys.executable).with_name("repot")

COLUMNS, ROWS = 100, 22
#: Pixels of a character and a line; seconds between two lines.
_CHARACTER, _LINE, _BASELINE, _MARGIN = 8.45, 19, 14, 14
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.08, 1.5
_BACKGROUND, _TEXT = "#1e1f24", "#e6e6e6"
#: Of a page, in pixels.
_WIDTH = 1280
_TIME_LIMIT_S = 60

_HOW = "make browser"
CHROMIUM = Executable(("chromium", "chromium-browser", "google-chrome"), debian=_HOW, macos=_HOW, docker=_HOW)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a command printed, with its colours, and when, in seconds after the command's start."""

    at: float
    text: Text


def recorded(command: list[str], directory: Path) -> list[Line]:
    """Run a command, its standard output a terminal, and return its lines.

    Raises:
        subprocess.CalledProcessError: it fails.
    """
    ours, theirs = pty.openpty()
    environment = {
        **inherited_environment(without=()),
        "COLUMNS": str(COLUMNS),
        "LINES": str(ROWS),
        "TERM": "xterm-256color",
    }
    begun, lines, rest = monotonic(), [], b""
    # its progress would move the cursor
    with subprocess.Popen(command, cwd=directory, env=environment, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        while part := _read(ours):
            *whole, rest = (rest + part).split(b"\n")
            at = monotonic() - begun
            # the reader's directory is another one
            texts = [one.decode().rstrip("\r").replace(f"{directory.resolve()}/", "") for one in whole]
            lines += [Line(at, Text.from_ansi(text)) for text in texts]
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return lines


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        # what Linux answers when the last process has closed the other end
        return b""


def session(typed: str, lines: list[Line]) -> str:
    """Return the SVG of a terminal in which a command is typed, and its lines appear."""
    shown = [Line(0.0, Text(f"$ {typed}")), *_wrapped(lines)]
    times, at, before = [], 0.0, 0.0
    for line in shown:
        at += max(_SHORTEST_PAUSE_S, min(line.at - before, _LONGEST_PAUSE_S))
        before = line.at
        times.append(at)
    length = times[-1]
    moves, rows = [], ""
    for number, (line, time) in enumerate(zip(shown, times, strict=True)):
        hidden = max(0, number + 1 - ROWS)
        moves.append(f"{100 * time / length:.3f}%{{transform:translateY({-hidden * _LINE}px)}}")
        y = number * _LINE + _BASELINE
        rows += f'<text y="{y}" style="animation-delay:{time:.2f}s">{"".join(_spans(line.text))}</text>\n'
    width, height = round(COLUMNS * _CHARACTER + 2 * _MARGIN), ROWS * _LINE + 2 * _MARGIN
    end = -max(0, len(shown) - ROWS) * _LINE
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>{escape(typed)} in a terminal</title>
<style>
text {{font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: {_TEXT}; white-space: pre;
  animation: appear 1ms both}}
g {{animation: scroll {length:.2f}s step-end both}}
@keyframes appear {{from {{opacity: 0}} to {{opacity: 1}}}}
@keyframes scroll {{0% {{transform: none}} {" ".join(moves)}}}
@media (prefers-reduced-motion: reduce) {{text, g {{animation: none}} g {{transform: translateY({end}px)}}}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>
<svg x="{_MARGIN}" y="{_MARGIN}" width="{width - 2 * _MARGIN}" height="{height - 2 * _MARGIN}"><g>
{rows}</g></svg>
</svg>
"""


def _wrapped(lines: list[Line]) -> list[Line]:
    """Return the lines, long ones broken between words."""
    console = Console(width=COLUMNS)
    return [Line(line.at, part) for line in lines for part in line.text.wrap(console, COLUMNS)]


def _spans(text: Text) -> list[str]:
    """Return the parts of a line, each with its colour."""
    found = []
    # at each place where a style begins or ends
    edges = sorted({0, len(text), *(edge for span in text.spans for edge in (span.start, span.end))})
    for start, end in pairwise(edges):
        styles = [span.style for span in text.spans if span.start <= start < span.end]
        given = "".join(_css(style) for style in styles)
        part = escape(text.plain[start:end])
        found.append(f'<tspan style="{given}">{part}</tspan>' if given else part)
    return found


def _css(style: object) -> str:
    color: Color | None = getattr(style, "color", None)
    fill = f"fill:{color.get_truecolor(MONOKAI).hex};" if color and not color.is_default else ""
    bold = "font-weight:bold;" if getattr(style, "bold", False) else ""
    # a dim text must stay readable
    return fill + bold + ("fill:#a9abb3;" if getattr(style, "dim", False) else "")


def shoot(page: Path, picture: Path, height: int) -> None:
    """Write what a browser shows of the first `height` pixels of a page.

    Raises:
        ProgramMissing: no Chromium is installed.
        subprocess.CalledProcessError: it fails.
    """
    with TemporaryDirectory() as home:
        command = [CHROMIUM.find(), "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command += [f"--user-data-dir={home}", f"--window-size={_WIDTH},{height}", f"--screenshot={picture.resolve()}"]
        subprocess.run([*command, page.resolve().as_uri()], check=True, timeout=_TIME_LIMIT_S, capture_output=True)


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "docs" / "pictures")
    into = parser.parse_args().directory
    into.mkdir(exist_ok=True)
    with TemporaryDirectory() as name:
        there = Path(name)
        lines = recorded([str(REPOT), "demo"], there)
        (into / "demo.svg").write_text(session("repot demo", lines))
        shoot(there / "repot-demo.html", into / "report.png", 900)
        tutorial = [sys.executable, str(ROOT / "scripts" / "run_page.py"), "--html", "rollout.html"]
        subprocess.run(tutorial, cwd=there, check=True, stdout=subprocess.DEVNULL)
        shoot(there / "rollout.html", into / "rollout.png", 1350)


if __name__ == "__main__":
    main()
