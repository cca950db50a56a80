"""Where the settings of an application come from, which `app.conf` alone does not say.

Celery merges what was set on `app.conf`, what a configuration object says, and its defaults into one view. repot has to
tell them apart, to leave alone what an application configured, and to take back what an earlier call has set.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

from celery.app.amqp import Queues
from celery.app.defaults import _TO_NEW_KEY, NAMESPACES, Option, flatten  # type: ignore[attr-defined]

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery import Celery

_BREAKS = "`repot.configure` overrides what an application configured, or is overridden by `config_from_object`."

POINTS = (
    Point("celery.app.base:Celery.__init__", Failure.LOUD, _BREAKS, contains=("self._preconf = changes or {}",)),
    Point(
        "celery.app.base:Celery._load_config",
        Failure.SILENT,
        _BREAKS,
        contains=("self.prepare_config(self.loader.conf), self._preconf,",),
    ),
    Point(
        "celery.utils.collections:ChainMap.__init__",
        Failure.LOUD,
        _BREAKS,
        contains=("maps=maps,", "changes=maps[0],"),
    ),
    Point("celery.app.defaults:NAMESPACES", Failure.LOUD, "The doctor does not know Celery's settings."),
    Point("celery.app.defaults:_TO_NEW_KEY", Failure.LOUD, "The doctor does not know the old names of settings."),
    Point("celery.app.defaults:flatten", Failure.LOUD, "The doctor does not know Celery's settings."),
)

#: The new names of settings by their old ones.
NEW_NAMES: Mapping[str, str] = _TO_NEW_KEY


@cache
def celery_options() -> dict[str, Option]:
    """Return Celery's own settings with their defaults."""
    return dict(cast("Iterable[tuple[str, Option]]", flatten(NAMESPACES)))


def changeable(app: Celery) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what was set on `app.conf`, and what `app.config_from_object` starts again from.

    A setting has to be changed in both: called after us, `config_from_object` must not undo it in silence.
    """
    return cast("dict[str, Any]", app.conf.changes), constructed(app)


def constructed(app: Celery) -> dict[str, Any]:
    """Return what the application was given before anything was read: its constructor's arguments among them."""
    return cast("dict[str, Any]", app._preconf)  # type: ignore[attr-defined]


def configured(app: Celery) -> list[Mapping[str, Any]]:
    """Return what was set on `app.conf`, and what was read from an object or module; without Celery's defaults.

    Empty for a configuration that was not read yet.
    """
    return list(app.conf.maps or ())[:-1]


def declared_queues(queues: Any) -> list[Any]:
    """Return the queues of a value of `task_queues`, which may be a list or a dictionary of options."""
    return list(Queues(queues or {}).values())
