"""Which broker of a move the management API of the settings is of."""

from __future__ import annotations

import pytest

from repot.config import BrokerUrl, ExplicitSettings
from repot.migrate.addresses import Address, Addresses, with_management_of

API = "http://ops:secret@rabbit:15672"
REDIS, RABBIT, OTHER = "redis://old/0", "amqp://rabbit/shop", "amqp://other/shop"


@pytest.mark.parametrize(
    ("own", "source", "target", "expected"),
    [
        (REDIS, REDIS, RABBIT, ("", API)),
        (RABBIT, REDIS, RABBIT, ("", API)),
        (RABBIT, RABBIT, REDIS, (API, "")),
        (RABBIT, RABBIT, OTHER, (API, "")),
        (RABBIT, "amqp://rabbit/one", "amqp://rabbit/two", (API, API)),
        # whose it is, nothing says
        (REDIS, RABBIT, OTHER, ("", "")),
        (RABBIT, REDIS, OTHER, ("", "")),
        (RABBIT, REDIS, "redis://new/0", ("", "")),
    ],
)
def test_the_settings_api_is_that_of_their_broker_or_of_the_only_rabbitmq(
    own: str, source: str, target: str, expected: tuple[str, str]
) -> None:
    settings = ExplicitSettings(broker_url=own, result_backend="redis://old/1", management_url=API)
    found = with_management_of(Addresses(Address(BrokerUrl.parse(source)), Address(BrokerUrl.parse(target))), settings)
    assert expected == (found.source.management_url, found.target.management_url)


def test_what_is_stated_counts_more() -> None:
    settings = ExplicitSettings(broker_url=RABBIT, result_backend="redis://old/1", management_url=API)
    stated = Address(BrokerUrl.parse(RABBIT), {}, "http://stated:1")
    found = with_management_of(Addresses(Address(BrokerUrl.parse(REDIS)), stated), settings)
    assert found.target.management_url == "http://stated:1"
