"""Classify the errors of databases for a lease store: which to repeat, and what the others mean to people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import exc

from repot.errors import RepotError, StoreMisconfigured, StoreRefused, StoreUnreachable
from repot.masking import masked

if TYPE_CHECKING:
    from repot.config import ServiceUrl


class Meaning(StrEnum):
    """What an error means to a caller."""

    #: Another transaction was in the way: the same one succeeds at the next attempt.
    REPEAT = "repeated at once"
    #: The database cannot serve now. The same request succeeds later.
    UNAVAILABLE = "unavailable"
    #: The user has no access, or a right is missing. For a task the same as `UNAVAILABLE`: an operator fixes it.
    REFUSED = "refused"
    #: No retry helps.
    MISCONFIGURED = "misconfigured"


@dataclass(frozen=True, slots=True)
class Reply:
    """The meaning of an error, and the reason."""

    meaning: Meaning
    reason: str


_REPEAT = Reply(Meaning.REPEAT, "another transaction was in the way")
_LINK = Reply(Meaning.UNAVAILABLE, "no connection, or no answer in time")
_FULL = Reply(Meaning.UNAVAILABLE, "the disk is full, or a limit is reached, until space is made")
_READ_ONLY = Reply(Meaning.UNAVAILABLE, "a replica, or a server that is read-only: only the primary takes writes")
_LOGIN = Reply(Meaning.REFUSED, "user and password do not match, or are being changed")
_RIGHT = Reply(Meaning.REFUSED, "the user lacks a right to a table, the schema or the database")
_SCHEMA = Reply(Meaning.MISCONFIGURED, "the tables are missing, or of another version of repot")
_DATABASE = Reply(Meaning.MISCONFIGURED, "the database does not exist")
_BROKEN = Reply(Meaning.MISCONFIGURED, "the database does not know what was asked")

#: SQLSTATE of PostgreSQL, whole or its first two characters: appendix A of its manual.
SQLSTATES = {
    "40001": _REPEAT,
    "40P01": _REPEAT,
    "55P03": _REPEAT,
    "23505": _REPEAT,
    "08": _LINK,
    "57": _LINK,
    "53": _FULL,
    "25006": _READ_ONLY,
    "28": _LOGIN,
    "42501": _RIGHT,
    "42P01": _SCHEMA,
    "42703": _SCHEMA,
    "3D000": _DATABASE,
    "3F000": _SCHEMA,
}

#: Error numbers of MySQL and MariaDB, and of their clients from 2000 to 2999: "Server Error Message Reference".
ERRNOS = {
    1213: _REPEAT,
    1205: _REPEAT,
    1062: _REPEAT,
    1020: _REPEAT,
    1040: _FULL,
    1203: _FULL,
    1226: _FULL,
    1021: _FULL,
    1114: _FULL,
    3: _FULL,
    1053: _LINK,
    1290: _READ_ONLY,
    1792: _READ_ONLY,
    1836: _READ_ONLY,
    1045: _LOGIN,
    1698: _LOGIN,
    1130: _LOGIN,
    1044: _RIGHT,
    1142: _RIGHT,
    1143: _RIGHT,
    1227: _RIGHT,
    1370: _RIGHT,
    1146: _SCHEMA,
    1054: _SCHEMA,
    1049: _DATABASE,
}

#: Parts of what SQLite says, and others without a number.
TEXTS = {
    "database is locked": Reply(Meaning.UNAVAILABLE, "another process has written for longer than a timeout"),
    "UNIQUE constraint failed": _REPEAT,
    "readonly database": Reply(Meaning.REFUSED, "the file or its directory may not be written by this user"),
    "unable to open database file": Reply(Meaning.REFUSED, "the file or its directory is missing, or may not be read"),
    "no such table": _SCHEMA,
    "no such column": _SCHEMA,
    "has no column named": _SCHEMA,
    "database or disk is full": _FULL,
    "disk I/O error": _FULL,
    "not a database": _DATABASE,
    # libpq's, for which psycopg has no SQLSTATE
    "authentication failed": _LOGIN,
    "no pg_hba.conf entry": _LOGIN,
    '" does not exist': _DATABASE,
}


#: What drivers raise for a link, and psycopg's ConnectionTimeout is a subclass of; other errors with these names have a
#: number or one of the texts above.
_OF_LINKS = ("OperationalError", "InterfaceError")


def meaning_of(error: BaseException) -> Reply:
    """Return what an error of SQLAlchemy, or of a driver below it, means, and why."""
    if isinstance(error, exc.TimeoutError):
        return Reply(Meaning.UNAVAILABLE, "every connection of the pool is in use")
    cause: Any = error.orig if isinstance(error, exc.DBAPIError) else error
    state = str(getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or "")
    found = SQLSTATES.get(state) or SQLSTATES.get(state[:2])
    number = next(iter(getattr(cause, "args", ())), None)
    if not found and isinstance(number, int):
        found = ERRNOS.get(number) or (_LINK if 2000 <= number < 3000 or not number else None)  # noqa: PLR2004
    if not found:
        found = next((reply for text, reply in TEXTS.items() if text in str(cause)), None)
    if not found and (
        _is_link(error) or (not state and any(kind.__name__ in _OF_LINKS for kind in type(cause).__mro__))
    ):
        found = _LINK
    return found or _BROKEN


def _is_link(error: BaseException) -> bool:
    return isinstance(error, OSError) or (isinstance(error, exc.DBAPIError) and error.connection_invalidated)


def is_read_only(error: BaseException) -> bool:
    """Return whether the server takes no writes: after a failover another one may, at the same address."""
    return meaning_of(error) is _READ_ONLY


def failure(url: ServiceUrl, error: BaseException) -> RepotError:
    """Return the error of ours for an error of the database."""
    reply = meaning_of(error)
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    why = f"{type(cause).__name__}: {' '.join(str(masked(str(cause))).split())}"
    match reply.meaning:
        case Meaning.REFUSED:
            message = f"the lease store {url} refuses access: {why} ({reply.reason})"
            return StoreRefused(
                message, hint="Check user, password and rights of WORKER_LEASE_STORE (docs/database.md)."
            )
        case Meaning.MISCONFIGURED:
            message = f"the lease store {url} cannot serve: {why} ({reply.reason})"
            return StoreMisconfigured(message, hint="`repot store migrate` says what the database lacks.")
    message = f"the lease store {url} did not answer: {why} ({reply.reason})"
    return StoreUnreachable(message, hint="Check the database of WORKER_LEASE_STORE.")
