"""The metrics of a rollout as a sidecar serves them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from repot.config import child_environment
from repot.rollout.phases import Phase
from repot.rollout.rollout import Rollout, open_rollout
from repot.routing.looks import LastLook
from repot.routing.record import Change
from repot.routing.side import Weights
from repot.testbed import LOOPBACK, ReapedProcess, free_port
from repot.waiting import wait_until
from repot.worker.holder import this_process
from support.metric_labels import unbounded_of
from support.reports import between, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import Server

COMPOSE = Path(__file__).parents[2] / "compose"
ALERTS, DASHBOARD = COMPOSE / "prometheus" / "alerts.yml", COMPOSE / "grafana" / "dashboards" / "worker.json"


@pytest.fixture
def rollout(redis: Server, rabbitmq: Server) -> Iterator[Rollout]:
    settings = between(redis, rabbitmq, redis)
    with open_rollout(settings.rollout, settings) as opened:
        yield opened


@pytest.fixture
def sidecar(rollout: Rollout, tmp_path: Path) -> Iterator[str]:
    """The address of one whose worker does not run."""
    port = free_port()
    settings = rollout.settings.replace(status_dir=tmp_path)
    variables = child_environment(settings) | {"HEALTHCHECK_PORT": str(port), "HEALTHCHECK_CACHE": "0.2"}
    command = [sys.executable, "-m", "repot", "healthcheck", "serve"]
    with ReapedProcess(command, log=tmp_path / "sidecar.log", environment=variables):
        yield f"http://{LOOPBACK}:{port}/metrics"


def scraped(address: str) -> dict[tuple[str, ...], float]:
    """What it serves of a rollout: name without `repot_rollout_`, and labels other than the rollout's name."""
    try:
        with urlopen(address, timeout=10) as answer:  # noqa: S310 - its own address
            text = answer.read().decode()
    except URLError:
        return {}
    samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
    return {
        (
            one.name.removeprefix("repot_rollout_"),
            *(value for name, value in one.labels.items() if name != "rollout"),
        ): (one.value)
        for one in samples
        if one.name.startswith("repot_rollout_")
    }


def await_scraped(address: str, expected: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}

    def as_expected() -> bool:
        found.clear()
        found.update(scraped(address))
        return expected.items() <= found.items()

    try:
        wait_until(as_expected, within_s=30, poll_s=0.2, what="the sidecar serves it")
    except Exception as error:
        error.add_note(f"expected {expected}, found {found}")
        raise
    return found


@pytest.mark.promise
def test_a_sidecar_serves_the_phase_the_share_and_the_findings(rollout: Rollout, sidecar: str) -> None:
    records, store = rollout.records, rollout.store
    wait_until(lambda: _is_served(sidecar), within_s=30, what="the sidecar listens")
    # before the rollout is begun there is nothing to say
    assert scraped(sidecar) == {}

    rollout.begin(plan_of(rollout), "ann")
    found = await_scraped(sidecar, {("phase", "prepare"): 1, ("weight",): 0, ("controller_up",): 0})
    assert not [name for name, *_ in found if name in ("findings", "looked_timestamp_seconds")]

    holder = this_process("the rollout")
    store.hold(holder, 60)
    changed = records.change(rollout.record(), Change("ann", "go", phase=Phase.CANARY, weights=Weights(0.25)))
    findings = (("samples", "pass", "enough"), ("retried", "inconclusive", "some"), ("failed", "inconclusive", "some"))
    rollout.observations.looks.put(LastLook(12.5, changed.generation, findings))
    found = await_scraped(sidecar, {("phase", "canary"): 1, ("weight",): 0.25, ("controller_up",): 1})
    assert {("findings", "pass"): 1, ("findings", "inconclusive"): 2, ("findings", "fail"): 0}.items() <= found.items()
    assert found["looked_timestamp_seconds",] == 12.5
    asked = {name for path in (ALERTS, DASHBOARD) for name in re.findall(r"\brepot_rollout_(\w+)", path.read_text())}
    assert {"phase", "weight", "controller_up", "findings", "changed_timestamp_seconds"} == asked
    assert asked <= {name for name, *_ in found}
    assert ("phase", "prepare") not in found
    with urlopen(sidecar, timeout=10) as answer:  # noqa: S310 - its own address
        text = answer.read().decode()
    settings = rollout.settings
    brokers = {url.masked() for url in (settings.broker_url, settings.rollout_target) if url}
    queues = {name for queue in settings.queue_names for name in (queue, f"{queue}.dead")}
    named = {"node": {""}, "rollout": {rollout.name}, "broker": brokers, "queue": queues}
    assert unbounded_of(text, **named) == []

    # what was seen in another state says nothing of this one
    records.change(rollout.record(), Change("ann", "wait", phase=Phase.PAUSED))
    store.release(holder)
    found = await_scraped(sidecar, {("phase", "paused"): 1, ("controller_up",): 0})
    assert not [name for name, *_ in found if name in ("findings", "looked_timestamp_seconds")]


def _is_served(address: str) -> bool:
    try:
        with urlopen(address, timeout=10):  # noqa: S310 - its own address
            return True
    except URLError:
        return False
