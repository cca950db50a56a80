"""Text from outside, on a terminal and in a report."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repot.sanitize import sanitize


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shop.pay", "shop.pay"),
        ("Zoë 日本 🙂", "Zoë 日本 🙂"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("one\ntwo\r\tthree", "one\\ntwo\\r\\tthree"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\u202eexe.txt", "\\u202eexe.txt"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\ufffe", "\\ufffe"),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(text: str, expected: str) -> None:
    assert expected == sanitize(text)


def test_line_breaks_stay_where_they_are_kept() -> None:
    assert sanitize("one\ntwo\r\x1b", keep="\n") == "one\ntwo\\r\\x1b"


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_printed_on_one_line(text: str) -> None:
    shown = sanitize(text)
    assert len(shown.encode().decode().splitlines()) <= 1
    assert not {"Cc", "Cf", "Cs"} & set(map(unicodedata.category, shown))
