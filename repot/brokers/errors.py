"""Turn the errors of client libraries into repot's."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from repot.config import is_unstated_broker
from repot.errors import BrokerUnreachable, TlsFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.config.endpoints import Endpoint

#: The errors, by library and class, of a refused login or permission: 403 and 530 of AMQP, WRONGPASS, NOAUTH and NOPERM
#: of Redis. By name, so a probe imports only the library that it needs.
_REFUSALS = {
    ("amqp", "AccessRefused"),
    ("amqp", "NotAllowed"),
    ("redis", "AuthenticationError"),
    ("redis", "NoPermissionError"),
    # a replica takes no writes
    ("repot", "WritesRefused"),
}

TLS_HINT = (
    "The CA must be trusted (WORKER_TLS_CA_CERTS names its file) and the host be in the certificate; a server that "
    "asks for the client's certificate needs WORKER_TLS_CERTIFICATE and WORKER_TLS_KEY."
)


def no_answer(server: Endpoint, error: BaseException) -> BrokerUnreachable:
    """Return the error for a failed connection: TLS, or no answer."""
    if failed := tls_failure(server, error):
        return failed
    # as socket.gaierror has it, whichever library wraps it
    is_unresolved = "Name or service not known" in str(error) or "name resolution" in str(error)
    hint = "Is the host's name right?" if is_unresolved else "Is it running, and is the port right?"
    if is_unstated_broker(server.url):
        hint += " It is the default of WORKER_BROKER_URL, which no variable states."
    return BrokerUnreachable(f"{server} did not answer: {error}", hint=hint)


def tls_failure(server: object, error: BaseException) -> TlsFailed | None:
    """Return the error for a connection that failed by TLS; None for any other."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError):
            message = f"no trusted TLS connection to {server}: {cause.strerror or cause}"
            return TlsFailed(message, hint=TLS_HINT)
    return None


def refuses_access(error: BaseException) -> bool:
    """Return whether the broker refuses the user, the password, a permission or the virtual host."""
    return any(
        (kind.__module__.partition(".")[0], kind.__name__) in _REFUSALS
        for cause in _causes(error)
        for kind in type(cause).__mro__
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
