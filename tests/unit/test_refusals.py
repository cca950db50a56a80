"""Which errors are a broker's "no" to a login."""

from __future__ import annotations

import amqp
import pytest
import redis

from repot.brokers.errors import refuses_access


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
