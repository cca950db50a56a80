"""Break repot in ways that a matrix must notice, and see which cells of it turn red.

    python benchmarks/chaos_mutations.py [NAME...] [--jobs 6]

Each mutation is made in a copy of the package, and the cells that could show it are run
with that copy against the table of expectations. Exits with 4 if one goes unnoticed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import repot


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of the text of one file, and the cells to look at."""

    name: str
    file: str
    before: str
    after: str
    scenarios: tuple[str, ...]
    profiles: tuple[str, ...]
    guard: str


MUTATIONS = (
    Mutation(
        "acks made early",
        "config/celery.py",
        'yield entry("task_acks_late", settings.task_acks_late, "task_acks_late")',
        'yield entry("task_acks_late", False, "task_acks_late")',
        ("killed-running", "killed-received", "link-down", "connection-reset", "soft-shutdown"),
        ("redis-hardened", "amqp-classic", "amqp-quorum"),
        "off",
    ),
    Mutation(
        "the guard's finish made unconditional",
        "idempotency/transitions.py",
        "    if found is None or found.owner != owner:\n        return None, FinishResult.LOST\n",
        "    if found is None:\n        return None, FinishResult.LOST\n"
        "    found, mode = replace(found, state=State.RUNNING), FinishMode.FORCE\n",
        ("frozen-rerun", "worker-frozen", "killed-running"),
        ("redis-hardened", "amqp-quorum"),
        "on",
    ),
    Mutation(
        "the redelivered mark dropped",
        "chaos/instruments/recorder.py",
        '        redelivered = bool(request.delivery_info.get("redelivered"))\n',
        '        request.delivery_info["redelivered"] = False\n        redelivered = False\n',
        ("dropped-ack", "ack-cut", "killed-before-ack"),
        ("redis-hardened", "amqp-classic", "amqp-quorum"),
        "off",
    ),
)


def mutated(mutation: Mutation, folder: Path) -> Path:
    """A copy of the package with the mutation."""
    package = folder / "repot"
    shutil.copytree(Path(repot.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    path = package / mutation.file
    text = path.read_text()
    if text.count(mutation.before) != 1:
        sys.exit(f"{mutation.name}: {mutation.file} is not as it was: mend this script")
    path.write_text(text.replace(mutation.before, mutation.after))
    return folder


def run(mutation: Mutation, jobs: int) -> tuple[list[str], int]:
    """The cells that are not as expected, and how many were run."""
    with tempfile.TemporaryDirectory(prefix="repot-mutation-") as folder:
        environment = os.environ | {"PYTHONPATH": str(mutated(mutation, Path(folder)))}
        command = [sys.executable, "-m", "repot", "chaos", "run", *mutation.scenarios]
        command += [word for name in mutation.profiles for word in ("--profile", name)]
        command += ["--guard", mutation.guard, "--jobs", str(jobs), "--json"]
        found = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, check=False)
    results = json.loads(found.stdout)["results"]
    red = [f"{one['name']}: {one['found']}" for one in results if not one["as_expected"]]
    return red, len(results)


def main() -> int:
    """Try each mutation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of mutations, or parts of them; all without any")
    parser.add_argument("--jobs", type=int, default=6)
    options = parser.parse_args()
    unnoticed = 0
    for mutation in MUTATIONS:
        if options.names and not any(name in mutation.name for name in options.names):
            continue
        red, total = run(mutation, options.jobs)
        unnoticed += not red
        print(f"{mutation.name}: {len(red)} of {total} cells are red", *red, sep="\n  ", flush=True)
    return 4 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
