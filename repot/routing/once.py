"""Publish a message once, within a time limit, and know whether it can have arrived."""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu import Producer
from kombu.exceptions import LimitExceeded, SerializationError

from repot.upstream.ready_channel import drop, is_usable_after, make_ready, was_refused

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The parts of the time limit that connecting to all servers, and one answer of the broker, may take. With both, and
#: the look at the clock before a message is sent, the whole never takes longer than the limit.
CONNECT_PART, ANSWER_PART = 0.25, 0.5


_OF_THE_CALLER = (SerializationError, TypeError, ValueError, LookupError)


class NotSent(Exception):
    """A message surely did not reach the broker; the cause is in `__cause__`."""

    def __init__(self, *, is_unreachable: bool) -> None:
        """Say whether the broker did not answer, or did and refused the message."""
        super().__init__("unreachable" if is_unreachable else "refused")
        self.is_unreachable = is_unreachable


@contextmanager
def publishing_once(pool: Any, limit_s: float) -> Iterator[OnceProducer]:  # noqa: ANN401 - kombu's ConnectionPool
    """Take a connection of a pool for one message, connected and looked at.

    Raises:
        NotSent: no connection is free, or the broker does not answer.
    """
    until = monotonic() + limit_s
    try:
        connection = pool.acquire(block=True, timeout=limit_s * ANSWER_PART)
    except LimitExceeded as error:
        raise NotSent(is_unreachable=True) from error
    try:
        yield OnceProducer(connection, until, limit_s)
    finally:
        connection.release()


class OnceProducer:
    """A producer of kombu's, for one message, and for the event that may follow it.

    What fails before the message is written, and what the broker refuses, raises NotSent. Any other error of `publish`
    means that the message may have arrived; `may_have_arrived` says so.
    """

    def __init__(self, connection: Any, until: float, limit_s: float) -> None:  # noqa: ANN401 - kombu's Connection
        """Connect.

        Raises:
            NotSent: the broker does not answer.
        """
        self._until = until
        self._answer_s = limit_s * ANSWER_PART
        self.is_sent = False
        self.may_have_arrived = False
        self.connection = connection
        with self._before_sending():
            self._producer: Any = Producer(make_ready(connection), auto_declare=False)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of kombu's Producer
        """Return what is the producer's."""
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:  # noqa: ANN401 - kombu's
        """Publish; the options are kombu's."""
        if self.is_sent:
            # an event about the message
            return self._producer.publish(body, **options)
        with self._before_sending():
            for entity in options.get("declare") or ():
                self._producer.maybe_declare(entity)
            if monotonic() > self._until - self._answer_s:
                raise TimeoutError
        # a message that reaches no queue comes back
        once = {"declare": [], "retry": False, "mandatory": True, "confirm_timeout": self._until - monotonic()}
        try:
            answer = self._producer.publish(body, **options | once)
        except Exception as error:
            refused = was_refused(error, self.connection)
            if not (refused and is_usable_after(error)):
                drop(self.connection)
            if refused:
                raise NotSent(is_unreachable=False) from error
            # a body or an option that cannot be encoded is the caller's error, before anything is written
            self.may_have_arrived = not isinstance(error, _OF_THE_CALLER)
            raise
        self.is_sent = True
        return answer

    @contextmanager
    def _before_sending(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # a refused declaration, such as that of a queue with other arguments, is an answer
            is_answer = was_refused(error, self.connection)
            drop(self.connection)
            raise NotSent(is_unreachable=not is_answer) from error
