"""Judge an application that others wrote, and print a row of a table: project, libraries, findings by severity.

    scripts/field_row.py CHECKOUT -A APP --python PATH

Fetches nothing, installs nothing and changes nothing: the checkout and an environment with what the application needs
are there already. The application's variables are given as for its worker. The seconds are those of `repot doctor` as
a program, interpreter start included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.config import inherited_environment

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A judgement within these ends the program with 0 or 4; others mean that there is no judgement.
_JUDGED = (0, 4)

HEADER = (
    "project", "commit", "Python", "Celery", "kombu", "redis-py", "broker", "tasks", "errors", "warnings", "infos",
    "rules", "s",
)  # fmt: skip


def judged(directory: Path, app: str, python: str | None, *options: str) -> tuple[dict[str, Any], float]:
    """Return the doctor's document of one application, and how long it took in seconds."""
    command = [str(Path(sys.executable).with_name("repot")), "doctor", "-A", app, "--format", "json", *options]
    command += ["--python", python] if python else []
    # an import would leave `__pycache__` there
    environment = inherited_environment(without=()) | {"PYTHONDONTWRITEBYTECODE": "1"}
    begun = monotonic()
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    took_s = monotonic() - begun
    if done.returncode not in _JUDGED:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    (found,) = json.loads(done.stdout)["applications"]
    return found, took_s


def commit(checkout: Path) -> str:
    """Return the commit of a checkout; of a package without one, nothing."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("-A", "--app", required=True, help="as for `celery -A`")
    parser.add_argument("--name", help="of the project; default: that of the checkout's directory")
    parser.add_argument("--directory", default=".", help="where its worker starts, below the checkout")
    parser.add_argument("--python", help="the application's own interpreter; default: that of repot")
    parser.add_argument("--save", type=Path, help="write the doctor's document there")
    parser.add_argument("--header", action="store_true", help="print the table's header first")
    asked = parser.parse_args()
    document, took_s = judged(asked.checkout / asked.directory, asked.app, asked.python)
    if asked.save:
        asked.save.write_text(json.dumps(document, indent=2))
    findings, versions = document["findings"], document["versions"]
    severities = Counter(one["severity"] for one in findings)
    rules = Counter(one["rule"] for one in findings)
    cells = [
        asked.name or asked.checkout.resolve().name,
        commit(asked.checkout) or "-",
        *(versions.get(one) or "-" for one in ("python", "celery", "kombu", "redis")),
        document["broker"]["kind"],
        document["tasks"],
        *(severities[one] for one in ("error", "warning", "info")),
        ", ".join(f"{rule}" + (f" x{count}" if count > 1 else "") for rule, count in sorted(rules.items())),
        f"{took_s:.1f}",
    ]
    if asked.header:
        print(_line(HEADER), _line(["---"] * len(HEADER)), sep="\n")
    print(_line(cells))


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
