"""What each error reply of a Redis or Valkey means for a lease store: one table, with the reason for each entry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

import redis
from redis.exceptions import RedisClusterException


class Meaning(Enum):
    """What a caller can do about an error reply."""

    #: The store cannot be used now. The same question, asked later, gets an answer.
    AWAY = "away"
    #: It lets this user in no more, or a right is missing. Like `AWAY` for a task: an operator puts it right.
    REFUSED = "refused"
    #: No retry helps: the settings name a store that cannot serve.
    MISCONFIGURED = "misconfigured"
    #: The value stored under the key is of another type.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Reply:
    """The meaning of an error reply, and the reason."""

    meaning: Meaning
    reason: str


#: By the first word of the reply. `ERR` is what the texts below do not name.
REPLIES = {
    "LOADING": Reply(Meaning.AWAY, "the server reads its data after a start, and answers when that is done"),
    "MISCONF": Reply(Meaning.AWAY, "the last save failed; no write is accepted until one succeeds"),
    "NOREPLICAS": Reply(Meaning.AWAY, "fewer replicas than `min-replicas-to-write`; until one is back"),
    "OOM": Reply(Meaning.AWAY, "no room for a write, until keys expire or the limit is raised"),
    "READONLY": Reply(Meaning.AWAY, "a primary that was demoted; the next connection finds the new one"),
    "MASTERDOWN": Reply(Meaning.AWAY, "a replica that has lost its primary, in the middle of a failover"),
    "CLUSTERDOWN": Reply(Meaning.AWAY, "a slot without a node, until a replica takes over"),
    "TRYAGAIN": Reply(Meaning.AWAY, "the slot moves to another node at this moment"),
    "BUSY": Reply(Meaning.AWAY, "a script of another client has run for longer than `busy-reply-threshold`"),
    "NOSCRIPT": Reply(Meaning.AWAY, "the server forgot a script between its upload and the call; it is uploaded again"),
    "EXECABORT": Reply(Meaning.AWAY, "a transaction was discarded; repot uses none, a proxy between may"),
    "NOAUTH": Reply(Meaning.REFUSED, "a password is required, and was not given or has changed"),
    "WRONGPASS": Reply(Meaning.REFUSED, "user and password do not match, or are being changed"),
    "NOPERM": Reply(Meaning.REFUSED, "the user has no right to a command, a key or a channel"),
    "DENIED": Reply(Meaning.REFUSED, "protected mode takes no connections from other machines"),
    "MOVED": Reply(Meaning.MISCONFIGURED, "the server is a node of a cluster: name it with redis+cluster://"),
    "ASK": Reply(Meaning.MISCONFIGURED, "the server is a node of a cluster: name it with redis+cluster://"),
    "CROSSSLOT": Reply(Meaning.MISCONFIGURED, "a prefix with braces of its own puts keys into two slots"),
    "NOPROTO": Reply(Meaning.MISCONFIGURED, "the server does not know RESP3: Redis 6 or newer is needed"),
    "WRONGTYPE": Reply(Meaning.UNREADABLE, "another program writes under this prefix"),
    "ERR": Reply(Meaning.MISCONFIGURED, "the server does not know a command, an argument or the database"),
}

#: Replies that have no word of their own. A script that lacks a right is answered with ERR.
TEXTS = {
    "max number of clients reached": Reply(Meaning.AWAY, "every connection of `maxclients` is taken"),
    "The user executing the script": Reply(Meaning.REFUSED, "a right is missing inside a script (Redis 7.0)"),
    "ACL failure in script": Reply(Meaning.REFUSED, "a right is missing inside a script (Redis 7.2 and newer, Valkey)"),
}

#: What redis-py, and a cluster's client, raise without a reply, and the words that they take off a reply.
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
    ((redis.ConnectionError, redis.TimeoutError, OSError), Reply(Meaning.AWAY, "no connection, or no answer in time")),
    ((redis.exceptions.ClusterError, RedisClusterException), Reply(Meaning.AWAY, "no node of the cluster answers")),
)

#: What can be raised in place of an answer.
ERRORS = (redis.RedisError, RedisClusterException, OSError)

#: The word of a reply: its first, and behind a dash what a script met on Redis 6.
_WORD = re.compile(r"(?:^|: -)([A-Z]{2,})\b")


def meaning_of(error: BaseException) -> Reply:
    """Return what an error of redis-py means, and why."""
    text = str(error)
    for words, reply in TEXTS.items():
        if words in text:
            return reply
    for kind, reply in _RAISED:
        if isinstance(error, kind):
            return reply
    words_in_it = [word for word in _WORD.findall(text) if word in REPLIES]
    return REPLIES[words_in_it[-1] if words_in_it else "ERR"]


def table() -> str:
    """Return the table in Markdown, for docs/idempotency.md."""
    rows = [*REPLIES.items(), *TEXTS.items()]
    lines = [f"| `{words}` | {reply.meaning.value} | {reply.reason} |" for words, reply in rows]
    return "\n".join(["| the reply begins with, or says | is | because |", "| --- | --- | --- |", *lines])
