"""What each error reply of a Redis means: the table, and the ways in which redis-py shows a reply."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from redis._parsers.base import BaseParser
from redis.exceptions import RedisClusterException, SlotNotCoveredError
from redis.sentinel import MasterNotFoundError

from repot.brokers.redis.error_replies import REPLIES, TEXTS, Meaning, meaning_of, table

PAGE = Path(__file__).parents[2] / "docs" / "idempotency.md"


def parsed(reply: str) -> Exception:
    """Return what redis-py raises for a reply."""
    return BaseParser.parse_error(reply)  # type: ignore[no-any-return,no-untyped-call]


@pytest.mark.parametrize("word", sorted(REPLIES.keys() - {"MOVED", "ASK"}))
def test_a_reply_means_what_the_table_says(word: str) -> None:
    """As redis-py makes an exception of it, whether or not it knows the word."""
    error = parsed(f"{word} some words of the server")
    assert REPLIES[word].meaning is meaning_of(error).meaning


@pytest.mark.parametrize("word", ["MOVED", "ASK"])
def test_a_node_of_a_cluster_is_a_mistake_of_the_address(word: str) -> None:
    error = parsed(f"{word} 3999 127.0.0.1:6381")
    assert REPLIES[word] == meaning_of(error)


@pytest.mark.parametrize("text", TEXTS)
def test_a_reply_without_a_word_is_known_by_its_text(text: str) -> None:
    error = parsed(f"ERR {text}, script: 0123, on @user_script:13.")
    assert TEXTS[text] == meaning_of(error)


@pytest.mark.parametrize("word", ["MISCONF", "NOREPLICAS", "OOM", "READONLY"])
def test_redis_6_says_it_at_the_end_of_a_scripts_error(word: str) -> None:
    """Written from its source (`luaRaiseError`): it wraps what a command inside a script was answered."""
    text = f"ERR Error running script (call to f_0123): @user_script:56: @user_script: 56: -{word} some words"
    assert REPLIES[word].meaning is meaning_of(parsed(text)).meaning


@pytest.mark.parametrize(
    "error",
    [
        redis.ConnectionError("Error 111 connecting"),
        redis.TimeoutError("Timeout reading from socket"),
        redis.exceptions.MaxConnectionsError("Too many connections"),
        redis.exceptions.ClusterError("TTL exhausted."),
        RedisClusterException("Redis Cluster cannot be connected."),
        SlotNotCoveredError("Command # 1 (GET x) of pipeline caused error"),
        MasterNotFoundError("No master found for 'shop'"),
        OSError(113, "No route to host"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_raised_without_a_reply_is_away(error: Exception) -> None:
    assert Meaning.UNAVAILABLE is meaning_of(error).meaning


def test_an_unknown_command_is_a_mistake() -> None:
    assert Meaning.MISCONFIGURED is meaning_of(parsed("ERR unknown command 'EVALSHA'")).meaning


def test_the_table_in_the_documents_is_the_one_that_decides() -> None:
    assert table() in PAGE.read_text()
