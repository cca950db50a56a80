"""The lease of one process as named values, and what another program may have written there."""

from __future__ import annotations

import pytest

from repot.store.lease import Lease, LeaseFields

FIELDS = LeaseFields("until")


@pytest.mark.parametrize(
    ("values", "lease"),
    [
        ({"owner": "ann", "token": "7", "until": "1764000000123"}, Lease("ann", 7, 1764000000.123)),
        ({"owner": "", "token": "7", "until": "0"}, Lease("", 7, 0)),
        ({"owner": "ann", "until": "soon", "token": "7"}, Lease("ann", 7, 0)),
        ({"owner": "ann", "until": "1000", "token": "?"}, Lease("ann", 0, 1)),
        ({"another": "1"}, Lease()),
    ],
)
def test_a_value_that_is_no_number_keeps_no_other_from_being_read(values: dict[str, str], lease: Lease) -> None:
    assert lease == FIELDS.read(values)


@pytest.mark.parametrize(("ends_at", "until"), [(160.5, "160500"), (100.0, "100000"), (0.0, "0")])
def test_instants_are_milliseconds(ends_at: float, until: str) -> None:
    after = Lease("ann", 2, ends_at)
    assert FIELDS.change(Lease("bob", 1, 90), after, 100.0).at(100.0) == {"owner": "ann", "token": "2", "until": until}
