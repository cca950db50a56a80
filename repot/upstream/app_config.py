"""Where the settings of an application come from, which `app.conf` alone does not say.

Celery merges what was set on `app.conf`, what a configuration object says, and its defaults into one view. repot has to
tell them apart, to leave alone what an application configured, and to take back what an earlier call has set.
`collector.py` reads them for the doctor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from celery.app.amqp import Queues
from celery.app.utils import Settings
from celery.utils.collections import ConfigurationView

from repot.upstream.point import Failure, Point
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

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
        "celery.app.base:Celery.config_from_object",
        Failure.LOUD,
        "A configuration that is loaded after `repot.configure` is hidden without a warning.",
        contains=("self._config_source = obj",),
    ),
    Point(
        "celery.utils.collections:ChainMap.__init__",
        Failure.LOUD,
        _BREAKS,
        contains=("maps=maps,", "changes=maps[0],"),
    ),
    Point(
        "celery.utils.collections:ConfigurationView.__getitem__",
        Failure.SILENT,
        _BREAKS,
        contains=("for mapping in self.maps: for k in keys:",),
        since="5.7",
    ),
    Point(
        "celery.utils.collections:ConfigurationView.__getitem__",
        Failure.SILENT,
        _BREAKS,
        contains=("keys = self._to_keys(key)", "tuple(f(key) for f in self._keys) if self._keys else ()"),
        until="5.7",
    ),
    *(
        Point(
            f"celery.app.utils:Settings.{name}.fget",
            Failure.SILENT,
            "An address in a variable of Celery's overrides that of the broker that a rollout leads to.",
            contains=(f"os.environ.get('CELERY_{name.upper()}') or",),
        )
        for name in ("broker_url", "broker_read_url", "broker_write_url", "result_backend")
    ),
    Point("celery.app.defaults:NAMESPACES", Failure.LOUD, "The doctor does not know Celery's settings."),
    Point("celery.app.defaults:_TO_NEW_KEY", Failure.LOUD, "The doctor does not know the old names of settings."),
    Point("celery.app.defaults:flatten", Failure.LOUD, "The doctor does not know Celery's settings."),
)


def let_changes_win() -> None:
    """Let what is set on `app.conf` count before what was read with a namespace, as Celery does since 5.7.

    Releases before look for `CELERY_BROKER_URL` everywhere, and for `broker_url` only then: a setting of a module that
    was read by `config_from_object(..., namespace="CELERY")` cannot be changed. What else they read or do not read
    stays so: an old name that had no effect gets none.
    """
    if "maps" not in ConfigurationView.__getitem__.__code__.co_names:
        wrap_once(ConfigurationView, "__getitem__", _changes_first)


def _changes_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def __getitem__(self: Any, key: str) -> Any:  # noqa: N807 - Celery's
        for name in self._to_keys(key):
            if name in self.changes:
                return self.changes[name]
        return original(self, key)

    return __getitem__


def ignore_variables(app: Celery) -> None:
    """Let an application take its addresses from its configuration alone, however often that is read.

    Celery asks CELERY_BROKER_URL and its like before any configuration, so a second application in the process, for
    another broker, would send to the first one's.
    """
    app.on_after_configure.connect(_take_addresses, weak=False, dispatch_uid="repot-addresses")
    _take_addresses(app.conf)


def _take_addresses(source: Any, **_: Any) -> None:
    # not yet read, it is no view; the signal follows when it is
    if isinstance(source, Settings):
        # an assignment would be a setting
        object.__setattr__(source, "__class__", _OwnAddresses)


class _OwnAddresses(Settings):
    """Celery's view of a configuration, without the variables that it asks first."""

    @property
    def broker_url(self) -> Any:
        return self.first("broker_url", "broker_host")

    @property
    def broker_read_url(self) -> Any:
        return self.get("broker_read_url") or self.broker_url

    @property
    def broker_write_url(self) -> Any:
        return self.get("broker_write_url") or self.broker_url

    @property
    def result_backend(self) -> Any:
        return self.first("result_backend", "CELERY_RESULT_BACKEND")


def changeable(app: Celery) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what was set on `app.conf`, and what `app.config_from_object` starts again from.

    A setting has to be changed in both: called after us, `config_from_object` must not undo it in silence.
    """
    # what the application was given before anything was read: its constructor's arguments among them
    given = app._preconf  # type: ignore[attr-defined]
    return cast("dict[str, Any]", app.conf.changes), cast("dict[str, Any]", given)


def source_of(app: Celery) -> Any:
    """Return what an application is configured from, an object or its name; None before `config_from_object`."""
    return app._config_source  # type: ignore[attr-defined]


def declared_queues(queues: Any) -> list[Any]:
    """Return the queues of a value of `task_queues`, which may be a list or a dictionary of options."""
    return list(Queues(queues or {}).values())
