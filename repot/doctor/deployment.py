"""How a project starts its workers: read from the files that do it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import click
from celery.bin.worker import worker as worker_command

from repot.doctor.facts import Deployment, StartCommand
from repot.doctor.rule import Place
from repot.doctor.source import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: Where commands stand, in the project's folder and a few below it.
_FILES = (
    "Procfile*",
    "Dockerfile*",
    "*.service",
    "supervisord*.conf",
    "*.y*ml",
    "*.sh",
)
_FOLDERS = (
    ".",
    "compose",
    "deploy",
    "deployment",
    "docker",
    "k8s",
    "kubernetes",
    "systemd",
    "supervisor",
    "scripts",
    "bin",
)
_LARGEST_BYTES = 256 << 10
_MOST_FILES = 200

#: What stands before a command: `command=`, `ExecStart=`, `- `, `web:`, `CMD`.
_PREFIX = re.compile(r"^\s*(?:[\w-]+\s*[:=](?=[\s\[\w/])|CMD|ENTRYPOINT|-)\s*")
#: What a list of words in YAML or a Dockerfile has between and around them.
_LIST = re.compile(r"[\[\],]+")
_COMMENT = re.compile(r"^\s*(#|;|//)")


def read_deployment(root: Path, stated: Iterable[str]) -> Deployment:
    """Read the project's start files; `stated` are commands the user names instead of them."""
    commands: list[tuple[str, Place | None]] = [(text, None) for text in stated]
    commands = commands or [*_lines(root)]
    workers: list[StartCommand] = []
    pings: list[Place] = []
    readers: list[Place] = []
    beats: list[Place] = []
    for text, place in commands:
        words = _words(text)
        if not _mentions_celery(words):
            continue
        started = _worker(text, words, place)
        if started:
            workers.append(started)
        if place and _says(words, "inspect", "ping"):
            pings.append(place)
        if place and {"flower", "celery-exporter", "events"} & set(words):
            readers.append(place)
        if place and ("beat" in words or (started and started.has("beat"))):
            beats.append(place)
    return Deployment(tuple(workers), tuple(pings), tuple(readers), tuple(beats))


def _lines(root: Path) -> Iterator[tuple[str, Place]]:
    """Logical lines of the start files that are no comments."""
    files = sorted({path for folder in _FOLDERS for pattern in _FILES for path in (root / folder).glob(pattern)})
    for path in files[:_MOST_FILES]:
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        shown = shorten(path, root)
        started, kept = 1, ""
        for number, line in enumerate(text.splitlines(), start=1):
            if _COMMENT.match(line):
                continue
            started = started if kept else number
            kept += line
            if kept.endswith("\\"):
                kept = kept[:-1] + " "
                continue
            yield kept, Place(shown, started)
            kept = ""


def _words(text: str) -> list[str]:
    plain = _PREFIX.sub("", text)
    if plain.lstrip().startswith("["):
        plain = _LIST.sub(" ", plain)
    try:
        words = shlex.split(plain, comments=True)
    except ValueError:
        return plain.split()
    # a whole command may be one word: for sh -c, or as a text of YAML
    return [part for word in words for part in word.split()]


def _mentions_celery(words: list[str]) -> bool:
    return any(word.rpartition("/")[2] in ("celery", "celery-exporter") for word in words) or "flower" in words


def _says(words: list[str], *phrase: str) -> bool:
    return any(tuple(words[place : place + len(phrase)]) == phrase for place in range(len(words)))


def _worker(text: str, words: list[str], place: Place | None) -> StartCommand | None:
    """The options of a worker's command, read by Celery's own parser."""
    if "worker" not in words:
        return None
    context = click.Context(worker_command, info_name="worker", resilient_parsing=True)
    context.obj = None
    context.ignore_unknown_options = True
    try:
        options: dict[str, Any] = dict(
            worker_command.make_parser(context).parse_args(words[words.index("worker") + 1 :])[0]
        )
    except click.UsageError:
        return None
    return StartCommand(text.strip(), options, place)
