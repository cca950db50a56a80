"""A consumer of a queue on RabbitMQ, as a worker is one: it runs what it receives, and says what that was."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any, Self

from kombu import Connection

from repot.brokers.message import Message, from_amqp


class LiveConsumer:
    """Receives one message at a time, and keeps the first one until `free` is called."""

    def __init__(self, url: str, queue: str, *, is_free: bool = False) -> None:
        """Consume until the end of a `with`."""
        self.ran: list[Message] = []
        self._url, self._queue = url, queue
        self._has_one, self._is_free, self._stop = Event(), Event(), Event()
        if is_free:
            self._is_free.set()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        """Consume; a queue with messages has given the first one."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End once nothing comes any more."""
        self._stop.set()
        self._thread.join()

    def wait_for_one(self) -> None:
        """Wait until it has received a message."""
        assert self._has_one.wait(30)

    def free(self) -> None:
        """Let it run all that comes."""
        self._is_free.set()

    def _run(self) -> None:
        with Connection(self._url) as connection:
            channel: Any = connection.channel()
            channel.auto_decode = False
            channel.basic_qos(0, 1, False)
            channel.basic_consume(self._queue, callback=self._receive)
            while True:
                try:
                    connection.drain_events(timeout=0.1)
                except TimeoutError:
                    if self._stop.is_set():
                        return

    def _receive(self, delivery: Any) -> None:
        self._has_one.set()
        while not self._is_free.wait(0.1):
            if self._stop.is_set():
                return
        self.ran.append(from_amqp(delivery))
        delivery.channel.basic_ack(delivery.delivery_tag)
