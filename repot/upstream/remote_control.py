"""Celery's remote control: the class by which an application asks and tells its workers (`Celery.control_cls`).

Every question of `celery inspect`, `celery control`, `AsyncResult.revoke` and Flower ends in `Control.broadcast`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol, cast

from celery.app.control import Control as _Control
from kombu.utils.imports import symbol_by_name

from repot.upstream.app_state import state_of
from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from celery import Celery

_BREAKS = "During a rollout, commands to workers reach one side alone."

POINTS = (
    Point(
        "celery.app.control:Control.broadcast",
        Failure.LOUD,
        _BREAKS,
        "(self, command, arguments=None, destination=None, connection=None, reply=False, timeout=1.0, limit=None, "
        "callback=None, channel=None, pattern=None, matcher=None, **extra_kwargs)",
        contains=("return self.mailbox(conn)._broadcast(",),
    ),
    Point(
        "celery.app.control:Inspect._request",
        Failure.SILENT,
        _BREAKS,
        contains=("return self._prepare(self.app.control.broadcast(",),
    ),
    Point("celery.app.control:Control.revoke", Failure.SILENT, _BREAKS, contains=("return self.broadcast('revoke',",)),
    Point(
        "celery.app.control:Control.election",
        Failure.SILENT,
        "During a rollout, workers of both sides elect one for the same task, and it runs on both.",
        contains=("self.broadcast( 'election', connection=connection,",),
    ),
    Point("celery.app.control:Control.purge", Failure.LOUD, _BREAKS, "(self, connection=None)"),
    Point("celery.app.base:Celery.control", Failure.SILENT, _BREAKS, contains=("instantiate(self.control_cls,",)),
    Point(
        "kombu.pidbox:Mailbox.producer_or_acquire",
        Failure.SILENT,
        "A command to workers waits for ever for a broker that is away.",
        contains=("elif self.producer_pool:", "yield Producer(channel, auto_declare=False)"),
    ),
)

# the stubs lack parts of it
_Base: Any = _Control

#: The parameters of `broadcast` behind the command, which need no name.
_POSITIONAL = tuple(inspect.signature(_Control.broadcast).parameters)[2:-1]


class Director(Protocol):
    """Carries out commands in the place of `Control`."""

    def broadcast(self, command: str, arguments: dict[str, Any], **options: Any) -> Any:
        """Send a command; `options` are the other parameters of `Control.broadcast`, without a connection."""

    def purge(self) -> int:
        """Remove all waiting tasks, and return their number."""


class DirectedControl(_Base):  # type: ignore[misc]
    """Hands each command of an application to its director (`control_by`), unless the caller names a connection."""

    def broadcast(self, command: str, *more: Any, **options: Any) -> Any:
        """Send a command, as `Control.broadcast`."""
        options |= dict(zip(_POSITIONAL, more, strict=False))
        director = self._director(options.get("connection") or options.get("channel"))
        # workers elect one of those that hear each other
        if director is None or command == "election":
            return super().broadcast(command, **options)
        given = {name: options.pop(name) for name in _POSITIONAL if name in options}
        # what `broadcast` does not know is an argument of the command
        arguments = {**(given.pop("arguments", None) or {}), **options}
        return director.broadcast(
            command, arguments, **{name: given[name] for name in given if name not in ("connection", "channel")}
        )

    def purge(self, connection: Any = None) -> int:
        """Remove all waiting tasks, as `Control.purge`."""
        director = self._director(connection)
        return cast("int", super().purge(connection)) if director is None else director.purge()

    discard_all = purge

    def _director(self, given: Any) -> Director | None:
        return None if given is not None else cast("Director | None", state_of(self.app).director)


def control_by(app: Any, director: Director) -> None:
    """Let an application's commands be carried out by a director."""
    state = state_of(app)
    if state.director is None:
        own = symbol_by_name(app.control_cls)
        # a class that can be named, where it is Celery's: an application may be pickled
        ours = DirectedControl if own is _Control else type("DirectedControl", (DirectedControl, own), {})
        state.own_control_cls = app.control_cls
        app.control_cls = ours
        vars(app).pop("control", None)
    state.director = director


def stop_controlling_by(app: Any) -> None:
    """Undo `control_by`."""
    state = state_of(app)
    if state.director is not None:
        app.control_cls, state.director, state.own_control_cls = state.own_control_cls, None, None
        vars(app).pop("control", None)


def plain_control(app: Celery, of: Celery) -> Any:
    """Return what sends commands to the workers of `of` alone; its class is that of the directed application `app`.

    It publishes over the connection that it is given: kombu's pool waits for ever for a broker that is away.
    """
    control = symbol_by_name(state_of(app).own_control_cls)(of)
    control.mailbox.producer_pool = None
    return control
