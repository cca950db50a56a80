"""The chart `charts/repot`: helm takes it, its objects follow their schemas, and it says what `kubernetes/` says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.charts import CHART, ROOT, conformity, helm, rendered

if TYPE_CHECKING:
    from pathlib import Path

VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
EACH_VALUES = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem.removesuffix("-values"))

#: What the manifests and the chart call a set of Pods.
_LABEL, _COMPONENT = "app", "app.kubernetes.io/component"
#: Labels that only one of them has.
_OTHER_LABELS = ("app.kubernetes.io/", "helm.sh/", "step")


def manifests() -> list[dict[str, Any]]:
    """Every object of `kubernetes/` that the chart has: not what stands before the brokers."""
    found = [one for path in (ROOT / "kubernetes").glob("*.yaml") for one in yaml.safe_load_all(path.read_text())]
    return [one for one in found if (one["kind"], one["metadata"]["name"]) not in _BROKERS]


_BROKERS = {("NetworkPolicy", "redis"), ("NetworkPolicy", "rabbitmq")}


def same_values() -> dict[str, Any]:
    """The values with which the chart has all that the manifests have."""
    secrets = {one["metadata"]["name"]: one["stringData"] for one in manifests() if one["kind"] == "Secret"}
    return {
        "image": {"tag": "0.1.0"},
        "secret": {"values": secrets["worker"]},
        "relay": {"enabled": True},
        "rollout": {
            "enabled": True,
            "name": secrets["rollout"]["WORKER_ROLLOUT"],
            "secret": {"target": secrets["rollout"]["WORKER_ROLLOUT_TARGET"]},
            "beat": {"enabled": True},
            "controller": {"enabled": True},
        },
        "networkPolicy": {"enabled": True},
    }


def plain(value: Any) -> Any:
    """Return an object with `app` for the name of a component, and without what the chart alone has."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("key") == _COMPONENT:
        return {**value, "key": _LABEL}
    if value.get("name") == "worker-rollout":
        # a release has a Secret of its own
        return {**value, "name": "rollout"}
    found = {_LABEL if name == _COMPONENT else name: plain(one) for name, one in value.items()}
    found = {name: one for name, one in found.items() if not name.startswith(_OTHER_LABELS)}
    found.pop("imagePullPolicy", None)
    found.pop("checksum/secret", None)
    return {name: one for name, one in found.items() if one != {} or name not in ("annotations", "matchLabels")}


def compared(one: dict[str, Any]) -> Any:
    """Return what both must say, without the object's own name and labels."""
    found = plain({key: value for key, value in one.items() if key != "metadata"})
    if one["kind"] == "NetworkPolicy":
        found["spec"]["podSelector"] = _apps(found["spec"]["podSelector"])
    return found


def _apps(selector: dict[str, Any]) -> list[str]:
    """Return the values of `app` that a selector takes, however it is written."""
    labels = [selector["matchLabels"][_LABEL]] if selector.get("matchLabels") else []
    return sorted([*labels, *(value for one in selector.get("matchExpressions", []) for value in one["values"])])


def by_content(objects: list[dict[str, Any]]) -> list[str]:
    return sorted(yaml.safe_dump(compared(one), default_flow_style=False) for one in objects)


def test_the_chart_says_what_the_manifests_say() -> None:
    assert by_content(manifests()) == by_content(rendered(**same_values()))


@EACH_VALUES
def test_helm_finds_nothing_wrong(values: Path) -> None:
    said = helm("lint", "--strict", str(CHART), values=values).stdout
    assert "0 chart(s) failed" in said


@EACH_VALUES
def test_its_objects_follow_their_schemas(values: Path, tmp_path: Path) -> None:
    objects = rendered(values)
    found = conformity(objects, tmp_path)
    assert ([], len(objects)) == (found.problems, found.valid)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))


def test_the_manifests_follow_their_schemas(tmp_path: Path) -> None:
    found = conformity(manifests(), tmp_path)
    assert ([], len(manifests())) == (found.problems, found.valid)


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 3},
        {"worker": {"replica": 3}},
        {"worker": {"replicas": -1}},
        {"worker": {"autoscale": "2"}},
        {"queues": "celery, mail"},
        {"secret": {"values": {"WORKER_BROKER_URL": 1}}},
        {"monitor": {"kind": "Monitor"}},
        {"autoscaling": {"minReplicas": 0}},
        {"networkPolicy": {"monitoring": []}},
    ],
    ids=str,
)
def test_a_value_that_means_nothing_is_refused(values: dict[str, Any]) -> None:
    whole = {**values, "secret": {"existing": "shop", **values.get("secret", {})}}
    done = helm("template", str(CHART), "--kube-version", "1.37.0", stdin=yaml.safe_dump(whole), check=False)
    assert done.returncode
    assert "values don't meet the specifications of the schema" in done.stderr


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "secret.values.WORKER_BROKER_URL"),
        ({"secret": {"existing": "shop"}, "rollout": {"enabled": True}}, "rollout.secret.target"),
    ],
    ids=["broker", "target"],
)
def test_an_address_that_is_missing_is_named(values: dict[str, Any], named: str) -> None:
    done = helm("template", str(CHART), "--kube-version", "1.37.0", stdin=yaml.safe_dump(values), check=False)
    assert named in done.stderr
    assert done.returncode


def test_an_existing_secret_is_read_and_none_is_written() -> None:
    values: dict[str, Any] = {
        "secret": {"existing": "shop"},
        "rollout": {"enabled": True, "secret": {"existing": "friday"}},
        "relay": {"enabled": True},
    }
    objects = rendered(**values)
    assert "Secret" not in {one["kind"] for one in objects}
    pods = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    named = {source["secretRef"]["name"] for pod in pods for one in pod["containers"] for source in one["envFrom"]}
    assert {"shop", "friday"} == named


def test_after_a_rollout_no_pod_reads_its_secret() -> None:
    """It names the address that is the broker's now as the target: each new Pod would refuse to start."""
    values: dict[str, Any] = {
        "secret": {"existing": "shop"},
        "relay": {"enabled": True},
        "rollout": {"enabled": False, "name": "friday", "secret": {"existing": "friday"}},
    }
    assert "friday" not in json.dumps(rendered(**values))


def test_the_controllers_job_has_another_name_after_a_change() -> None:
    """A Job's Pods cannot be changed: an upgrade would fail."""
    names = []
    for steps in ("1,100", "50,100", "1,100"):
        values = same_values()
        values["rollout"]["controller"]["steps"] = steps
        names += [one["metadata"]["name"] for one in rendered(**values) if one["kind"] == "Job"]
    assert names[0] == names[2] != names[1]


def test_the_alerts_are_those_of_compose() -> None:
    docs = "https://docs.example.com"
    objects = rendered(secret={"existing": "shop"}, prometheusRule={"enabled": True, "docs": f"{docs}/"})
    (rule,) = (one for one in objects if one["kind"] == "PrometheusRule")
    text = (ROOT / "compose" / "prometheus" / "alerts.yml").read_text()
    assert yaml.safe_load(text.replace("{{ $externalLabels.repot_docs }}", docs)) == rule["spec"]


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_a_monitor_selects_the_pods_of_each_component(kind: str) -> None:
    objects = rendered(**same_values(), monitor={"enabled": True, "kind": kind})
    monitors = [one["spec"] for one in objects if one["kind"] == kind]
    selected = [one["selector"]["matchLabels"] for one in monitors]
    targets = "Service" if kind == "ServiceMonitor" else "Deployment"
    labels = [
        one["metadata"]["labels"] if targets == "Service" else one["spec"]["template"]["metadata"]["labels"]
        for one in objects
        if one["kind"] == targets
    ]
    for component in ("worker", "worker-target", "relay"):
        (selector,) = (one for one in selected if one[_COMPONENT] == component)
        assert [component] == [one[_COMPONENT] for one in labels if selector.items() <= one.items()]


def test_with_autoscaling_the_deployment_states_no_number() -> None:
    """An upgrade would set the number back."""
    objects = rendered(secret={"existing": "shop"}, autoscaling={"enabled": True}, queues="celery,mail")
    (worker,) = (one["spec"] for one in objects if one["kind"] == "Deployment")
    (scaled,) = (one["spec"] for one in objects if one["kind"] == "ScaledObject")
    assert "replicas" not in worker
    assert scaled["minReplicaCount"] == 1
    (trigger,) = scaled["triggers"]
    assert 'repot_queue_messages_ready{namespace="shop", queue=~"celery|mail"}' in trigger["metadata"]["query"]


@pytest.mark.parametrize("kind", ["Deployment", "ScaledObject", "PodMonitor"])
def test_a_field_that_a_schema_lacks_is_found(kind: str, tmp_path: Path) -> None:
    """The other tests see what they look for."""
    objects = rendered(secret={"existing": "shop"}, autoscaling={"enabled": True}, monitor={"enabled": True})
    (one,) = (each for each in objects if each["kind"] == kind)
    one["spec"]["replica"] = 1
    (problem,) = conformity([one], tmp_path).problems
    assert "replica" in problem
