"""The comparisons of a rollout's judge, each of which keeps its evidence from look to look."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from repot.rollout.evidence import SELDOM, Counted, Evidence, Windows, chance_of, log_mean
from repot.rollout.units import above, quantile
from repot.worker.task_outcomes import BUCKETS_PER_DOUBLING, bound_of, bucket_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Histogram = Mapping[int, float]

#: Run times are compared above these quantiles of the source: the middle, and what is slow.
_QUANTILES = (0.5, 0.9)
#: Runs of the source that its quantiles need.
_KNOWN = 20
#: Seconds by which a run may be longer in any case.
_NO_MATTER_S = 0.001
#: Seconds of a window, and waits of each side that one needs: tasks that wait behind each other end alike.
WINDOW_S, _WAITS = 10.0, 5
#: The logarithm of the evidence that one window of run times may add: a machine that is busy for some seconds is no
#: regression, though it makes many runs slow.
_MOST_IN_A_WINDOW = 3.0
#: Messages say in whole seconds when they were sent; the difference of two that waited as long may be larger.
_WAIT_NO_MATTER_S = 2.0


@dataclass(slots=True)
class Shares:
    """Compares how many roots had what is compared, such as a failure.

    Attributes:
        taken: the counts of the step that the evidence has.
    """

    evidence: Evidence = field(default_factory=Evidence)
    taken: Counted = field(default_factory=Counted)

    def look(self, now: Counted) -> float:
        """Take all counts of the step; return the logarithm of the evidence."""
        block = now - self.taken
        if block.target_units > 0 and block.source_units > 0:
            self.evidence.add(block)
            self.taken = now
        return self.evidence.log

    def go_on(self) -> None:
        """Begin to take the counts of another step."""
        self.taken = Counted()

    def to_json(self) -> list[Any]:
        """Return it for the store."""
        return [self.evidence.to_json(), list(self.taken.values())]

    @classmethod
    def of(cls, found: Sequence[Any]) -> Shares:
        """Return what was stored."""
        evidence, taken = found
        return cls(Evidence.of(evidence), Counted(*map(float, taken)))


@dataclass(slots=True)
class RunTimes:
    """Compares how many runs took longer on the target than `slowdown` times a quantile of the source.

    Attributes:
        bounds: the quantiles' buckets, and the source's share above each; of what was known before the open window.
        began_at: when the open window began.
        target, source: the histograms that the evidence has.
    """

    evidence: list[Evidence] = field(default_factory=lambda: [Evidence() for _ in _QUANTILES])
    bounds: list[tuple[int, float]] = field(default_factory=list)
    began_at: float = 0.0
    target: dict[int, float] = field(default_factory=dict)
    source: dict[int, float] = field(default_factory=dict)

    def look(self, target: Histogram, source: Histogram, usual: Histogram, slowdown: float, at: float) -> float:
        """Take all runs of the step, and of the source all that are known; return the logarithm of the evidence."""
        new_target, new_source = _less(target, self.target), _less(source, self.source)
        if not self.bounds:
            self._know(target, source, usual, at)
        elif new_target and new_source and at - self.began_at >= WINDOW_S:
            for evidence, (bucket, share) in zip(self.evidence, self.bounds, strict=True):
                counted = (above(new_target, slower(bucket, slowdown)), sum(new_target.values()))
                block = Counted(*counted, above(new_source, bucket), sum(new_source.values()))
                evidence.add(block, share, _MOST_IN_A_WINDOW)
            self._know(target, source, usual, at)
        return log_mean([one.log for one in self.evidence])

    def go_on(self) -> None:
        """Begin to take the runs of another step."""
        self.bounds = []

    def _know(self, target: Histogram, source: Histogram, usual: Histogram, at: float) -> None:
        count = sum(usual.values())
        if count >= _KNOWN:
            places = [quantile(usual, share) for share in _QUANTILES]
            self.bounds = [(place, max(above(usual, place), 0.5) / count) for place in places]
            self.target, self.source, self.began_at = dict(target), dict(source), at

    def to_json(self) -> list[Any]:
        """Return it for the store."""
        histograms = (list(map(list, one.items())) for one in (self.target, self.source))
        bounds = [list(one) for one in self.bounds]
        return [[one.to_json() for one in self.evidence], bounds, self.began_at, *histograms]

    @classmethod
    def of(cls, found: Sequence[Any]) -> RunTimes:
        """Return what was stored."""
        evidence, bounds, began_at, target, source = found
        return cls(
            [Evidence.of(one) for one in evidence],
            [(int(place), float(share)) for place, share in bounds],
            float(began_at),
            {int(place): float(count) for place, count in target},
            {int(place): float(count) for place, count in source},
        )


@dataclass(slots=True)
class InWindows:
    """Compares by windows of time, for what has no control at the same time, or where messages end alike.

    A window counts as worse or not, however much happened in it: one outage is one bad window.
    """

    windows: Windows = field(default_factory=Windows)
    began_at: float | None = None
    #: Where the open window began: counts, or histograms.
    seen: Any = None

    def shares(self, now: Counted, tolerance: float, at: float, *, alone: bool, drift: float = 1.0) -> float:
        """Take all counts of the step; return the logarithm of the evidence.

        If the target is alone, the source's numbers are those of the time before; a share up to `drift` times theirs
        does not matter.
        """
        if self.began_at is None:
            self.began_at, self.seen = at, now
        new = now - self.seen
        if alone:
            new = Counted(new.target_hits, new.target_units, now.source_hits, now.source_units)
        if at - self.began_at >= WINDOW_S and new.target_units > 0 and (alone or new.source_units > 0):
            usual = (new.source_hits + 0.5) / (new.source_units + 1)
            is_worse = new.target_hits / new.target_units > usual * drift + tolerance
            self.windows.add(is_worse=is_worse and chance_of(new.target_hits, new.target_units, usual) < SELDOM)
            self.began_at, self.seen = at, now
        return self.windows.log

    def waits(self, target: Histogram, source: Histogram, slowdown: float, at: float, *, alone: bool) -> float:
        """Take all waits of the step; return the logarithm of the evidence.

        A window is worse if half of the target's tasks waited longer than nine in ten of the source's.
        """
        if self.began_at is None:
            self.began_at, self.seen = at, (dict(target), dict(source))
        new, usual = _less(target, self.seen[0]), source if alone else _less(source, self.seen[1])
        if at - self.began_at >= WINDOW_S and min(sum(new.values()), sum(usual.values())) >= _WAITS:
            bound = bound_of(quantile(usual, 0.9)) * slowdown + _WAIT_NO_MATTER_S
            self.windows.add(is_worse=quantile(new, 0.5) > bucket_of(bound))
            self.began_at, self.seen = at, (dict(target), dict(source))
        return self.windows.log

    def go_on(self) -> None:
        """Begin to take the counts of another step."""
        self.began_at = None

    def to_json(self) -> list[Any]:
        """Return it for the store."""
        return self.windows.to_json()

    @classmethod
    def of(cls, found: Sequence[Any]) -> InWindows:
        """Return what was stored; the open window begins again."""
        return cls(Windows.of(found))


def slower(bucket: int, slowdown: float) -> int:
    """Return the bucket that a run of the target may reach if this one is usual; by up to a bucket more."""
    longer = bucket + ceil(log2(slowdown) * BUCKETS_PER_DOUBLING - 1e-9)
    return max(longer, bucket_of(bound_of(bucket) + _NO_MATTER_S))


def late(runs: Histogram, usual: Histogram, slowdown: float) -> tuple[Counted, ...]:
    """Return by quantile how many runs are too long, of those of a target alone, and of the source's before."""
    places = [quantile(usual, share) for share in _QUANTILES] if sum(usual.values()) >= _KNOWN else []
    whole, count = sum(runs.values()), sum(usual.values())
    return tuple(Counted(above(runs, slower(one, slowdown)), whole, above(usual, one), count) for one in places)


def _less(now: Histogram, before: Histogram) -> dict[int, float]:
    return {place: count - before.get(place, 0) for place, count in now.items() if count > before.get(place, 0)}
