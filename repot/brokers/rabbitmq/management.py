"""A read-only client of RabbitMQ's management API."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from repot.brokers.errors import TLS_HINT
from repot.config.http_address import HttpAddress
from repot.errors import AccessRefused, BrokerUnreachable, ManagementUnreachable, TlsFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.config.endpoints import Endpoint

_PORT, _TLS_PORT = 15672, 15671

#: Words of an answer, and the tag that the user lacks; `monitoring` includes `management`.
_MISSING_TAGS = (("dministrator", "administrator"), ("monitor", "monitoring"), ("anagement user", "monitoring"))

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _UNAVAILABLE = 401, 403, 404, 503


class ManagementApi:
    """A client of one server's management API; every request is a GET."""

    def __init__(
        self, address: str, user: str, password: str, *, tls: Mapping[str, Any] | None = None, timeout_s: float = 5
    ) -> None:
        """Use the http or https URL `address`, as `user` unless the URL names another.

        `tls` are py-amqp's options: `ca_certs`, `cert_reqs`, `certfile`, `keyfile`.
        """
        parsed = HttpAddress.of(address, user, password)
        self.address, self.user, self._headers = parsed.address, parsed.user, parsed.headers
        self._timeout_s = timeout_s
        handlers = [HTTPSHandler(context=_context(tls or {}))] if parsed.address.startswith("https:") else []
        self._opener = build_opener(ProxyHandler({}), *handlers)

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Return the answer as JSON; None for 404. A failed health check is also an answer.

        Raises:
            AccessRefused: the user lacks the permission.
            TlsFailed: the certificate is not trusted.
            ManagementUnreachable: no answer.
        """
        # S310: the address is the caller's, http or https
        request = Request(self.address + path, headers=self._headers)  # noqa: S310
        return self._ask(request, path, json.load)

    def _ask(self, request: Request, path: str, read: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - what `read` returns
        """Send a request and return what `read` makes of the response; raise as `get` does."""
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                return read(response)
        except HTTPError as error:
            return self._refusal(error, path)
        except (OSError, HTTPException, ValueError) as error:
            # TLS 1.3 refuses a client's certificate with the answer; an SSLError has a `reason` of its own, a text
            if isinstance(error, ssl.SSLError) or isinstance(getattr(error, "reason", None), ssl.SSLError):
                message = f"no trusted TLS connection to RabbitMQ's management API at {self.address}: {error}"
                raise TlsFailed(message, hint=TLS_HINT) from error
            message = f"RabbitMQ's management API at {self.address} did not answer: {error}"
            hint = (
                "Is the plugin rabbitmq_management enabled? WORKER_MANAGEMENT_URL says where it listens; "
                "for `repot move`, --from-management and --to-management do."
            )
            raise ManagementUnreachable(message, hint=hint) from error

    def _refusal(self, error: HTTPError, path: str) -> Any:  # noqa: ANN401 - JSON
        """Return None for 404 and the answer of a failed health check; raise for any other status."""
        try:
            answer = json.load(error)
        except ValueError:
            answer = {}
        if error.code == _NOT_FOUND:
            return None
        if error.code == _UNAVAILABLE and path.startswith("/api/health/"):
            return answer
        reason = answer.get("reason", error.reason)
        message = f"RabbitMQ's management API at {self.address} answered {error.code} {reason!s} to {path}"
        if error.code in (_UNAUTHORIZED, _FORBIDDEN):
            raise AccessRefused(message, hint=self._way_out(str(reason))) from error
        raise BrokerUnreachable(message) from error

    def _way_out(self, reason: str) -> str:
        """Return the next step for a reason; RabbitMQ answers 401 whatever it is (`rabbit_mgmt_util.erl`)."""
        tag = next((tag for words, tag in _MISSING_TAGS if words in reason), "")
        if tag == "administrator":
            return (
                f"`rabbitmqctl set_user_tags {self.user} administrator` would allow it, or name such a user in "
                "WORKER_MANAGEMENT_URL."
            )
        if tag:
            return f"The user needs the tag `{tag}`: rabbitmqctl set_user_tags {self.user} {tag}"
        if "virtual host" in reason:
            return f"The user has no rights there: rabbitmqctl set_permissions -p VHOST {self.user} '.*' '.*' '.*'"
        if "localhost" in reason:
            return f"RabbitMQ lets {self.user!r} in from its own host alone (loopback_users): name another user."
        return (
            "The user name or the password is wrong: those of the broker's address, unless WORKER_MANAGEMENT_URL, "
            "--from-management or --to-management name others."
        )


def default_management_url(server: Endpoint, *, encrypted: bool) -> str:
    """Return the address where the management API listens by default."""
    if encrypted:
        return f"https://{server.host or 'localhost'}:{_TLS_PORT}"
    return f"http://{server.host or 'localhost'}:{_PORT}"


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")


def _context(tls: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.get("ca_certs"))
    if tls.get("cert_reqs") == ssl.CERT_NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.get("certfile"):
        context.load_cert_chain(tls["certfile"], tls.get("keyfile"))
    return context
