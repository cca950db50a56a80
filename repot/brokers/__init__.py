"""The port to a broker, its two adapters, and private servers for experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.port import Broker, Depth

if TYPE_CHECKING:
    from repot.config import BrokerUrl

__all__ = ["Broker", "Depth", "open_broker"]


def open_broker(url: BrokerUrl, *, management_url: str = "", depth_lag_s: float | None = None) -> Broker:
    """Open the adapter for an address; its scheme decides which.

    `management_url` is the address of RabbitMQ's management API and `depth_lag_s`
    the age its counts may have; both mean nothing to Redis.
    """
    if url.is_redis:
        from repot.brokers.redis import RedisBroker

        return RedisBroker(url)
    from repot.brokers.rabbitmq import DEFAULT_DEPTH_LAG_S, RabbitBroker

    return RabbitBroker(url, management_url, DEFAULT_DEPTH_LAG_S if depth_lag_s is None else depth_lag_s)
