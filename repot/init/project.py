"""Files of a folder, written all together or not at all."""

from __future__ import annotations

import os
import secrets
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from repot.errors import FilesExist, FolderUnusable
from repot.init import dotenv

if TYPE_CHECKING:
    from pathlib import Path

_DOTENV = ".env"
_COPIED = ("compose.yaml", "supervisord.conf", "systemd/worker.service")

#: What an ordinary file may be, less the umask, and what one with passwords may.
_OPEN_TO_ALL, _OWNER_ONLY = 0o666, 0o600


class Written(NamedTuple):
    """What `initialize` did: the files, and the variables that `.env` kept from the one before."""

    files: tuple[Path, ...]
    kept: tuple[str, ...]


def initialize(folder: Path, *, broker: str, app: str, force: bool = False) -> Written:
    """Write the starting files for `broker`, one of `BROKERS`, into an existing folder.

    `force` replaces files that are there; `.env` keeps its credentials and the variables that
    ours does not set.

    Raises:
        FolderUnusable: the folder or a file in it cannot be read or written; nothing has changed.
        FilesExist: some files are there already, and not `force`; nothing has changed.
        ConfigInvalid: a credential to keep cannot be used; nothing has changed.
    """
    from importlib.resources import files

    templates = files("repot.init") / "files"
    try:
        _require_folder(folder)
        _require_places(folder)
        if not force:
            _require_absent(folder)
        before = _text_before(folder / _DOTENV)
        made = dotenv.make((templates / "env").read_text(), broker=broker, app=app, before=before)
        contents = {folder / _DOTENV: made.text} | {folder / name: (templates / name).read_text() for name in _COPIED}
        _write_all(contents)
    except OSError as error:
        message = f"the files cannot be written to {folder}: {error.strerror}"
        raise FolderUnusable(message, hint="Name a folder that is yours.") from error
    return Written(tuple(contents), made.kept)


def is_ignored_by_git(folder: Path) -> bool:
    """Whether git leaves the folder's `.env` alone; where git cannot tell, what the folder's `.gitignore` says."""
    question = ["git", "check-ignore", "-q", _DOTENV]
    with suppress(FileNotFoundError):
        asked = subprocess.run(question, cwd=folder, capture_output=True, check=False)  # noqa: S603 - no words of others
        if asked.returncode in (0, 1):
            return asked.returncode == 0
    with suppress(OSError, UnicodeDecodeError):
        return bool({_DOTENV, f"/{_DOTENV}"} & set((folder / ".gitignore").read_text().split()))
    return False


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        message = f"{folder} is not a folder" if folder.exists() else f"the folder {folder} does not exist"
        raise FolderUnusable(message, hint="Make it with mkdir, or name another one.")


def _require_places(folder: Path) -> None:
    """Refuse a folder where a file should be, and the other way round."""
    for name in (_DOTENV, *_COPIED):
        path = folder / name
        if path.is_dir() or (path.parent.exists() and not path.parent.is_dir()):
            wrong, there, wanted = (path, "a", "file") if path.is_dir() else (path.parent, "no", "folder")
            message = f"{wrong} is {there} folder, where a {wanted} should be written"
            raise FolderUnusable(message, hint="Move it away, or name another folder.")


def _require_absent(folder: Path) -> None:
    there = [str(folder / name) for name in (_DOTENV, *_COPIED) if os.path.lexists(folder / name)]
    if there:
        raise FilesExist(
            "nothing was written, because these files are there already:\n" + "\n".join(f"  {path}" for path in there),
            hint="Name another folder, or replace them with --force; "
            "it keeps the credentials in .env, and variables there that repot does not set.",
        )


def _text_before(path: Path) -> str:
    """The text of a file that is about to be replaced; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        message = f"{path} cannot be read, so its credentials would be lost: {reason}"
        raise FolderUnusable(message, hint="Mend it or move it away.") from error


def _write_all(contents: dict[Path, str]) -> None:
    """Write every file beside its place, and put them there only when all are complete."""
    beside = {path: path.with_name(f".{path.name}.{secrets.token_hex(4)}") for path in contents}
    made = []
    try:
        for path in contents:
            if not path.parent.exists():
                path.parent.mkdir()
                made.append(path.parent)
        for path, text in contents.items():
            _write_new(beside[path], text, _OWNER_ONLY if path.name == _DOTENV else _OPEN_TO_ALL)
        for path in contents:
            beside[path].replace(path)
        made.clear()
    finally:
        for left in beside.values():
            with suppress(OSError):
                left.unlink()
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def _write_new(path: Path, text: str, mode: int) -> None:
    """Make a file that has its mode from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
