"""Let workers take messages from Redis so that none is lost with them; other brokers do so by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.brokers.headers import DEATHS_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.config import BrokerUrl

_TRANSPORTS = "repot.brokers.redis.transport"


def claim_messages(url: BrokerUrl) -> None:
    """Let kombu use repot's transport for Redis in this process; its options say how it takes messages."""
    if url.is_redis:
        from repot.upstream.redis_transport import use_transports

        use_transports(f"{_TRANSPORTS}:Transport", f"{_TRANSPORTS}:SentinelTransport")


def keep_running(channel: Any, worker: str, is_running: Callable[[Any], bool]) -> None:  # noqa: ANN401 - kombu's channel
    """Name the worker whose channel this is, and the messages that it keeps when the channel's connection is lost.

    Does nothing on a broker that takes messages back with their connection.
    """
    serve = getattr(channel, "serve_worker", None)
    if serve is not None:
        serve(worker, is_running)


def still_in_hand(message: Any) -> bool:  # noqa: ANN401 - kombu's Message
    """Return whether a message stayed with its worker when the worker lost its connection."""
    claims = getattr(message.channel, "claims", None)
    return claims is not None and claims.holds(message.delivery_tag)


def is_in_hand(message: Any) -> bool:  # noqa: ANN401 - kombu's Message
    """Return whether a message did not go back to the broker, as far as it says. From any thread."""
    claims = _claims_of(message)
    if claims is not None:
        return bool(claims.is_in_hand(message.delivery_tag))
    channel = message.channel
    is_open = getattr(channel, "is_open", None)
    return bool(not channel.closed if is_open is None else is_open)


def may_begin(message: Any) -> bool:  # noqa: ANN401 - kombu's Message
    """Return whether the task of a message may begin, and note that it does: not without the message. From any thread.

    What has begun stays in hand when the connection is lost.
    """
    claims = _claims_of(message)
    return is_in_hand(message) if claims is None else bool(claims.begin(message.delivery_tag))


def withdraw(message: Any) -> bool:  # noqa: ANN401 - kombu's Message
    """Let the task of a message not begin any more; return False if `may_begin` has let it. From any thread."""
    claims = _claims_of(message)
    return claims is None or bool(claims.withdraw(message.delivery_tag))


def _claims_of(message: Any) -> Any:  # noqa: ANN401 - kombu's Message
    """Return what has the claim of a message; None if it was not taken by one."""
    is_claimed = getattr(message.channel, "is_claimed", None)
    return message.channel.claims if is_claimed is not None and is_claimed(message.delivery_tag) else None


def deaths_of(message: Any) -> int:  # noqa: ANN401 - kombu's Message
    """Return how many workers died with a message, where the message says so; else 0."""
    deaths = (message.properties or {}).get(DEATHS_PROPERTY)
    return deaths if isinstance(deaths, int) else 0
