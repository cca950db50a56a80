"""The kept defects (`make mutants`) are about the code as it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mutants.defects import AREAS, Defect, RottenError, kept_defects

DEFECTS = kept_defects()
ONE = Defect(
    "routing", "another text", "repot/routing/side.py", "_BITS = 53", "_BITS = 52", ("tests/unit/test_words.py",)
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_each_can_be_planted(defect: Defect) -> None:
    """Its text stands once in its file, and its tests are there."""
    text = defect.planted()
    if defect.file.endswith(".py"):
        # one that cannot be imported is noticed by any test
        compile(text, defect.file, "exec")


def test_there_are_enough_in_every_area() -> None:
    assert len(DEFECTS) >= 60
    counts = Counter(one.area for one in DEFECTS)
    assert {*AREAS} == {*counts}
    assert min(counts.values()) >= 3
    assert [name for name, times in Counter(one.name for one in DEFECTS).items() if times > 1] == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"old": "_BITS = 64"}, "the old text stands 0 times"),
        ({"old": "_BITS"}, "the old text stands"),
        ({"new": "_BITS = 53"}, "must stand there once"),
        ({"file": "repot/gone.py"}, "there is no file repot/gone.py"),
        ({"tests": ("tests/unit/test_gone.py::test_it",)}, "there is no test tests/unit/test_gone.py"),
        (
            {"tests": ("tests/unit/test_words.py::test_gone[1]",)},
            "there is no test tests/unit/test_words.py::test_gone",
        ),
    ],
)
def test_an_entry_that_has_rotted_is_named(changes: dict[str, object], text: str) -> None:
    with pytest.raises(RottenError, match=f"another text: .*{text}"):
        replace(ONE, **changes).planted()  # type: ignore[arg-type]
