"""Find a project's own modules and tasks."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

#: Directories of installed code; its tasks and modules are not the project's.
_LIBRARIES = tuple(
    {f"{path}/" for path in (*sysconfig.get_paths().values(), *sys.path) if path.endswith("-packages")}
    | {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")}
)
#: Names of directories that hold installed code.
_INSTALLED_DIRS = frozenset({"site-packages", "dist-packages", ".venv", "venv", "node_modules"})
#: Names of directories without code of the deployed project.
_SKIPPED_DIRS = frozenset(
    {
        "__pycache__",
        "benchmarks",
        "build",
        "dist",
        "migrations",
        "node_modules",
        "site-packages",
        "test",
        "tests",
        "venv",
    }
)
_MAX_FILES = 3000


def own_tasks(app: Celery) -> tuple[list[Any], tuple[str, ...]]:
    """Return the application's own tasks, and the names of tasks of installed libraries."""
    own = {str(app.main or "").partition(".")[0], str(getattr(app, "__module__", "")).partition(".")[0]}
    judged, library = [], []
    # Celery stores shared tasks in a set, so their order differs between runs
    for _, task in sorted(app.tasks.items()):
        if str(task.name).startswith("celery."):
            continue
        module = str(type(task).__module__)
        file = vars(sys.modules[module]).get("__file__") or "" if module in sys.modules else ""
        if str(file).startswith(_LIBRARIES) and module.partition(".")[0] not in own:
            library.append(str(task.name))
        else:
            judged.append(task)
    return judged, tuple(library)


def loaded_modules(app: Celery, tasks: Iterable[Any], root: Path) -> list[ModuleType]:
    """Return the project's loaded modules and those of its tasks."""
    named = {str(app.main or "")} | {type(task).__module__ for task in tasks}
    # compared as texts: a thousand modules are loaded, and each disk access is slow
    ours = tuple(f"{str(one).rstrip('/')}/" for one in (root, root.resolve()))
    found = []
    for name, module in list(sys.modules.items()):
        # not as an attribute: a module may have a __getattr__ of its own
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str):
            continue
        if name in named or (file.startswith(ours) and not _is_installed(file) and name.partition(".")[0] != "repot"):
            found.append(module)
    return found


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to a library; a virtual environment may be inside the project's directory."""
    return file.startswith(_LIBRARIES) or not _INSTALLED_DIRS.isdisjoint(file.split("/"))


def other_modules(root: Path, loaded: set[Path]) -> tuple[list[Path], bool]:
    """Return the project's other modules, such as views that send tasks, and whether the list is complete."""
    found: list[Path] = []
    for directory, directories, files in os.walk(root):
        inner = Path(directory)
        directories[:] = [one for one in directories if one not in _SKIPPED_DIRS and not one.startswith(".")]
        directories[:] = [one for one in directories if not (inner / one / "pyvenv.cfg").exists()]
        for name in files:
            path = inner / name
            # a link may be broken or circular, and a pipe is not a file
            if path.suffix != ".py" or name.startswith((".", "test_", "conftest")) or not os.path.isfile(path):  # noqa: PTH113
                continue
            if path.resolve() in loaded:
                continue
            if len(found) == _MAX_FILES:
                return found, False
            found.append(path)
    return found, True
