"""What a message can have declared before it is sent, beside queues and exchanges."""

from __future__ import annotations

from typing import Any

from kombu.abstract import MaybeChannelBound

from repot.upstream.point import Failure, Point

_BREAKS = "The exit of the delays is not declared before a delayed message is sent, or is declared each time."

POINTS = (
    Point(
        "kombu.common:_maybe_declare",
        Failure.SILENT,
        _BREAKS,
        contains=(
            "entity.can_cache_declaration",
            "ident = hash(entity)",
            "entity.declare(channel=channel)",
            "entity.name",
        ),
    ),
    Point("kombu.abstract:MaybeChannelBound.bind", Failure.LOUD, _BREAKS),
)


class Declarable(MaybeChannelBound):  # type: ignore[misc,unused-ignore]
    """Base of what a message can have declared before it is sent (`declare=[...]` of kombu's producers).

    kombu declares it once a connection: it remembers the hash. Attributes are those named in `attrs`.
    """

    can_cache_declaration = True

    def identity(self) -> str:
        """Hook: what is the same has been declared already."""
        raise NotImplementedError

    def declare_on(self, channel: Any) -> None:
        """Hook: declare it on a channel of py-amqp."""
        raise NotImplementedError

    def __hash__(self) -> int:
        """Return what kombu remembers to have declared on a connection: beside queues and exchanges."""
        return hash(self.identity())

    def declare(self, nowait: bool = False, channel: Any = None) -> None:  # noqa: ARG002, FBT001, FBT002 - kombu's signature
        """Declare it."""
        self.declare_on(channel or self.channel)
