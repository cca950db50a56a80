"""Virtual hosts of RabbitMQ, each for one experiment: an application's queues and exchanges keep their names there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.request import Request

from repot.brokers.rabbitmq.management import ManagementApi, segment

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALL = {"configure": ".*", "write": ".*", "read": ".*"}


class VirtualHosts(ManagementApi):
    """Makes and deletes virtual hosts; RabbitMQ asks for a user with the tag `administrator`."""

    def make(self, name: str, user: str) -> None:
        """Make a virtual host in which `user` may do everything; one that exists is kept.

        Raises:
            AccessRefused: the user of the API lacks the tag.
            ManagementUnreachable: no answer.
        """
        self._send("PUT", f"/api/vhosts/{segment(name)}")
        self._send("PUT", f"/api/permissions/{segment(name)}/{segment(user)}", _ALL)

    def delete(self, name: str) -> None:
        """Delete a virtual host with all that is in it; one that does not exist is no error.

        Raises:
            AccessRefused, ManagementUnreachable: as for `make`.
        """
        self._send("DELETE", f"/api/vhosts/{segment(name)}")

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        headers = {**self._headers, "Content-Type": "application/json"}
        data = json.dumps(body or {}).encode()
        # S310: the address is the caller's, http or https
        request = Request(self.address + path, data=data, headers=headers, method=method)  # noqa: S310
        self._ask(request, path, lambda response: response.read())
