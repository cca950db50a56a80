"""The commands that judge the applications which a project's sources make, for who did not name one."""

from __future__ import annotations

import ast
from itertools import islice
from typing import TYPE_CHECKING

from repot.upstream import collector

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: So many are named; a project with more has them in examples and tests.
_MOST = 5
_SOURCES = "src"


def commands_for(root: Path) -> list[str]:
    """Return the commands that judge each `name = Celery(...)` at the top of a module below `root`."""
    files, _ = collector.other_modules(root, set())
    return list(islice((command for path in sorted(files) for command in _commands(path, root)), _MOST))


def _commands(path: Path, root: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        tree = ast.parse(text) if "Celery(" in text else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    parts = path.relative_to(root).with_suffix("").parts
    # a directory of sources is no package, and on the path where the project is installed
    before, parts = (f"PYTHONPATH={_SOURCES} ", parts[1:]) if parts[0] == _SOURCES else ("", parts)
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    for node in tree.body if tree and module else ():
        match node:
            case ast.Assign(targets=targets, value=ast.Call(func=function)):
                pass
            case ast.AnnAssign(target=target, value=ast.Call(func=function)):
                targets = [target]
            case _:
                continue
        if collector.dotted_name(function).rpartition(".")[2] == "Celery":
            names = [one.id for one in targets if isinstance(one, ast.Name)]
            yield from (f"{before}repot doctor -A {module}:{name}" for name in names)
