"""How `make rollout-demo` follows a page; `tests/servers/test_rollout_tutorial.py` runs the tutorial."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "scripts" / "rollout_demo.py"


def follow(directory: Path, page: str) -> subprocess.CompletedProcess[str]:
    """Follow a page that ends with a report."""
    path = directory / "page.md"
    path.write_text(f"# A page\n\n## 1. Do it\n\n{page}\n\n```sh\ntouch friday.html\n```\n")
    return subprocess.run(
        [sys.executable, str(DEMO), str(path), "--html", str(directory / "report.html")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def block(info: str, *lines: str) -> str:
    return "\n".join([f"```{info}", *lines, "```", ""])


def printing(*lines: str) -> str:
    """A page whose command prints these lines."""
    return block("text file=out.txt", *lines) + "\n" + block("sh", "cat out.txt") + "\n"


@pytest.mark.parametrize(
    "expected",
    [
        ["step 9", "lost 0, 20%"],
        ["step ...", "lost 0, 20%"],
        ["...", "lost 0, 20%"],
        ["step 1", "..."],
        ["...", "step 1", "...", "lost 0, 20%", "..."],
    ],
)
def test_a_page_that_says_what_happens_is_followed(tmp_path: Path, expected: list[str]) -> None:
    found = follow(tmp_path, printing("step 12.5", "lost 0, 20%") + block("text", *expected))
    assert 0 == found.returncode, found.stderr
    assert "  $ cat out.txt\n  step 12.5\n  lost 0, 20%\n" in found.stdout
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (["lost 3"], ["lost 0"]),
        (["lost 0.5"], ["lost 0"]),
        (["at 25%"], ["at 20%"]),
        (["one", "two"], ["one"]),
        (["one"], ["one", "two"]),
        (["one", "two", "three"], ["one ...", "three"]),
        (["two", "one"], ["...", "one", "...", "two"]),
        (["many"], ["9"]),
    ],
)
def test_a_page_that_says_something_else_fails(tmp_path: Path, printed: list[str], expected: list[str]) -> None:
    found = follow(tmp_path, printing(*printed) + block("text", *expected))
    assert 1 == found.returncode, found.stdout
    assert "`cat out.txt` should have printed" in found.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("code", "info"), [(3, "sh"), (0, "sh exit=4"), (5, "sh exit=4")])
def test_another_exit_code_fails(tmp_path: Path, code: int, info: str) -> None:
    found = follow(tmp_path, block("sh file=x.sh", f"exit {code}") + "\n" + block(info, "bash x.sh"))
    assert 1 == found.returncode
    assert f"It exited with {code}" in found.stderr


def test_only_the_last_command_of_a_block_may_fail(tmp_path: Path) -> None:
    assert 1 == follow(tmp_path, block("sh exit=1", "false", "true")).returncode
    assert 0 == follow(tmp_path, block("sh exit=1", "true", "false")).returncode


def test_a_terminal_shows_ends_and_starts_again(tmp_path: Path) -> None:
    waits = "print('begun', flush=True)\ntry: threading.Event().wait()\nexcept KeyboardInterrupt: print('ended 7')"
    page = "\n".join(
        [
            block("python file=waits.py", "import threading", waits),
            block("sh terminal=one", "python waits.py"),
            block("text terminal=one", "begun"),
            block("sh terminal=one", "ANY=thing python waits.py"),
            block("text terminal=one", "begun"),
            block("text terminal=one after=ctrl-c", "ended 1"),
        ]
    )
    found = follow(tmp_path, page)
    assert 0 == found.returncode, found.stderr
    marked = [line.strip() for line in found.stdout.splitlines() if line.startswith("  [one]")]
    typed = ["[one] $ python waits.py", "[one] begun", "[one] ^C", "[one] $ ANY=thing python waits.py"]
    assert [*typed, "[one] begun", "[one] ^C", "[one] ended 7"] == marked


def test_a_terminal_that_ends_by_itself_fails(tmp_path: Path) -> None:
    page = block("sh terminal=one", "true") + "\n" + block("text terminal=one", "begun")
    found = follow(tmp_path, page)
    assert 1 == found.returncode
    assert "`true` in the terminal [one] ended by itself with 0" in found.stderr
