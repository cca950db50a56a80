"""Which errors are a broker's "no" to a login, and what is printed about a broker without an answer."""

from __future__ import annotations

import amqp
import pytest
import redis

from repot.brokers.errors import no_answer, refuses_access
from repot.config import load
from repot.config.endpoints import endpoints


def _led_to(cause: BaseException) -> BaseException:
    error = OSError("no connection")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (amqp.AccessRefused("wrong password"), True),
        (amqp.NotAllowed("no such virtual host"), True),
        (redis.AuthenticationError("WRONGPASS"), True),
        (redis.exceptions.NoPermissionError("NOPERM"), True),
        (_led_to(amqp.AccessRefused("wrong password")), True),
        (ConnectionRefusedError(111, "Connection refused"), False),
        (redis.exceptions.ReadOnlyError("READONLY"), False),
        (redis.exceptions.TimeoutError(), False),
        (amqp.RecoverableConnectionError("connection lost"), False),
    ],
)
def test_a_refusal_is_known_by_the_library_s_error(error: BaseException, expected: bool) -> None:
    assert expected is refuses_access(error)


@pytest.mark.parametrize("name", ["", "WORKER_BROKER_URL", "CELERY_BROKER_URL"])
def test_a_default_address_without_an_answer_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An application may state another one, which a command that imports no application does not know."""
    if name:
        monkeypatch.setenv(name, "redis://localhost:6379/0")
    (server,) = endpoints(load().broker_url.reveal())
    said = no_answer(server, ConnectionRefusedError(111, "refused")).hint
    assert ("the default of WORKER_BROKER_URL" in said) == (not name)


def test_a_host_that_has_no_address_is_not_asked_for_its_port() -> None:
    (server,) = endpoints("redis://nohost.invalid:6379/0")
    with pytest.raises(redis.exceptions.ConnectionError) as unresolved:
        redis.Redis(host="nohost.invalid").ping()
    assert no_answer(server, unresolved.value).hint == "Is the host's name right?"
    refused = redis.exceptions.ConnectionError("Error 111 connecting to nohost.invalid:6379. Connection refused.")
    assert no_answer(server, refused).hint == "Is it running, and is the port right?"
