"""Let Python look for garbage seldom while messages are moved.

It looks after each 700 objects that stay, and a window has some 10,000. They are part of no cycle and go with the last
reference, so that each search takes time and finds nothing.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Some five windows of the default size: cycles that an error makes are found all the same.
_OBJECTS = 50_000


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for garbage after each 50,000 objects that stay; afterwards as before."""
    before = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
