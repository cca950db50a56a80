"""Which values each label of a metric may have: few, whatever is sent. Ids, arguments and passwords are no labels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from repot.healthcheck.ping import PingOutcome
from repot.healthcheck.probe_result import WorkerState
from repot.healthcheck.queue_counts import QueueKind
from repot.idempotency.guard_events import GuardEvent
from repot.rollout.judge import Verdict
from repot.rollout.phases import Phase
from repot.routing.side import Side
from repot.submission.submission_events import SubmissionOutcome
from repot.worker.cost import CostKind
from repot.worker.task_outcomes import OTHER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

#: A class of an exception, also one in a class or a function; a bound that text of an exception does not keep to.
_CLASS = re.compile(r"[A-Za-z_][\w.<>]{0,80}")

#: What the code decides: by label, the values that it may have.
ENUMERATIONS: dict[str, Collection[str]] = {
    "state": {*WorkerState, "waiting", "delayed", "parked"},
    "outcome": {*(one.value for one in PingOutcome), *SubmissionOutcome},
    "probe": {"live", "ready", "ping"},
    "kind": {*CostKind, *QueueKind},
    "phase": {*Phase},
    "side": {*Side},
    "verdict": {*Verdict},
    "messaging.operation.name": {"send", "create", "process", "move"},
    "messaging.operation.type": {"send"},
    "messaging.system": {"redis", "rabbitmq"},
    "repot.guard.decision": {*GuardEvent},
}
#: Names that a deployment has given: a test says which they are.
NAMED = {"node", "task", "broker", "queue", "rollout", "scope", "messaging.destination.name", "celery.task_name"}
#: Names of classes of exceptions.
CLASSES = {"error", "error.type"}
#: Bounds of the buckets of a histogram.
BUCKETS = "le"

KNOWN = {*ENUMERATIONS, *NAMED, *CLASSES, BUCKETS}


def unbounded(labels: Mapping[str, str], named: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield the labels with a value that they may not have, with it."""
    for label, value in labels.items():
        if label in CLASSES:
            is_known = value == OTHER or _CLASS.fullmatch(value) is not None
        elif label == BUCKETS:
            is_known = float(value) > 0
        else:
            is_known = value in ENUMERATIONS.get(label, named.get(label, ()))
        if not is_known:
            yield f"{label}={value}"


def unbounded_of(text: str, **named: Collection[str]) -> list[str]:
    """Return the samples with such a label, of what Prometheus scrapes."""
    return [
        f"{sample.name}: {problem}"
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for problem in unbounded(sample.labels, named)
    ]
