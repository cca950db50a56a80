"""Each label of a metric has a stated bound: a new one needs a decision in `support/metric_labels.py`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import repot
from support.metric_labels import KNOWN, unbounded_of

_FAMILIES = {"Counter", "Gauge", "Histogram", "Summary"}
_ROOT = Path(repot.__file__).parent


def declared() -> dict[str, set[str]]:
    """The labels of all metrics for Prometheus, by the file that declares them."""
    found: dict[str, set[str]] = {}
    for path in _ROOT.rglob("*.py"):
        text = path.read_text()
        if "prometheus_client" not in text:
            continue
        calls = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call))
        labels = {label for call in calls if _is_family(call) for label in _labels(call)}
        found[str(path.relative_to(_ROOT))] = labels
    return found


def _is_family(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id.removesuffix("MetricFamily") in _FAMILIES


def _labels(call: ast.Call) -> set[str]:
    lists = (one for one in (*call.args, *(word.value for word in call.keywords)) if isinstance(one, ast.List))
    return {str(one.value) for listed in lists for one in listed.elts if isinstance(one, ast.Constant)}


def test_every_label_has_a_bound() -> None:
    found = declared()
    assert {"node", "task", "queue", "state", "outcome", "verdict"} <= set().union(*found.values())
    assert {path: labels - KNOWN for path, labels in found.items() if labels - KNOWN} == {}


@pytest.mark.parametrize(
    ("sample", "problems"),
    [
        ('m{task="shop.charge"} 1', []),
        ('m{task="(other)"} 1', ["m: task=(other)"]),
        ('m{task="3fa85f64-5717-4562-b3fc-2c963f66afa6"} 1', ["m: task=3fa85f64-5717-4562-b3fc-2c963f66afa6"]),
        ('m{error="OperationalError"} 1', []),
        ('m{error="cannot connect to redis://u:p@h"} 1', ["m: error=cannot connect to redis://u:p@h"]),
        ('m{state="somewhere"} 1', ["m: state=somewhere"]),
        ('m{order="7"} 1', ["m: order=7"]),
        ("m 1", []),
    ],
)
def test_a_value_without_a_bound_is_found(sample: str, problems: list[str]) -> None:
    assert problems == unbounded_of(f"{sample}\n", task={"shop.charge"})
