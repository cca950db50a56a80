"""All points of `repot.upstream`, and the comparison with the installed libraries."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from importlib.metadata import version
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from repot import upstream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.upstream.point import Point


def points() -> dict[str, tuple[Point, ...]]:
    """Return the points by the name of their module in `repot.upstream`; imports every module and its library."""
    modules = {
        found.name: import_module(f"{upstream.__name__}.{found.name}") for found in iter_modules(upstream.__path__)
    }
    return {name: module.POINTS for name, module in modules.items() if hasattr(module, "POINTS")}


def of_installed(found: Iterable[Point]) -> tuple[Point, ...]:
    """Return those of some points that the installed releases of their libraries should have."""
    return tuple(
        point for point in found if point.library in sys.stdlib_module_names or point.is_of(version(point.library))
    )


def changes(point: Point) -> Iterator[str]:
    """Compare a point with the installed library; yield one sentence for each difference."""
    try:
        found = _find(point.target)
    except (ImportError, AttributeError) as error:
        yield f"{point.target} does not exist: {error}"
        return
    if point.signature and (signature := str(inspect.signature(found))) != point.signature:
        yield f"{point.target} has the signature {signature}, not {point.signature}"
    if point.contains:
        source = _normalized(inspect.getsource(found))
        yield from (
            f"the source of {point.target} does not contain {fragment!r}"
            for fragment in point.contains
            if _normalized(fragment) not in source
        )


def _find(target: str) -> Any:
    module, _, name = target.partition(":")
    found: Any = import_module(module)
    for part in filter(None, name.split(".")):
        found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
    found = getattr(found, "fget", None) or getattr(found, "func", None) or found
    return getattr(found, "__func__", found)


def _normalized(source: str) -> str:
    return " ".join(source.split())
