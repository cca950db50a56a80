#!/usr/bin/env python3
"""Run a tutorial as a reader would, on private servers: docs/tutorial-rollout.md, or PAGE.

Usage: scripts/run_page.py [--html FILE] [PAGE]. The page is the program: this script saves its files, types its
commands, and compares what they print with what the page shows. A README.md works in a copy of its directory, any
other page in an empty one. Exit codes: 0 if everything is as the page says, 1 if something is not, 130 after Ctrl-C or
SIGTERM. It leaves no process and no file but the report, for a page that makes one.

The first line of a code block says what it is:

    python file=NAME         a file that the reader saves; `sh file=NAME` as well
    diff file=NAME           a change that the reader makes: ` ` and `-` are lines of the file, `+` new ones; `...`
                             stands between two places
    sh                       commands that the reader types, one after the other; `exit=N` is the code of the last one
    sh terminal=NAME         a command that goes on in a terminal of its own; Ctrl-C ends the one before in it
    sh ends=NAME             a command that ends what runs in that terminal
    text                     what the commands before it print
    text terminal=NAME       what appears in a terminal; with `after=ctrl-c` when Ctrl-C has been pressed there

In a text `...` stands for anything, and a number for any number, except 0 and percentages.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

from repot.chaos.report.files import require_writable
from repot.config import inherited_environment
from repot.errors import DeadlineExceeded, Interrupted, RepotError
from repot.testbed.process import ReapedDirectory, ReapedProcess
from repot.waiting import stop_on_signal, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "docs" / "tutorial-rollout.md"
#: What every terminal reads first, once the page has it; the terminal whose last line is shown as progress; the report.
VARIABLES, PROGRESS, REPORT = "shop.env", "customers", "friday.html"
#: Seconds; far more than any of them takes, for a busy machine.
COMMAND_WITHIN_S, TEXT_WITHIN_S, END_WITHIN_S = 240.0, 120.0, 60.0
#: Seconds between two lines of progress.
PROGRESS_EVERY_S = 5.0
POLL_S = 0.1
WIDTH = 100
#: Lines of a file that is shown.
SHORT_FILE = 10

ANYTHING = "..."
_NEWLINE = r"\n"
_ANY_LINES = r"(?:[^\n]*\n)*?"
_NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_TOKEN = re.compile(rf"\.\.\.|\d+%|{_NUMBER}")


class NotAsWritten(Exception):
    """Something else happens than the page says."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the page: a heading, a paragraph, or a code block with its options."""

    kind: str
    text: str
    options: dict[str, str]


def blocks(page: str) -> Iterator[Block]:
    """Yield the parts of a page from its section `## 1. ...` on.

    Raises:
        NotAsWritten: it has no such section.
    """
    at = page.find("\n## 1. ")
    if at < 0:
        message = "the page has no section '## 1. ...'"
        raise NotAsWritten(message)
    for found in re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if found.start() > at:
            yield from _prose(page[at : found.start()])
            options = dict(word.partition("=")[::2] for word in found[2].split())
            yield Block(found[1], found[3].rstrip("\n"), options)
            at = found.end()
    yield from _prose(page[at:])


def _prose(text: str) -> Iterator[Block]:
    for part in filter(None, (one.strip() for one in text.split("\n\n"))):
        if part.startswith("## "):
            yield Block("heading", part.removeprefix("## "), {})
        else:
            yield Block("prose", re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", part), {})


def commands(text: str) -> list[str]:
    """Return the commands of a block; a backslash at the end of a line continues it."""
    lines = text.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def pattern(expected: str) -> str:
    """Return the regular expression of a text on the page, for `re` without DOTALL."""
    *lines, last = expected.splitlines()
    before = "".join(_ANY_LINES if line == ANYTHING else _pattern_of_line(line) + _NEWLINE for line in lines)
    # at the end it may stand for no line
    return rf"{before.removesuffix(_NEWLINE)}(?:\n[^\n]*)*" if last == ANYTHING else before + _pattern_of_line(last)


def _pattern_of_line(line: str) -> str:
    at, parts = 0, []
    for found in _TOKEN.finditer(line):
        parts += [re.escape(line[at : found.start()]), _pattern_of(found[0])]
        at = found.end()
    return "".join(parts) + re.escape(line[at:])


def _pattern_of(part: str) -> str:
    if part == ANYTHING:
        return "[^\\n]*?"
    if part == "0":
        return r"0(?![\d.])"
    return re.escape(part) if part.endswith("%") else _NUMBER


def require_printed(expected: str, printed: str, what: str) -> None:
    """Compare what was printed with a text of the page.

    Raises:
        NotAsWritten: they differ; with the first line of the page that was not printed.
    """
    printed = printed.strip("\n")
    if re.fullmatch(pattern(expected), printed):
        return
    lines = expected.splitlines()
    right = (
        max(n for n in range(1, len(lines) + 2) if n == 1 or re.match(pattern("\n".join(lines[: n - 1])), printed)) - 1
    )
    missing = lines[right] if right < len(lines) else "nothing more"
    message = f"{what} should have printed, after {right} lines that are right:\n{_indented(missing)}"
    raise NotAsWritten(message)


def changed(text: str, change: str, name: str) -> str:
    """Return a file's text with the changes of a diff.

    Raises:
        NotAsWritten: lines that the diff names are not in the file exactly once.
    """
    for place in change.split(f"\n{ANYTHING}\n"):
        lines = place.splitlines()
        before, after = ("".join(f"{line[1:]}\n" for line in lines if line[:1] != other) for other in "+-")
        if f"\n{text}".count(f"\n{before}") != 1:
            message = f"{name} should have these lines once:\n{_indented(before)}"
            raise NotAsWritten(message)
        text = f"\n{text}".replace(f"\n{before}", f"\n{after}")[1:]
    return text


class Terminal:
    """A terminal: what runs in it, and what it shows."""

    def __init__(self, process: ReapedProcess, command: str) -> None:
        """Follow a process that has just started."""
        self.process, self.command = process, command
        #: Whether the reader has ended it.
        self.is_closed = False
        self._read = 0

    @property
    def shown(self) -> str:
        """Return all that was printed."""
        return self.process.log.read_text(errors="replace")

    def new_lines(self) -> list[str]:
        """Return the complete lines that were printed since the last call."""
        found = self.shown[self._read :]
        found = found[: found.rfind("\n") + 1]
        self._read += len(found)
        return found.splitlines()

    def await_end(self, stop: Event | None = None) -> None:
        """Wait until the process has ended.

        Raises:
            DeadlineExceeded: it has not.
        """
        ended = f"`{self.command}` ends"
        wait_until(
            lambda: self.process.exit_code is not None, within_s=END_WITHIN_S, what=ended, poll_s=POLL_S, stop=stop
        )


class Reader:
    """Does what the page says, in a directory of its own."""

    def __init__(self, home: ReapedDirectory, stop: Event) -> None:
        """Work in `home` until `stop`."""
        self._home, self._stop = home, stop
        self.terminals: dict[str, Terminal] = {}
        self._starts = 0
        #: The last command that was typed, and what its block printed.
        self._typed = ("", "")

    def follow(self, block: Block) -> None:
        """Do what a block says.

        Raises:
            NotAsWritten: something else happens than the page says.
            Interrupted: the user asked to stop.
        """
        match block.kind, block.options:
            case "heading", _:
                say(f"\n{bold(block.text)}\n")
            case "prose", _:
                say(textwrap.fill(" ".join(block.text.split()), WIDTH) + "\n")
            case kind, {"file": name}:
                self._save(name, block.text, is_change=kind == "diff")
            case "text", {"terminal": name}:
                self._await_text(block.text, name, after_end=block.options.get("after") == "ctrl-c")
            case "text", _:
                require_printed(block.text, self._typed[1], f"`{self._typed[0]}`")
            case "sh", {"terminal": name}:
                self._open(name, *commands(block.text))
            case "sh", options:
                self._type(commands(block.text), int(options.get("exit", 0)), ends=options.get("ends"))
            case _:
                message = f"a code block of the page is of no known kind: {block.kind} {block.options}"
                raise NotAsWritten(message)

    def close(self) -> None:
        """End everything that was started, the servers last."""
        for name, terminal in reversed(self.terminals.items()):
            if name == "servers":
                # killed, it would leave the servers to their reapers, and this script would end before they do
                terminal.process.signal(signal.SIGTERM)
                terminal.await_end()
            terminal.process.stop()

    def _show_file(self, name: str, lines: list[str]) -> None:
        """Show a short file; of a long one only where it is."""
        say(f"  {name}, {len(lines)} lines" + (":" if len(lines) <= SHORT_FILE else ": the page shows it"))
        if len(lines) <= SHORT_FILE:
            show([f"  {line}" for line in lines])
        say("")

    def _save(self, name: str, text: str, *, is_change: bool) -> None:
        """Save a file, or change one as a diff says, and show what the page has."""
        path = self._home.path / name
        new = changed(path.read_text(encoding="utf-8"), text, name) if is_change else f"{text}\n"
        path.write_text(new, encoding="utf-8")
        self._show_file(name, text.splitlines())

    def _start(self, name: str, command: str) -> Terminal:
        self._starts += 1
        environment = inherited_environment(without=("WORKER_", "CELERY_", "HEALTHCHECK_", "SHOP_"))
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{environment.get('PATH', '')}",
            # what a killed worker leaves there is removed with it
            "TMPDIR": str(self._home.path),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "160",
        }
        variables = f". ./{VARIABLES}; " if (self._home.path / VARIABLES).exists() else ""
        # `exec` makes the command the process that receives Ctrl-C, and `env` takes the variables before it
        line = f"{variables}exec env {command}"
        log = self._home.path / f"{self._starts}-{name}.log"
        log.touch()
        directory = self._home.path
        process = ReapedProcess(
            ["bash", "-c", line], log=log, environment=environment, directory=directory, home=self._home
        )
        return Terminal(process, command)

    def _open(self, name: str, command: str) -> None:
        """Run a command in a terminal of its own."""
        if name in self.terminals and not self.terminals[name].is_closed:
            self._press_ctrl_c(name)
        say(f"  [{name}] $ {bold(command)}")
        self.terminals[name] = self._start(name, command)

    def _type(self, typed: list[str], exit_code: int, *, ends: str | None) -> None:
        """Run commands one after the other, and show what they print; `ends` names the terminal that they end."""
        if ends:
            self.terminals[ends].is_closed = True
        printed = ""
        for number, command in enumerate(typed, 1):
            say(f"  $ {bold(command)}")
            terminal = self._start("yours", command)
            try:
                self._show_until_it_ends(terminal)
            finally:
                terminal.process.stop()
            show(terminal.new_lines())
            printed += terminal.shown
            code, wanted = terminal.process.exit_code, exit_code if number == len(typed) else 0
            if code != wanted:
                message = f"`{command}` should exit with {wanted}. It exited with {code}"
                raise NotAsWritten(message)
            if code:
                say(f"    (exit code {code})")
        self._typed = (typed[-1], printed)
        if ends:
            self.terminals[ends].await_end(self._stop)
            self.terminals[ends].process.stop()
        say("")

    def _show_until_it_ends(self, terminal: Terminal) -> None:
        """Show what a command prints, and now and then that the customers go on."""
        progress_at = monotonic() + PROGRESS_EVERY_S

        def has_ended() -> bool:
            nonlocal progress_at
            if lines := terminal.new_lines():
                show(lines)
                progress_at = monotonic() + PROGRESS_EVERY_S
            self._require_running()
            if monotonic() > progress_at:
                self._show_progress()
                progress_at = monotonic() + PROGRESS_EVERY_S
            return terminal.process.exit_code is not None

        ended = f"`{terminal.command}` ends"
        wait_until(has_ended, within_s=COMMAND_WITHIN_S, what=ended, poll_s=POLL_S, stop=self._stop)

    def _show_progress(self) -> None:
        found = self.terminals.get(PROGRESS)
        if found and not found.is_closed and (lines := found.new_lines()):
            say(f"  [{PROGRESS}] {lines[-1]}")

    def _await_text(self, text: str, name: str, *, after_end: bool) -> None:
        """Wait until a terminal shows a text of the page, and show its lines."""
        if after_end:
            self._press_ctrl_c(name)
        terminal, expected = self.terminals[name], re.compile(pattern(text))

        def appears() -> re.Match[str] | None:
            self._require_running()
            return expected.search(terminal.shown)

        within_s = 1 if after_end else TEXT_WITHIN_S
        try:
            found = wait_until(appears, within_s=within_s, what="the text", poll_s=POLL_S, stop=self._stop)
        except DeadlineExceeded:
            message = f"the terminal [{name}] should show:\n{_indented(text)}"
            raise NotAsWritten(message) from None
        assert found is not None
        shown = terminal.shown
        start, end = shown.rfind("\n", 0, found.start()) + 1, shown.find("\n", found.end())
        for line in shown[start : None if end < 0 else end].splitlines():
            say(f"  [{name}] {line}")
        say("")

    def _press_ctrl_c(self, name: str) -> None:
        terminal = self.terminals[name]
        say(f"  [{name}] {bold('^C')}")
        terminal.is_closed = True
        terminal.process.signal(signal.SIGINT)
        terminal.await_end(self._stop)
        terminal.process.stop()

    def _require_running(self) -> None:
        for name, terminal in self.terminals.items():
            code = terminal.process.exit_code
            if code is not None and not terminal.is_closed:
                message = f"`{terminal.command}` in the terminal [{name}] ended by itself with {code}"
                raise NotAsWritten(message)


def show(lines: list[str]) -> None:
    """Print what a command of the reader's own terminal printed."""
    for line in lines:
        say(f"  {line}")


def say(text: str) -> None:
    """Print a line of the narrative."""
    print(text, flush=True)


def bold(text: str) -> str:
    """Return a text in bold for a terminal, and as it is for a file."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


def _read_page(page: Path, text: str, html: Path | None, stop: Event) -> None:
    """Follow a page from its beginning to its end, and keep the report."""
    with ExitStack() as stack:
        home = stack.enter_context(ReapedDirectory("repot-tutorial-"))
        if page.name == "README.md":
            shutil.copytree(page.parent, home.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        reader = Reader(home, stop)
        stack.callback(reader.close)
        title, intro, *_ = text.split("\n\n")
        say(f"{bold(title.removeprefix('# '))}\n\n{textwrap.fill(' '.join(intro.split()), WIDTH)}\n")
        say(f"{page.name} is the page that you can type yourself. $ is what you type, [name] a terminal of its own.")
        try:
            for block in blocks(text):
                reader.follow(block)
            if html:
                shutil.copy(home.path / REPORT, html)
        except (NotAsWritten, DeadlineExceeded):
            for name, terminal in reader.terminals.items():
                say(f"\nthe last lines of [{name}] $ {terminal.command}\n{_indented(terminal.process.log_tail(10))}")
            raise


def main() -> int:
    """Run a page; return the exit code."""
    parser = argparse.ArgumentParser(description="Run a tutorial on private servers.")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--html", type=Path, default=Path("repot-rollout-demo.html"), help="where the report goes")
    given = parser.parse_args()
    stop, begun = Event(), monotonic()
    text = given.page.read_text(encoding="utf-8")
    html = given.html if REPORT in text else None
    try:
        if html:
            require_writable(html)
        with stop_on_signal(stop):
            _read_page(given.page, text, html, stop)
    except Interrupted:
        print("interrupted; everything that was started has ended", file=sys.stderr)
        return Interrupted.exit_code
    except (NotAsWritten, RepotError) as error:
        print(f"\nerror: this is not as the tutorial says: {error}", file=sys.stderr)
        return 1
    took_s = monotonic() - begun
    say(f"Everything was as {given.page.name} says. All servers and workers have ended, after {took_s:.0f} s.")
    if html:
        say(f"The report of the rollout is in {html.resolve()}: open it in a browser.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
