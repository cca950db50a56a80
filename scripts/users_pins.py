"""Ask pip whether repot fits beside the pins of applications that run Celery in production: `scripts/users_pins.py`.

Needs the package registry, and installs nothing. Ends with 1 if one does not fit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: What each asks for, as its own requirements had it in November 2026.
PINS = {
    "paperless-ngx, Saleor": ("celery==5.6.3", "kombu==5.6.2", "redis==5.2.1"),
    "Weblate": ("celery[redis]==5.6.3", "redis==6.4.0"),
    "DefectDojo": ("celery==5.6.3", "redis==8.0.1"),
    "dify, wger": ("celery~=5.6.0", "redis~=7.4"),
    "taiga": ("celery==5.5.3", "kombu==5.5.4", "redis==7.1.0"),
    "Airflow's provider": ("celery>=5.5,<6",),
    "Superset": ("celery>=5.3.6,<6", "redis<6"),
    "Baserow, IntelOwl": ("celery[redis]==5.4.0", "kombu==5.4.2", "redis==5.0.4"),
    "without any": (),
}
_SHOWN = ("celery", "kombu", "redis", "amqp", "billiard")


def resolved(pins: tuple[str, ...]) -> dict[str, str] | str:
    """Return the versions that pip would install beside these pins, or what it says."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    done = subprocess.run([*command, str(ROOT), *pins], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()
    found = json.loads(done.stdout)["install"]
    return {one["metadata"]["name"].lower(): one["metadata"]["version"] for one in found}


def main() -> int:
    """Print a line for each; return the exit code."""
    failed = False
    for name, pins in PINS.items():
        found = resolved(pins)
        if isinstance(found, str):
            failed = True
            print(f"{name}: does not fit: {found}", flush=True)
        else:
            print(f"{name}: " + ", ".join(f"{one} {found[one]}" for one in _SHOWN), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
