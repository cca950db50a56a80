"""Each mark of a promise selects a test: the text of a case that no id contains would select nothing in silence."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import TYPE_CHECKING

from support.groups import PROMISES, TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = TESTS.parent


def marks() -> Iterator[tuple[str, str]]:
    """Yield the file or the test of each mark, with the text of a case or nothing."""
    for path in sorted(TESTS.glob("*/test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        for one in ast.parse(path.read_text()).body:
            if isinstance(one, ast.FunctionDef):
                for decorator in one.decorator_list:
                    yield from ((f"{name}::{one.name}", case) for case in _cases(decorator))
            elif isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark":
                yield from ((name, case) for part in ast.walk(one.value) for case in _cases(part))


def _cases(expression: ast.AST) -> list[str]:
    text = ast.unparse(expression)
    if isinstance(expression, ast.Call) and text.startswith("pytest.mark.promise("):
        return [ast.literal_eval(case) for case in expression.args]
    return [""] if text == "pytest.mark.promise" and isinstance(expression, ast.Attribute) else []


def test_each_case_of_a_mark_is_one_of_its_tests() -> None:
    found = list(marks())
    assert found
    files = sorted({test.partition("::")[0] for test, _ in found})
    command = [sys.executable, "-m", "pytest", *files, "--group", PROMISES, "--collect-only", "--quiet"]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    missing = [
        (test, case)
        for test, case in found
        if not any(
            f"{line}[".startswith((f"{test}[", f"{test}::")) and case in line.partition("[")[2] for line in collected
        )
    ]
    assert missing == []
