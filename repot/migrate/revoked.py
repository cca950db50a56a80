"""Tell the workers of the target which tasks were revoked on the source.

A revoked task's message stays in its queue: the workers remember the id (`celery/worker/state.py`) and discard the
message when they receive it. A worker that has not heard of it runs the task.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from repot.brokers.facts import Unknown
from repot.errors import BrokerUnreachable
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.app.control import Control, Inspect
    from kombu import Connection

    from repot.config import WorkerSettings
    from repot.migrate.addresses import Address, Addresses

#: For replies of workers.
_WITHIN_S = 2.0
#: Ids in one message to workers.
_TOGETHER = 1000


def carry_revoked(addresses: Addresses, settings: WorkerSettings, control_exchange: str) -> str:
    """Ask the source's workers for the ids, tell those of the target, and return a sentence about it.

    Raises:
        BrokerUnreachable: a broker did not answer, or refuses control messages.
    """
    with (
        _workers(addresses.source, settings, control_exchange) as (source, source_connection),
        _workers(addresses.target, settings, control_exchange) as (target, target_connection),
    ):
        failures: tuple[type[BaseException], ...] = (
            OperationalError,
            *_failures(source_connection),
            *_failures(target_connection),
        )
        try:
            return _carry(
                partial(source.inspect, connection=source_connection),
                partial(target.revoke, connection=target_connection),
            )
        except failures as error:
            message = f"the workers cannot be asked for revoked tasks: {masked(str(error))}"
            raise BrokerUnreachable(message) from error


@contextmanager
def _workers(address: Address, settings: WorkerSettings, control_exchange: str) -> Iterator[tuple[Control, Connection]]:
    """Give what asks a broker's workers by an exchange for control messages, over a connection of its own.

    kombu's pool belongs to the process: a connection in it may have been closed by the broker hours ago.
    """
    with closing(address.app(settings)) as app, app.connection_for_write() as connection:
        app.conf.control_exchange = control_exchange
        control: Any = app.control
        control.mailbox.producer_pool = None
        yield control, connection


def _failures(connection: Connection) -> tuple[type[BaseException], ...]:
    return (*connection.connection_errors, *connection.channel_errors)


def revoked_ids(address: Address, settings: WorkerSettings, control_exchange: str) -> set[str] | Unknown:
    """Return the ids that a broker's workers know as revoked; unknown if no worker answered."""
    try:
        with _workers(address, settings, control_exchange) as (control, connection):
            failures: tuple[type[BaseException], ...] = (OperationalError, *_failures(connection))
            try:
                answers = control.inspect(timeout=_WITHIN_S, connection=connection).revoked()
            except failures as error:
                return Unknown(f"the workers cannot be asked: {masked(str(error))}")
    except (OperationalError, OSError) as error:
        return Unknown(f"the workers cannot be asked: {masked(str(error))}")
    if not answers:
        return Unknown("no worker of the source answered, and a task is revoked by what workers remember")
    return {one for known in answers.values() for one in known}


def _carry(inspect: Callable[..., Inspect], revoke: Callable[..., Any]) -> str:
    answers = inspect(timeout=_WITHIN_S).revoked()
    if not answers:
        return "no worker of the source answered: which tasks were revoked is unknown"
    ids = sorted({one for known in answers.values() for one in known})
    notified: set[str] = set()
    for start in range(0, len(ids), _TOGETHER):
        together = ids[start : start + _TOGETHER]
        replies = revoke(together, reply=True, timeout=_WITHIN_S) or []
        notified |= {worker for reply in replies for worker in reply}
    if ids and not notified:
        return f"{len(ids)} tasks are revoked, and no worker of the target answered: start one, and resume --revoked"
    return f"{len(ids)} revoked tasks of {len(answers)} workers were named to {len(notified)} workers of the target"
