"""Output on terminals of any width, in a pipe, with and without colours; and `repot` alone."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import repot
from repot.chaos.report.explanation import Statement
from repot.chaos.runner.case import Case
from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.profiles import PROFILES
from repot.cli.columns import print_table
from repot.cli.demo import _paragraphs
from repot.cli.main import main
from repot.cli.output import PROSE_WIDTH, echo_line
from repot.cli.rollout import _status_lines
from repot.cli.tables import CampaignProgress
from repot.config.terminal import wants_color
from repot.sanitize import fitted
from support.rollout_states import aborted, before_data, done, paused

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTHS = (60, 80, 200)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
#: What needs no server; those of rich are the ones of `chaos`.
COMMANDS = (
    (),
    ("doctor", "--app", "support.guarded_app"),
    ("doctor", "rules"),
    ("doctor", "explain", "RPT101"),
    ("config", "show"),
    ("config", "variables"),
    ("chaos", "list"),
    ("chaos", "explain", "ack-cut"),
)
#: One of click, one of rich.
COLOURED = (("doctor", "explain", "RPT101"), ("chaos", "list"))


class Terminal(io.StringIO):
    """What a program takes for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Terminal]:
    """Let a terminal of so many columns be standard output."""

    def open_one(width: int) -> Terminal:
        found = Terminal()
        monkeypatch.setattr(sys, "stdout", found)
        monkeypatch.setenv("COLUMNS", str(width))
        return found

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return open_one


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words, prog_name="repot")
    # the doctor has findings
    assert ended.value.code in (0, 4)


def is_code(line: str) -> bool:
    """Whether a line is to be copied as it is: the doctor indents these by ten, its explanations by four columns."""
    return bool(re.match(r"( {10}| {4})\S", line))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_lines_fit_the_terminal_and_words_are_whole(
    words: tuple[str, ...], terminal: Callable[[int], Terminal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the doctor reads the project around it
    monkeypatch.chdir(tmp_path)
    shown = {}
    for width in WIDTHS:
        out = terminal(width)
        run(*words)
        shown[width] = _ESCAPE.sub("", out.getvalue())
    known = {*re.split(r"\s+", shown[200])}
    for width, text in shown.items():
        long = [line for line in text.splitlines() if len(line) > width and not is_code(line)]
        # a word, as an address, may be longer than half a line
        assert [line for line in long if len(max(line.split(), key=len)) < width // 2] == [], width
        assert {*re.split(r"\s+", text)} <= known, width


@pytest.mark.parametrize("words", COLOURED, ids=" ".join)
@pytest.mark.parametrize(
    ("options", "variables", "has_colors"),
    [
        ((), {}, False),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ((), {"TTY_COMPATIBLE": "1"}, False),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
        (("--color", "auto"), {"FORCE_COLOR": "1"}, True),
    ],
    ids=str,
)
def test_a_pipe_has_escapes_only_when_told(
    words: tuple[str, ...], options: tuple[str, ...], variables: dict[str, str], *, has_colors: bool
) -> None:
    environment = {"NO_COLOR": None, "FORCE_COLOR": None, "TERM": "xterm", **variables}
    done = CliRunner().invoke(main, [*options, *words], env=environment)
    assert ("\x1b" in done.output) == has_colors


@pytest.mark.parametrize("words", COLOURED, ids=" ".join)
@pytest.mark.parametrize(
    ("options", "variables"),
    [((), {"NO_COLOR": "1"}), ((), {"TERM": "dumb"}), (("--color", "never"), {})],
    ids=str,
)
def test_a_terminal_has_no_escapes_when_told(
    words: tuple[str, ...],
    options: tuple[str, ...],
    variables: dict[str, str],
    terminal: Callable[[int], Terminal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = terminal(80)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run(*options, *words)
    assert "\x1b" not in out.getvalue()


#: With several runs of a case and a step that is longer than a line.
STEPS = (
    (Case(SCENARIOS["killed-running"], PROFILES["redis-hardened"], guard=True, number=10), "steps " * 40),
    (Case(SCENARIOS["no-fault"], PROFILES["redis-stock"], guard=False), "starting two workers"),
)
_CURSOR = re.compile(r"\x1b\[\??\d*[A-Zhl]|\r")


def shown_progress(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, color: bool | None) -> str:
    """What a run prints about cases that take some time; `color` is that of `--color`."""
    monkeypatch.setattr(sys, "stderr", stream)
    with click.Context(main) as context:
        context.color = wants_color() if color is None else color
        with CampaignProgress(len(STEPS)) as progress:
            for case, text in STEPS:
                progress.step(case, text.strip())
    return stream.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("color", "variables", "has_colors"),
    [(None, {}, True), (False, {}, False), (None, {"NO_COLOR": "1"}, False), (True, {"NO_COLOR": "1"}, True)],
    ids=str,
)
def test_the_table_of_a_run_moves_with_and_without_colours(
    color: bool | None,
    variables: dict[str, str],
    has_colors: bool,
    width: int,
    terminal: Callable[[int], Terminal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal(width)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = shown_progress(Terminal(), monkeypatch, color)
    assert has_colors == bool(_ESCAPE.search(text))
    assert _CURSOR.search(text)
    # the last picture: a line for each case, whole names, and the count
    lines = _CURSOR.sub("", _ESCAPE.sub("", text)).rstrip().splitlines()[-len(STEPS) - 1 :]
    for (case, _), line in zip(STEPS, lines, strict=False):
        assert re.match(rf"   \.\.\.    {case.name} +\w", line), lines
    assert "0 of 2 done" in lines[-1]
    assert [line for line in lines if len(line) > width] == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_line_of_progress_is_broken_between_words_on_a_terminal(
    stream: type[io.StringIO],
    width: int,
    terminal: Callable[[int], Terminal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal(width)
    monkeypatch.setattr(sys, "stderr", out := stream())
    product = "word " * 50
    with CampaignProgress(1, addresses=True) as progress:
        progress.serves(product.strip(), "7", "URL", "redis://127.0.0.1/0")
    lines = [
        line
        for line in re.split(r"[\r\n]", _CURSOR.sub("\r", _ESCAPE.sub("", out.getvalue())))
        if re.search("word|URL", line)
    ]
    assert f"{product}7: URL=redis://127.0.0.1/0".split() == " ".join(lines).split()[2:]
    is_broken = stream is Terminal
    assert is_broken == (len(lines) > 1)
    assert all(len(line) <= width for line in lines if is_broken)


@pytest.mark.parametrize(
    ("stream", "variables"),
    [(Terminal, {"TERM": "dumb"}), (io.StringIO, {}), (io.StringIO, {"TERM": "dumb"})],
    ids=["dumb", "pipe", "dumb pipe"],
)
def test_what_has_no_cursor_gets_a_line_for_each_step(
    stream: type[io.StringIO],
    variables: dict[str, str],
    terminal: Callable[[int], Terminal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal(80)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = shown_progress(stream(), monkeypatch, color=None)
    assert "\x1b" not in text
    lines = re.split(r"\n(?=  )(?! {5})", text.rstrip())
    assert [f"{case.name}: {step}".split() for case, step in STEPS] == [line.split()[2:] for line in lines]


def test_lines_in_a_pipe_do_not_depend_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        found.add(CliRunner().invoke(main, ["doctor", "explain", "RPT101"]).stdout)
    (text,) = found
    assert 80 < max(map(len, text.split("Write:")[0].splitlines())) <= PROSE_WIDTH


@pytest.mark.parametrize("width", WIDTHS)
def test_the_demo_wraps_its_statements(width: int, terminal: Callable[[int], Terminal]) -> None:
    out, text = terminal(width), "one statement of several words, " * 12
    _paragraphs([Statement(text.strip(), proved=True)])
    shown = _ESCAPE.sub("", out.getvalue())
    assert f"+ {text.strip()}".split() == shown.split()
    longest = max(map(len, shown.splitlines()))
    assert min(width, PROSE_WIDTH) - 12 < longest <= min(width, PROSE_WIDTH)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("state", [before_data, paused, aborted, done])
def test_the_status_of_a_rollout_fits_and_its_queues_are_told_apart(
    state: Callable[[], tuple[dict[str, Any], object]], width: int, terminal: Callable[[int], Terminal]
) -> None:
    out, (shown, _) = terminal(width), state()
    printed = list(_status_lines(shown))
    for line in printed:
        echo_line(line)
    text = out.getvalue()
    assert " ".join(printed).split() == text.split()
    assert [line for line in text.splitlines() if len(line) > width and len(line.split()) > 1] == []
    assert "\x1b" not in text
    assert all(
        any(line.startswith(f"{side}: orders: ") and "; reports: " in line for line in printed)
        for side in ("source", "target")
    )


def test_a_table_that_is_too_wide_has_a_block_for_each_row(terminal: Callable[[int], Terminal]) -> None:
    rows, heads = [("a" * 30, "b" * 25, ""), ("c", "d", "e")], ("id", "state", "error")
    out = terminal(60)
    print_table(rows, heads)
    assert [
        f"id     {'a' * 30}",
        f"  state  {'b' * 25}",
        "id     c",
        "  state  d",
        "  error  e",
    ] == _ESCAPE.sub("", out.getvalue()).splitlines()
    out = terminal(80)
    print_table(rows, heads)
    assert len(out.getvalue().splitlines()) == 3


_WORDS = st.lists(st.text("ab-/`", min_size=1, max_size=12), min_size=1, max_size=30)


@given(_WORDS, st.integers(20, 60), st.sampled_from(["", "  ", "        "]))
def test_lines_are_broken_between_words_alone(words: list[str], width: int, indent: str) -> None:
    line = indent + " ".join(words)
    lines = fitted(line, width).split("\n")
    assert words == [word for one in lines for word in one.split()]
    assert all(one.startswith(indent) for one in lines)
    # a longer line is one word, or one command
    assert all(len(one) <= width or " " not in one.strip() or "`" in one for one in lines)
    assert line == fitted(line, None)


def test_a_command_stays_whole() -> None:
    shown = fitted("hint: `repot dlq list --broker source` reads them, and more than that", 30)
    assert "`repot dlq list --broker source`" in shown
    assert len(shown.splitlines()) == 4


def test_repot_alone_says_what_to_do_first() -> None:
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 0
    commands = re.findall(r"^  repot (\S+)", done.stdout, re.MULTILINE)
    assert 3 <= len(commands) <= 5
    context = click.Context(main)
    assert all(main.get_command(context, one) for one in commands)
    assert done.stdout.splitlines()[-1].startswith("`repot --help`")


def test_no_printer_has_a_width_of_its_own() -> None:
    package = Path(repot.__file__).parent
    texts = {path: path.read_text() for part in ("cli", "doctor") for path in (package / part).rglob("*.py")}
    assert [path.name for path, text in texts.items() if re.search(r"\bwidth=\d|wrap_text\([^()]*, \d", text)] == []
