"""What is to be known before a rollout: what it refuses, and what an operator is warned of. Nothing is changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from repot.brokers.facts import Unknown
from repot.doctor.collect import DoctorRequest, collect_facts
from repot.doctor.config import read_config
from repot.doctor.registry import all_rules, select_rules
from repot.doctor.rule import Severity, few
from repot.doctor.runner import run_rules
from repot.errors import RepotError
from repot.idempotency.durability import weaknesses
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.config import BrokerUrl, WorkerSettings

_RPC = "rpc"


def refusals(settings: WorkerSettings) -> list[str]:
    """Return why these settings cannot be used in a rollout."""
    if settings.result_backend.scheme != _RPC:
        return []
    why = "results on rpc:// come back over the broker that a task was sent to, and its caller waits on the other one"
    return [f"{why}: set WORKER_RESULT_BACKEND to a store that both sides reach"]


def warnings(settings: WorkerSettings, target: BrokerUrl) -> list[str]:
    """Return what speaks against a rollout to `target`, and what could not be checked."""
    return [*_store(settings), *_doctor(settings, target)]


def _store(settings: WorkerSettings) -> Iterator[str]:
    """Yield why the lease store may forget the rollout."""
    if settings.database_url:
        # its owner decides how durable it is
        return
    weak = weaknesses(settings)
    if isinstance(weak, Unknown):
        yield f"whether the lease store is durable is unknown: {masked(weak.reason)}"
        return
    for one in weak:
        yield f"the lease store may forget the rollout, and then new processes send to the source: {one}"


def _doctor(settings: WorkerSettings, target: BrokerUrl) -> Iterator[str]:
    """Yield the errors that `repot doctor --target` finds."""
    if "app" not in settings.model_fields_set:
        yield "the application is not judged: WORKER_APP names none; `repot doctor -A APP --target URL` judges it"
        return
    config = read_config(Path.cwd())
    rules = all_rules()
    try:
        facts = collect_facts(DoctorRequest(settings.app, target=target.reveal()), config)
    except RepotError as error:
        yield f"{settings.app} is not judged: {masked(error.message)}"
        return
    if batched := few([task.name for task in facts.tasks if task.batch]):
        yield f"the judge sees no run and no failure of {batched}, of celery-batches, which reports none; watch these"
    report = run_rules(facts, select_rules(rules, config.select, config.ignore), config, rules)
    errors = Counter(
        f"{one.rule.id} {one.rule.title}: {masked(one.finding.message)}"
        for one in report.findings
        if one.rule.severity is Severity.ERROR
    )
    yield from (text if count == 1 else f"{text} ({count} times)" for text, count in errors.items())
