"""Which result backends Celery knows: asked when the settings are read, not when the first task ends."""

from __future__ import annotations

import difflib
from typing import Any

#: They come with django-celery-results. A sidecar or a doctor installed without it reads the worker's variables, too.
_OF_PLUGINS = ("django-cache", "django-db")


def require_backend(backend: str) -> None:
    """Refuse a backend by a name that Celery does not know (`celery/app/backends.py`, `by_url`).

    A class by its path, as in `shop.results:Store`, is not imported here: its module may be importing us.

    Raises:
        ValueError: with the names there are.
    """
    from celery.app.backends import BACKEND_ALIASES
    from celery.utils.imports import load_extension_class_names

    scheme = backend.partition("://")[0]
    name = scheme.partition("+")[0] if "://" in backend else backend
    if not name or "." in name or ":" in name:
        return
    added: Any = load_extension_class_names("celery.result_backends")
    known = {*BACKEND_ALIASES, *_OF_PLUGINS, *(pair[0] for pair in added)}
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    message = (
        f"names the backend {name!r}, which Celery does not know; {guess}there are {', '.join(sorted(known))}, those "
        "that installed packages add, and classes by their path"
    )
    raise ValueError(message)
