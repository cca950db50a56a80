"""The files at the root and under `compose/` and `kubernetes/`: what can be seen without an engine."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from dotenv import dotenv_values

from repot.config import load
from repot.errors import ConfigInvalid, RolloutAborted

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"

#: Neither an address of a registry nor a path of one machine.
_FOREIGN = re.compile(r"https?://(?!127\.0\.0\.1|prometheus:9090)\S+|/home/|/root/")


def manifests() -> dict[str, dict[str, Any]]:
    """Every Kubernetes object by its kind and name."""
    found = [one for path in (ROOT / "kubernetes").glob("*.yaml") for one in yaml.safe_load_all(path.read_text())]
    named = {f"{one['kind']} {one['metadata']['name']}": one for one in found}
    assert len(found) == len(named)
    return named


#: A worker of each side.
WORKERS = ("Deployment worker", "Deployment worker-target")
EVERY_WORKER = pytest.mark.parametrize("name", WORKERS)


def pod(name: str) -> dict[str, Any]:
    template: dict[str, Any] = manifests()[name]["spec"]["template"]["spec"]
    return template


def test_the_file_at_the_root_is_the_one_that_init_writes() -> None:
    assert Path("repot/init/files/supervisord.conf") == (ROOT / "supervisord.conf").readlink()


def test_no_file_names_a_registry_or_this_machine() -> None:
    directories = [*COMPOSE.rglob("*"), *(ROOT / "kubernetes").rglob("*"), *ROOT.glob("requirements*.txt")]
    for path in [*directories, ROOT / "Dockerfile", ROOT / ".dockerignore"]:
        # a person's own, made by compose/credentials
        if path.is_file() and path.name != ".env":
            assert not _FOREIGN.findall(path.read_text()), path


def test_every_image_and_dependency_is_pinned() -> None:
    images = re.findall(r"(?m)^(?:FROM|\s+image:) (\S+)", "\n".join(p.read_text() for p in _files_with_images()))
    made = (
        '"${REPOT_WORKER_IMAGE:-repot-worker}"',
        '"${REPOT_FLOWER_IMAGE:-repot-flower}"',
        '"${REPOT_DATABASE_IMAGE:-repot-worker-database}"',
    )
    ours = {"base", "build", "supervised", *made}
    assert not [image for image in set(images) - ours if not re.search(r":v?\d", image)]
    for name in ("requirements.txt", "requirements-database.txt", "requirements-flower.txt", "requirements-build.txt"):
        lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
        assert all("==" in line and "--hash=" in line for line in lines if not line.startswith("#")), name


def _files_with_images() -> list[Path]:
    return [ROOT / "Dockerfile", *COMPOSE.glob("*.yaml"), *(ROOT / "kubernetes").glob("*.yaml")]


def test_credentials_are_made_once_and_are_nobody_elses(tmp_path: Path) -> None:
    made = [_credentials(tmp_path / name) for name in ("a", "b")]
    secrets = [value for found in made for name, value in found.items() if re.search("PASSWORD|TOKEN|COOKIE", name)]
    assert len(secrets) == len(set(secrets)) == 14
    assert all(re.fullmatch("[0-9a-f]{48}", str(secret)) for secret in secrets)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_credentials_that_are_there_stay(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("REDIS_PASSWORD=mine\nREDIS_PORT=1\nOTHER=x\n")
    found = _credentials(path)
    assert (found["REDIS_PASSWORD"], found["REDIS_PORT"], found["OTHER"]) == ("mine", "1", "x")
    assert found["RABBITMQ_PASSWORD"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_text()
    _credentials(path)
    assert before == path.read_text()


def _credentials(path: Path) -> dict[str, str | None]:
    subprocess.run([COMPOSE / "credentials", path], check=True)
    return dotenv_values(path)


def test_credentials_are_ignored_by_git() -> None:
    assert "/compose/.env" in (ROOT / ".gitignore").read_text().split()


def test_every_variable_that_compose_must_have_is_written(tmp_path: Path) -> None:
    needed = set(re.findall(r"\$\{([A-Z_]+):\?", "".join(path.read_text() for path in COMPOSE.glob("*.yaml"))))
    assert needed == set(_credentials(tmp_path / ".env"))


def test_every_port_is_published_on_loopback() -> None:
    """Docker publishes past the firewall of the host."""
    files = [*COMPOSE.glob("compose*.yaml"), *(ROOT / "repot" / "init" / "files").glob("compose*.yaml")]
    # compose has tags that a reader of YAML does not know, as `!override`
    blocks = re.findall(r"(?m)^ +ports:\n((?: +[-#].*\n)+)", "".join(path.read_text() for path in files))
    ports = [port for block in blocks for port in re.findall(r'(?m)^ +- "?(.*)', block)]
    assert len(ports) >= len(blocks) > len(files)
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_alert_says_what_to_do() -> None:
    groups = yaml.safe_load((COMPOSE / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len({rule["alert"] for rule in rules})
    for rule in rules:
        assert {"summary", "description", "runbook_url"} == set(rule["annotations"]), rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_the_dashboard_asks_the_source_that_is_provisioned() -> None:
    sources = yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    board = json.loads((COMPOSE / "grafana/dashboards/worker.json").read_text())
    assert {"prometheus"} == {source["uid"] for source in sources}
    assert {"prometheus"} == {target["datasource"]["uid"] for panel in board["panels"] for target in panel["targets"]}
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)), "panels overlap"


@pytest.mark.parametrize("name", ["WORKER_BROKER_URL", "WORKER_RESULT_BACKEND"])
def test_a_secret_that_was_not_filled_in_stops_the_worker(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for each, value in manifests()["Secret worker"]["stringData"].items():
        monkeypatch.setenv(each, value)
    with pytest.raises(ConfigInvalid, match=name):
        load()


@pytest.mark.parametrize("name", [*WORKERS, "Deployment relay", "Deployment beat", "Job rollout"])
def test_the_pod_may_do_little(name: str) -> None:
    (container,) = pod(name)["containers"]
    assert pod(name)["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod(name)["automountServiceAccountToken"]
    assert {"memory"} <= set(container["resources"]["limits"])


def _selected(selector: dict[str, Any]) -> set[str]:
    """Return the values of the label `app` that a selector takes; other labels have none."""
    labels = selector.get("matchLabels", {})
    named = [value for one in selector.get("matchExpressions", []) if one["key"] == "app" for value in one["values"]]
    return {*named, *([labels["app"]] if "app" in labels else [])}


def _peers(rules: list[dict[str, Any]], direction: str, port: int) -> set[str]:
    """Return the Pods, by their label `app`, that the rules of a policy name for a port."""
    return {
        app
        for rule in rules
        if port in [one["port"] for one in rule["ports"]]
        for peer in rule[direction]
        for app in _selected(peer.get("podSelector", {}))
    }


#: The policies of what connects to a broker.
_CLIENTS = ("worker", "relay", "control")


def test_every_pod_has_one_network_policy_for_both_directions() -> None:
    policies = [one["spec"] for name, one in manifests().items() if name.startswith("NetworkPolicy ")]
    selected = [app for one in policies for app in _selected(one["podSelector"])]
    pods = {
        one["spec"]["template"]["metadata"]["labels"]["app"]
        for one in manifests().values()
        if one["kind"] in ("Deployment", "Job")
    }
    assert sorted(selected) == sorted(pods | {"redis", "rabbitmq"})
    for one in policies:
        assert one["policyTypes"] == ["Ingress", "Egress"]
        # an empty list of peers or ports would be all of them
        for rule in (*one["ingress"], *one["egress"]):
            assert rule["ports"]
            assert rule.get("from") or rule.get("to")


@pytest.mark.parametrize(("broker", "port"), [("redis", 6379), ("rabbitmq", 5672), ("rabbitmq", 15672)])
def test_each_pod_may_reach_the_brokers_and_these_let_it_in(broker: str, port: int) -> None:
    policies = {name.partition(" ")[2]: one["spec"] for name, one in manifests().items() if "NetworkPolicy" in name}
    clients = {app for name in _CLIENTS for app in _selected(policies[name]["podSelector"])}
    assert clients == _peers(policies[broker]["ingress"], "from", port)
    for name in _CLIENTS:
        assert {broker} == _peers(policies[name]["egress"], "to", port)


@pytest.mark.parametrize("name", ["worker", "relay"])
def test_what_has_probes_is_open_to_prometheus_alone(name: str) -> None:
    found = manifests()[f"NetworkPolicy {name}"]["spec"]["ingress"]
    (container,) = pod(f"Deployment {name}")["containers"]
    (rule,) = found
    assert [{"port": container["ports"][0]["containerPort"]}] == rule["ports"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@EVERY_WORKER
@pytest.mark.parametrize("probe", _PROBES)
def test_the_page_of_probes_has_the_times_of_the_manifests_and_of_the_chart(name: str, probe: str) -> None:
    (container,) = pod(name)["containers"]
    chart = yaml.safe_load((ROOT / "charts" / "repot" / "values.yaml").read_text())["worker"][probe]
    assert chart == container[probe]
    page = (ROOT / "docs" / "healthcheck.md").read_text()
    row = re.search(rf"(?m)^\| Kubernetes `{probe}` \| `(.*?)` \| (.*) \|$", page)
    assert row
    timing = {key: value for key, value in container[probe].items() if isinstance(value, int)}
    assert timing == {key: int(value) for key, value in re.findall(r"`(\w+): (\d+)`", row[2])}
    asked = " ".join(["exec", *chart["exec"]["command"]]) if "exec" in chart else f"httpGet {chart['httpGet']['path']}"
    assert asked == row[1]


def test_the_relays_probes_are_those_of_the_chart() -> None:
    (container,) = pod("Deployment relay")["containers"]
    chart = yaml.safe_load((ROOT / "charts" / "repot" / "values.yaml").read_text())["relay"]
    assert {name: container[name] for name in _PROBES if name in container} == {
        name: chart[name] for name in _PROBES if name in chart
    }


def test_the_page_s_times_of_alerts_are_those_of_the_rules() -> None:
    page = (ROOT / "docs" / "healthcheck.md").read_text()
    row = re.search(r"(?m)^\| an alert \| (.*) \| \|$", page)
    assert row
    stated = dict(re.findall(r"`(\w+ == 0)` for (\d+)", row[1]))
    groups = yaml.safe_load((COMPOSE / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    held = {text: rule["for"].removesuffix("m") for text in stated for rule in rules if text in rule["expr"]}
    assert len(stated) == 2
    assert held == stated


@EVERY_WORKER
def test_no_probe_of_kubernetes_restarts_a_worker_for_its_broker(name: str) -> None:
    (container,) = pod(name)["containers"]
    assert container["livenessProbe"]["exec"]["command"] == ["repot", "healthcheck", "live"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["startupProbe"]["httpGet"]["path"] == "/startup"
    longest = {one["name"]: one.get("value") for one in container["env"]}["WORKER_VISIBILITY_TIMEOUT"]
    assert int(str(longest)) < pod(name)["terminationGracePeriodSeconds"]


@EVERY_WORKER
def test_the_status_file_has_a_volume_that_tasks_do_not_fill(name: str) -> None:
    (container,) = pod(name)["containers"]
    directory = {one["name"]: one.get("value") for one in container["env"]}["WORKER_STATUS_DIR"]
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volume = mounts[str(Path(directory).parent)]
    assert list(mounts.values()).count(volume) == 1
    assert {"medium": "Memory"}.items() <= {one["name"]: one for one in pod(name)["volumes"]}[volume][
        "emptyDir"
    ].items()


def test_the_sides_of_a_rollout_differ_in_their_side_alone() -> None:
    """And in what the source's workers read only if it is there."""
    source, target = (pod(name) for name in WORKERS)
    side = {"name": "WORKER_ROLLOUT_SIDE", "value": "target"}
    (theirs,) = target["containers"]
    assert side in theirs["env"]
    theirs["env"].remove(side)
    (ours,) = source["containers"]
    assert ours["envFrom"][-1].pop("secretRef") == {"name": "rollout", "optional": True}
    assert theirs["envFrom"][-1].pop("secretRef") == {"name": "rollout"}
    assert source == target


def test_a_rollout_s_secret_that_was_not_filled_in_stops_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for each, value in manifests()["Secret rollout"]["stringData"].items():
        monkeypatch.setenv(each, value)
    with pytest.raises(ConfigInvalid, match="WORKER_ROLLOUT_TARGET"):
        load()


def test_one_controller_leads() -> None:
    found = manifests()["Job rollout"]["spec"]
    assert (found.get("parallelism", 1), found.get("completions", 1)) == (1, 1)
    assert found["template"]["spec"]["restartPolicy"] == "Never"
    # an abort is no failure that another Pod could repair
    (rule,) = found["podFailurePolicy"]["rules"]
    assert ("FailJob", [RolloutAborted.exit_code]) == (rule["action"], rule["onExitCodes"]["values"])


def test_the_manifests_of_a_rollout_are_those_that_init_writes() -> None:
    assert Path("../repot/init/files/kubernetes/rollout.yaml") == (ROOT / "kubernetes/rollout.yaml").readlink()


def test_the_image_restarts_nothing_for_a_broker() -> None:
    """A HEALTHCHECK in an image ends containers on Swarm."""
    check = re.search(r"HEALTHCHECK .*\n\s+CMD (.*)", (ROOT / "Dockerfile").read_text())
    assert check
    assert json.loads(check[1]) == ["repot", "healthcheck", "probe", "--live"]
