"""The brokers of a deployment: the one that workers read, and those that the settings name beside it."""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from repot.brokers import open_broker, open_configured
from repot.config.capabilities import tls_read_by
from repot.config.redis import with_tls
from repot.config.settings import broker_url_of
from repot.errors import ConfigInvalid
from repot.migrate.addresses import Address
from repot.migrate.in_hand import CONTROL_EXCHANGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery import Celery

    from repot.brokers import Broker
    from repot.config import BrokerUrl, WorkerSettings
    from repot.worker.app_settings import AppSettings


class OpenedDeployment(NamedTuple):
    """A connection to a deployment's broker, the exchange of commands to its workers, and its masked address."""

    broker: Broker
    control_exchange: str
    address: str


@dataclass(slots=True)
class Place:
    """One broker of a deployment.

    Attributes:
        roles: why it is one of them.
        tls, options: Celery's `broker_use_ssl` and `broker_transport_options`, if an application states them.
        is_of_app: whether an application states them; else they are those of the settings.
    """

    url: BrokerUrl
    roles: list[str]
    tls: Mapping[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    is_of_app: bool = False
    control_exchange: str = CONTROL_EXCHANGE

    def open(self, settings: WorkerSettings, *, only_messages: bool = False) -> Broker:
        """Connect; with `only_messages` without what counts them, such as RabbitMQ's management API.

        Raises:
            BrokerUnreachable: it does not answer.
        """
        management = settings.management_of(self.url)
        if not self.is_of_app:
            return open_configured(self.url, settings, management_url=management, only_publish=only_messages)
        return open_broker(
            with_tls(self.url, settings),
            management_url=settings.management_url.reveal() if settings.management_url else "",
            tls=self.tls,
            transport_options=self.options,
            timeout_s=settings.socket_timeout,
            only_publish=only_messages,
        )

    def prefix_is_stated(self, settings: WorkerSettings) -> bool:
        """Return whether its transport options state `global_keyprefix`."""
        if self.is_of_app:
            return "global_keyprefix" in self.options
        return "global_keyprefix" in Address(self.url).stated_options(settings)


def places_of(settings: WorkerSettings, app: Celery | None) -> list[Place]:
    """Return the brokers, the one that workers read first.

    Raises:
        ConfigInvalid: the application's broker is not an address that repot knows.
    """
    own = _of_app(app) if app is not None else Place(settings.read_url, [])
    own.roles.append("workers read it")
    beside = (
        (settings.broker_write_url if app is None else _write_url(app), "tasks are sent to it"),
        (settings.rollout_target and settings.broker_url, "source of the rollout"),
        (settings.rollout_target, "target of the rollout"),
        (settings.move_from, "source of a move"),
        (settings.move_to, "target of a move"),
    )
    found = {Address(own.url, own.options).home: own}
    for url, role in beside:
        if url is None:
            continue
        # a prefix is of one application on a server, and does not make the server another one
        home = next((one for one in found if one[:4] == Address(url).home[:4]), Address(url).home)
        found.setdefault(home, Place(url, [], control_exchange=own.control_exchange)).roles.append(role)
    return list(found.values())


def _write_url(app: Celery) -> BrokerUrl | None:
    """Return the broker that an application sends to, if it reads another one."""
    conf: Any = app.conf
    if conf.broker_write_url != conf.broker_read_url:
        with suppress(ValueError):
            return broker_url_of(conf.broker_write_url)
    return None


def _of_app(app: Celery) -> Place:
    conf: Any = app.conf
    try:
        url = broker_url_of(conf.broker_read_url or conf.broker_url)
    except ValueError as error:
        message = f"the broker of {app.main!r} {error}"
        raise ConfigInvalid(message) from None
    tls = tls_read_by(url.kind, conf.broker_use_ssl)
    return Place(url, [], tls, dict(conf.broker_transport_options or {}), True, str(conf.control_exchange))


@contextmanager
def open_deployment(found: AppSettings) -> Iterator[OpenedDeployment]:
    """Connect to the broker from which workers consume: that of the application, or of the settings without one.

    Raises:
        BrokerUnreachable: it does not answer.
        ConfigInvalid: the application's broker is not an address that repot knows.
    """
    settings, app = found
    place = Place(settings.read_url, []) if app is None else _of_app(app)
    with closing(place.open(settings)) as broker:
        yield OpenedDeployment(broker, place.control_exchange, place.url.masked())
