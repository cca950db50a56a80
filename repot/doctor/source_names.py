"""What names in a module's source stand for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from celery.app.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Methods that return a signature of a task.
SIGNATURES = frozenset({"s", "si", "signature", "subtask"})


def object_behind(names: Mapping[str, Any], node: ast.expr) -> Any:  # noqa: ANN401 - whatever the module holds
    """Return the object behind a name, if that needs no user code; else None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        try:
            held = object.__getattribute__(object_behind(names, node.value), "__dict__")
        except AttributeError:
            return None
        return held.get(node.attr)
    return None


def is_celerys(found: object) -> bool:
    """Return whether an object is a task or a proxy of one; by its type, because attributes may run user code."""
    kind = type(found)
    return issubclass(kind, Task) or kind.__module__.partition(".")[0] == "celery"


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Return the first line of a definition, including its decorators."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
