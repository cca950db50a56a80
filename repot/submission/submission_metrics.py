"""Count submissions in a Prometheus counter, in the registry of the application that accepts them."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter

from repot.submission.submission_events import submitted


def count_submissions(registry: CollectorRegistry = REGISTRY) -> Counter:
    """Count submissions from now on as `repot_submissions_total`, by task, scope and outcome; call it once per process.

    `scope` holds the names of the arguments that make a scope: six series for each `Jobs` object.

    Raises:
        ValueError: this registry already has the counter.
    """
    counter = Counter(
        "repot_submissions",
        "Submissions of jobs, by outcome.",
        ["task", "scope", "outcome"],
        registry=registry,
    )

    def count(sender: str, outcome: str, scope: str, **_: Any) -> None:  # noqa: ANN401 - the signal's arguments
        counter.labels(sender, scope, outcome).inc()

    # a weak reference would drop this local function at once
    submitted.connect(count, weak=False, dispatch_uid=f"repot-submissions-{id(counter)}")
    return counter
