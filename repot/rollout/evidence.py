"""Evidence that a share is larger on the target, which counts however often one looks.

A controller looks each second. A test for one look, such as Fisher's, errs the more often the more one looks. An
e-process does not: if both sides have the same share, the probability that it ever reaches 1/a is at most a (Ville's
inequality; sequential tests as in Lindon et al., "Rapid Regression Detection in Software Deployments through
Sequential Testing", KDD 2022). This one multiplies the e-variables of two Bernoulli samples (Turner, Ly and
Gruenwald, "Generic E-Variables for Exact Sequential k-Sample Tests that allow for Optional Stopping", 2024): what
happened between two looks is a block, and the shares may change from block to block as long as both sides' do. So an
outage that both sides feel is no evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, fsum, inf, lgamma, log, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Of the units that do not fail on the source, how many fail on the target: the alternatives that are bet on.
_WORSE = (0.01, 0.05, 0.2, 0.5, 0.95)
#: A bet begins again after so many units of the target, for what becomes worse in the middle of a step.
_BEGINNINGS = (0, 30, 120, 480, 1920)
#: What is taken as seen before the first block: one unit in twenty fails.
_PRIOR_HITS, _PRIOR_UNITS = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Units of both sides, and how many of them had what is compared, such as a failure."""

    target_hits: float = 0
    target_units: float = 0
    source_hits: float = 0
    source_units: float = 0

    def __sub__(self, earlier: Counted) -> Counted:
        """Return what was counted since."""
        return Counted(*(now - before for now, before in zip(self.values(), earlier.values(), strict=True)))

    def __add__(self, other: Counted) -> Counted:
        """Return the sum."""
        return Counted(*(one + another for one, another in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[float, float, float, float]:
        """Return the four numbers in the order of the attributes."""
        return self.target_hits, self.target_units, self.source_hits, self.source_units

    @property
    def possible(self) -> Counted:
        """Return it with no more hits than units, and nothing negative."""
        target, source = max(self.target_units, 0), max(self.source_units, 0)
        return Counted(min(max(self.target_hits, 0), target), target, min(max(self.source_hits, 0), source), source)


@dataclass(slots=True)
class Evidence:
    """An e-process for one comparison.

    Attributes:
        seen: what the closed blocks had.
        logs: the logarithm of each bet's wealth, by beginning and alternative.
    """

    seen: Counted = field(default_factory=Counted)
    logs: list[float] = field(default_factory=lambda: [0.0] * len(_WORSE) * len(_BEGINNINGS))

    def add(self, block: Counted, usual: float | None = None, most: float = inf) -> None:
        """Add a block; `usual` is the source's share as it is known without it, by default that of the earlier ones.

        Its evidence counts up to `most`, a logarithm: to count less than there is errs no more often.
        A block without units of one of the sides is no evidence.
        """
        block = block.possible
        if block.target_units and block.source_units:
            if usual is None:
                usual = self._usual()
            begun = sum(self.seen.target_units >= one for one in _BEGINNINGS)
            factors = [min(most, _factor(block, usual + (1 - usual) * worse, usual)) for worse in _WORSE]
            for place in range(begun * len(_WORSE)):
                self.logs[place] += factors[place % len(_WORSE)]
        self.seen += block

    def with_block(self, block: Counted, usual: float | None = None) -> float:
        """Return the logarithm of the evidence as it would be with one more block, which is not kept."""
        tried = Evidence(self.seen, list(self.logs))
        tried.add(block, usual)
        return tried.log

    @property
    def log(self) -> float:
        """Return the natural logarithm of the evidence: the mean of all bets."""
        first = len(_WORSE)
        # half of the stake is on what is so from the beginning: a task may have few runs
        return log_mean([log_mean(self.logs[:first]), log_mean(self.logs[first:])])

    def to_json(self) -> list[Any]:
        """Return it for the store."""
        begun = sum(self.seen.target_units >= one for one in _BEGINNINGS) * len(_WORSE)
        return [list(self.seen.values()), [round(one, 4) for one in self.logs[:begun]]]

    @classmethod
    def of(cls, found: Sequence[Any]) -> Evidence:
        """Return the evidence of what was stored.

        Raises:
            ValueError, TypeError: it is not evidence.
        """
        seen, logs = found
        evidence = cls(Counted(*map(float, seen)))
        if len(logs) % len(_WORSE) or len(logs) > len(evidence.logs):
            message = "another release of repot kept it"
            raise ValueError(message)
        evidence.logs[: len(logs)] = map(float, logs)
        return evidence

    def _usual(self) -> float:
        return (self.seen.source_hits + _PRIOR_HITS) / (self.seen.source_units + _PRIOR_UNITS)


#: Of the windows of time, the part in which a healthy target is worse than its source, and in which a sick one is.
SELDOM, _OFTEN = 0.1, 0.8
#: A bet begins again after so many windows.
_WINDOWS = (0, 3, 10, 30, 100)


@dataclass(slots=True)
class Windows:
    """An e-process for windows of time in which the target is worse or not: is it so more often than seldom?"""

    count: int = 0
    logs: list[float] = field(default_factory=lambda: [0.0] * len(_WINDOWS))

    def add(self, *, is_worse: bool) -> None:
        """Add a window."""
        factor = log(_OFTEN / SELDOM) if is_worse else log((1 - _OFTEN) / (1 - SELDOM))
        for place, begins in enumerate(_WINDOWS):
            if self.count >= begins:
                self.logs[place] += factor
        self.count += 1

    @property
    def log(self) -> float:
        """Return the natural logarithm of the evidence."""
        return log_mean(self.logs)

    def to_json(self) -> list[Any]:
        """Return it for the store."""
        return [self.count, [round(one, 4) for one in self.logs]]

    @classmethod
    def of(cls, found: Sequence[Any]) -> Windows:
        """Return what was stored.

        Raises:
            ValueError, TypeError: it is not evidence.
        """
        count, logs = found
        return cls(int(count), [float(one) for one in logs])


#: A binomial distribution with a larger standard deviation is taken as normal.
_LARGE = 10.0


def chance_of(hits: float, units: float, share: float) -> float:
    """Return the probability of so many hits at least, if each unit has one with this probability: binomial."""
    mean, deviation = units * share, sqrt(units * share * (1 - share))
    if deviation > _LARGE:
        return 1 - NormalDist(mean, deviation).cdf(hits - 0.5)
    # what is further away from the mean changes no digit of the sum
    near = 10 * (deviation + 1)
    counts = range(max(int(hits), int(mean - near)), min(int(units), int(mean + near)) + 1)
    return min(1.0, fsum(exp(_log_chance(count, int(units), share)) for count in counts))


def _log_chance(hits: int, units: int, share: float) -> float:
    ways = lgamma(units + 1) - lgamma(hits + 1) - lgamma(units - hits + 1)
    return ways + hits * log(share) + (units - hits) * log(1 - share)


#: The part of a probability of error that is kept for comparisons beyond those expected.
_BEYOND = 0.1


def log_mean(logs: Sequence[float]) -> float:
    """Return the logarithm of the mean of what has these logarithms: the evidence of several bets."""
    highest = max(logs)
    return highest + log(sum(exp(one - highest) for one in logs) / len(logs))


def _factor(block: Counted, worse: float, usual: float) -> float:
    """Return the logarithm of the e-variable of a block: shares `worse` and `usual` against one share for both."""
    if usual <= 0 or worse >= 1:
        return 0.0
    same = (block.target_units * worse + block.source_units * usual) / (block.target_units + block.source_units)
    return (
        block.target_hits * log(worse / same)
        + (block.target_units - block.target_hits) * log((1 - worse) / (1 - same))
        + block.source_hits * log(usual / same)
        + (block.source_units - block.source_hits) * log((1 - usual) / (1 - same))
    )


def portion(place: int, expected: int) -> float:
    """Return the part of a probability of error for one of many comparisons, whose number is not known before.

    A tenth of it is for those beyond the first `expected` ones, which share the rest alike; the sum never exceeds 1.
    """
    if place < expected:
        return (1 - _BEYOND) / expected
    beyond = place - expected + 1
    return _BEYOND / (beyond * (beyond + 1))


def needed(error_rate: float, portions: Iterable[float]) -> float:
    """Return the logarithm of the evidence at which chance explains a difference with this part of a probability."""
    whole = error_rate
    for one in portions:
        whole *= one
    return -log(whole) if whole > 0 else inf
