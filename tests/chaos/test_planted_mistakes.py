"""Each of fifteen mistakes of applications is found by the run that the page names, and no twin is accused."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from support.chaos_apps import run
from support.planted_mistakes import MISTAKES, write

if TYPE_CHECKING:
    from pathlib import Path

#: Each mistake five times on each broker where it exists.
FIVE_TIMES = [(name, profile, 5) for name, mistake in MISTAKES.items() for profile in mistake.profiles]
#: For each verdict the first mistake that is found by it, on Redis, which starts sooner.
_FIRST = {mistake.found: name for name, mistake in reversed(MISTAKES.items())}
ONCE = [(name, MISTAKES[name].profiles[0], 1) for name in _FIRST.values()]
CASES = {
    f"{name} on {profile} {'once' if runs == 1 else 'five_times'}": (name, profile, runs)
    for name, profile, runs in ONCE + FIVE_TIMES
}


# five runs, one at a time
@pytest.mark.timeout(900)
@pytest.mark.parametrize("planted", [True, False], ids=["planted", "twin"])
@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_found_and_its_twin_is_not_accused(tmp_path: Path, case: str, *, planted: bool) -> None:
    name, profile, runs = CASES[case]
    mistake = MISTAKES[name]
    app = f"app{list(MISTAKES).index(name)}"
    task = write(tmp_path, mistake, app, planted=planted)
    options = [one.replace("{name}", app) for one in mistake.options]
    if mistake.counts:
        options += ["--probe", f"{sys.executable} books.py {app} {' '.join(json.loads(mistake.counts))}"]
        options += ["--expect", mistake.counts, "--reset", f"rm -f {app}.db"]
    options += ["--repeat", str(runs), "--jobs", "2"]
    found = run(tmp_path, mistake.scenario_on(profile), task, *options, profile=profile)
    if planted and mistake.found.startswith("refused"):
        assert found.code == 2, found.talk
        assert "cannot be encoded" in found.talk
        return
    assert found.data, found.talk
    verdicts = found.verdicts or [one["why"] for one in found.data["unmeasured"]]
    assert [mistake.found if planted else mistake.accepted] * runs == verdicts, found.talk
    assert found.code == (4 if planted else 0), found.talk
