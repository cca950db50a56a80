"""The identity of a message: what it has on every broker, however its envelope is written.

It is a digest of the task's id, its retries, its ETA and the body. Sums of identities are compared: a sum does not
depend on the order, and, unlike an exclusive or, it counts a message that is there twice.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.brokers.message import Message

_DIGEST_BYTES, _HALF_BYTES = 8, 4
_WORD = 1 << 32


def task_id(message: Message) -> str:
    """Return the id of a message's task; empty if it states none."""
    return str(message.headers.get("id") or message.properties.get("correlation_id") or "")


def identity_of(message: Message) -> str:
    """Return the identity of a message, as 16 hexadecimal digits."""
    headers = message.headers
    stated = f"{task_id(message)}\0{headers.get('retries') or 0}\0{headers.get('eta') or ''}\0"
    digest = blake2b(stated.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)
    digest.update(message.body)
    return digest.hexdigest()


def sums_of(identities: Iterable[str]) -> tuple[int, int]:
    """Return the sums of the upper and of the lower halves of identities, to be added to others."""
    digits = bytes.fromhex("".join(identities))
    halves = struct.unpack(f">{len(digits) // _HALF_BYTES}I", digits)
    return sum(halves[::2]), sum(halves[1::2])


def digest_of(sums: tuple[int, int]) -> str:
    """Return sums as the digest that people compare."""
    return f"{sums[0] % _WORD:08x}{sums[1] % _WORD:08x}"
