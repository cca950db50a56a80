"""Redis, RabbitMQ and Toxiproxy together, until the user asks to stop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING, Self

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

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What a stack may consist of, in the order in which it is shown.
SERVERS = {"redis": redis_server, "rabbitmq": rabbitmq_server, "toxiproxy": toxiproxy_server}

_LOOK_EVERY_S = 0.5


class Stack:
    """Private Redis, RabbitMQ and Toxiproxy, or some of them, started at the same time.

    Attributes:
        servers: those that run, by their name among `SERVERS`.
    """

    servers: dict[str, Server]

    def __init__(self, names: Iterable[str] = SERVERS) -> None:
        """Take the names of the servers to start, each one of `SERVERS`."""
        self._names = [name for name in SERVERS if name in set(names)]

    def __enter__(self) -> Self:
        """Start them.

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
        """Stop them."""
        self._stack.close()

    def variables(self) -> dict[str, dict[str, str]]:
        """Return the variables that name these servers, in groups that are each complete, by what a group is for."""
        redis, rabbitmq, toxiproxy = map(self.servers.get, SERVERS)
        results = {"WORKER_RESULT_BACKEND": redis.results_url} if redis else {}
        groups = {
            f"{server.name} as the broker": {BROKER_VARIABLE: server.url} | results
            for server in (redis, rabbitmq)
            if server
        }
        return groups | ({f"{toxiproxy.name}'s API": {TOXIPROXY_VARIABLE: toxiproxy.url}} if toxiproxy else {})

    def addresses(self) -> dict[str, str]:
        """Return every address under a name for a shell, each once."""
        redis, rabbitmq, toxiproxy = map(self.servers.get, SERVERS)
        return (
            ({"REDIS_URL": redis.url, "REDIS_RESULTS_URL": redis.results_url} if redis else {})
            | ({"RABBITMQ_URL": rabbitmq.url, "RABBITMQ_MANAGEMENT_URL": rabbitmq.management_url} if rabbitmq else {})
            | ({TOXIPROXY_VARIABLE: toxiproxy.url} if toxiproxy else {})
        )

    def wait(self) -> None:
        """Wait until the user asks to stop, by Ctrl-C or SIGTERM.

        Raises:
            ServerFailed: a server ended by itself.
        """
        while not self._asked_to_stop.wait(_LOOK_EVERY_S):
            for server in self.servers.values():
                if server.process.exit_code is not None:
                    message = f"{server.name} ended by itself with {server.process.exit_code}"
                    raise ServerFailed(message, hint=f"Its last lines were:\n{server.process.log_tail()}")

    def _start(self) -> dict[str, Server]:
        def start(name: str) -> Server:
            manager = SERVERS[name]()
            server = manager.__enter__()
            self._stack.push(manager)
            return server

        with ThreadPoolExecutor() as pool:
            return dict(zip(self._names, pool.map(start, self._names), strict=True))
