"""The chart and the manifests on a real API server: helm installs, upgrades and removes; no Pod runs."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import yaml

from repot.config import inherited_environment
from repot.testbed import LOOPBACK, ReapedProcess, free_port
from repot.waiting import wait_until
from support.charts import CHART, TOOLS, helm, tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TOKEN = "admin"
_NAMESPACE = "shop"


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server, and the directory with helm's view of it."""

    url: str
    directory: Path

    def get(self, path: str) -> Any:
        """Ask for something."""
        request = Request(self.url + path, headers={"Authorization": f"Bearer {_TOKEN}"})  # noqa: S310 - its own address
        # its certificate is made at its start
        context = ssl._create_unverified_context()  # noqa: S323
        with urlopen(request, timeout=10, context=context) as answer:  # noqa: S310 - the same
            text = answer.read().decode()
        return text if path == "/readyz" else json.loads(text)

    def names(self, group: str, kind: str) -> list[str]:
        """Return the names of the objects of a kind."""
        found = self.get(f"/apis/{group}/namespaces/{_NAMESPACE}/{kind}")["items"]
        return sorted(one["metadata"]["name"] for one in found)

    def helm(self, *arguments: str, values: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run helm against it."""
        config = str(self.directory / "config")
        return helm(*arguments, "--namespace", _NAMESPACE, "--kubeconfig", config, values=values)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the definitions of KEDA and of the Prometheus operator; tests use releases of their own."""
    if not shutil.which("kube-apiserver", path=str(TOOLS)):
        # it builds for the better part of an hour on two processors
        pytest.skip("kube-apiserver is not in .tools: scripts/setup api-server builds it")
    directory = tmp_path_factory.mktemp("cluster")
    with _api_server(directory) as found:
        _install_definitions(found)
        yield found


@contextmanager
def _api_server(directory: Path) -> Iterator[ApiServer]:
    client, peer, port = (free_port() for _ in range(3))
    etcd = [
        tool("etcd"),
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls=http://{LOOPBACK}:{client}",
        f"--advertise-client-urls=http://{LOOPBACK}:{client}",
        f"--listen-peer-urls=http://{LOOPBACK}:{peer}",
        f"--initial-advertise-peer-urls=http://{LOOPBACK}:{peer}",
        f"--initial-cluster=default=http://{LOOPBACK}:{peer}",
    ]
    subprocess.run(["openssl", "genrsa", "-out", directory / "key", "2048"], check=True, capture_output=True)
    (directory / "tokens").write_text(f"{_TOKEN},admin,admin,system:masters\n")
    server = [
        tool("kube-apiserver"),
        f"--etcd-servers=http://{LOOPBACK}:{client}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--cert-dir={directory / 'certificates'}",
        f"--service-account-key-file={directory / 'key'}",
        f"--service-account-signing-key-file={directory / 'key'}",
        "--service-account-issuer=https://127.0.0.1",
        f"--token-auth-file={directory / 'tokens'}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        # what makes the accounts of Pods does not run
        "--disable-admission-plugins=ServiceAccount",
    ]
    environment = inherited_environment(without=())
    found = ApiServer(f"https://{LOOPBACK}:{port}", directory)
    with (
        ReapedProcess(etcd, log=directory / "etcd.log", environment=environment),
        ReapedProcess(server, log=directory / "server.log", environment=environment) as process,
    ):
        try:
            wait_until(lambda: _is_ready(found), within_s=120, what="the API server is ready", poll_s=0.5)
        except Exception as error:
            error.add_note(process.log_tail(20))
            raise
        yield found


def _is_ready(server: ApiServer) -> bool:
    try:
        return bool(server.get("/readyz") == "ok")
    except (URLError, OSError):
        return False


def _install_definitions(server: ApiServer) -> None:
    """Write helm's configuration, and install the custom resources as a chart of their own."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": server.url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "it", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }
    (server.directory / "config").write_text(yaml.safe_dump(config))
    chart = server.directory / "definitions"
    shutil.copytree(TOOLS / "crds", chart / "crds", ignore=shutil.ignore_patterns(".*"))
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: definitions\nversion: 0.1.0\n")
    server.helm("install", "definitions", str(chart), "--create-namespace")


def test_it_takes_all_that_the_chart_can_write_and_an_upgrade_replaces_the_controller(cluster: ApiServer) -> None:
    values = CHART / "ci" / "everything-values.yaml"
    said = cluster.helm("install", "everything", str(CHART), values=values).stdout
    assert "repot rollout status friday" in said
    assert cluster.names("apps/v1", "deployments") == ["worker", "worker-beat", "worker-relay", "worker-target"]
    assert cluster.names("monitoring.coreos.com/v1", "servicemonitors") == ["worker", "worker-relay", "worker-target"]
    assert cluster.names("keda.sh/v1alpha1", "scaledobjects") == ["worker"]
    (before,) = cluster.names("batch/v1", "jobs")
    changed = ("--set-string", r"rollout.controller.steps=50\,100")
    cluster.helm("upgrade", "everything", str(CHART), *changed, values=values)
    (after,) = cluster.names("batch/v1", "jobs")
    assert before != after
    cluster.helm("upgrade", "everything", str(CHART), "--set", "rollout.enabled=false", values=values)
    assert cluster.names("batch/v1", "jobs") == []
    assert cluster.names("apps/v1", "deployments") == ["worker", "worker-relay"]
    cluster.helm("uninstall", "everything")
    assert cluster.names("apps/v1", "deployments") == []
