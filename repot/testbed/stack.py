"""Redis, RabbitMQ and Toxiproxy together, until the user asks to stop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from threading import Event
from typing import Self

from repot.errors import ServerFailed
from repot.testbed.servers import (
    BROKER_VARIABLE,
    TOXIPROXY_VARIABLE,
    Server,
    rabbitmq_server,
    redis_server,
    toxiproxy_server,
)
from repot.waiting import stop_on_signal

_LOOK_EVERY_S = 0.5


class Stack:
    """Private Redis, RabbitMQ and Toxiproxy, started at the same time."""

    servers: tuple[Server, ...]

    def __enter__(self) -> Self:
        """Start all three.

        Raises:
            ProgramMissing, ServerFailed: one did not start; the others are stopped.
        """
        self._stack = ExitStack()
        self._asked_to_stop = Event()
        try:
            self.servers = self._start()
        except BaseException:
            self._stack.close()
            raise
        # from here on a signal is the normal end
        self._stack.enter_context(stop_on_signal(self._asked_to_stop))
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all three."""
        self._stack.close()

    def variables(self) -> tuple[tuple[str, str, str], ...]:
        """Return name, value and meaning of the variables that name these servers."""
        redis, rabbitmq, toxiproxy = self.servers
        return (
            ("WORKER_RESULT_BACKEND", redis.results_url, "results"),
            (BROKER_VARIABLE, redis.url, f"{redis.name} as the broker"),
            (BROKER_VARIABLE, rabbitmq.url, f"or {rabbitmq.name}"),
            (TOXIPROXY_VARIABLE, toxiproxy.url, f"{toxiproxy.name}'s API"),
        )

    def addresses(self) -> dict[str, str]:
        """Return every address under a name for a shell, each once."""
        redis, rabbitmq, toxiproxy = self.servers
        return {
            "REDIS_URL": redis.url,
            "REDIS_RESULTS_URL": redis.results_url,
            "RABBITMQ_URL": rabbitmq.url,
            "RABBITMQ_MANAGEMENT_URL": rabbitmq.management_url,
            TOXIPROXY_VARIABLE: toxiproxy.url,
        }

    def wait(self) -> None:
        """Wait until the user asks to stop, by Ctrl-C or SIGTERM.

        Raises:
            ServerFailed: a server ended by itself.
        """
        while not self._asked_to_stop.wait(_LOOK_EVERY_S):
            for server in self.servers:
                if server.process.exit_code is not None:
                    message = f"{server.name} ended by itself with {server.process.exit_code}"
                    raise ServerFailed(message, hint=f"Its last lines were:\n{server.process.log_tail()}")

    def _start(self) -> tuple[Server, ...]:
        def start(manager: AbstractContextManager[Server]) -> Server:
            server = manager.__enter__()
            self._stack.push(manager)
            return server

        with ThreadPoolExecutor() as pool:
            managers = (redis_server(), rabbitmq_server(), toxiproxy_server())
            return tuple(future.result() for future in [pool.submit(start, manager) for manager in managers])
