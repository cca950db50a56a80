"""Check result backends when the settings are read, not when the first task ends."""

from __future__ import annotations

import difflib
from typing import Any

#: They come with django-celery-results, which a sidecar or a doctor that reads the worker's variables may lack.
_OF_PLUGINS = ("django-cache", "django-db")


def require_backend(backend: str) -> None:
    """Raise an error for a backend name that Celery does not know (`celery/app/backends.py`, `by_url`).

    A class path such as `shop.results:Store` is not imported here: its module may be importing repot.

    Raises:
        ValueError: the name is unknown; with the known names.
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
        f"names the backend {name!r}, which Celery does not know; {guess}it knows {', '.join(sorted(known))}, "
        "backends of installed packages, and class paths"
    )
    raise ValueError(message)
