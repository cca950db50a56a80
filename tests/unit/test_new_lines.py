"""Which lines of a long command are shown again."""

from __future__ import annotations

import pytest

from repot.cli.new_lines import NewLines


class Shown:
    """Looks, and what was shown of them; a look each second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines = NewLines(clock=lambda: self.now)

    def look(self, *lines: str) -> list[str]:
        self.now += 1
        return self.lines.of(lines)


def test_a_line_is_shown_once_and_again_after_it_was_gone() -> None:
    shown = Shown()
    assert shown.look("canary at 25%", "no worker") == ["canary at 25%", "no worker"]
    assert shown.look("canary at 25%", "no worker") == []
    assert shown.look("canary at 25%") == []
    assert shown.look("canary at 25%", "no worker") == ["no worker"]


def test_a_line_whose_numbers_grow_is_shown_each_quarter_of_a_minute() -> None:
    shown = Shown()
    looks = {
        number: shown.look(f"the target finished {number} of 50 runs (evidence 2.4e+{number:02})")
        for number in range(1, 33)
    }
    assert [number for number, found in looks.items() if found] == [1, 16, 31]
    # and two lines that differ in words are two
    assert shown.look("the source finished 1 of 50 runs") == ["the source finished 1 of 50 runs"]


@pytest.mark.parametrize(
    ("before", "after"),
    [("9", "10"), ("999", "1,000"), ("1", "0.5"), ("12.5", "1.2e+06"), ("0.5", "6.1e-05"), ("9,999", "1,000,000")],
)
def test_a_number_may_be_written_in_another_way(before: str, after: str) -> None:
    shown = Shown()
    assert [f"{before} (evidence {before}, needed 1)"] == shown.look(f"{before} (evidence {before}, needed 1)")
    assert shown.look(f"{after} (evidence {after}, needed 1)") == []


def test_a_line_that_stays_as_it_is_is_not_repeated() -> None:
    shown = Shown()
    assert sum(len(shown.look("it waits for 50 runs")) for _ in range(40)) == 1


def test_two_lines_that_differ_in_a_number_are_two() -> None:
    shown = Shown()
    two = ("no worker reads 'orders-1'", "no worker reads 'orders-2'")
    assert list(two) == shown.look(*two)
    assert [line for _ in range(40) for line in shown.look(*two)] == []
