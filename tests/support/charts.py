"""The chart rendered by helm, and kubeconform with the schemas of Kubernetes and of the custom resources."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from repot.config import inherited_environment
from support.installed import absent

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "repot"
TOOLS = ROOT / ".tools"
#: Of Kubernetes' API, as the package kubernetes-validate of requirements-kubernetes.txt has it.
KUBERNETES = "1.37.0"

_SCHEMAS = TOOLS / "kubernetes" / "kubernetes_validate" / "kubernetes-json-schema"


def tool(name: str) -> str:
    """Return the path of a program that `scripts/setup kubernetes` installs; skip, or in CI fail, without it."""
    found = shutil.which(name, path=f"{TOOLS}:{inherited_environment(without=()).get('PATH', '')}")
    return found or absent(f"{name} is missing: scripts/setup kubernetes installs it")


def helm(
    *arguments: str, values: Path | None = None, stdin: str = "", check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run helm; `stdin` are values as well, over those of the file."""
    given = [*(["--values", str(values)] if values else []), *(["--values", "-"] if stdin else [])]
    command = [tool("helm"), *arguments, *given]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=check)


def rendered(values: Path | None = None, **more: Any) -> list[dict[str, Any]]:
    """Return the objects of the chart, for a release `worker` in the namespace `shop`."""
    asked = ("template", "worker", str(CHART), "--namespace", "shop", "--kube-version", KUBERNETES)
    text = helm(*asked, values=values, stdin=yaml.safe_dump(more)).stdout
    return [one for one in yaml.safe_load_all(text) if one]


@dataclass(frozen=True, slots=True)
class Conformity:
    """What kubeconform says: how many objects are valid, and what is wrong with the others."""

    valid: int
    problems: list[str]


def conformity(objects: list[dict[str, Any]], directory: Path) -> Conformity:
    """Compare objects with their schemas, in which no unknown field is allowed; `directory` is for files."""
    if not (TOOLS / "crds").is_dir() or not _SCHEMAS.is_dir():
        absent("the schemas are missing: scripts/setup kubernetes installs them")
    schemas = directory / "schemas"
    schemas.mkdir()
    _write_api_schemas(objects, schemas)
    _write_custom_schemas(schemas)
    location = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    options = ["-strict", "-output", "json", "-summary", "-schema-location", location]
    command = [tool("kubeconform"), *options]
    text = yaml.safe_dump_all(objects)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    problems = [f"{one['kind']} {one['name']}: {one['msg']}" for one in said["resources"] or []]
    return Conformity(said["summary"]["valid"], problems)


def _write_api_schemas(objects: list[dict[str, Any]], directory: Path) -> None:
    """Write those of the API that objects need, with references that a reader of files can follow."""
    source = _SCHEMAS / f"v{KUBERNETES}-local-strict"
    names = {_schema_name(one["kind"], *one["apiVersion"].split("/")) for one in objects}
    for name in ("_definitions.json", *names):
        if (source / name).is_file():
            schema = json.loads((source / name).read_text().replace('"/api/_definitions', '"_definitions'))
            # an address of the network, to which references would be relative
            del schema["$id"]
            (directory / name).write_text(json.dumps(schema))


def _write_custom_schemas(directory: Path) -> None:
    """Write the schema of each version of each custom resource."""
    for path in (TOOLS / "crds").glob("*.yaml"):
        definition = yaml.safe_load(path.read_text())["spec"]
        for version in definition["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            name = _schema_name(definition["names"]["kind"], definition["group"], version["name"])
            (directory / name).write_text(json.dumps(schema))


def _schema_name(kind: str, *group_and_version: str) -> str:
    """Return the name by which kubeconform asks: with the first word of the group, if there is a group."""
    parts = (one.partition(".")[0] for one in group_and_version)
    return f"{'-'.join((kind, *parts)).lower()}.json"


def _strict(schema: Any) -> Any:
    """Refuse fields that a schema does not name, as an API server prunes them."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _strict(value) for name, value in schema.items()}
    if (
        isinstance(schema.get("properties"), dict)
        and schema.get("type") == "object"
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        found.setdefault("additionalProperties", False)
    if found.pop("x-kubernetes-int-or-string", False):
        found.pop("type", None)
    return found
