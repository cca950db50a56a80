"""Which queues the running broker has, whether or not the application names them; nothing is changed there."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from repot.brokers import open_broker
from repot.brokers.facts import Unknown
from repot.config import BrokerUrl
from repot.errors import RepotError
from repot.queues import find_queues

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repot.config import WorkerSettings
    from repot.config.endpoints import Endpoint
    from repot.queues import DeploymentQueues


def queues_on(
    servers: Sequence[Endpoint],
    settings: WorkerSettings,
    *,
    tls: Mapping[str, Any] | None,
    transport_options: Mapping[str, Any],
    management_url: str,
) -> DeploymentQueues | Unknown:
    """Return the queues that the settings name and the broker has; Unknown by the last server if none answers."""
    unknown = Unknown("the broker has no address")
    for server in servers:
        try:
            opened = open_broker(
                BrokerUrl.parse(server.url), management_url=management_url, tls=tls, transport_options=transport_options
            )
            with closing(opened) as broker:
                # workers are not asked: that would declare their mailbox's exchanges
                stated = "global_keyprefix" in transport_options
                return find_queues(broker, settings, readers={}, prefix_is_stated=stated)
        except RepotError as error:
            unknown = Unknown(error.message, error.hint)
        except ValueError as error:
            unknown = Unknown(str(error))
    return unknown
