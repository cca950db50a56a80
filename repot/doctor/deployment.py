"""How a project starts its workers: read from the files that do it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import click
import yaml

from repot.doctor.facts import Deployment, StartCommand
from repot.doctor.rule import Place
from repot.doctor.source import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: Where commands stand, in the project's folder and a few below it.
_FILES = ("Procfile*", "Dockerfile*", "*.service", "*.conf", "*.y*ml", "*.sh")
_FOLDERS = (".", "bin", "compose", "deploy", "docker", "k8s", "kubernetes", "scripts", "supervisor", "systemd")
_LARGEST_BYTES = 256 << 10
_MOST_FILES = 200

#: What stands before a command: `command=`, `ExecStart=`, `web:`, `CMD`.
_PREFIX = re.compile(r"^\s*(?:[\w-]+\s*[:=](?=[\s\[\w/])|CMD|ENTRYPOINT|RUN|-)\s*")
#: The words of a list in a Dockerfile, quoted or not.
_LISTED = re.compile(r"""["']([^"']*)["']|([^\s,\[\]"']+)""")
_COMMENT = re.compile(r"^\s*(#|;|//)")
#: What ends one command of a shell and begins the next.
_BETWEEN = frozenset({"&&", "||", ";", "|", "&"})
#: Keys of compose files and Kubernetes manifests that hold commands.
_COMMAND_KEYS = frozenset({"args", "command", "entrypoint", "test"})


def read_deployment(root: Path, stated: Iterable[str]) -> Deployment:
    """Read the project's start files; `stated` are commands the user names instead of them."""
    found: list[tuple[list[str], Place | None]] = [(_split(text), None) for text in stated]
    workers: list[StartCommand] = []
    pings: list[Place] = []
    readers: list[Place] = []
    beats: list[Place] = []
    for words, place in found or _commands(root):
        for command in _celery_commands(words):
            name, *rest = command
            started = _worker(name, rest, place)
            if started:
                workers.append(started)
            if place and name == "inspect" and "ping" in rest:
                pings.append(place)
            if place and name in ("celery-exporter", "events"):
                readers.append(place)
            if place and (name == "beat" or (started and started.has("beat"))):
                beats.append(place)
    return Deployment(tuple(workers), tuple(pings), tuple(readers), tuple(beats))


def _commands(root: Path) -> Iterator[tuple[list[str], Place]]:
    """The words of what may be a command, in the start files."""
    files = sorted({path for folder in _FOLDERS for pattern in _FILES for path in (root / folder).glob(pattern)})
    for path in files[:_MOST_FILES]:
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        shown = shorten(path, root)
        found = _of_yaml(text) if path.suffix in (".yaml", ".yml") else _of_lines(text)
        yield from ((words, Place(shown, line)) for words, line in found)


def _of_yaml(text: str) -> list[tuple[list[str], int]]:
    """Commands of a compose file or a manifest; line by line where it is no YAML, a template for example."""
    try:
        seen: set[int] = set()
        documents = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node]
        return [found for node in documents for found in _of_node(node, seen)]
    except (yaml.YAMLError, RecursionError):
        return _of_lines(text)


def _of_node(node: yaml.Node, seen: set[int]) -> Iterator[tuple[list[str], int]]:
    """Commands below a node; one that an alias names again counts once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for one in node.value:
            yield from _of_node(one, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    held: list[str] = []
    line = 0
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name not in _COMMAND_KEYS:
            yield from _of_node(value, seen)
            continue
        words = _words_of(value)
        line = line or value.start_mark.line + 1
        # `args` of a container go on where its command ends
        held = held + words if name == "args" else words + held
    if held:
        yield held, line


def _words_of(node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.ScalarNode):
        return _split(str(node.value))
    if isinstance(node, yaml.SequenceNode):
        return [str(one.value) for one in node.value if isinstance(one, yaml.ScalarNode)]
    return []


def _of_lines(text: str) -> list[tuple[list[str], int]]:
    """Logical lines that are no comments, with their first line."""
    found = []
    started, kept = 1, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if _COMMENT.match(line):
            continue
        started = started if kept else number
        kept += line
        if kept.endswith("\\"):
            kept = kept[:-1] + " "
            continue
        found.append((_split(kept), started))
        kept = ""
    return found


def _split(text: str) -> list[str]:
    plain = _PREFIX.sub("", text)
    if plain.lstrip().startswith("["):
        return [quoted or bare for quoted, bare in _LISTED.findall(plain)]
    try:
        return shlex.split(plain, comments=True)
    except ValueError:
        return plain.split()


def _celery_commands(words: list[str]) -> Iterator[list[str]]:
    """Each command of Celery's among the words, from its name on: `worker ...`, `inspect ping`."""
    begun: list[str] | None = None
    for word in [*words, ";"]:
        if " " in word and "celery" in word:
            # what a shell is given to run
            yield from _celery_commands(_split(word))
        elif word in _BETWEEN:
            yield from _subcommand(begun)
            begun = None
        elif begun is not None:
            begun.append(word)
        elif word.rpartition("/")[2] == "celery":
            begun = []
        elif word.rpartition("/")[2] == "celery-exporter":
            yield ["celery-exporter"]


def _subcommand(words: list[str] | None) -> Iterator[list[str]]:
    """What follows Celery's own options, read by its own parser."""
    if not words:
        return
    # not above: it takes longer to import than all else here
    from celery.bin.celery import celery

    try:
        rest = _parse(celery, words)[1]
    except click.UsageError:
        return
    if rest:
        yield [str(word) for word in rest]


def _worker(name: str, words: list[str], place: Place | None) -> StartCommand | None:
    """The options of a worker's command, read by Celery's own parser."""
    if name == "multi" and words[:1] in (["start"], ["restart"]):
        words = words[1:]
    elif name != "worker":
        return None
    from celery.bin.worker import worker

    try:
        options = _parse(worker, words)[0]
    except click.UsageError:
        return None
    return StartCommand(shlex.join(["celery", name, *words]), options, place)


def _parse(command: click.Command, words: list[str]) -> tuple[dict[str, Any], list[str]]:
    context = click.Context(command, info_name=command.name, resilient_parsing=True)
    context.ignore_unknown_options = True
    # of the group, options end where the name of a command begins
    context.allow_interspersed_args = not isinstance(command, click.Group)
    options, rest, _ = command.make_parser(context).parse_args(list(words))
    return dict(options), rest
