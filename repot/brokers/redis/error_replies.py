"""Classify the error replies of Redis and Valkey: one table, with a reason for each entry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

import redis
from redis.exceptions import RedisClusterException


class Meaning(StrEnum):
    """What an error reply means to a caller."""

    #: The store cannot serve now. The same request succeeds later.
    UNAVAILABLE = "unavailable"
    #: The user has no access, or a right is missing. For a task the same as `UNAVAILABLE`: an operator fixes it.
    REFUSED = "refused"
    #: No retry helps: the settings name a server that cannot be a lease store.
    MISCONFIGURED = "misconfigured"
    #: The value stored under the key is of another type.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Reply:
    """The meaning of an error reply, and the reason."""

    meaning: Meaning
    reason: str


#: By the first word of the reply. `ERR` applies where no text below matches.
REPLIES = {
    "LOADING": Reply(Meaning.UNAVAILABLE, "the server loads its data after a start, and answers when that is done"),
    "MISCONF": Reply(Meaning.UNAVAILABLE, "the last save failed; no write is accepted until one succeeds"),
    "NOREPLICAS": Reply(Meaning.UNAVAILABLE, "fewer replicas than `min-replicas-to-write`, until one is back"),
    "OOM": Reply(Meaning.UNAVAILABLE, "no memory for a write, until keys expire or the limit is raised"),
    "READONLY": Reply(Meaning.UNAVAILABLE, "a primary that was demoted; the next connection finds the new one"),
    "MASTERDOWN": Reply(Meaning.UNAVAILABLE, "a replica that has lost its primary, in the middle of a failover"),
    "CLUSTERDOWN": Reply(Meaning.UNAVAILABLE, "a slot without a node, until a replica is promoted"),
    "TRYAGAIN": Reply(Meaning.UNAVAILABLE, "the slot is being moved to another node"),
    "BUSY": Reply(Meaning.UNAVAILABLE, "a script of another client has run for longer than `busy-reply-threshold`"),
    "NOSCRIPT": Reply(
        Meaning.UNAVAILABLE, "the server lost a script between its upload and the call; it is sent again"
    ),
    "EXECABORT": Reply(Meaning.UNAVAILABLE, "a transaction was discarded; repot uses none, but a proxy may"),
    "NOAUTH": Reply(Meaning.REFUSED, "a password is required, and none was given, or it has changed"),
    "WRONGPASS": Reply(Meaning.REFUSED, "user and password do not match, or are being changed"),
    "NOPERM": Reply(Meaning.REFUSED, "the user has no right to a command, a key or a channel"),
    "DENIED": Reply(Meaning.REFUSED, "protected mode accepts no connections from other machines"),
    "MOVED": Reply(Meaning.MISCONFIGURED, "the server is a node of a cluster: name it with redis+cluster://"),
    "ASK": Reply(Meaning.MISCONFIGURED, "the server is a node of a cluster: name it with redis+cluster://"),
    "CROSSSLOT": Reply(Meaning.MISCONFIGURED, "a prefix with braces puts keys into two slots"),
    "NOPROTO": Reply(Meaning.MISCONFIGURED, "the server does not know RESP3: Redis 6 or newer is needed"),
    "WRONGTYPE": Reply(Meaning.UNREADABLE, "another program writes under this prefix"),
    "ERR": Reply(Meaning.MISCONFIGURED, "the server does not know a command, an argument or the database"),
}

#: Replies without a first word of their own. A script that lacks a right is answered with ERR.
TEXTS = {
    "max number of clients reached": Reply(Meaning.UNAVAILABLE, "every connection of `maxclients` is taken"),
    "The user executing the script": Reply(Meaning.REFUSED, "a right is missing inside a script (Redis 7.0)"),
    "ACL failure in script": Reply(Meaning.REFUSED, "a right is missing inside a script (Redis 7.2 and newer, Valkey)"),
}

#: Errors that redis-py raises without a reply, and those whose first word it removes.
_RAISED = (
    (redis.exceptions.MasterDownError, REPLIES["MASTERDOWN"]),
    (redis.exceptions.ClusterDownError, REPLIES["CLUSTERDOWN"]),
    (redis.exceptions.ReadOnlyError, REPLIES["READONLY"]),
    (redis.exceptions.OutOfMemoryError, REPLIES["OOM"]),
    (redis.exceptions.TryAgainError, REPLIES["TRYAGAIN"]),
    (redis.exceptions.NoScriptError, REPLIES["NOSCRIPT"]),
    (redis.exceptions.ExecAbortError, REPLIES["EXECABORT"]),
    (redis.exceptions.NoPermissionError, REPLIES["NOPERM"]),
    (redis.exceptions.MovedError, REPLIES["MOVED"]),
    (redis.exceptions.AskError, REPLIES["ASK"]),
    (redis.exceptions.ClusterCrossSlotError, REPLIES["CROSSSLOT"]),
    ((redis.AuthenticationError, redis.exceptions.AuthorizationError), REPLIES["WRONGPASS"]),
    (
        (redis.ConnectionError, redis.TimeoutError, OSError),
        Reply(Meaning.UNAVAILABLE, "no connection, or no answer in time"),
    ),
    (
        (redis.exceptions.ClusterError, RedisClusterException),
        Reply(Meaning.UNAVAILABLE, "no node of the cluster answers"),
    ),
)

#: The errors that redis-py can raise.
ERRORS = (redis.RedisError, RedisClusterException, OSError)

#: The code of a reply: its first word; on Redis 6 the error inside a script follows a dash.
_CODE = re.compile(r"(?:^|: -)([A-Z]{2,})\b")


def meaning_of(error: BaseException) -> Reply:
    """Return what an error of redis-py means, and why."""
    text = str(error)
    for words, reply in TEXTS.items():
        if words in text:
            return reply
    for kind, reply in _RAISED:
        if isinstance(error, kind):
            return reply
    codes = [code for code in _CODE.findall(text) if code in REPLIES]
    return REPLIES[codes[-1] if codes else "ERR"]


def table() -> str:
    """Return the table in Markdown, for docs/idempotency.md."""
    rows = [*REPLIES.items(), *TEXTS.items()]
    lines = [f"| `{words}` | {reply.meaning.value} | {reply.reason} |" for words, reply in rows]
    return "\n".join(["| reply starts with, or contains | meaning | reason |", "| --- | --- | --- |", *lines])
