"""Replace a function of a library by one that calls it, once for each process."""

from __future__ import annotations

from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Applications are configured in several threads.
_CHANGING = Lock()


def wrap_once(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Put what `make` returns for the function `owner.name` in its place; do nothing if it is wrapped already."""
    with _CHANGING:
        wrapped = getattr(owner, name)
        if not hasattr(wrapped, "__wrapped__"):
            setattr(owner, name, wraps(wrapped)(make(wrapped)))
