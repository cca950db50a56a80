"""Compare what `repot chaos run --json` found in several runs.

    repot chaos run --json > 1.json   # and again, as often as you like
    python benchmarks/same_verdicts.py 1.json 2.json 3.json

Prints every cell that did not get the same verdict each time. Those whose entry in the
table lists what chance may make of them are counted apart. Exits with 4 if another
differs, or if the runs have not the same cells.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from repot.chaos.report.files import read
from repot.chaos.scenarios.expectations import expectation

if TYPE_CHECKING:
    from repot.chaos.report.result import Cell, Result


def main() -> int:
    """Read the runs, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json")
    options = parser.parse_args()
    found: defaultdict[Cell, list[Result]] = defaultdict(list)
    for path in options.runs:
        campaign = read(path)
        print(f"{path}: {len(campaign.results)} cells in {campaign.took_s:.0f} s, {campaign.created}")
        for result in campaign.results:
            found[result.cell].append(result)
    by_chance = odd = 0
    for cell, results in found.items():
        verdicts = [str(one.verdict) for one in results]
        if len(set(verdicts)) == 1 and len(verdicts) == len(options.runs):
            continue
        # different verdicts that the table all lists
        chance = len(verdicts) == len(options.runs) and all(
            one.verdict in (expectation(cell, one.product, one.version) or ()) for one in results
        )
        by_chance += chance
        odd += not chance
        print(f"  {'chance   ' if chance else 'DIFFERENT'}  {cell.name}: {' / '.join(verdicts)}")
    same = len(found) - by_chance - odd
    print(f"{len(found)} cells: {same} the same each time, {by_chance} as chance decides, {odd} different")
    return 4 if odd else 0


if __name__ == "__main__":
    sys.exit(main())
