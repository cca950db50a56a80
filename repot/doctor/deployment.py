"""Read a project's start files: the commands of its workers, beat, probes and monitors."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import yaml

from repot.doctor.facts import Deployment, StartCommand
from repot.doctor.rule import Location
from repot.upstream.collector import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

#: Files with commands, in the project's directory and some below it.
_FILES = ("Procfile*", "Dockerfile*", "*.service", "*.conf", "*.y*ml", "*.sh")
_DIRS = (
    *(".", "bin", "compose", "deploy", "docker", "docker/entrypoints", "entrypoints", "k8s", "kubernetes", "scripts"),
    *("supervisor", "systemd"),
)
_MAX_BYTES = 256 << 10
_MAX_FILES = 200
#: Workers of one `celery multi` that have options of their own.
_MAX_NODES = 1000

#: Prefixes of a command: `command=`, `ExecStart=`, `web:`, `CMD`.
_PREFIX = re.compile(r"^\s*(?:[\w-]+\s*[:=](?=[\s\[\w/])|CMD|ENTRYPOINT|RUN|-)\s*")
#: Items of a list in a Dockerfile, quoted or not.
_LISTED = re.compile(r"""["']([^"']*)["']|([^\s,\[\]"']+)""")
_COMMENT = re.compile(r"^\s*(#|;|//)")
#: An assignment of a shell script, and where a variable is used; what single quotes hold is no variable.
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)$")
_VARIABLE = re.compile(r"'[^']*'|\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\})")
#: Shell operators between two commands.
_BETWEEN = frozenset({"&&", "||", ";", "|", "&"})
#: Keys of compose files and Kubernetes manifests that hold commands.
_COMMAND_KEYS = frozenset({"args", "command", "entrypoint", "test"})


def read_deployment(root: Path, stated: Iterable[str]) -> Deployment:
    """Read the project's start files; the commands in `stated` replace them."""
    found: list[tuple[list[str], Location | None]] = [(_split(text), None) for text in stated]
    workers: list[StartCommand] = []
    pings: list[Location] = []
    readers: list[Location] = []
    beats: list[Location] = []
    schedulers: list[str] = []
    for words, location in found or _commands(root):
        for command in _celery_commands(words):
            name, *rest = command
            started = _workers(name, rest, location)
            workers += started
            if location and name == "inspect" and "ping" in rest:
                pings.append(location)
            if location and name in ("celery-exporter", "events"):
                readers.append(location)
            if location and (name == "beat" or any(one.has("beat") for one in started)):
                beats.append(location)
            schedulers += _schedulers(name, rest, started)
    return Deployment(tuple(workers), tuple(pings), tuple(readers), tuple(beats), tuple(schedulers))


def _schedulers(name: str, words: list[str], started: list[StartCommand]) -> list[str]:
    """Return the classes of the schedules that a command names, if it runs beat."""
    options = [_beat(words)] if name == "beat" else [one.options for one in started if one.has("beat")]
    return [str(one["scheduler"]) for one in options if one.get("scheduler")]


def _beat(words: list[str]) -> dict[str, Any]:
    """Return the options of beat, read by Celery's parser; none if it cannot read them."""
    from celery.bin.beat import beat

    try:
        return _parse(beat, words)[0]
    except click.UsageError:
        return {}


def _commands(root: Path) -> Iterator[tuple[list[str], Location]]:
    """Yield possible commands in the start files, as words with their location."""
    files = sorted({path for directory in _DIRS for pattern in _FILES for path in (root / directory).glob(pattern)})
    for path in files[:_MAX_FILES]:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            continue
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        if path.suffix == ".sh":
            text = _with_variables(text)
        name = shorten(path, root)
        found = _yaml_commands(text) if path.suffix in (".yaml", ".yml") else _line_commands(text)
        yield from ((words, Location(name, line)) for words, line in found)


def _with_variables(text: str) -> str:
    """Return a shell script with the values of variables that it sets before, line by line; others stay as they are."""
    known: dict[str, str] = {}
    lines = []
    for line in text.splitlines():
        expanded = _VARIABLE.sub(lambda found: _value_of(found, known), line)
        lines.append(expanded)
        if assigned := _ASSIGNMENT.match(expanded):
            value = _split_or_nothing(assigned[2])
            # more words are a command, which this variable is for
            if len(value) == 1:
                known[assigned[1]] = value[0]
    return "\n".join(lines)


def _value_of(match: re.Match[str], known: Mapping[str, str]) -> str:
    return known.get(match["name"] or match["braced"] or "", match[0])


def _split_or_nothing(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []


def _yaml_commands(text: str) -> list[tuple[list[str], int]]:
    """Return the commands of a compose file or a manifest; read other text, such as a template, line by line."""
    try:
        seen: set[int] = set()
        documents = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node]
        return [found for node in documents for found in _node_commands(node, seen)]
    except (yaml.YAMLError, RecursionError):
        return _line_commands(text)


def _node_commands(node: yaml.Node, seen: set[int]) -> Iterator[tuple[list[str], int]]:
    """Yield the commands below a node; a node that an alias repeats counts once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for one in node.value:
            yield from _node_commands(one, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    command: list[str] = []
    line = 0
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name not in _COMMAND_KEYS:
            yield from _node_commands(value, seen)
            continue
        words = _words_of(value)
        line = line or value.start_mark.line + 1
        # a container's `args` follow its command
        command = command + words if name == "args" else words + command
    if command:
        yield command, line


def _words_of(node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.ScalarNode):
        return _split(str(node.value))
    if isinstance(node, yaml.SequenceNode):
        return [str(one.value) for one in node.value if isinstance(one, yaml.ScalarNode)]
    return []


def _line_commands(text: str) -> list[tuple[list[str], int]]:
    """Return logical lines without comments, as words with the number of their first line."""
    found = []
    first, logical = 1, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if _COMMENT.match(line):
            continue
        first = first if logical else number
        logical += line
        if logical.endswith("\\"):
            logical = logical[:-1] + " "
            continue
        found.append((_split(logical), first))
        logical = ""
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
    """Yield each Celery command among the words, from its name on: `worker ...`, `inspect ping`."""
    current: list[str] | None = None
    for word in [*words, ";"]:
        if " " in word and "celery" in word:
            # an argument of `sh -c`
            yield from _celery_commands(_split(word))
        elif word in _BETWEEN:
            yield from _subcommand(current)
            current = None
        elif current is not None:
            current.append(word)
        elif word.rpartition("/")[2] == "celery":
            current = []
        elif word.rpartition("/")[2] == "celery-exporter":
            yield ["celery-exporter"]


def _subcommand(words: list[str] | None) -> Iterator[list[str]]:
    """Yield the words after Celery's global options; Celery's parser splits them."""
    if not words:
        return
    # imported here: it takes longer than all other imports together
    from celery.bin.celery import celery

    try:
        rest = _parse(celery, words)[1]
    except click.UsageError:
        return
    if rest:
        yield [str(word) for word in rest]


def _workers(name: str, words: list[str], location: Location | None) -> list[StartCommand]:
    """Return the workers that a command starts with their options, read by Celery's parser; none by another command."""
    if name == "multi" and words[:1] in (["start"], ["restart"]):
        commands = _nodes(words[1:])
    elif name == "worker":
        commands = [words]
    else:
        return []
    from celery.bin.worker import worker

    found = []
    for command in commands:
        with suppress(click.UsageError):
            found.append(StartCommand(shlex.join(["celery", name, *command]), _parse(worker, command)[0], location))
    return found


def _nodes(words: list[str]) -> list[list[str]]:
    """Return the options of the workers of `celery multi`: `-Q:2 mail` is of the second one alone."""
    from celery.apps.multi import NamespacedOptionParser

    parsed: Any = NamespacedOptionParser(words)
    parsed.parse()
    if not parsed.namespaces:
        return [words]
    # one number says how many workers there are, by numbers; else each has a name
    names = [*parsed.values]
    if len(names) == 1 and names[0].isdecimal():
        names = [str(number + 1) for number in range(min(int(names[0]), _MAX_NODES))]
    selected = {one: list(_selected(one, names)) for one in parsed.namespaces}
    others = set(names).difference(*selected.values())
    options = [parsed.optmerge(one) for one in selected] + ([parsed.options] if others else [])
    return [[word for name, value in one.items() for word in _option(name, value)] for one in options]


def _selected(selector: str, names: list[str]) -> Iterator[str]:
    """Yield the workers that a selector of `celery multi` names: `2`, `1-3`, `1,3`, or their names."""
    for part in selector.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            yield from names[max(int(first) - 1, 0) : int(last or first)]
        else:
            yield part


def _option(name: str, value: str | None) -> list[str]:
    if value is None:
        return [name]
    return [f"{name}={value}"] if name.startswith("--") else [name, value]


def _parse(command: click.Command, words: list[str]) -> tuple[dict[str, Any], list[str]]:
    context = click.Context(command, info_name=command.name, resilient_parsing=True)
    context.ignore_unknown_options = True
    # global options end at the name of the command
    context.allow_interspersed_args = not isinstance(command, click.Group)
    options, rest, _ = command.make_parser(context).parse_args(list(words))
    return dict(options), rest
