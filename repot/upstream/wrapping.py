"""Replace a function of a library by one that calls it, once for each process."""

from __future__ import annotations

from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MARK = "repot_wraps"
#: Applications are configured in several threads.
_CHANGING = Lock()


def wrap_once(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Put what `make` returns for the function `owner.name` in its place; do nothing if that was done before.

    Others may have wrapped it as well, before or afterwards, as instrumentation does.
    """
    with _CHANGING:
        wrapped = getattr(owner, name)
        if not any(hasattr(one, _MARK) for one in _layers(wrapped)):
            made = wraps(wrapped)(make(wrapped))
            setattr(made, _MARK, True)
            setattr(owner, name, made)


def _layers(function: Any) -> Iterator[Any]:
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)
