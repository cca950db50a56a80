"""Ask and tell the workers of both sides of a rollout: `celery inspect`, `control`, `revoke`, `purge`, Flower.

Each side is asked over a connection of its own, in a thread, so that one that is away hides nothing of the other. A
reply of the side that is not the process' own is named `NODE/SIDE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from repot.errors import RepotError
from repot.logs import get_logger
from repot.masking import masked
from repot.routing.revoked import RevokedIds
from repot.routing.side import Side
from repot.upstream.remote_control import plain_control
from repot.worker.rollout_store import open_rollout_store, quick

if TYPE_CHECKING:
    from celery import Celery

    from repot.config import WorkerSettings
    from repot.routing.sender import RolloutSender

log = get_logger(__name__)

#: For connecting to a side, besides the time in which replies are awaited.
_CONNECT_S = 5.0


class BothSides:
    """Carries out the commands of an application that follows a rollout."""

    def __init__(self, app: Celery, settings: WorkerSettings, sender: RolloutSender) -> None:
        """Take the application, its settings, and what has its sibling on the other broker."""
        self._app, self._settings, self._sender = app, settings, sender

    def broadcast(self, command: str, arguments: dict[str, Any], **options: Any) -> list[dict[str, Any]] | None:  # noqa: ANN401 - Celery's
        """Send a command to the workers of both sides; return their replies if asked for.

        Raises:
            OperationalError: no side could be asked, or without a reply, the process' own one.
        """
        # without one the workers answer with an error
        if command == "revoke" and "task_id" in arguments:
            self._keep(arguments["task_id"])
        home = self._sender.home
        conversation = _Conversation(command, arguments, home, options)
        for side in Side:
            given = conversation.options_for(side)
            if given is not None:
                app = self._app if side is home else self._sender.sibling()
                conversation.begin(side, app, plain_control(self._app, app), given)
        return conversation.result(self._sender.name)

    def purge(self) -> int:
        """Remove the waiting tasks of both sides, and return their number; raise if one of them fails."""
        apps = (self._app, self._sender.sibling())
        return sum(int(plain_control(self._app, app).purge()) for app in apps)

    def _keep(self, ids: str | list[str]) -> None:
        settings = quick(self._settings)
        with closing(open_rollout_store(settings)) as store:
            try:
                RevokedIds(store, settings.lease_prefix, settings.rollout).add(
                    [ids] if isinstance(ids, str) else list(ids)
                )
            except RepotError as error:
                log.warning(
                    "what is revoked reaches the workers that run now, and none that starts later: %s",
                    error.message,
                    extra={"action": "rollout_revoke"},
                )


@dataclass(slots=True)
class _Conversation:
    """One command, and what comes back from each side that is asked."""

    command: str
    arguments: dict[str, Any]
    home: Side
    options: dict[str, Any]
    #: (side, reply); a reply of None ends a side, an exception is why it has failed.
    _heard: Queue[tuple[Side, Any]] = field(default_factory=Queue)
    _asked: set[Side] = field(default_factory=set)
    _open: set[Side] = field(default_factory=set)
    _failed: dict[Side, Exception] = field(default_factory=dict)
    _replies: list[dict[str, Any]] = field(default_factory=list)
    #: Replies of the other side whose node was asked for by its plain name.
    _held: list[dict[str, Any]] = field(default_factory=list)

    def options_for(self, side: Side) -> dict[str, Any] | None:
        """Return the options of the command for one side; None if none of its nodes is asked."""
        destination = self.options.get("destination")
        if not isinstance(destination, list | tuple) or not destination:
            return self.options
        there = [name for name, of in map(_parsed, destination) if of in (None, side)]
        return {**self.options, "destination": there} if there else None

    def begin(self, side: Side, app: Celery, control: Any, options: dict[str, Any]) -> None:  # noqa: ANN401 - Celery's
        """Ask a side by its application and its control."""
        self._asked.add(side)
        self._open.add(side)
        work = (side, app, control, options)
        Thread(target=self._ask, args=work, name=f"repot-control-{side}", daemon=True).start()

    def result(self, rollout: str) -> list[dict[str, Any]] | None:
        """Wait for both sides, and return what they replied."""
        within_s = (self.options.get("timeout") or 0) + _CONNECT_S
        until, limit = monotonic() + within_s, self.options.get("limit")
        while self._open and not (limit and len(self._replies) + len(self._held) >= limit):
            try:
                self._take(*self._heard.get(timeout=max(until - monotonic(), 0)))
            except Empty:
                text = f"no answer within {within_s:g} s"
                self._failed |= {side: OperationalError(text) for side in self._open}
                break
        self._release()
        self._tell(rollout)
        return self._replies if self.options.get("reply") else None

    def _ask(self, side: Side, app: Any, control: Any, options: dict[str, Any]) -> None:  # noqa: ANN401 - Celery's
        try:
            with app.connection_for_write(connect_timeout=_CONNECT_S) as connection:
                options = {**options, "callback": lambda reply: self._heard.put((side, reply))}
                try:
                    # once, where a pool would try for ever
                    connection.connect()
                    control.broadcast(self.command, self.arguments, connection=connection, **options)
                except connection.connection_errors as error:
                    # as Celery raises it for every transport
                    raise OperationalError(str(error)) from error
            self._heard.put((side, None))
        except Exception as error:  # noqa: BLE001 - raised or logged by the thread that waits
            self._heard.put((side, error))

    def _take(self, side: Side, reply: Any) -> None:  # noqa: ANN401 - Celery's
        if isinstance(reply, Mapping):
            if side is self.home:
                self._reply(dict(reply))
            elif set(reply) & set(self.options.get("destination") or ()):
                self._held.append(dict(reply))
            else:
                self._reply(self._named(reply))
            return
        self._open.discard(side)
        if reply is not None:
            self._failed[side] = reply

    def _release(self) -> None:
        """Give the nodes that were asked for by their plain names these names, unless the own side has them as well."""
        own = {node for reply in self._replies for node in reply}
        for reply in self._held:
            self._reply(self._named(reply) if set(reply) & own else reply)

    def _named(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        """Return a reply of the other side, whose nodes are named with it."""
        return {f"{node}/{self.home.other}": answer for node, answer in reply.items()}

    def _reply(self, reply: dict[str, Any]) -> None:
        self._replies.append(reply)
        if callback := self.options.get("callback"):
            callback(reply)

    def _tell(self, rollout: str) -> None:
        """Raise if a failure leaves nothing to return; log it else."""
        own = self._failed.get(self.home)
        # Celery raises where its broker is away; what the other side has said is worth more
        if own and not self._replies:
            raise own
        if self._failed and len(self._failed) == len(self._asked):
            raise next(iter(self._failed.values()))
        for side, error in self._failed.items():
            log.warning(
                "the %s of the rollout %s did not take the command %s: %s",
                side,
                rollout,
                self.command,
                masked(f"{type(error).__name__}: {error}"),
                extra={"action": "rollout_control"},
            )


def _parsed(destination: str) -> tuple[str, Side | None]:
    """Return the node that a destination names, and its side; None for either."""
    node, slash, side = destination.rpartition("/")
    return (node, Side(side)) if slash and side in set(Side) else (destination, None)
