"""Print docs/exit-codes.md from repot/errors.py: `make docs`."""

from __future__ import annotations

import inspect
import re

from repot import errors

HEAD = """# Exit codes

Data goes to standard output, messages to standard error; `--json` is for programs. A command that fails prints one line
`error: ...` and, where there is a next step, `hint: ...`; `repot --traceback ...` also shows the origin of the error.

| code | meaning |
| --- | --- |
"""

ERRORS = """
With 4, repot did what it was asked, and the answer is no: the doctor has findings, a probe failed, a plan has
obstacles. With 5, something else holds what the command needs: a lease, a move, a job. 141 is no error of repot's:
the reader of its output has left, as in `repot leases list | head -1`.

## Errors

Each error of `repot.errors` has one exit code, and is what Python code catches. One that stands indented is a kind of
the one above it. `RepotError` is the root of all.

| error | exit code | meaning |
| --- | --- | --- |
"""


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(f"| {code} | {meaning} |\n" for code, meaning in codes()) + ERRORS + "".join(_rows())


def codes() -> list[tuple[int, str]]:
    """Return each exit code with its meaning, as the docstring of the errors lists them."""
    text = inspect.cleandoc(errors.__doc__ or "")
    listed = text.partition("Exit codes of the command: ")[2].partition(".\n")[0]
    return [(int(code), " ".join(meaning.split())) for code, meaning in re.findall(r"(\d+) ([^,]+)", listed)]


def _rows(parent: type[errors.RepotError] = errors.RepotError, depth: int = 0) -> list[str]:
    rows = []
    for one in parent.__subclasses__():
        if one.__module__ != errors.__name__:
            continue
        meaning = inspect.cleandoc(one.__doc__ or "").partition("\n")[0]
        rows.append(f"| {'&emsp;' * depth}`{one.__name__}` | {one.exit_code} | {meaning} |\n")
        rows += _rows(one, depth + 1)
    return rows


if __name__ == "__main__":
    print(page(), end="")
