"""Check result backends when the settings are read, not when the first task ends."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

#: They come with django-celery-results, which a sidecar or a doctor that reads the worker's variables may lack.
_OF_PLUGINS = ("django-cache", "django-db")


def known_backends() -> set[str]:
    """Return the names of backends that the installed Celery knows, and those of installed packages."""
    from celery.app.backends import BACKEND_ALIASES
    from celery.utils.imports import load_extension_class_names

    added: Any = load_extension_class_names("celery.result_backends")
    return {*BACKEND_ALIASES, *(pair[0] for pair in added)}


def require_backend(backend: str, known: Collection[str] | None = None) -> None:
    """Raise an error for a backend name that Celery does not know (`celery/app/backends.py`, `by_url`).

    A class path such as `shop.results:Store` is not imported here: its module may be importing repot.

    Args:
        backend: a name, or an address with one.
        known: the names that the Celery in question knows; those of the installed one if left out.

    Raises:
        ValueError: the name is unknown; with the known names.
    """
    scheme = backend.partition("://")[0]
    name = scheme.partition("+")[0] if "://" in backend else backend
    if not name or "." in name or ":" in name:
        return
    known = {*(known_backends() if known is None else known), *_OF_PLUGINS}
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    message = (
        f"names the backend {name!r}, which Celery does not know; {guess}it knows {', '.join(sorted(known))}, "
        "backends of installed packages, and class paths"
    )
    raise ValueError(message)
