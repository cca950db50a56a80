"""Which modules are the project's own."""

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

#: Where installed code is; its tasks and modules are not the project's.
_LIBRARIES = tuple(
    {f"{path}/" for path in (*sysconfig.get_paths().values(), *sys.path) if path.endswith("-packages")}
    | {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")}
)
#: Folders in which code is installed, wherever they are.
_INSTALLED = frozenset({"site-packages", "dist-packages", ".venv", "venv", "node_modules"})
#: Folders that hold no code which runs beside the worker.
_PASSED_OVER = frozenset(
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
_MOST_FILES = 3000


def own_tasks(app: Celery) -> tuple[list[Any], tuple[str, ...]]:
    """The application's tasks, and the names of those that installed libraries bring."""
    own = {str(app.main or "").partition(".")[0], str(getattr(app, "__module__", "")).partition(".")[0]}
    judged, foreign = [], []
    # Celery keeps shared tasks in a set: without an order of ours, each run has another one
    for _, task in sorted(app.tasks.items()):
        if str(task.name).startswith("celery."):
            continue
        module = str(type(task).__module__)
        file = vars(sys.modules[module]).get("__file__") or "" if module in sys.modules else ""
        if str(file).startswith(_LIBRARIES) and module.partition(".")[0] not in own:
            foreign.append(str(task.name))
        else:
            judged.append(task)
    return judged, tuple(foreign)


def loaded_modules(app: Celery, tasks: Iterable[Any], root: Path) -> list[ModuleType]:
    """The project's loaded modules, and those of the tasks wherever they are."""
    named = {str(app.main or "")} | {type(task).__module__ for task in tasks}
    # as texts: a thousand modules are loaded, and each look at the disk is slow
    ours = tuple(f"{str(one).rstrip('/')}/" for one in (root, root.resolve()))
    found = []
    for name, module in list(sys.modules.items()):
        # not as an attribute: a module may have a __getattr__ of its own
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str):
            continue
        # an environment may be in the project's folder, or the project's folder above all of them
        installed = file.startswith(_LIBRARIES) or not _INSTALLED.isdisjoint(file.split("/"))
        of_project = file.startswith(ours) and not installed and name.partition(".")[0] != "repot"
        if name in named or of_project:
            found.append(module)
    return found


def other_modules(root: Path, loaded: set[Path]) -> tuple[list[Path], bool]:
    """The project's other modules, views that send tasks for example, and whether these are all."""
    found: list[Path] = []
    for folder, folders, files in os.walk(root):
        inner = Path(folder)
        folders[:] = [one for one in folders if one not in _PASSED_OVER and not one.startswith(".")]
        folders[:] = [one for one in folders if not (inner / one / "pyvenv.cfg").exists()]
        for name in files:
            path = inner / name
            # a link may lead nowhere or round in a circle, and a pipe is no file
            if path.suffix != ".py" or name.startswith((".", "test_", "conftest")) or not os.path.isfile(path):  # noqa: PTH113
                continue
            if path.resolve() in loaded:
                continue
            if len(found) == _MOST_FILES:
                return found, False
            found.append(path)
    return found, True
