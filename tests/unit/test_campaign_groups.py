"""Each test is in one group that runs, and few are known as unstable."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from campaign.groups import CAMPAIGN, PARTS, ROOT, TEST, named
from support import groups
from support.groups import group_of_file, needs_a_server

#: The most tests that may be known as unstable.
MOST_UNSTABLE = 5

FILES = sorted(path.relative_to(groups.TESTS) for path in groups.TESTS.glob("*/test_*.py"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_file_of_tests_belongs_to_a_group_that_runs(path: Path) -> None:
    # by a command that selects its tests
    names = {
        group.name
        for group in CAMPAIGN
        if any(("--group", group.name) in pairwise(one.words) for one in group.commands)
    }
    if needs_a_server(path, set(), ()):
        assert group_of_file(path) in names


@pytest.mark.parametrize("name", groups.FILES)
def test_no_pattern_of_a_group_is_left_without_a_file(name: str) -> None:
    assert [one for one in groups.FILES[name] if not any(path.match(one) for path in FILES)] == []


def test_a_file_without_a_group_is_an_error_that_names_it() -> None:
    with pytest.raises(LookupError, match=r"no group in tests/support/groups\.py has tests/servers/new\.py"):
        group_of_file(Path("servers/new.py"))


def test_groups_are_chosen_by_name_in_the_order_of_the_campaign() -> None:
    assert [one.name for one in named(["rollouts", "moves"], CAMPAIGN)] == ["moves", "rollouts"]
    with pytest.raises(LookupError, match="there is no group 'move'; there are brokers, "):
        list(named(["move"], CAMPAIGN))
    both = [one.name for one in (*TEST, *PARTS, *CAMPAIGN)]
    assert len(both) == len(set(both))


def test_few_tests_are_known_as_unstable_and_each_exists() -> None:
    text = (groups.TESTS / "UNSTABLE.md").read_text()
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in text.splitlines() if line.startswith("| ")][1:]
    rows = [row for row in rows if set("".join(row)) != {"-"}]
    assert len(rows) <= MOST_UNSTABLE
    for row in rows:
        test, date, seen, cause = row
        path, _, name = test.strip("`").partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
        assert seen
        assert cause
