"""The web application of `benchmarks/rollout_kills.py --web`: a request sends one unit of work, as an application does.

uvicorn rollout_storm_web:web --workers 2
"""

from __future__ import annotations

import random

from fastapi import FastAPI
from rollout_storm_producer import KINDS

web = FastAPI()


@web.post("/units/{kind}/{unit}")
def send_unit(kind: str, unit: str) -> list[str]:
    """Send a unit; the ids that must finish are those of an answer."""
    ids, send = KINDS[kind][1](unit, random.Random(unit))  # noqa: S311 - to be repeated
    send()
    return ids
