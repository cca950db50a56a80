"""How `scripts/run_page.py` follows a page; `tests/servers/` runs the tutorials and the examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_page.py"


def follow(directory: Path, page: str) -> subprocess.CompletedProcess[str]:
    """Follow a page that ends with a report."""
    path = directory / "page.md"
    path.write_text(f"# A page\n\n## 1. Do it\n\n{page}\n\n```sh\ntouch friday.html\n```\n")
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(path), "--html", str(directory / "report.html")],
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
    assert found.returncode == 0, found.stderr
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
    assert found.returncode == 1, found.stdout
    assert "`cat out.txt` should have printed" in found.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("code", "info"), [(3, "sh"), (0, "sh exit=4"), (5, "sh exit=4")])
def test_another_exit_code_fails(tmp_path: Path, code: int, info: str) -> None:
    found = follow(tmp_path, block("sh file=x.sh", f"exit {code}") + "\n" + block(info, "bash x.sh"))
    assert found.returncode == 1
    assert f"It exited with {code}" in found.stderr


def test_only_the_last_command_of_a_block_may_fail(tmp_path: Path) -> None:
    assert follow(tmp_path, block("sh exit=1", "false", "true")).returncode == 1
    assert follow(tmp_path, block("sh exit=1", "true", "false")).returncode == 0


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
    assert found.returncode == 0, found.stderr
    marked = [line.strip() for line in found.stdout.splitlines() if line.startswith("  [one]")]
    typed = ["[one] $ python waits.py", "[one] begun", "[one] ^C", "[one] $ ANY=thing python waits.py"]
    assert [*typed, "[one] begun", "[one] ^C", "[one] ended 7"] == marked


def test_a_terminal_that_ends_by_itself_fails(tmp_path: Path) -> None:
    page = block("sh terminal=one", "true") + "\n" + block("text terminal=one", "begun")
    found = follow(tmp_path, page)
    assert found.returncode == 1
    assert "`true` in the terminal [one] ended by itself with 0" in found.stderr


FILE = block("python file=x.py", "import a", "", "one()", "two()", "print(3)")


def test_a_diff_changes_a_file(tmp_path: Path) -> None:
    change = block("diff file=x.py", " import a", "+import b", "...", "-one()", "-two()", "+print(1)")
    page = "\n".join(
        [FILE, change, block("sh", "cat x.py"), block("text", "import a", "import b", "", "print(1)", "print(3)")]
    )
    found = follow(tmp_path, page)
    assert found.returncode == 0, found.stderr
    assert "  x.py, 6 lines:\n     import a\n    +import b\n    ...\n" in found.stdout


@pytest.mark.parametrize("lines", [["-one(2)"], ["-ne()"], [" import a", "-one()"]])
def test_a_diff_of_other_lines_fails(tmp_path: Path, lines: list[str]) -> None:
    found = follow(tmp_path, FILE + "\n" + block("diff file=x.py", *lines))
    assert found.returncode == 1
    assert "x.py should have these lines once:" in found.stderr


def test_a_command_may_end_a_terminal(tmp_path: Path) -> None:
    page = "\n".join(
        [
            block("sh file=waits.sh", "echo $$ > pid", "echo begun", "exec sleep 60"),
            block("sh terminal=one", "bash waits.sh"),
            block("text terminal=one", "begun"),
            block("sh ends=one", "bash -c 'kill -9 $(cat pid)'"),
            block("sh terminal=one", "bash waits.sh"),
        ]
    )
    found = follow(tmp_path, page)
    assert found.returncode == 0, found.stderr
    assert "^C" not in found.stdout


def test_a_readme_works_in_a_copy_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "shop.txt").write_text("one\n")
    page = tmp_path / "README.md"
    page.write_text(
        "# A page\n\nIt.\n\n## 1. Do it\n\n"
        + block("sh", "sed -i s/one/two/ shop.txt", "cat shop.txt")
        + block("text", "two")
    )
    found = subprocess.run(
        [sys.executable, str(SCRIPT), str(page)], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "shop.txt").read_text() == "one\n"
    assert {"README.md", "shop.txt"} == {path.name for path in tmp_path.iterdir()}
