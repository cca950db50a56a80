"""The name of a move: it belongs to two brokers, and a queue to one move at a time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis as redis_client

from repot.brokers.headers import MAYBE_TWICE_HEADER
from repot.config import BrokerUrl
from repot.errors import MoveConflict
from repot.migrate.addresses import Address
from repot.migrate.control import Limits
from repot.migrate.move import open_move
from repot.migrate.place import Place
from support.moves import WAYS, Way, places, start_killed, task, way_of
from support.realm import Realm

if TYPE_CHECKING:
    from repot.migrate.move import Order
    from repot.testbed import Server


@pytest.fixture(params=WAYS)
def path(request: pytest.FixtureRequest) -> Way:
    return way_of(request)


def run(path: Way, order: Order) -> None:
    with open_move(order, path.settings) as move:
        move.run(Event())


@pytest.mark.parametrize("path", ["redis-rabbitmq"], indirect=True)
def test_a_move_goes_on_as_another_user(path: Way) -> None:
    """After a rotation of users and passwords, and the journal then names the new one."""
    path.fill([task(place) for place in range(120)])
    with start_killed(path, "written") as killed:
        killed.wait()
    order = path.order()
    source = replace(order.addresses.source, url=BrokerUrl.parse(with_user(path.source.url)))
    found = replace(order, addresses=replace(order.addresses, source=source))
    run(path, found)
    status = path.status()
    assert (status["closes"], status["delivered"], status["still_reserved"]) == (True, 120, 0)
    assert "rotated" in status["source"]
    assert set(range(120)) == set(places(path.arrived()))


def with_user(url: str) -> str:
    """Make another user of a Redis, and return the address with it."""
    admin: Any = redis_client.Redis.from_url(url)
    with closing(admin):
        admin.execute_command("ACL", "SETUSER", "rotated", "on", ">secret", "~*", "&*", "+@all")
    parts = urlsplit(url)
    return parts._replace(netloc=f"rotated:secret@{parts.hostname}:{parts.port}").geturl()


@pytest.mark.parametrize("path", ["rabbitmq-redis"], indirect=True)
def test_another_broker_is_refused_with_what_differs(path: Way) -> None:
    path.fill([task(0)])
    path.move()
    order = path.order()
    other = Address(BrokerUrl.parse(Realm(path.source).url), management_url=path.source.management_url)  # type: ignore[arg-type]
    with pytest.raises(MoveConflict) as refused:
        run(path, replace(order, addresses=replace(order.addresses, source=other)))
    assert "has another source" in refused.value.message
    assert "its database or virtual host is" in refused.value.message
    assert "its host" not in refused.value.message


def test_a_second_name_for_a_queue_that_a_dead_mover_has_left_is_refused(path: Way) -> None:
    """It would send again what the target has; the first move goes on, and the queue is free."""
    path.fill([task(place) for place in range(120)])
    with start_killed(path, "written") as killed:
        killed.wait()
    second = replace(path.order(), name=f"m-{uuid4()}")
    with pytest.raises(MoveConflict) as refused:
        run(path, second)
    assert repr(path.name) in refused.value.message
    assert f"repot move resume {path.name} --execute" in refused.value.hint
    path.move()
    path.fill([task(place) for place in range(120, 130)])
    run(path, second)
    arrived = path.arrived()
    assert set(range(130)) == set(places(arrived))
    unmarked = [one for one in arrived if not one.headers.get(MAYBE_TWICE_HEADER)]
    assert len(unmarked) == len(set(places(unmarked)))


@pytest.mark.parametrize("path", ["redis-rabbitmq", "rabbitmq-rabbitmq"], indirect=True)
def test_a_second_name_is_refused_while_a_revert_is_not_over(path: Way) -> None:
    from repot.brokers.journal import Direction

    path.fill([task(place) for place in range(120)])
    path.move()
    with start_killed(path, "written", direction=Direction.BACK) as killed:
        killed.wait()
    second = replace(path.order(), name=f"m-{uuid4()}")
    with pytest.raises(MoveConflict):
        run(path, second)
    path.move_back()
    run(path, second)
    assert set(range(120)) == set(places(path.arrived()))


@pytest.mark.parametrize("path", ["redis-rabbitmq", "rabbitmq-rabbitmq"], indirect=True)
def test_force_takes_a_queue_from_a_move_whose_brokers_are_gone(path: Way) -> None:
    path.fill([task(place) for place in range(120)])
    with start_killed(path, "opened") as killed:
        killed.wait()
    run(path, replace(path.order(Limits(window=50, lease_s=1)), name=f"m-{uuid4()}", force=True))
    assert path.arrived()


def test_a_place_is_compared_by_what_it_is(rabbitmq: Server) -> None:
    here = Place("RabbitMQ", "a", 5672, "shop", "", "one")
    assert here.differences(replace(here, host="b", port=5673)) == []
    assert here.differences(replace(here, cluster="two")) == ["its name of the cluster is 'two' and not 'one'"]
    assert here.differences(replace(here, host="b", cluster="")) == ["its host is 'b' and not 'a'"]
    assert here.differences(replace(here, prefix="x")) == ["its key prefix is 'x' and not ''"]
    record = {"source": "amqp://ann:**@a:5672/shop", "target_place": str(here)}
    assert here.differences(Place.in_record(record, "source")) == []
    assert here == Place.in_record(record, "target")
    with closing(rabbitmq.open()) as broker:
        assert Place.of(Address(BrokerUrl.parse(rabbitmq.url)), broker).cluster
