"""What a rule is. Instants are seconds since 1970, by the clock of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

#: A record, and the answer to who applies the rule.
R = TypeVar("R")
T = TypeVar("T")

#: Decides from the record under a key, None without one, and the store's time; returns the record to store, None to
#: leave it as it is, and the answer. It may be asked more than once.
Rule: TypeAlias = Callable[[R | None, float], tuple[R | None, T]]
