"""Read a Celery application: its settings, tasks, queues and source, as plain data that JSON can hold.

This one file runs in two places. The doctor imports it for an application of its own process, and hands its text to
another interpreter for an application of that (`repot doctor --python`). So it needs Python 3.6 and the application's
own Celery, from 4.4 on, and imports nothing of repot. It reads what Celery itself would do with the application,
decides nothing, connects to nothing and writes nothing. The private parts that it relies on are points of
`app_config.py`, `tasks.py` and `connection_options.py`.
"""

import ast
import inspect
import json
import os
import re
import sys
import sysconfig
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

Data = Dict[str, Any]

#: Of the document: a reader refuses another one.
FORMAT = 1
#: The oldest Celery that is read.
OLDEST = (4, 4)

#: Variables that Celery reads before any configuration (`celery/app/utils.py`, `Settings`).
_OVERRIDING = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")

#: Options of a task as they are; a release that lacks one has no value for it.
_OPTIONS = (
    "acks_late",
    "acks_on_failure",
    "acks_on_failure_or_timeout",
    "acks_on_timeout",
    "reject_on_worker_lost",
    "retry_on_worker_lost",
    "ignore_result",
    "store_errors_even_if_ignored",
    "time_limit",
    "soft_time_limit",
    "default_retry_delay",
    "max_retries",
    "priority",
    "serializer",
    "retry_kwargs",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
)

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
#: In the source of each module that sends or rejects a task, or waives a rule: options of sending name themselves.
SENDS = re.compile(
    r"\b(?:chord|Reject|delay|apply_async|send_task|subtask|revoke|retry)\s*\("
    r"|\b(?:countdown|eta|priority|idempotency_key)\s*=|repot:\s*ignore\["
)
_WORD = re.compile(r"\w+")
#: Arguments of Celery's constructor that name a setting differently.
CONSTRUCTOR = {"broker": "broker_url", "backend": "result_backend"}
#: Packages whose classes and functions decide what a name in the source stands for.
_KNOWN_PACKAGES = frozenset({"celery", "django", "sqlalchemy", "sqlmodel"})

#: Functions whose call does not run their body, and what to call them.
_KINDS = (
    (inspect.iscoroutinefunction, "async def"),
    (inspect.isasyncgenfunction, "an asynchronous generator"),
    (inspect.isgeneratorfunction, "a generator"),
)
_MISSING_NAME = re.compile(r"(?:partially initialized )?module '([^']+)' has no attribute '([^']+)'")
#: A value inside so many others is part of a circle.
_DEEPEST = 20


class Unreadable(Exception):
    """The configuration has a value that Celery cannot use; `hint` says what to write."""

    def __init__(self, message: str, hint: str) -> None:
        """Take both sentences."""
        super().__init__(message)
        self.message, self.hint = message, hint


def load(name: str) -> Any:
    """Import an application as `celery -A name` does."""
    from celery.app.utils import find_app

    return find_app(name)


def load_problem(name: str, error: BaseException) -> Tuple[str, str]:
    """Return why an application cannot be loaded: "module", "name" or "failed", with what is missing or was raised."""
    module = name.partition(":")[0]
    first = error.__context__
    if ":" in name and isinstance(error, ModuleNotFoundError) and error.name == name and first is not None:
        # if a name is missing, Celery tries to import the whole name as a module
        error = first
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return "module", error.name
    missing = _MISSING_NAME.match(str(error)) if isinstance(error, AttributeError) else None
    if missing and missing.group(1) == module:
        return "name", missing.group(2)
    return "failed", f"{type(error).__name__}: {error}"


def import_tasks(app: Any) -> None:
    """Import an application's modules and make its tasks, in the order of a worker (`WorkController.__init__`)."""
    app.loader.import_default_modules()
    app.finalize(auto=True)


def retarget(app: Any, address: str) -> None:
    """Put an application on another broker."""
    app.conf.update(broker_url=address, broker_read_url=None, broker_write_url=None)


def read(app: Any, name: str, root: str, *, with_sources: bool = True) -> Data:
    """Return everything that the doctor asks of a loaded application; `root` is the project's directory.

    The package that `name` names is the project's, wherever it is installed. Without sources no file is named.

    Raises:
        Unreadable: Celery cannot use a value of the configuration.
    """
    directory = Path(root)
    tasks, library = _own_tasks(app, name)
    written, namespace = _written(app), _text(getattr(app, "namespace", None))
    described = [_task(app, task) for task in tasks]
    packages = _own_packages(app, name, tasks)
    configuration = list(settings(app))
    modules, complete = [], True  # type: Tuple[List[Data], bool]
    if with_sources:
        loaded = _loaded_modules(app, packages, tasks, directory)
        wanted_files = _asked(namespace, described, written, {key for key, _, own in configuration if own})
        modules, complete = sources(loaded, directory, _installed(packages, directory), wanted_files)
    is_configured = getattr(app.__dict__.get("repot"), "settings", None) is not None
    return {
        "format": FORMAT,
        "main": str(app.main or ""),
        "namespace": namespace,
        "configured_by_repot": is_configured,
        "environment": {} if is_configured else _overriding(app),
        "settings": {key: {"value": _setting(key, value), "own": own} for key, value, own in configuration},
        "written": written,
        "tasks": described,
        "library_tasks": library,
        "modules": modules,
        "complete": complete,
        "atomic_requests": _has_atomic_requests(),
        "release": release(),
        # last: routing creates missing queues
        "queues": _queues(app),
    }


@lru_cache(maxsize=None)  # noqa: UP033 - the same
def release() -> Data:
    """Return what the installed libraries are and know."""
    import celery
    import kombu
    from celery.app.defaults import _TO_NEW_KEY  # type: ignore[attr-defined]
    from celery.app.task import Task
    from kombu.transport import TRANSPORT_ALIASES

    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "celery": str(celery.__version__),
        "kombu": str(kombu.__version__),  # type: ignore[attr-defined]
        "redis": _redis_version(),
        "settings": {key: _text(option.type) for key, option in celery_options().items()},
        "old_names": dict(_TO_NEW_KEY),
        "task_attributes": sorted(dir(Task)),
        "task_options": sorted(
            name for name, value in vars(Task).items() if not name.startswith("_") and not callable(value)
        ),
        "transports": sorted(TRANSPORT_ALIASES),
        "backends": _backends(),
        "address_options": _parameters("kombu", "Connection", "_init_params"),
        "tls_options": _parameters("amqp.transport", "SSLTransport", "_wrap_socket_sni"),
        "transport_options": transport_options(),
    }


@lru_cache(maxsize=None)  # noqa: UP033 - Python 3.6 has no cache
def celery_options() -> Dict[str, Any]:
    """Return Celery's own settings: their `Option` by name."""
    from celery.app.defaults import NAMESPACES, flatten

    return dict(flatten(NAMESPACES))


def _overriding(app: Any) -> Dict[str, bool]:
    """Return what variables of Celery's state, each with whether the configuration states another value."""
    found = {key: os.environ.get("CELERY_" + key.upper()) for key in _OVERRIDING}
    return {key: app.conf.get(key) not in (None, "", text) for key, text in found.items() if text}


def settings(app: Any) -> Iterator[Tuple[str, Any, bool]]:
    """Yield each setting with the value that Celery uses, and whether the application configured it.

    A dictionary of transport options yields one key for each option.

    Raises:
        Unreadable: such a setting is not a dictionary.
    """
    known = {key for key, option in celery_options().items() if not option.deprecate_by}
    # Celery's list of deprecated names is not a setting
    for key in sorted(known | set(app.conf.changes or {}) - {"deprecated_settings"}):
        # as an attribute, because some settings default to others, broker_read_url to broker_url for example
        value = getattr(app.conf, key)
        if not (key.endswith("transport_options") and value):
            yield key, value, is_own(app, key)
            continue
        if not isinstance(value, dict):
            message = f"{key} is a {type(value).__name__}, not a dictionary"
            raise Unreadable(message, "Parse a string from the environment with json.loads.")
        for name in sorted(value, key=str):
            yield f"{key}.{name}", value[name], is_own(app, f"{key}.{name}")


def is_own(app: Any, key: str) -> bool:
    """Return whether the application itself configured a setting, even to Celery's default."""
    name, dot, option = key.partition(".")
    if dot:
        return option in (app.conf.get(name) or {})
    namespace = getattr(app, "namespace", None)
    spellings = {name, f"{namespace}_{name}".upper()} if namespace else {name}
    # first, because the lookup loads a pending configuration, which has no maps yet
    value = app.conf.get(name)
    if any(spelling in found for spelling in spellings for found in _configured(app)):
        return True
    # old names, which Celery translates
    default = celery_options().get(name)
    return default is not None and bool(value != default.default)


def _configured(app: Any) -> List[Any]:
    """Return what was set on `app.conf`, and what was read from an object or module; without Celery's defaults."""
    return list(app.conf.maps or ())[:-1]


def _written(app: Any) -> Dict[str, bool]:
    """Return the names in the configuration that the project wrote, and whether their value is in effect anyway.

    Celery's manual advises to set the visibility timeout also in two places that are not read.
    """
    from celery.app.defaults import _TO_NEW_KEY  # type: ignore[attr-defined]

    changes, *others = _configured(app) or [{}]
    given = app._preconf
    # if the project uses old names, Celery stores the constructor's arguments under old names
    own = {key for key in changes if key in given or _TO_NEW_KEY.get(key) not in given}
    names = sorted({str(key) for held in (own, *others) for key in held})
    return {name: _has_effect(app, name) for name in names if not name.startswith("_")}


def _has_effect(app: Any, written: str) -> bool:
    """Return whether the setting that the name means has this value; `app.conf[written]` may translate an old name."""
    from celery.app.defaults import _TO_NEW_KEY  # type: ignore[attr-defined]

    namespace = getattr(app, "namespace", None)
    prefix = f"{namespace}_" if namespace else "celery_"
    found = written if namespace else written.lower()
    bare = _TO_NEW_KEY.get(written) or (found[len(prefix) :] if found.startswith(prefix) else found).lower()
    try:
        value = next(held[written] for held in _configured(app) if written in held)
        if bare == "visibility_timeout":
            return bool((app.conf.broker_transport_options or {}).get(bare) == value)
        return bare in celery_options() and bool(getattr(app.conf, bare) == value)
    except (AttributeError, KeyError, StopIteration):
        return False


def _setting(key: str, value: Any) -> Any:
    if key == "beat_schedule" and isinstance(value, dict):
        return encode({name: _entry(entry) for name, entry in value.items()})
    return encode(value)


def _entry(entry: Any) -> Any:
    """Return an entry of the schedule as a dictionary; it may be a `ScheduleEntry`."""
    if isinstance(entry, dict):
        return entry
    return {name: getattr(entry, name, None) for name in ("name", "task", "schedule", "args", "kwargs", "options")}


def encode(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON holds it: text, numbers, lists and dictionaries; of anything else, the name of its class.

    `{"$duration": [0, 60, 0]}` is a duration in days, seconds and microseconds, `{"$pairs": [[1, 2]]}` a dictionary
    whose keys are not all texts, and `{"$object": "shop.Backend"}` another object.
    """
    if value is None or isinstance(value, bool):
        return value
    for kind, plain in ((int, int), (float, float), (str, str.__str__)):
        if isinstance(value, kind):
            # a member of an enumeration is its value
            return plain(value)
    if isinstance(value, timedelta):
        return {"$duration": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, (list, tuple, set, frozenset, dict)) and depth < _DEEPEST:
        return _encode_inner(value, depth + 1)
    return {"$object": f"{type(value).__module__}.{type(value).__name__}"}


def _encode_inner(value: Any, depth: int) -> Any:
    if not isinstance(value, dict):
        found = [encode(one, depth) for one in value]
        return sorted(found, key=repr) if isinstance(value, (set, frozenset)) else found
    pairs = [[encode(key, depth), encode(one, depth)] for key, one in value.items()]
    if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
        return dict(pairs)
    return {"$pairs": pairs}


def _text(value: Any) -> str:
    return str(value or "")


# tasks ----------------------------------------------------------------------------------------------------------------


def _own_tasks(app: Any, name: str) -> Tuple[List[Any], List[str]]:
    """Return the application's own tasks, and the names of tasks of installed libraries."""
    modules = (str(app.main or ""), str(getattr(app, "__module__", "")), name.partition(":")[0])
    own = {_package_of(module) for module in modules}
    judged, library = [], []
    # Celery stores shared tasks in a set, so their order differs between runs
    for _, task in sorted(app.tasks.items()):
        if str(task.name).startswith("celery."):
            continue
        module = str(type(task).__module__)
        file = vars(sys.modules[module]).get("__file__") or "" if module in sys.modules else ""
        if str(file).startswith(_LIBRARIES) and _package_of(module) not in own:
            library.append(str(task.name))
        else:
            judged.append(task)
    return judged, library


def _task(app: Any, task: Any) -> Data:
    file, line = place_of(task)
    options = {name: getattr(task, name, None) for name in _OPTIONS}
    classes = [one for one in type(task).__mro__ if one is not object and _package(one) != "celery"]
    plain = [one for one in classes if "_decorated" not in vars(one)]
    written = {name for one in classes for name, value in vars(one).items() if _is_option(name, value)}
    guarded = any((one.__module__, one.__name__) == ("repot.idempotency.task", "IdempotentTask") for one in classes)
    key = getattr(getattr(task, "idempotency", None), "key", None) if guarded else None
    return {
        "name": str(task.name),
        "file": file,
        "line": line,
        "options": {name: encode(value) for name, value in options.items()},
        "retries_automatically": bool(getattr(task, "autoretry_for", ())),
        "retried_for": _errors(task, "autoretry_for"),
        "never_retried_for": _errors(task, "dont_autoretry_for"),
        "queue": queue_of(app, task),
        # of its own classes, with whether their code reads it; a decorator's options are attributes as well
        "attributes": {name: any(_reads(one, name) for one in plain) for name in sorted(written)},
        "has_policy": hasattr(task, "idempotency") and not any(_reads(one, "idempotency") for one in plain),
        "guarded": guarded,
        "keyed_by": getattr(key, "name", ""),
        # of celery-batches, which run what a worker has reserved
        "batch": batch_of(task),
        "batch_interval": encode(getattr(task, "flush_interval", 0)),
        "runs_later": runs_later(task.run),
    }


def _errors(task: Any, name: str) -> List[str]:
    """Return the exceptions that an option of a task lists, each with its package, as `requests:Timeout`."""
    given = getattr(task, name, None) or ()
    listed = given if isinstance(given, (list, tuple, set, frozenset)) else [given]
    return sorted(f"{_package(one)}:{one.__name__}" for one in listed if isinstance(one, type))


def place_of(task: Any) -> Tuple[str, int]:
    """Return the file and the line of the function behind a task; "" and 0 where it has none."""
    code = getattr(_function(task), "__code__", None)
    return (str(code.co_filename), int(code.co_firstlineno)) if code else ("", 0)


def _is_option(name: str, value: Any) -> bool:
    return not name.startswith("_") and not callable(value)


def _function(task: Any) -> Any:
    """Return the function behind a task, without the wrappers of `autoretry_for` and of decorators."""
    function = getattr(task, "__wrapped__", None) or getattr(task, "_orig_run", None) or task.run
    try:
        return inspect.unwrap(function)
    except ValueError:  # a circular chain of wrappers
        return function


def runs_later(function: Any) -> str:
    """Return why a call of a function returns before its body has run; "" for an ordinary function.

    Also checks functions inside `functools.partial`, and the `__call__` of an object.
    """
    candidates = (function, getattr(function, "__call__", None))  # noqa: B004 - the method, not whether there is one
    return next((kind for is_one, kind in _KINDS if any(map(is_one, candidates))), "")


def _reads(kind: type, name: str) -> bool:
    """Return whether a class' own source reads an attribute; True without source."""
    source = _source_of(kind)
    return source is None or f".{name}" in source


@lru_cache(maxsize=4096)
def _source_of(kind: type) -> Optional[str]:
    # inspect parses the class each time
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return None


def batch_of(task: Any) -> str:
    """Return how many messages make a full batch of a task of celery-batches; "" for any other task."""
    packages = [_package(one) for one in type(task).__mro__ if one is not object]
    return str(getattr(task, "flush_every", "")) if "celery_batches" in packages else ""


def queue_of(app: Any, task: Any) -> str:
    """Return the queue that a task is routed to; "" if its router does not say."""
    own = getattr(task, "queue", None)
    try:
        route = app.amqp.router.route({"queue": own} if own else {}, task.name, (), {})
    except Exception:  # noqa: BLE001 - a router is user code, and may read arguments that are missing here
        return ""
    return str(getattr(route.get("queue"), "name", route.get("queue") or ""))


# queues ---------------------------------------------------------------------------------------------------------------


def _queues(app: Any) -> List[Data]:
    """Return every queue, including those that routing created."""
    try:
        queues = app.amqp.queues
        configured = set(queues.consume_from)
        return [_queue(queue, configured=name in configured) for name, queue in queues.items()]
    except (AttributeError, TypeError, ValueError) as error:
        message = f"task_queues cannot be read: {error}"
        raise Unreadable(message, "Set a list of kombu.Queue, or a dictionary of their options.") from error


def _queue(queue: Any, *, configured: bool) -> Data:
    exchange = queue.exchange
    return {
        "name": queue.name,
        "exchange": exchange.name if exchange else "",
        "exchange_type": exchange.type if exchange else "direct",
        "routing_key": queue.routing_key or "",
        "arguments": encode(queue_arguments(queue)),
        "durable": bool(queue.durable),
        "exchange_durable": bool(exchange.durable) if exchange else True,
        "configured": configured,
        "consumer_arguments": encode(dict(queue.consumer_arguments or {})),
    }


def queue_arguments(queue: Any) -> Data:
    """Return the arguments with which a kombu queue is declared on RabbitMQ: its own, and those of its options."""
    from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined]

    options = ("expires", "message_ttl", "max_length", "max_length_bytes", "max_priority")
    own = dict(queue.queue_arguments or {})
    return dict(to_rabbitmq_queue_arguments(own, **{name: getattr(queue, name) for name in options}))


# libraries ------------------------------------------------------------------------------------------------------------


def _parameters(module: str, owner: str, method: str) -> List[str]:
    """Return the names of a method's arguments; empty if the library has no such method."""
    try:
        found = getattr(__import__(module, fromlist=[owner]), owner).__dict__[method]
        return sorted(inspect.signature(found).parameters)
    except (ImportError, AttributeError, KeyError):
        return []


def transport_options() -> Dict[str, List[str]]:
    """Return the names of the options that each transport lists."""
    return {"amqp": _parameters("amqp", "Connection", "__init__"), "redis": _redis_options()}


def _redis_options() -> List[str]:
    try:
        from kombu.transport import redis
    except ImportError:
        return []
    kinds = (getattr(redis, name, None) for name in ("Channel", "SentinelChannel"))
    return sorted({str(name) for one in kinds for name in getattr(one, "from_transport_options", ())})


def _redis_version() -> str:
    try:
        import redis
    except ImportError:
        return ""
    return str(redis.__version__)


def _backends() -> List[str]:
    from celery.app.backends import BACKEND_ALIASES
    from celery.utils.imports import load_extension_class_names

    return sorted({*BACKEND_ALIASES, *(str(pair[0]) for pair in load_extension_class_names("celery.result_backends"))})


def _has_atomic_requests() -> bool:
    """Return whether Django opens a transaction for each request; False if it is not configured in this process."""
    django = sys.modules.get("django.conf")
    if django is None or not django.settings.configured:
        return False
    return any(one.get("ATOMIC_REQUESTS") for one in (getattr(django.settings, "DATABASES", None) or {}).values())


# source ---------------------------------------------------------------------------------------------------------------


def _own_packages(app: Any, name: str, tasks: Iterable[Any]) -> Set[str]:
    """Return the packages that are the user's: the one that `name` names, and the application's, if it has tasks.

    An operator's own module may import an application that is only installed.
    """
    with_tasks = {_package_of(str(type(task).__module__)) for task in tasks}
    return {_package_of(name)} | ({_package_of(str(app.main or ""))} & with_tasks)


def _loaded_modules(app: Any, packages: Set[str], tasks: Iterable[Any], root: Path) -> List[ModuleType]:
    """Return the loaded modules of the project, of its packages, and of the tasks."""
    named = {str(app.main or "")} | {type(task).__module__ for task in tasks}
    # compared as texts: a thousand modules are loaded, and each disk access is slow
    ours = tuple(f"{str(one).rstrip('/')}/" for one in (root, root.resolve()))
    found = []
    for module_name, module in list(sys.modules.items()):
        # not as an attribute: a module may have a __getattr__ of its own
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str):
            continue
        is_ours = file.startswith(ours) and not _is_installed(file)
        if module_name in named or (
            (is_ours or _package_of(module_name) in packages) and _package_of(module_name) != "repot"
        ):
            found.append(module)
    return found


def _package_of(name: str) -> str:
    """Return the package of a module, and of the application in it: `shop` of `shop.celery:app`."""
    return name.partition(":")[0].partition(".")[0]


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to a library; a virtual environment may be inside the project's directory."""
    return file.startswith(_LIBRARIES) or not _INSTALLED_DIRS.isdisjoint(file.split("/"))


def _installed(packages: Set[str], root: Path) -> List[Path]:
    """Return the directories of packages that are not below the project's."""
    modules = [sys.modules.get(package) for package in sorted(packages - {"repot"})]
    places = [Path(place) for module in modules for place in getattr(module, "__path__", [])]
    inside = root.resolve()
    return [one for one in places if _is_installed(f"{one}/") or inside not in (one.resolve(), *one.resolve().parents)]


class Asked(NamedTuple):
    """What makes a module worth reading, beside what `SENDS` finds.

    Attributes:
        files: those that define tasks.
        written: names whose place is asked for where they are set.
        read: names of which it is asked whether loaded code reads them, and `read_elsewhere` any other code.
    """

    files: FrozenSet[str] = frozenset()
    written: FrozenSet[str] = frozenset()
    read: FrozenSet[str] = frozenset()
    read_elsewhere: FrozenSet[str] = frozenset()


def _asked(namespace: str, tasks: Iterable[Data], written: Iterable[str], own: Set[str]) -> Asked:
    of_namespace = frozenset(one for one in written if namespace and one.startswith(f"{namespace}_"))
    return Asked(
        files=frozenset(task["file"] for task in tasks),
        written=frozenset(_spellings(own, namespace)).union(written),
        read=of_namespace if namespace else frozenset(written),
        read_elsewhere=of_namespace,
    )


def _spellings(keys: Iterable[str], namespace: str) -> Set[str]:
    """Return every name under which an application may write settings, and the options of transports."""
    from celery.app.defaults import _TO_NEW_KEY  # type: ignore[attr-defined]

    names = {one for key in keys for one in key.split(".")}
    found = {*names, *(old for old, new in (*_TO_NEW_KEY.items(), *CONSTRUCTOR.items()) if new in names)}
    prefixes = ("", f"{namespace}_") if namespace else ("",)
    return found.union(f"{prefix}{one}".upper() for one in names for prefix in prefixes)


def sources(
    modules: Iterable[ModuleType], root: Path, packages: Iterable[Path], asked: Asked
) -> Tuple[List[Data], bool]:
    """Return the files to read, each with what its names stand for, and whether they are all of the project's.

    Of loaded modules, and of other modules of the project and its `packages`, such as views, they are those whose text
    shows that they send tasks, define one, or hold a name that is asked for: parsing a file takes far longer.
    """
    found, known, complete = [], set(), True
    for module in modules:
        path = Path(str(vars(module).get("__file__") or ""))
        if path.suffix != ".py" or not path.is_file():
            continue
        known.add(path.resolve())
        found.append(_source(path, root, asked, vars(module)))
    for directory, imported_from in ((root, root), *((package, package.parent) for package in packages)):
        others, are_all = other_modules(directory, known)
        complete = complete and are_all
        known.update(path.resolve() for path in others)
        found += [_source(path, imported_from, asked) for path in others]
    return [one for one in found if one], complete


def _source(path: Path, root: Path, asked: Asked, known: Optional[Data] = None) -> Optional[Data]:
    """Return a file to read; None if it is not worth that. `known` are the globals of a loaded module."""
    source: Data = {"path": str(path), "loaded": known is not None, "names": {}}
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        # the reader says that it cannot be read
        return source
    if SENDS.search(text) or (known is not None and str(path) in asked.files):
        source["names"] = _names(text, shorten(path, root), known or {})
    elif not _holds(text, asked, loaded=known is not None):
        return None
    return source


def _holds(text: str, asked: Asked, *, loaded: bool) -> bool:
    words = set(_WORD.findall(text))
    if not words.isdisjoint(asked.read if loaded else asked.read_elsewhere):
        return True
    # `NAME =` in an assignment or an argument, `conf["NAME"] =`, `{"NAME":`
    return loaded and any(re.search(rf"\b{one}[\"']?\s*\]?[\s\\]*[=:]", text) for one in words & asked.written)


def other_modules(root: Path, loaded: Set[Path]) -> Tuple[List[Path], bool]:
    """Return the project's other modules, and whether the list is complete."""
    found: List[Path] = []
    for directory, directories, files in os.walk(str(root)):
        inner = Path(directory)
        directories[:] = [one for one in directories if one not in _SKIPPED_DIRS and not one.startswith(".")]
        directories[:] = [one for one in directories if not (inner / one / "pyvenv.cfg").exists()]
        for name in files:
            path = inner / name
            # a link may be broken or circular, and a pipe is not a file
            if path.suffix != ".py" or name.startswith((".", "test_", "conftest")) or not os.path.isfile(str(path)):  # noqa: PTH113
                continue
            if path.resolve() in loaded:
                continue
            if len(found) == _MAX_FILES:
                return found, False
            found.append(path)
    return found, True


def _names(text: str, file: str, known: Data) -> Dict[str, Any]:
    """Return what the names in a module's source stand for, dotted ones such as `transaction.atomic` included.

    `known` are its globals; names that it imports from loaded modules, also inside functions, are looked up there.
    """
    found: Dict[str, Any] = {}
    try:
        nodes = list(ast.walk(ast.parse(text)))
        names = {**_imported(nodes, file), **known}
        for node in nodes:
            if isinstance(node, (ast.Name, ast.Attribute)):
                _add_name(found, node, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # the reader says so
        return {}
    return found


def _add_name(found: Dict[str, Any], node: ast.expr, names: Data) -> None:
    dotted = dotted_name(node)
    if not dotted or dotted in found or dotted.partition(".")[0] not in names:
        return
    one = object_behind(names, node)
    if one is not None or isinstance(node, ast.Name):
        found[dotted] = _described(one)


def dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` for a name or an attribute of one; empty for any other expression."""
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def object_behind(names: Data, node: ast.expr) -> Any:
    """Return the object behind a name, if that needs no user code; else None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return _held(object_behind(names, node.value), node.attr)
    return None


def _held(owner: Any, name: str) -> Any:
    try:
        return object.__getattribute__(owner, "__dict__").get(name)
    except AttributeError:
        return None


def _described(found: Any) -> Optional[Data]:
    """Return what is to be known of an object: a number or duration, a task, or a class or function that counts."""
    if found is None:
        return None
    kind = type(found)
    if kind in (int, float, timedelta):
        return {"value": encode(found)}
    described: Data = {}
    if is_celerys(found):
        described = {"celerys": True, "task": _name_of(found), "sends_on_commit": _sends_on_commit(found)}
    # not isinstance, which asks a proxy for its class
    is_function, is_class = issubclass(kind, FunctionType), issubclass(kind, type)
    classes = [found] if is_function else found.__mro__ if is_class else kind.__mro__
    known = [f"{_package(one)}:{one.__name__}" for one in classes if _package(one) in _KNOWN_PACKAGES]
    if known:
        described.update(kind="function" if is_function else "class" if is_class else "instance", classes=known)
        described["module"] = str(classes[0].__module__)
    # of Annotated, the class
    origin = _held(found, "__origin__")
    if origin is not None:
        described["origin"] = _described(origin)
    return described


def is_celerys(found: Any) -> bool:
    """Return whether an object is a task or a proxy of one; by its type, because attributes may run user code."""
    from celery.app.task import Task

    kind = type(found)
    return issubclass(kind, Task) or _package(kind) == "celery"


def _name_of(found: Any) -> str:
    try:
        return str(getattr(found, "name", "") or "")
    except Exception:  # noqa: BLE001 - a property of the user's class
        return ""


def _sends_on_commit(found: Any) -> bool:
    """Return whether a task's own `apply_async` waits for a commit of Django's, by the names in its code."""
    try:
        classes = found.__class__.__mro__
    except Exception:  # noqa: BLE001 - a proxy of what cannot be made
        return False
    codes = [getattr(vars(one).get("apply_async"), "__code__", None) for one in classes if _package(one) != "celery"]
    while codes:
        code = codes.pop()
        if code is not None:
            if "on_commit" in code.co_names:
                return True
            codes += [one for one in code.co_consts if hasattr(one, "co_names")]
    return False


def _package(found: Any) -> str:
    # what `exec` or a library makes may have no module
    return str(found.__module__).partition(".")[0]


def _imported(nodes: Iterable[ast.AST], file: str) -> Data:
    """Return the names that a module imports from loaded modules."""
    names: Data = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            source = vars(_loaded(node, file) or object)
            names.update({one.asname or one.name: source[one.name] for one in node.names if one.name in source})
        elif isinstance(node, ast.Import):
            for one in node.names:
                # without `as` it is the name of the top package
                module = one.name if one.asname else one.name.partition(".")[0]
                if module in sys.modules:
                    names[one.asname or module] = sys.modules[module]
    return names


def _loaded(node: ast.ImportFrom, file: str) -> Optional[ModuleType]:
    """Return the loaded module that an import names; a relative import starts at the file."""
    named = node.module.split(".") if node.module else []
    if not node.level:
        return sys.modules.get(".".join(named))
    parts = [*file.split("/")[: -node.level], *named]
    names = (".".join(parts[start:]) for start in range(len(parts)))
    return next((sys.modules[name] for name in names if name in sys.modules), None)


def shorten(path: Path, root: Path) -> str:
    """Return a path relative to the project, or the absolute path outside it."""
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return path.as_posix()


# in another interpreter -----------------------------------------------------------------------------------------------


def main(request: Data) -> None:
    """Read the application that a request names, and print one line of JSON: the document, or why it has not any.

    What the application prints goes to standard error.
    """
    # two separate descriptors: also programs that the application starts print to the first
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 - until the process ends
    if sys.path and sys.path[0] == "":
        # `python -c` adds it; `celery` finds an application in the current directory by itself
        del sys.path[0]
    with answer:
        answer.write(json.dumps(_answer(request)) + "\n")


def _answer(request: Data) -> Data:
    try:
        import celery

        # the modules behind it are imported when they are used
        version = str(celery.__version__)
        if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < OLDEST:
            return {"error": {"step": "old", "text": version}}
        from celery.app.utils import find_app  # noqa: F401 - whether it can be imported
    except Exception as error:  # noqa: BLE001 - a broken installation
        return {"error": {"step": "celery", "text": f"{type(error).__name__}: {error}"}}
    name = request["app"]
    return _attempt("load", name, lambda: _judged(load(name), request))


def _judged(app: Any, request: Data) -> Data:
    from celery import Celery

    if not isinstance(app, Celery):
        return {"error": {"step": "type", "text": type(app).__name__}}
    name, target = request["app"], request["target"]
    today: Data = {}

    def move() -> Data:
        today["today"] = encode(app.conf.broker_read_url)
        if target:
            if getattr(app.__dict__.get("repot"), "settings", None) is not None:
                return {"error": {"step": "repot", "text": ""}}
            retarget(app, target)
        return {}

    def tasks() -> Data:
        import_tasks(app)
        return {}

    for step, act in (("config", move), ("tasks", tasks), ("config", lambda: read(app, name, request["root"]))):
        found = _attempt(step, name, act)
        if "error" in found:
            return found
    return {**found, **today}


def _attempt(step: str, name: str, act: Callable[[], Data]) -> Data:
    try:
        return act()
    except Unreadable as error:
        return {"error": {"step": "setting", "text": error.message, "hint": error.hint}}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of the user's modules and classes, or of Celery
        for one in (error, error.__cause__):
            kinds = [kind.__name__ for kind in type(one).__mro__ if kind.__module__ == "repot.errors"]
            if kinds:
                return {
                    "error": {
                        "step": "own",
                        "kinds": kinds,
                        "text": str(getattr(one, "message", one)),
                        "hint": _text(getattr(one, "hint", "")),
                    }
                }
        if step == "load":
            reason, text = load_problem(name, error)
            return {"error": {"step": step, "reason": reason, "text": text}}
        return {"error": {"step": step, "text": f"{type(error).__name__}: {error}"}}
