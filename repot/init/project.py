"""Write the starting files into a directory, all of them or none."""

from __future__ import annotations

import os
import secrets
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from repot.errors import DirectoryUnusable, FileUnusable
from repot.init import dotenv
from repot.init import rollout as overlay

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_DOTENV = ".env"
_COMPOSE = "compose.yaml"
_COPIED = (_COMPOSE, "supervisord.conf", "systemd/worker.service")

#: The previous `.env`, if a variable of it was replaced.
PREVIOUS = ".env.previous"

#: Docker Compose reads `compose.yaml` in place of these, and adds an override file to it.
_OTHER_COMPOSE = ("compose.yml", "docker-compose.yaml", "docker-compose.yml", "*compose.override.y*ml")

#: Modes of an ordinary file (the umask applies) and of a file with passwords.
_OPEN_TO_ALL, _OWNER_ONLY = 0o666, 0o600


class Written(NamedTuple):
    """The result of `initialize`: the files, and the variables of the previous `.env` that it kept and replaced."""

    files: tuple[Path, ...]
    kept: tuple[str, ...]
    replaced: tuple[str, ...]


def is_addition(directory: Path, rollout: str) -> bool:
    """Return whether the files of a rollout are written beside a `.env` that is there."""
    try:
        return bool(rollout and (directory / _DOTENV).stat().st_size)
    except OSError:
        return False


def initialize(directory: Path, *, broker: str, app: str, force: bool = False, rollout: str = "") -> Written:
    """Write the starting files for `broker`, one of `BROKERS`, into an existing directory.

    `force` replaces existing files; `.env` keeps its credentials and the variables that repot does not set, and its
    text is kept beside it if a variable changes.
    With the name of a rollout, write its files as well; beside an existing `.env` these alone.

    Raises:
        DirectoryUnusable: the directory or a file in it cannot be read or written; no file has changed.
        FileUnusable: some files exist and `force` is off, or Docker Compose reads another one; no file has changed.
        ConfigInvalid: a credential to keep cannot be used; no file has changed.
    """
    from importlib.resources import files

    templates = files("repot.init") / "files"
    try:
        _require_directory(directory)
        before = _text_before(directory / _DOTENV)
        is_added = is_addition(directory, rollout)
        names: tuple[str, ...] = () if is_added else (_DOTENV, *_COPIED)
        if rollout:
            names += (overlay.DOTENV, *overlay.COPIED, overlay.MANIFESTS)
        _require_places(directory, names)
        _require_no_other_project(directory, names)
        if not force:
            _require_absent(directory, names)
        if is_added:
            made = dotenv.Dotenv(before, ())
        else:
            made = dotenv.make((templates / "env").read_text(), broker=broker, app=app, before=before)
        generated = {_DOTENV: made.text}
        if rollout:
            template, example = ((templates / file).read_text() for file in ("env.rollout", overlay.MANIFESTS))
            generated[overlay.DOTENV] = overlay.make(template, name=rollout, dotenv=made.text)
            generated[overlay.MANIFESTS] = overlay.make_manifests(example, name=rollout, dotenv=made.text)
        contents = {directory / name: generated.get(name) or (templates / name).read_text() for name in names}
        _write_all(contents | ({directory / PREVIOUS: before} if made.replaced else {}))
    except OSError as error:
        message = f"the files cannot be written to {directory}: {error.strerror}"
        raise DirectoryUnusable(message, hint="Name a directory that you can write to.") from error
    return Written(tuple(contents), made.kept, made.replaced)


def is_ignored_by_git(directory: Path, name: str = _DOTENV) -> bool:
    """Return whether git ignores a file of the directory; without git, read the directory's `.gitignore`."""
    question = ["git", "check-ignore", "-q", name]
    with suppress(FileNotFoundError):
        answer = subprocess.run(question, cwd=directory, capture_output=True, check=False)  # noqa: S603 - fixed arguments
        if answer.returncode in (0, 1):
            return answer.returncode == 0
    with suppress(OSError, UnicodeDecodeError):
        return bool({name, f"/{name}"} & set((directory / ".gitignore").read_text().split()))
    return False


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        message = (
            f"{directory} is not a directory" if directory.exists() else f"the directory {directory} does not exist"
        )
        raise DirectoryUnusable(message, hint="Create it with mkdir, or name another one.")


def _require_places(directory: Path, names: Iterable[str]) -> None:
    """Raise an error for a directory in the place of a file, and for a file in the place of a directory."""
    for name in names:
        path = directory / name
        if path.is_dir() or (path.parent.exists() and not path.parent.is_dir()):
            wrong, found, expected = (path, "a", "file") if path.is_dir() else (path.parent, "not a", "directory")
            message = f"{wrong} is {found} directory; repot needs a {expected} there"
            raise DirectoryUnusable(message, hint="Move it away, or name another directory.")


def _require_absent(directory: Path, names: Iterable[str]) -> None:
    existing = [str(directory / name) for name in names if os.path.lexists(directory / name)]
    if existing:
        raise FileUnusable(
            "no file was written, because these files exist:\n" + "\n".join(f"  {path}" for path in existing),
            hint="Name another directory, or replace them with --force; "
            f"it keeps the credentials in {_DOTENV} and the variables that repot does not set.",
        )


def _require_no_other_project(directory: Path, names: Iterable[str]) -> None:
    """Raise an error if `compose.yaml` would replace the project that Docker Compose reads here."""
    if _COMPOSE not in names or (directory / _COMPOSE).exists():
        return
    others = sorted({path.name for pattern in _OTHER_COMPOSE for path in directory.glob(pattern)})
    if others:
        message = f"no file was written, because {directory} has a project of Docker Compose: {', '.join(others)}"
        hint = f"Docker Compose would read {_COMPOSE} in its place or with it. Name another directory."
        raise FileUnusable(message, hint=hint)


def _text_before(path: Path) -> str:
    """Return the text of a file that will be replaced; empty for a missing file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        message = f"{path} cannot be read, so its credentials would be lost: {reason}"
        raise DirectoryUnusable(message, hint="Fix it or move it away.") from error


def _write_all(contents: dict[Path, str]) -> None:
    """Write every file under a temporary name beside its own; rename them when all are complete."""
    temporary = {path: path.with_name(f".{path.name}.{secrets.token_hex(4)}") for path in contents}
    made = []
    try:
        for path in contents:
            if not path.parent.exists():
                path.parent.mkdir()
                made.append(path.parent)
        for path, text in contents.items():
            is_secret = path.name in (_DOTENV, PREVIOUS, overlay.DOTENV)
            _write_new(temporary[path], text, _OWNER_ONLY if is_secret else _OPEN_TO_ALL)
        for path in contents:
            temporary[path].replace(path)
        made.clear()
    finally:
        for left in temporary.values():
            with suppress(OSError):
                left.unlink()
        for directory in made:
            with suppress(OSError):
                directory.rmdir()


def _write_new(path: Path, text: str, mode: int) -> None:
    """Create a file with its mode from the start."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
