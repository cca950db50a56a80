"""A virtual host of a RabbitMQ, and users with the permissions of docs/rights.md."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import requests

from support.shared_rabbitmq import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

PAGE = Path(__file__).parents[2] / "docs" / "rights.md"

PASSWORD = "secret"

#: Those that have not been deleted.
_made: list[Realm] = []


@contextmanager
def realms_deleted() -> Iterator[None]:
    """Delete at the end what has been made meanwhile: 30 quorum queues cost a server time for as long as they exist."""
    before = len(_made)
    yield
    while len(_made) > before:
        _made.pop().delete()


class Realm:
    """A virtual host of a RabbitMQ, and users with the permissions of the page."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.vhost = f"rights-{uuid4().hex[:8]}"
        self.ask("PUT", f"vhosts/{self.vhost}")
        _made.append(self)
        self.url = self.user("admin", ("administrator", ".*", ".*", ".*"))

    def delete(self) -> None:
        """Delete it with its queues, unless its server has ended."""
        with suppress(requests.ConnectionError):
            self.ask("DELETE", f"vhosts/{self.vhost}")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return ask(self.server, method, path, body)

    def user(self, name: str, given: tuple[str, str, str, str], password: str = PASSWORD) -> str:
        """Make a user of a tag and of rights to configure, write and read; return the address."""
        user = f"{name}-{self.vhost}"
        self.ask("PUT", f"users/{user}", {"password": password, "tags": given[0]})
        rights = dict(zip(("configure", "write", "read"), given[1:], strict=True))
        self.ask("PUT", f"permissions/{self.vhost}/{user}", rights)
        return f"amqp://{user}:{password}@127.0.0.1:{self.server.port}/{self.vhost}"

    def of_page(self, name: str, tag: str = "") -> str:
        """Make a user with the permissions of the page."""
        found = re.search(rf"set_permissions -p shop {name} '(.*)' '(.*)' '(.*)'", PAGE.read_text())
        assert found
        return self.user(name, (tag, found[1], found[2], found[3]))

    def messages(self, queue: str) -> int:
        found: dict[str, Any] = next(
            (one for one in self.ask("GET", f"queues/{self.vhost}") if one["name"] == queue), {}
        )
        return int(found.get("messages", 0))
