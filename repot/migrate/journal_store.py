"""The lease store as the place of a move's journal, between brokers that keep none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.moving import KeepsJournals
from repot.config import BrokerUrl
from repot.errors import BrokerUnreachable, ConfigInvalid
from repot.migrate.addresses import Address
from repot.store.redis_or_database import redis_or_database

if TYPE_CHECKING:
    from repot.brokers.journal import Direction, Journal
    from repot.config import WorkerSettings

_NEEDS = "the journal of a move between these brokers needs the lease store"
_HINT = (
    "Name a database or a Redis for the journal: WORKER_LEASE_STORE=postgresql+psycopg://... or redis://host:6379/1."
)


def journal_in_store(settings: WorkerSettings, name: str, direction: Direction) -> Journal:
    """Return the journal of a move in the lease store of the settings, which has answered.

    Raises:
        ConfigInvalid: it cannot keep a journal, is not set, or is a database without `repot[database]`.
        StoreMisconfigured: its tables are missing.
        BrokerUnreachable: it does not answer.
    """

    def in_database(settings: WorkerSettings) -> Journal:
        from repot.migrate.database_journal import DatabaseJournal

        return DatabaseJournal(settings, name, direction)

    try:
        journal = redis_or_database(settings, lambda one: _on_redis(one, name, direction), in_database)
        # finds missing tables as well
        journal.read()
    except BrokerUnreachable as error:
        message = f"{_NEEDS}: {error.message}"
        raise type(error)(message, hint=error.hint or _HINT) from error
    return journal


def _on_redis(settings: WorkerSettings, name: str, direction: Direction) -> Journal:
    url = settings.redis_store_url
    if url is None or url.scheme.endswith("+cluster"):
        message = f"{_NEEDS}, which is neither a database nor a single Redis"
        raise ConfigInvalid(message, hint=_HINT)
    keeper = Address(BrokerUrl.parse(url.reveal())).open(settings)
    if not isinstance(keeper, KeepsJournals):
        message = f"{_NEEDS}, which cannot keep one"
        raise ConfigInvalid(message, hint=_HINT)
    return keeper.journal(name, f"{settings.lease_prefix}:", direction)
