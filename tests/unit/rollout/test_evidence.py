"""The arithmetic of evidence."""

from __future__ import annotations

from math import comb, exp, isclose

import pytest

from repot.rollout.evidence import chance_of, needed, portion


def exact(hits: int, units: int, share: float) -> float:
    return sum(comb(units, count) * share**count * (1 - share) ** (units - count) for count in range(hits, units + 1))


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.93, 0.999])
@pytest.mark.parametrize("units", [1, 2, 7, 40, 300, 900])
def test_the_chance_of_hits_is_the_binomial_distributions(units: int, share: float) -> None:
    mean = round(units * share)
    for hits in {0, 1, units, *(min(max(mean + more, 0), units) for more in (-9, -3, -1, 0, 1, 2, 5, 9))}:
        # of many units the normal distribution, which is near enough where it decides
        near = isclose(chance_of(hits, units, share), exact(hits, units, share), rel_tol=1e-6, abs_tol=0.002)
        assert near, (hits, units, share, chance_of(hits, units, share), exact(hits, units, share))


@pytest.mark.parametrize(("hits", "units", "share"), [(1100, 1100, 0.5), (9000, 9000, 0.1), (70, 100_000, 1e-5)])
def test_the_chance_of_what_does_not_happen_is_none_however_much_there_is(hits: int, units: int, share: float) -> None:
    assert chance_of(hits, units, share) < 1e-9


def test_the_parts_of_a_probability_of_error_never_exceed_it() -> None:
    parts = [portion(place, 20) for place in range(5000)]
    assert 0.99 < sum(parts) <= 1
    assert parts[0] == parts[19] > parts[21] > parts[22]
    assert isclose(0.01 * 0.25 * 0.5, exp(-needed(0.01, (0.25, 0.5))))
