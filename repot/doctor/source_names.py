"""What names in a module's source stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repot.doctor.values import decode
from repot.upstream.collector import dotted_name

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping

#: Methods that return a signature of a task.
SIGNATURES = frozenset({"s", "si", "signature", "subtask"})


@dataclass(frozen=True, slots=True)
class Symbol:
    """What is known of the object behind a name.

    Attributes:
        value: a number or a duration; None for anything else.
        celerys: it is a task or a proxy of one, or of another class of Celery's.
        task: the name of the task.
        sends_on_commit: it is a task whose `apply_async` waits for the commit of Django's transaction.
        kind: "class", "function" or "instance", if it belongs to a package that counts.
        module: where such a class or function comes from.
        classes: the classes that make it up, those of such packages alone, as `sqlalchemy:Session`; or the function.
        origin: what stands behind `Annotated[...]`.
    """

    value: Any = None
    celerys: bool = False
    task: str = ""
    sends_on_commit: bool = False
    kind: str = ""
    module: str = ""
    classes: tuple[str, ...] = ()
    origin: Symbol | None = None

    @classmethod
    def read(cls, described: Mapping[str, Any] | None) -> Symbol | None:
        """Take it from a document (`repot/upstream/collector.py`)."""
        if described is None:
            return None
        return cls(
            **{
                **described,
                "value": decode(described.get("value")),
                "classes": tuple(described.get("classes", ())),
                "origin": cls.read(described.get("origin")),
            }
        )


#: What the names of a module stand for, dotted ones included; None for a name whose value is None.
Names = dict[str, Symbol | None]


def symbol_behind(names: Names, node: ast.expr) -> Symbol | None:
    """Return what a name or an attribute of one stands for; None if that is not known."""
    return names.get(dotted_name(node))


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Return the first line of a definition, including its decorators."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
