"""Private parts of libraries are touched in `repot/upstream/` alone."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPOT = ROOT / "repot"
UPSTREAM = REPOT / "upstream"
LIBRARIES = ("celery", "kombu", "amqp", "redis", "billiard", "psycopg", "vine")

#: Of Python itself: the only way to see where another thread is.
ALLOWED_ACCESS = {("repot/chaos/instruments/recorder.py", "_current_frames")}

#: Classes that their libraries document as bases.
PUBLIC_BASES = {"celery:Task", "celery:bootsteps", "kombu:Queue", "kombu:Producer", "redis", "psycopg:Connection"}

OUTSIDE = sorted(path for path in REPOT.rglob("*.py") if UPSTREAM not in path.parents)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.AST) -> dict[str, str]:
    """Names of libraries in a module, and what each is."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            found |= {one.asname or one.name: f"{node.module}:{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.asname or one.name: one.name for one in node.names if one.name.split(".")[0] in LIBRARIES}
    return found


def _offences(tree: ast.AST) -> list[str]:
    """Private imports and attributes by name, bases that are not documented, calls of a base's private method."""
    imported = _imported(tree)
    found = [f"imports {what}" for what in imported.values() if any(x.startswith("_") for x in what.split(":")[-1:])]
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                bases = [imported[_root(base)] for base in node.bases if _root(base) in imported]
                found += [f"class {node.name}({base})" for base in bases if base not in PUBLIC_BASES]
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                found += [f"attribute {name}"] if name.startswith("_") and not name.startswith("__") else []
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                found += [f"super().{name}"] if name.startswith("_") and not name.startswith("__") else []
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from celery.canvas import _chain", "imports"),
        ("from celery.worker.request import Request\nclass Own(Request): ...", "class Own"),
        ("import amqp\nclass Own(amqp.Connection): ...", "class Own"),
        ("getattr(channel, '_lookup', None)", "attribute _lookup"),
        ("class Own(Base):\n  def _add(self): super()._add()", "super()._add"),
    ],
)
def test_an_offence_is_seen(source: str, expected: str) -> None:
    (found,) = _offences(ast.parse(source))
    assert expected in found


def test_no_private_part_is_imported_subclassed_or_read_by_name() -> None:
    """One test of all modules: each is parsed once."""
    offences, own_bases = [], set()
    for path in OUTSIDE:
        tree = ast.parse(path.read_text())
        offences += [(path.relative_to(REPOT).as_posix(), one) for one in _offences(tree)]
        own_bases |= {f"super().{name}" for name in _own_methods(tree)}
    assert [(path, one) for path, one in offences if one not in own_bases] == []


def _own_methods(tree: ast.AST) -> set[str]:
    """Private methods of repot's own classes, which subclasses of repot's may call."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {one.name for node in classes for one in node.body if isinstance(one, ast.FunctionDef)}


def test_no_private_attribute_of_another_object_is_used() -> None:
    """Ruff knows them, and no `noqa` excuses one."""
    command = [sys.executable, "-m", "ruff", "check", "--select", "SLF001", "--ignore-noqa", "--output-format", "json"]
    done = subprocess.run([*command, "--isolated", str(REPOT)], capture_output=True, text=True, check=False)
    found = {
        (Path(one["filename"]).relative_to(ROOT).as_posix(), one["message"].split("`")[1])
        for one in json.loads(done.stdout)
    }
    assert {(path, name) for path, name in found if not path.startswith("repot/upstream/")} == ALLOWED_ACCESS
    assert any(path.startswith("repot/upstream/") for path, _ in found)


def test_every_module_of_upstream_has_points() -> None:
    from repot.upstream.points import points

    # these touch no library themselves
    tools = {"__init__", "capabilities", "point", "points", "wrapping"}
    assert not any(_imported(ast.parse((UPSTREAM / f"{name}.py").read_text())) for name in tools)
    # one file for any interpreter: its points are with those of the modules that its docstring names
    modules = {path.stem for path in UPSTREAM.glob("*.py")} - tools - {"collector"}
    assert modules == set(points())
    assert all(points().values())
