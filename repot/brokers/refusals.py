"""Why a broker could not be asked."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from repot.errors import BrokerUnreachable, TlsFailed

if TYPE_CHECKING:
    from repot.config.endpoints import Endpoint


def no_answer(server: Endpoint, error: BaseException) -> BrokerUnreachable:
    """The error for a connection that did not come about: TLS at fault, or nobody there."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            message = f"no trusted TLS connection to {server}: {cause.strerror or cause}"
            hint = "The CA must be trusted (WORKER_TLS_CA_CERTS names its file) and the host be in the certificate."
            return TlsFailed(message, hint=hint)
        cause = cause.__cause__ or cause.__context__
    return BrokerUnreachable(f"{server} did not answer: {error}", hint="Is it running, and is the port right?")
