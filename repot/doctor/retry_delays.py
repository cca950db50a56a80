"""The delays with which a task is sent and retried, as far as its calls and its options show them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from repot.doctor.durations import seconds
from repot.errors import FactUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The exponent of a backoff is limited so that the number fits a float.
_LARGEST_EXPONENT = 62
#: By then a backoff has reached its longest delay.
_MOST_RETRIES = 32
#: Of the delays that a jitter may choose, so many of the shortest are listed.
_MOST_CHOICES = 1 << 10


class _Automatic(NamedTuple):
    """The options of automatic retries (`celery/app/autoretry.py`); `factor` is 0 without a backoff."""

    retries: int | None
    factor: int
    longest_s: float
    constant_s: float
    jitter: bool

    def nth_s(self, retry: int) -> float:
        """Return the delay before a retry, the first is 0, without jitter."""
        if not self.factor:
            return self.constant_s
        return min(self.longest_s, self.factor * 2.0 ** min(max(0, retry), _LARGEST_EXPONENT))

    def choices(self, retry: int) -> Sequence[int]:
        """Return the delays that it may have, in whole seconds."""
        longest = int(self.nth_s(retry))
        return range(min(longest, _MOST_CHOICES) + 1) if self.factor and self.jitter else (longest,)


def longest_automatic_s(options: Mapping[str, Any]) -> float:
    """Return the longest delay before an automatic retry, in seconds."""
    automatic = _automatic(options)
    if automatic.retries == 0:
        return 0.0
    if automatic.retries is None and automatic.factor:
        return automatic.longest_s
    return automatic.nth_s((automatic.retries or 0) - 1)


def delays_by_run(
    sent: Sequence[float], retried: Sequence[float], options: Mapping[str, Any], *, retries_automatically: bool
) -> tuple[Sequence[int], ...]:
    """Return the delays of a task where it is sent, before its first retry, its second, and so on, in whole seconds.

    `sent` and `retried` are those that its calls give it. Retries that repeat what is there are left out.
    """
    runs: list[Sequence[int]] = [_whole(sent)]
    automatic = _automatic(options) if retries_automatically else None
    allowed = automatic.retries if automatic else _limit(options["max_retries"])
    for retry in range(_MOST_RETRIES if allowed is None else min(allowed, _MOST_RETRIES)):
        choices = (*_whole(retried), *(automatic.choices(retry) if automatic else ()))
        # the second of two equal ones is a retry after such a delay
        if runs[-2:] == [choices, choices]:
            break
        runs.append(choices)
    return tuple(runs)


def number(value: object) -> float | None:
    """Return a number of seconds, 0 for None; None for an infinite number or another type."""
    try:
        found = seconds(value)
    except FactUnknown:
        return None
    return found if math.isfinite(found) else None


def _automatic(options: Mapping[str, Any]) -> _Automatic:
    given = options["retry_kwargs"] if isinstance(options["retry_kwargs"], dict) else {}
    # the arguments of `retry` override the task's options
    retries = given.get("max_retries")
    countdown = given.get("countdown")
    factor = number(options["retry_backoff"]) or 0
    return _Automatic(
        retries=_limit(options["max_retries"] if retries is None else retries),
        factor=int(max(1.0, factor)) if factor else 0,
        longest_s=600 if options["retry_backoff_max"] is None else number(options["retry_backoff_max"]) or 0,
        constant_s=number(options["default_retry_delay"] if countdown is None else countdown) or 0,
        jitter=options["retry_jitter"] is None or bool(options["retry_jitter"]),
    )


def _limit(retries: object) -> int | None:
    """Return how many retries an option allows; None without a limit, or if it is not a number."""
    return max(retries, 0) if isinstance(retries, int) else None


def _whole(delays: Iterable[float]) -> tuple[int, ...]:
    return tuple(sorted({int(delay) for delay in delays if delay > 0 and math.isfinite(delay)}))
