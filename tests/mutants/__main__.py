"""Plant a kept list of defects one at a time in a copy of the code, and name those that no test notices.

    make mutants
    PYTHONPATH=tests python -m mutants [--list] [--every N] [--numprocesses 2] [AREA | NAME...]

First the tests of all chosen defects run on the code as it is, which must be green. Then each defect by its own tests.
Exits with 4 if one stays green that is not listed as equivalent, or if an entry is not about this code any more.
How to add a defect: tests/mutants/README.md.

The list is written by hand. mutmut, cosmic-ray and mutatest make mutants by operators (`<` for `<=`, a constant for
another): they would try tens of thousands here, and none of them is "the lease is not renewed in the loop".
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING

from mutants.defects import AREAS, Defect, RottenError, kept_defects
from mutants.trials import LIMIT_S, Trial, try_all

if TYPE_CHECKING:
    from collections.abc import Sequence

CAUGHT, GREEN, ROTTEN, EQUIVALENT = "caught", "STAYED GREEN", "ROTTEN", "equivalent"
BAD = (GREEN, ROTTEN)
#: Lines of a log that say why.
_SHOWN = 15


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, try the chosen defects, print what the tests said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"areas ({', '.join(AREAS)}), or parts of names; all without any")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try each N-th of the chosen ones only")
    parser.add_argument("--list", action="store_true", help="show the list, and try nothing")
    parser.add_argument("--numprocesses", type=int, default=2, help="defects that are tried at the same time")
    parser.add_argument("--log", action="store_true", help="show what pytest wrote to each defect")
    chosen = parser.parse_args(arguments)
    defects = [one for one in kept_defects() if not chosen.names or _is_chosen(one, chosen.names)][:: chosen.every]
    if not defects:
        parser.error(f"no defect is called {' '.join(chosen.names)}")
    if chosen.list:
        for one in defects:
            print(f"{one.area:12} {one.name}" + (f" (equivalent: {one.equivalent})" if one.equivalent else ""))
        return 0
    rotten = [text for one in defects if (text := _rot(one))]
    if rotten:
        print(*(f"{ROTTEN}: {one}" for one in rotten), sep="\n")
        return 4
    # as Ctrl-C: what runs is ended, and the copies are removed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return _report(defects, chosen.numprocesses, shows_logs=chosen.log)


def _report(defects: Sequence[Defect], processes: int, *, shows_logs: bool) -> int:
    verdicts = Counter[str]()

    def tell(trial: Trial) -> None:
        verdict, why = _verdict(trial)
        verdicts[verdict] += 1
        name = f"{trial.defect.area:12} {trial.defect.name}" if trial.defect else "the code as it is"
        print(f"{verdict:12} {trial.took_s:5.1f} s  {name}{why}", flush=True)
        if shows_logs or verdict == ROTTEN or (trial.defect is None and verdict in BAD):
            print("\n".join(f"  | {line}" for line in trial.log.splitlines()[-_SHOWN:]), flush=True)

    begun_at = monotonic()
    try:
        # the first failure is enough
        try_all(defects, processes=processes, options=("-x",), tell=tell)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    said = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items() if verdict != _PASSED)
    print(f"\n{len(defects)} defects: {said}; {monotonic() - begun_at:.0f} s")
    return 4 if any(verdicts[one] for one in BAD) else 0


_PASSED = "green"


def _verdict(trial: Trial) -> tuple[str, str]:
    """Return what the tests' answer means, and what is to be added."""
    if trial.defect is None:
        return (_PASSED, "") if trial.is_green else (ROTTEN, ": its tests are not green without a defect")
    if trial.is_red:
        late = f" (within {LIMIT_S:g} s the tests did not end)" if trial.answer is None else ""
        # a reason is given for it, which is wrong
        return (ROTTEN, ": listed as equivalent, and caught") if trial.defect.equivalent else (CAUGHT, late)
    if not trial.is_green:
        return ROTTEN, f": pytest could not run its tests ({trial.answer})"
    return (EQUIVALENT, f": {trial.defect.equivalent}") if trial.defect.equivalent else (GREEN, "")


def _is_chosen(defect: Defect, names: Sequence[str]) -> bool:
    return any(one == defect.area or one in defect.name for one in names)


def _rot(defect: Defect) -> str:
    try:
        defect.planted()
    except RottenError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main())
