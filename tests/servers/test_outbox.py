"""Tasks that leave with a commit: stored with it, published after it, in order for each key."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import re
import signal
import sys
from contextlib import ExitStack, closing, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
import requests
from celery import Celery, chain, group
from celery.signals import before_task_publish
from click.testing import CliRunner, Result
from kombu import Exchange, Queue
from kombu.common import Broadcast
from sqlalchemy import Engine, create_engine, event, text, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import repot
from repot import outbox
from repot.brokers.browse import Keep
from repot.chaos.runner.proxies import Proxy
from repot.cli.main import main
from repot.config import ExplicitSettings, as_environment, inherited_environment
from repot.database.migrate import Migrations
from repot.database.outbox_tables import outbox as table
from repot.database.outbox_tables import relay as relay_table
from repot.errors import BrokerUnreachable, ConfigInvalid, LeaseLost, StoreMisconfigured, StoreUnreachable
from repot.idempotency import IdempotentTask
from repot.idempotency.guard import guard_of
from repot.outbox import publishing as publishing_module
from repot.outbox import relay as relay_module
from repot.outbox.probes import probes
from repot.outbox.relay import Relay
from repot.outbox.store import OutboxStore
from repot.testbed import ReapedProcess, free_port
from repot.waiting import wait_until
from repot.worker.holder import this_process
from support.databases import PASSWORD, connected, django_connection
from support.metric_labels import unbounded_of
from support.rabbitmqctl import disk_alarm
from support.releases import needs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.brokers.message import Message
    from repot.testbed import Server
    from support.databases import PrivateDatabase


class Shop:
    """An application, its database, and a queue of its own on a broker."""

    def __init__(self, url: str, server: Server | None, broker: str = "", **changes: Any) -> None:
        self._server = server
        broker = broker or (server.url if server else "amqp://guest:guest@127.0.0.1:1//")
        self.queue = f"q{uuid4().hex[:8]}"
        self.settings = ExplicitSettings(
            lease_store=url,
            lease_prefix=f"test-{uuid4()}",
            broker_url=broker,
            result_backend="redis://127.0.0.1:1/0",
            queue_names=self.queue,
            socket_timeout=3,
            **changes,
        )
        self.url = url
        self.engine = create_engine(url)
        self.store = OutboxStore(self.settings)
        Migrations(self.store.database).apply()
        self.app = Celery("shop", set_as_current=False)
        repot.configure(self.app, self.settings)

        @self.app.task(name="shop.charge", shared=False)
        def charge(order: Any) -> Any:
            return order

        self.charge: Any = charge

    def close(self) -> None:
        self.store.discard([one.id for one in self.store.rows()])
        self.store.close()
        guard_of(self.app).store.close()  # type: ignore[attr-defined]
        self.engine.dispose()

    def send(self, *arguments: Any, **options: Any) -> Any:
        """Send and commit."""
        with Session(self.engine) as session, session.begin():
            return outbox.send(session, self.charge, arguments, **options)

    def declare(self) -> None:
        """Declare the queue, as a worker does when it starts."""
        with self.app.connection_for_write() as connection:
            self.app.amqp.queues[self.queue](connection.default_channel).declare()

    @contextmanager
    def relay(self, store: OutboxStore | None = None) -> Iterator[Relay]:
        with closing(Relay(self.settings, store or self.store)) as relay:
            yield relay

    def publish(self) -> int:
        """Run a relay until nothing is left that can be published now; return how many messages were."""
        with self.relay() as found:
            found.run(Event(), once=True)
            return found.state.published

    @contextmanager
    def publishing(self) -> Iterator[Relay]:
        """Run a relay in a thread."""
        stop = Event()
        with self.relay() as found:
            thread = Thread(target=found.run, args=(stop,))
            thread.start()
            try:
                yield found
            finally:
                stop.set()
                thread.join(60)
                assert not thread.is_alive()

    @property
    def messages(self) -> list[Message]:
        """What waits in the queue, oldest first."""
        found: list[Message] = []
        assert self._server

        def visit(message: Message) -> Keep:
            found.append(message)
            return Keep()

        with closing(self._server.open()) as broker:
            broker.browse(self.queue, visit)
        return found

    @property
    def arguments(self) -> list[Any]:
        """The first argument of each message in the queue, in order."""
        return [json.loads(one.body)[0][0] for one in self.messages]

    @property
    def waiting(self) -> list[str]:
        """The ids of the tasks in the outbox."""
        return [one.task_id for one in self.store.rows()]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param).url
    return found


#: A broker with each database.
PAIRS = [("sqlite", "redis"), ("postgresql", "rabbitmq"), ("mariadb", "redis")]


@pytest.fixture(params=PAIRS, ids="-".join)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """On each database and each broker."""
    database, broker = map(request.getfixturevalue, request.param)
    with closing(Shop(database.url, broker)) as found:
        found.declare()
        yield found


@pytest.fixture
def local(database_url: str) -> Iterator[Shop]:
    """On each database, without a broker that answers."""
    with closing(Shop(database_url, None)) as found:
        yield found


@pytest.mark.promise("postgresql")
def test_what_is_committed_is_published_and_what_is_rolled_back_is_not(shop: Shop) -> None:
    with Session(shop.engine) as session:
        kept = outbox.send(session, shop.charge, ("kept",))
        session.commit()
        outbox.send(session, shop.charge, ("dropped",))
        session.rollback()
    assert shop.messages == []
    assert shop.waiting == [kept.id]
    assert shop.publish() == 1
    (message,) = shop.messages
    assert message.headers["id"] == kept.id
    assert shop.arguments == ["kept"]
    assert shop.waiting == []
    assert shop.publish() == 0


@pytest.mark.promise("postgresql")
def test_a_message_is_the_one_that_celery_would_have_sent(shop: Shop) -> None:
    options = {
        "priority": 3,
        "headers": {"tenant": "ä\0"},
        "expires": 3600,
        "link": shop.charge.s(),
        "shadow": "s",
        "ignore_result": True,
    }
    shop.send({"n": [1, None]}, task_id="a", **options)
    shop.publish()
    shop.charge.apply_async(({"n": [1, None]},), task_id="a", **options)
    ours, theirs = shop.messages
    assert (ours.body, ours.content_type, ours.content_encoding) == (
        theirs.body,
        theirs.content_type,
        theirs.content_encoding,
    )
    own = ("expires", "origin", "timestamp")
    assert {k: v for k, v in ours.headers.items() if k not in own} == {
        k: v for k, v in theirs.headers.items() if k not in own
    }
    # what would be too long by the time of publishing
    ours_stated, theirs_stated = (
        {k: v for k, v in one.properties.items() if k not in ("expiration", "reply_to", "timestamp")}
        for one in (ours, theirs)
    )
    assert ours_stated == theirs_stated
    assert "expiration" not in ours.properties
    assert ours.properties["timestamp"] > 0


def test_canvas_and_names(local: Shop) -> None:
    local.app.conf.update(result_backend=None)
    charge = local.charge
    with Session(local.engine) as session, session.begin():
        outbox.send(session, chain(charge.s(1), charge.s()))
        outbox.send(session, group(charge.s(2), charge.s(3)))
        outbox.send(session, charge.s(4))
        outbox.send(session, "elsewhere.task", (5,), app=local.app, queue="elsewhere")
    found = [(one.task, one.queue) for one in local.store.rows()]
    assert found == [("shop.charge", local.queue)] * 4 + [("elsewhere.task", "elsewhere")]


def test_sending_asks_no_broker_and_no_result_backend(local: Shop) -> None:
    """Neither answers here: a web request must not wait for them."""
    result = local.send(1)
    assert local.waiting == [result.id]
    assert result.ignored is not True


@pytest.mark.parametrize("bad", ["\0", "\ud800"], ids=["NUL", "surrogate"])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("task_id", "the task's id"),
        ("queue", "the queue's name"),
        ("key", "the key"),
        ("task", "the task's name"),
    ],
)
def test_a_name_that_no_database_stores_is_refused_before_anything_is_written(
    local: Shop, option: str, said: str, bad: str
) -> None:
    """PostgreSQL refuses NUL, and UTF-8 halves of surrogate pairs, as in a file name that was not decoded."""
    given: dict[str, Any] = {"task": "shop.charge", "queue": local.queue, option: f"a{bad}b"}
    with Session(local.engine) as session, session.begin(), pytest.raises(ValueError, match=f"{said} .*before outbox"):
        outbox.send(session, given.pop("task"), app=local.app, **given)
    assert local.waiting == []


@pytest.mark.parametrize("bad", ["\0", "\ud800"], ids=["NUL", "surrogate"])
def test_an_argument_may_hold_what_a_name_may_not(local: Shop, bad: str) -> None:
    """JSON escapes it."""
    assert [local.send(bad).id] == local.waiting


def test_a_task_that_ignores_its_result_still_does(local: Shop) -> None:
    local.send(1, ignore_result=True)
    local.send(2)
    found = [json.loads(envelope)["headers"]["ignore_result"] for _, envelope in local.store.window()]
    assert [bool(one) for one in found] == [True, False]


def test_a_task_with_a_delay_waits_in_the_outbox(shop: Shop) -> None:
    shop.send("later", countdown=3600)
    shop.send("now")
    assert shop.publish() == 1
    assert shop.arguments == ["now"]
    (row,) = shop.store.rows()
    assert 3500 < row.due_at - row.created_at < 3601
    assert shop.store.backlog().delayed == 1
    shop.store.database.transact(
        lambda connection: connection.execute(
            update(table).where(table.c.id == row.id).values(due_at=row.created_at, next_at=0)
        )
    )
    assert shop.publish() == 1


@pytest.mark.promise("postgresql")
def test_messages_of_a_key_are_published_in_order(shop: Shop) -> None:
    for number in range(30):
        shop.send(number, key="k")
    shop.send("other")
    assert shop.publish() == 31
    assert [one for one in shop.arguments if one != "other"] == list(range(30))


@pytest.mark.promise("postgresql")
def test_a_message_that_fails_holds_back_those_of_its_key_alone(shop: Shop) -> None:
    first = shop.send("unreadable", key="k")
    shop.send("after", key="k")
    shop.send("other", key="l")
    shop.send("free")
    _plant(shop, first.id, envelope="{}")
    shop.publish()
    assert sorted(shop.arguments) == ["free", "other"]
    parked, held = shop.store.rows()
    assert (parked.is_parked, parked.attempts, held.attempts) == (True, 1, 0)
    assert "cannot be read" in parked.error
    shop.store.discard([parked.id])
    assert shop.publish() == 1
    assert sorted(shop.arguments) == ["after", "free", "other"]


def _plant(shop: Shop, task_id: str, **values: Any) -> None:
    step = update(table).where(table.c.task_id == task_id).values(values)
    shop.store.database.transact(lambda connection: connection.execute(step))


def test_a_queue_that_no_worker_has_declared_yet(
    postgresql: PrivateDatabase, rabbitmq: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with closing(Shop(postgresql.url, rabbitmq)) as shop:
        shop.send(1, key="k")
        shop.send(2, key="k")
        assert shop.publish() == 0
        assert f"there is no queue '{shop.queue}'" in caplog.text
        first, second = shop.store.rows()
        assert (first.attempts, second.attempts) == (1, 0)
        shop.declare()
        _plant(shop, first.task_id, next_at=0)
        assert shop.publish() == 2
        assert shop.arguments == [1, 2]


@pytest.mark.promise("rabbitmq")
def test_a_broker_that_does_not_answer_costs_no_message(
    postgresql: PrivateDatabase, toxiproxy: Server, server: Server
) -> None:
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", server.port)
    with ExitStack() as stack:
        stack.callback(link.delete)
        shop = stack.enter_context(closing(Shop(postgresql.url, server, server.url_at(link.port))))
        shop.declare()
        shop.send(1)
        with link.closed():
            with pytest.raises(BrokerUnreachable):
                shop.publish()
            assert [one.attempts for one in shop.store.rows()] == [0]
            relay = stack.enter_context(shop.publishing())
            wait_until(lambda: "refused" in relay.state.trouble, within_s=20, what="the relay is in trouble")
        wait_until(lambda: not shop.waiting, within_s=30, what="all is published")
        wait_until(lambda: relay.state.trouble == "", within_s=20, what="the trouble is over")
        assert shop.arguments == [1]


def test_a_commit_wakes_the_relay(shop: Shop) -> None:
    with shop.publishing() as relay:
        wait_until(lambda: relay.state.is_active, within_s=20, what="it is active")
        for number in range(5):
            shop.send(number)
            wait_until(lambda: not shop.waiting, within_s=30, what="it is published")
    assert shop.arguments == list(range(5))


@pytest.mark.promise("postgresql")
def test_one_relay_publishes_and_the_other_takes_over(shop: Shop) -> None:
    other = OutboxStore(shop.settings)
    with closing(other), shop.relay(other) as standby:
        held = shop.store.hold("a relay elsewhere")
        with pytest.raises(LeaseLost, match="a relay elsewhere"):
            standby.run(Event(), once=True)
        assert held.token is not None
        shop.send(1)
        shop.store.release(held.token)
        standby.run(Event(), once=True)
    assert shop.arguments == [1]


@pytest.mark.promise("postgresql")
def test_a_relay_whose_lease_was_taken_changes_nothing_more(shop: Shop) -> None:
    shop.send(1)
    (row,) = shop.store.rows()
    mine = shop.store.hold("one")
    assert mine.token is not None
    _expire(shop)
    theirs = shop.store.hold("another")
    assert theirs.token == mine.token + 1
    assert not shop.store.renew(mine.token)
    with pytest.raises(LeaseLost):
        shop.store.settle(mine.token, [row.id], {})
    assert shop.waiting == [row.task_id]
    shop.store.release(mine.token)
    assert shop.store.hold("one").owner == "another"
    shop.store.settle(theirs.token, [row.id], {})
    assert shop.waiting == []


def test_an_owner_that_is_known_to_have_ended_has_no_lease(local: Shop) -> None:
    local.store.hold("one")
    assert local.store.hold("two").token is None
    assert local.store.hold("two", ended="one").token is not None


def test_a_relay_that_was_killed_on_this_machine_is_replaced_at_once(
    postgresql: PrivateDatabase, redis: Server, tmp_path: Path
) -> None:
    """Long before its lease ends."""
    with closing(Shop(postgresql.url, redis, lease=600)) as shop:
        environment = inherited_environment(without=("WORKER_",)) | as_environment(shop.settings)
        command = [sys.executable, "-m", "repot", "outbox", "relay"]
        killed = ReapedProcess(command, log=tmp_path / "log", environment=environment)
        try:
            wait_until(lambda: "publishing the outbox" in killed.log_tail(20), within_s=30, what="it publishes")
            killed.signal(signal.SIGKILL)
            wait_until(lambda: killed.exit_code is not None, within_s=30, what="it has ended")
        finally:
            killed.stop()
        shop.send(1)
        assert shop.publish() == 1


def _expire(shop: Shop) -> None:
    step = update(relay_table).where(relay_table.c.prefix == shop.settings.lease_prefix).values(expires_at=1)
    shop.store.database.transact(lambda connection: connection.execute(step))


@pytest.mark.promise("postgresql")
def test_what_is_published_while_the_database_is_away_is_not_published_again(shop: Shop) -> None:
    shop.send(1)

    class Away(OutboxStore):
        """Does not answer once, after a window was published."""

        fails = True

        def settle(self, *given: Any) -> None:
            if self.fails:
                self.fails = False
                message = "away"
                raise StoreUnreachable(message)
            super().settle(*given)

    with closing(Away(shop.settings)) as store, shop.relay(store) as relay:
        stop = Event()
        thread = Thread(target=relay.run, args=(stop,))
        thread.start()
        wait_until(lambda: not shop.waiting, within_s=20, what="it is settled")
        stop.set()
        thread.join(10)
    assert shop.arguments == [1]


def test_a_connection_of_a_driver(local: Shop) -> None:
    with closing(connected(local.url)) as connection:
        outbox.send(connection, local.charge, (1,))
        connection.commit()
        outbox.send(connection, local.charge, (2,))
        connection.rollback()
    assert len(local.waiting) == 1


def test_a_connection_of_sqlalchemys(local: Shop) -> None:
    with local.engine.begin() as connection:
        outbox.send(connection, local.charge, (1,))
    with local.engine.connect() as connection:
        outbox.send(connection, local.charge, (2,))
        connection.rollback()
    assert len(local.waiting) == 1


@pytest.mark.promise("postgresql")
@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_a_connection_of_djangos(request: pytest.FixtureRequest, name: str) -> None:
    from django.db import transaction

    url = request.getfixturevalue(name).url
    with closing(Shop(url, None)) as shop, django_connection(url) as connection:
        with transaction.atomic(using=connection.alias):
            outbox.send(connection, shop.charge, (1,))
        with transaction.atomic(using=connection.alias):
            outbox.send(connection, shop.charge, (2,))
            transaction.set_rollback(True, using=connection.alias)
        with pytest.raises(ConfigInvalid, match=r"outside of transaction.atomic\(\)"):
            outbox.send(connection, shop.charge, (3,))
        assert len(shop.waiting) == 1


def _engine_of_sqlite(url: str, begins: str) -> Engine:
    """Return an engine whose transactions are begun so."""
    if begins == "by-python-3.12":
        return create_engine(url, connect_args={"autocommit": False})
    engine = create_engine(url, isolation_level="AUTOCOMMIT") if begins == "with-each-statement" else create_engine(url)
    if begins in ("by-events", "never"):
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    if begins == "by-events":
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


@pytest.mark.promise
@pytest.mark.parametrize("form", [Session, Engine.connect])
@pytest.mark.parametrize("begins", ["by-the-driver", "never", "with-each-statement", "by-events", "by-python-3.12"])
def test_a_savepoint_of_sqlite_is_within_its_transaction_or_refused(sqlite: Any, begins: str, form: Any) -> None:
    """The driver begins a transaction at the first write: a savepoint before that would commit when it is released."""
    if begins == "by-python-3.12" and sys.version_info < (3, 12):
        pytest.skip("sqlite3 has `autocommit` since Python 3.12")
    with closing(Shop(sqlite.url, None)) as shop:
        shop.engine.dispose()
        shop.engine = _engine_of_sqlite(sqlite.url, begins)
        if begins in ("by-events", "by-python-3.12"):
            for end in ("rollback", "commit"):
                with form(shop.engine) as on:
                    with on.begin_nested():
                        outbox.send(on, shop.charge, (end,))
                    getattr(on, end)()
                assert len(shop.waiting) == (end == "commit")
            return
        with (
            form(shop.engine) as on,
            pytest.raises(ConfigInvalid, match="savepoint may begin") as refused,
            on.begin_nested(),
        ):
            outbox.send(on, shop.charge, (1,))
        assert "docs/outbox.md#savepoints-on-sqlite" in refused.value.hint
        assert shop.waiting == []


@pytest.mark.promise("postgresql")
def test_a_savepoint_within_a_transaction_of_a_task_is_within_it(local: Shop) -> None:
    """`transaction()` begins it, whatever the driver does."""
    fails = [True]

    @local.app.task(base=IdempotentTask, bind=True, shared=False)
    def order(self: Any, form: str) -> None:
        on: Any = (lambda: connected(local.url)) if form == "driver" else local.engine
        with self.transaction(on) as given:
            if form == "driver":
                with closing(given.cursor()) as cursor:
                    cursor.execute("SAVEPOINT s")
                    outbox.send(given, local.charge, (form,))
                    cursor.execute("RELEASE SAVEPOINT s")
            else:
                with given.begin_nested():
                    outbox.send(given, local.charge, (form,))
            if fails:
                raise ValueError(fails.pop())

    for form in ("driver", "engine"):
        fails[:] = [True]
        with pytest.raises(ValueError, match="True"):
            order.apply((form,)).get()
        assert len(local.waiting) == (form == "engine")
        order.apply((form,)).get()
    assert len(local.waiting) == 2


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_savepoint_is_within_its_transaction(request: pytest.FixtureRequest, name: str) -> None:
    with closing(Shop(request.getfixturevalue(name).url, None)) as shop:
        for end in ("rollback", "commit"):
            with Session(shop.engine) as session:
                with session.begin_nested():
                    outbox.send(session, shop.charge, (end,))
                getattr(session, end)()
            assert len(shop.waiting) == (end == "commit")


@pytest.mark.promise
def test_a_savepoint_of_djangos_on_sqlite(sqlite: Any) -> None:
    """Its atomic() begins a transaction itself, but not with AUTOCOMMIT off."""
    from django.db import transaction

    with closing(Shop(sqlite.url, None)) as shop:
        with django_connection(sqlite.url) as connection, transaction.atomic(using=connection.alias):
            with transaction.atomic(using=connection.alias):
                outbox.send(connection, shop.charge, (1,))
            transaction.set_rollback(True, using=connection.alias)
        with (
            django_connection(sqlite.url, AUTOCOMMIT=False) as connection,
            transaction.atomic(using=connection.alias),
            pytest.raises(ConfigInvalid, match="savepoint may begin"),
        ):
            outbox.send(connection, shop.charge, (2,))
        assert shop.waiting == []


@pytest.mark.promise
def test_a_session_that_answers_later(postgresql: PrivateDatabase) -> None:
    """As a FastAPI endpoint has it."""
    with closing(Shop(postgresql.url, None)) as shop:

        async def endpoint(*, fails: bool) -> None:
            engine = create_async_engine(postgresql.url)
            try:
                async with AsyncSession(engine) as session, session.begin():
                    with pytest.raises(ConfigInvalid, match="AsyncSession, which answers later"):
                        outbox.send(session, shop.charge, (1,))
                    await session.run_sync(lambda sync: outbox.send(sync, shop.charge, (1,)))
                    if fails:
                        raise ValueError(fails)
            finally:
                await engine.dispose()

        asyncio.run(endpoint(fails=False))
        with pytest.raises(ValueError, match="True"):
            asyncio.run(endpoint(fails=True))
        assert len(shop.waiting) == 1


@pytest.mark.promise("postgresql")
def test_a_guarded_task_sends_with_its_effect(local: Shop) -> None:
    """Effect, outcome and the next task's message are one commit."""
    fails = [True]

    @local.app.task(base=IdempotentTask, bind=True, shared=False)
    def order(self: Any, number: int) -> str:
        with self.transaction() as session:
            outbox.send(session, local.charge, (number,))
            if fails:
                raise ValueError(fails.pop())
            self.record_result("sent")
        return "sent"

    def run() -> Any:
        local.app.conf.task_always_eager = True
        try:
            return order.apply((7,)).get()
        finally:
            local.app.conf.task_always_eager = False

    with pytest.raises(ValueError, match="True"):
        order.apply((7,)).get()
    assert local.waiting == []
    assert [order.apply((7,)).get() for _ in range(2)] == ["sent", "sent"]
    assert len(local.waiting) == 1


def test_what_has_no_transaction_is_refused(local: Shop) -> None:
    with (
        closing(connected(local.url, autocommit=True)) as connection,
        pytest.raises(ConfigInvalid, match="commits each statement"),
    ):
        outbox.send(connection, local.charge, (1,))
    autocommit = local.engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as one, pytest.raises(ConfigInvalid, match="commits each statement"):
        outbox.send(one, local.charge, (1,))
    with pytest.raises(ConfigInvalid, match="takes the session or connection"):
        outbox.send(local.engine, local.charge, (1,))
    assert local.waiting == []


def test_a_task_that_goes_to_no_single_queue_is_refused(local: Shop) -> None:
    both = Exchange("both", "fanout")
    local.app.conf.task_queues = [Queue("a", both), Queue("b", both)]
    with Session(local.engine) as session:
        with pytest.raises(ConfigInvalid, match="to which the application binds no queue, or several"):
            outbox.send(session, local.charge, (1,), exchange="both", routing_key="x")
        outbox.send(session, local.charge, (1,), queue="c")
        session.commit()
    assert [one.queue for one in local.store.rows()] == ["c"]


@pytest.mark.parametrize("what", ["task_id", "queue", "key"])
def test_names_that_are_too_long_are_refused(local: Shop, what: str) -> None:
    with pytest.raises(ConfigInvalid, match="has 300 characters"):
        local.send(1, **{what: "x" * 300})


def test_a_store_in_redis_has_no_outbox(redis: Server) -> None:
    app = Celery("shop", set_as_current=False)
    repot.configure(app, ExplicitSettings(lease_store=redis.url, broker_url=redis.url))
    with pytest.raises(ConfigInvalid, match=r"outbox.send\(\) needs the lease store in the database"):
        outbox.send(None, "shop.charge", app=app)


def test_missing_tables_are_one_clear_error(sqlite: Any) -> None:
    found = _repot(sqlite.url, "outbox", "relay", "--once")
    assert found.exit_code == StoreMisconfigured.exit_code
    assert "no such table: repot_outbox_relay" in found.stderr
    assert "repot store migrate" in found.stderr


def _repot(url: str, *words: str, **environment: str) -> Result:
    return CliRunner().invoke(main, words, env={"WORKER_LEASE_STORE": url, **environment})


@pytest.mark.promise("postgresql")
def test_the_command_publishes_lists_retries_and_discards(shop: Shop) -> None:
    environment = {
        "WORKER_LEASE_PREFIX": shop.settings.lease_prefix,
        "WORKER_BROKER_URL": shop.settings.broker_url.reveal(),
    }

    def run(*words: str, code: int = 0) -> Result:
        found = _repot(shop.url, "outbox", *words, **environment)
        assert found.exit_code == code, found.output
        assert PASSWORD not in found.output
        return found

    bad = shop.send("bad", key="k")
    _plant(shop, bad.id, envelope="{}")
    shop.send("good")
    later = shop.send("later", countdown=600)
    told = run("relay", "--once", code=4).stderr
    assert "1 published" in told
    assert "0 messages wait for another attempt, and 1 are parked" in told
    listed = run("list")
    assert bad.id in listed.stdout
    assert "parked" in listed.stdout
    assert "0 waiting; 1 delayed; 1 parked" in listed.stderr
    found = json.loads(run("list", "--json", "--parked").stdout)
    assert [one["task_id"] for one in found["messages"]] == [bad.id]
    assert found["backlog"] == {"waiting": 0, "delayed": 1, "parked": 1, "oldest_s": None}
    assert "1 would be retried" in run("retry").stderr
    assert [one.is_parked for one in shop.store.rows()] == [True, False]
    assert "1 retried" in run("retry", bad.id[:8], "--execute").stderr
    assert [one.is_parked for one in shop.store.rows()] == [False, False]
    assert "1 would be discarded" in run("discard", later.id).stderr
    assert "1 discarded" in run("discard", later.id, "--execute").stderr
    assert shop.waiting == [bad.id]
    refused = _repot(shop.url, "outbox", "discard", "--execute", **environment)
    assert refused.exit_code == 2
    assert "or use --all" in refused.stderr
    assert "1 discarded" in run("discard", "--all", "--execute").stderr


def test_probes_and_metrics(postgresql: PrivateDatabase, toxiproxy: Server, server: Server) -> None:
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", server.port)
    with ExitStack() as stack:
        stack.callback(link.delete)
        shop = stack.enter_context(closing(Shop(postgresql.url, server, server.url_at(link.port))))
        shop.declare()
        port = free_port()
        relay = stack.enter_context(shop.publishing())
        stack.enter_context(probes(relay.state, shop.store, "127.0.0.1", port))

        def get(path: str) -> tuple[int, str]:
            found = requests.get(f"http://127.0.0.1:{port}/{path}", timeout=10)
            return found.status_code, found.text

        wait_until(lambda: get("ready") == (200, "publishing\n"), within_s=20, what="it is ready")
        assert get("live")[0] == 200
        with link.closed():
            bad = shop.send(1, key="k")
            wait_until(lambda: get("ready")[0] == 503, within_s=20, what="it is not ready")
            assert PASSWORD not in get("ready")[1]
            wait_until(lambda: "repot_outbox_relay_ready 0.0" in get("metrics")[1], within_s=20, what="it says so")
            assert 'repot_outbox_depth{state="waiting"} 1.0' in get("metrics")[1]
            _plant(shop, bad.id, created_at=table.c.created_at - 100, due_at=table.c.due_at - 100)
            age = re.compile(r"^repot_outbox_oldest_age_seconds (\S+)$", re.MULTILINE)
            wait_until(
                lambda: any(float(found) >= 100 for found in age.findall(get("metrics")[1])),
                within_s=20,
                what="its age is shown",
            )
        wait_until(lambda: "repot_outbox_published_total 1.0" in get("metrics")[1], within_s=30, what="it is published")
        wait_until(lambda: get("ready")[0] == 200, within_s=20, what="it is ready again")
        shop.store.hold("another", ended=this_process("the relay of the outbox"))
        shop.send(2)
        wait_until(lambda: get("ready") == (200, "standing by\n"), within_s=30, what="it stands by")
        assert "repot_outbox_relay_active 0.0" in get("metrics")[1]
        assert unbounded_of(get("metrics")[1]) == []


def test_an_open_transaction_of_an_application_stops_no_relay(shop: Shop) -> None:
    """MariaDB would read all rows to delete some, and wait for one that is not committed."""
    if shop.engine.dialect.name == "sqlite":
        pytest.skip("an open transaction that has written is the only writer of a file")
    for number in range(3):
        shop.send(number)
    with Session(shop.engine) as session:
        outbox.send(session, shop.charge, ("open",))
        assert shop.publish() == 3
        session.commit()
    assert shop.publish() == 1
    assert shop.arguments == [0, 1, 2, "open"]


def test_a_message_that_closes_the_channel_lets_the_others_pass(postgresql: PrivateDatabase, rabbitmq: Server) -> None:
    """RabbitMQ refuses a user's name that is not the connection's, and says nothing of the messages before."""
    with closing(Shop(postgresql.url, rabbitmq)) as shop:
        shop.declare()
        for number in range(5):
            shop.send(number)
        shop.send("bad", user_id="bob")
        for number in range(5, 10):
            shop.send(number)
        shop.publish()
        step = update(table).where(table.c.state == "retrying").values(next_at=0)
        shop.store.database.transact(lambda connection: connection.execute(step))
        shop.publish()
        (left,) = shop.store.rows()
        assert "user_id" in left.error or "PRECONDITION_FAILED" in left.error
        assert set(shop.arguments) == set(range(10))
        assert len(shop.arguments) <= 20


def test_a_queue_that_takes_nothing_costs_three_attempts_in_a_window(
    postgresql: PrivateDatabase, rabbitmq: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no message is due again, and no window ends, before the test says so
    for module, name in (
        (publishing_module, "_FIRST_PAUSE_S"),
        (publishing_module, "_LONGEST_PAUSE_S"),
        (relay_module, "_SETTLE_EVERY_S"),
    ):
        monkeypatch.setattr(module, name, 600)
    with closing(Shop(postgresql.url, rabbitmq)) as shop:
        for number in range(20):
            shop.send(number)
        shop.publish()
        step = update(table).values(next_at=0)
        shop.store.database.transact(lambda connection: connection.execute(step))
        shop.publish()
        assert sorted(one.attempts for one in shop.store.rows()) == [1] * 17 + [2] * 3


@pytest.mark.xdist_group("harmed rabbitmq")
def test_a_relay_says_that_its_broker_takes_nothing_and_can_be_stopped(
    postgresql: PrivateDatabase, harmed_rabbitmq: Server
) -> None:
    with closing(Shop(postgresql.url, harmed_rabbitmq)) as shop:
        shop.declare()
        with disk_alarm(harmed_rabbitmq), shop.publishing() as relay:
            shop.send("waits")
            wait_until(lambda: "takes no messages" in relay.state.trouble, within_s=20, what="it says so")
            before = relay.state.beat_at
            wait_until(lambda: relay.state.beat_at > before, within_s=30, what="it gives another sign of life")
        assert len(shop.waiting) == 1
        shop.publish()
        assert set(shop.arguments) == {"waits"}
        assert len(shop.arguments) <= 2


def test_a_slow_window_is_settled_meanwhile(
    postgresql: PrivateDatabase, rabbitmq: Server, toxiproxy: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is published and not deleted is published again by the next relay."""
    monkeypatch.setattr(relay_module, "_SETTLE_EVERY_S", 0.1)
    proxy = Proxy.create(toxiproxy.url, f"slow-{uuid4()}", rabbitmq.port)
    with closing(Shop(postgresql.url, rabbitmq, broker=rabbitmq.url_at(proxy.port))) as shop:
        shop.declare()
        for number in range(10):
            shop.send(number, key="one")
        with proxy.with_toxic("latency", ["downstream"], {"latency": 100}), shop.publishing():
            wait_until(lambda: 0 < len(shop.waiting) < 10, within_s=30, what="a part is settled", poll_s=0.02)
            wait_until(lambda: not shop.waiting, within_s=30, what="all are settled")
        assert shop.arguments == list(range(10))


def test_the_number_of_a_deleted_message_is_not_given_again(local: Shop) -> None:
    local.send(1)
    (first,) = local.store.rows()
    local.store.discard([first.id])
    local.send(2)
    (second,) = local.store.rows()
    assert second.id > first.id


def test_a_task_of_another_application_is_refused(local: Shop) -> None:
    other = Celery("other", set_as_current=False, broker="memory://")

    @other.task(name="other.audit", shared=False)
    def audit() -> None:
        """Is not run."""

    local.app.conf.update(result_backend=None)
    with (
        Session(local.engine) as session,
        pytest.raises(ConfigInvalid, match=r"other\.audit belongs to another application"),
    ):
        outbox.send(session, group(local.charge.s(1), audit.s()))
    audit.delay()
    assert local.waiting == []


@needs("celery", "5.7", "its producers keep the address that they began with")
def test_a_copied_context_sends_as_ever_afterwards(local: Shop) -> None:
    copies: list[contextvars.Context] = []

    @before_task_publish.connect(weak=False, dispatch_uid="copies")
    def copy(**_: Any) -> None:
        copies.append(contextvars.copy_context())

    try:
        local.send(1)
        local.app.conf.update(broker_url="memory://")
        copies[0].run(lambda: local.charge.apply_async((2,), ignore_result=True))
    finally:
        before_task_publish.disconnect(dispatch_uid="copies")
    with local.app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        assert channel.basic_get(local.queue) is not None
    assert len(local.waiting) == 1


def test_a_connection_that_answers_later_is_refused(postgresql: PrivateDatabase) -> None:
    async def send(shop: Shop) -> None:
        async with await psycopg.AsyncConnection.connect(postgresql.url.replace("+psycopg", "")) as connection:
            outbox.send(connection, shop.charge, (1,))

    with closing(Shop(postgresql.url, None)) as shop, pytest.raises(ConfigInvalid, match="answers later"):
        asyncio.run(send(shop))


def test_a_broadcast_is_refused(local: Shop) -> None:
    local.app.conf.task_queues = [Broadcast("everyone"), Queue(local.queue)]
    with pytest.raises(ConfigInvalid, match="binds no queue, or several"):
        local.send(1, queue="everyone")


def test_a_row_that_raises_anything_is_parked(shop: Shop) -> None:
    bad = shop.send(1)
    planted = '{"body": "", "headers": {"n": {"__type__": "decimal", "__value__": "abc"}}, "properties": {}}'
    _plant(shop, bad.id, envelope=planted)
    shop.send(2)
    assert shop.publish() == 1
    assert [one.is_parked for one in shop.store.rows()] == [True]


def test_a_sender_needs_the_right_to_insert_alone(postgresql: PrivateDatabase) -> None:
    role = f"sender_{uuid4().hex[:8]}"
    with closing(Shop(postgresql.url, None)) as shop:
        with shop.engine.begin() as connection:
            for statement in (
                f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
                f"GRANT INSERT ON repot_outbox TO {role}",
                f"GRANT USAGE ON SEQUENCE repot_outbox_id_seq TO {role}",
            ):
                connection.execute(text(statement))
        engine = create_engine(shop.engine.url.set(username=role, password="x"))
        try:
            with Session(engine) as session, session.begin():
                outbox.send(session, shop.charge, (1,), key=7)
            assert [one.order_key for one in shop.store.rows()] == ["7"]
        finally:
            engine.dispose()
            with shop.engine.begin() as connection:
                connection.execute(text(f"DROP OWNED BY {role}"))
                connection.execute(text(f"DROP ROLE {role}"))


def test_an_idle_relay_says_that_its_broker_is_away(local: Shop) -> None:
    with local.publishing() as relay:
        wait_until(lambda: "refused" in relay.state.trouble, within_s=20, what="it says so")


def test_rows_of_another_prefix_are_not_touched(local: Shop) -> None:
    local.send(1)
    with closing(OutboxStore(local.settings.replace(lease_prefix="other"))) as other:
        assert list(other.rows()) == []
        assert other.window() == []
        assert other.backlog().waiting == 0


def test_many_senders_at_once(shop: Shop) -> None:
    """While a relay publishes: each is published once."""

    def send(who: int) -> None:
        for number in range(20):
            shop.send([who, number], key=str(who))

    with shop.publishing():
        threads = [Thread(target=send, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: not shop.waiting, within_s=60, what="all is published")
    found = shop.arguments
    assert sorted(found) == [[who, number] for who in range(4) for number in range(20)]
    for who in range(4):
        assert [number for one, number in found if one == who] == list(range(20))


def test_the_row_is_in_the_transaction_of_the_application(local: Shop) -> None:
    """No other connection sees it before the commit, and no lock is held on the application's behalf."""
    with Session(local.engine) as session:
        session.execute(text("SELECT 1"))
        outbox.send(session, local.charge, (1,))
        if local.engine.dialect.name != "sqlite":
            assert local.waiting == []
            local.send(2)
            assert len(local.waiting) == 1
        session.rollback()
