"""Where kombu sleeps between two attempts to connect: in the frame of `retry_over_time`.

An experiment tells a worker that waits for its broker from one that hangs by that frame; for experiments only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kombu.utils.functional import retry_over_time

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from types import FrameType

_BREAKS = "An experiment reports a worker that waits for its broker as one that hangs."

POINTS = (
    Point("kombu.utils.functional:retry_over_time", Failure.SILENT, _BREAKS, contains=("sleep(1.0)", "callback()")),
    Point(
        "kombu.connection:Connection._ensure_connection", Failure.SILENT, _BREAKS, contains=("return retry_over_time(",)
    ),
)


def is_retry_pause(frame: FrameType | None) -> bool:
    """Return whether a thread's frame is the pause between two attempts to connect."""
    return frame is not None and frame.f_code is retry_over_time.__code__
