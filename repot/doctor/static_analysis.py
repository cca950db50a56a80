"""Read an application's source: delays, priorities, rejections, waivers, and the locations of settings."""

from __future__ import annotations

import ast
import io
import math
import operator
import re
import tokenize
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from repot.doctor.config import rule_names
from repot.doctor.effects import Effect, read_effects
from repot.doctor.rule import Location
from repot.doctor.source_names import SIGNATURES, Names, Symbol, first_line, symbol_behind
from repot.doctor.transactions import DatabaseWrite, EarlySend, read_transactions
from repot.errors import FactUnknown
from repot.upstream.collector import CONSTRUCTOR, SENDS, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: `# repot: ignore[RPT101, RPT203] reason`
_WAIVER = re.compile(r"#\s*repot:\s*ignore\[([A-Za-z0-9,\s]*)\]\s*(.*)")

#: Calls that send a task, or prepare one to be sent, with options.
_SENDING = frozenset({"apply_async", "retry", "send_task", "set", "signature", "subtask", "s", "si"})

#: Those of them whose names only Celery uses.
_CELERYS_OWN = frozenset({"apply_async", "send_task", "subtask"})

#: Calls that send a task at once.
_SENDING_NOW = _CELERYS_OWN - {"subtask"} | {"delay"}

#: What objects that hold settings are called.
_OF_SETTINGS = frozenset({"conf", "config", "settings"})

#: Operations in the expression of a delay.
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}

T = TypeVar("T")

#: Conditions of a block that does not run when its module is imported.
_NOT_AT_IMPORT = frozenset({"__name__ == '__main__'", "TYPE_CHECKING", "typing.TYPE_CHECKING"})

#: Methods that return the time of the call.
_NOW = frozenset({"now", "utcnow", "today"})


@dataclass(frozen=True, slots=True)
class Call:
    """A call that sends a task with a delay or a priority.

    Attributes:
        task: the name of the task; empty if the source does not show it.
        countdown_s: None if the source does not show the delay, or if the call gives no delay (not `delayed`).
        is_timed: it names a countdown or an ETA itself, not 0 or None; `**options` may only hold one.
    """

    name: str
    location: Location
    task: str = ""
    countdown_s: float | None = None
    priority: int | None = None
    delayed: bool = True
    is_timed: bool = False


@dataclass(frozen=True, slots=True)
class Misuse:
    """A call whose arguments do not have the effect that they name."""

    what: str
    location: Location


@dataclass(frozen=True, slots=True)
class LoopedSend:
    """A call in a loop of a task's function that sends a task, outside a confirm window."""

    task: str
    location: Location


@dataclass(frozen=True, slots=True)
class Written:
    """A place where a name is assigned.

    Attributes:
        form: a regular expression of the text that it gets, as far as the source shows that; empty for any other value.
    """

    location: Location
    form: str


@dataclass(frozen=True, slots=True)
class WaiverComment:
    """A comment that waives rules; `last_line` is the last line that it applies to."""

    rules: tuple[str, ...]
    reason: str
    location: Location
    last_line: int = 0


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The facts in the source of a project's modules.

    Attributes:
        keys: where a name is written first.
        written: each place where it is assigned: an address often is in two branches.
        reads: names that some code reads from an object: `settings.NAME`, `getattr(settings, "NAME")`, `conf["NAME"]`.
        rejects: where a Reject is raised; `chords`: where a chord is made; `revokes`: where a task is revoked.
        import_sends: where a task is sent while the application's modules are imported.
        looped_sends: where a task sends others one by one.
        extents: file and first line of a function, or of its class -> its first and last line.
        early_sends: tasks that are sent in an open transaction.
        writes: rows that tasks write outside `self.transaction()`.
        effects: requests, mails and payments of tasks.
        unread: why not every module of the project was read; empty if each was.
    """

    calls: tuple[Call, ...] = ()
    waivers: tuple[WaiverComment, ...] = ()
    keys: Mapping[str, Location] = field(default_factory=dict)
    written: Mapping[str, list[Written]] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    rejects: tuple[Location, ...] = ()
    chords: tuple[Location, ...] = ()
    import_sends: tuple[Location, ...] = ()
    looped_sends: tuple[LoopedSend, ...] = ()
    misuses: tuple[Misuse, ...] = ()
    revokes: tuple[Location, ...] = ()
    extents: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    early_sends: tuple[EarlySend, ...] = ()
    writes: tuple[DatabaseWrite, ...] = ()
    effects: tuple[Effect, ...] = ()
    unread: str = ""

    def each(self, found: Iterable[T]) -> Iterator[T]:
        """Yield what was found of a kind, for a rule that asks whether there is any.

        Raises:
            FactUnknown: after the last one, if not every module was read.
        """
        yield from found
        self.require_all()

    def require_all(self) -> None:
        """Check that every module was read.

        Raises:
            FactUnknown: one was not.
        """
        if self.unread:
            message = f"not all of the project's code was read: {self.unread}"
            raise FactUnknown(message, hint="Run the doctor in the application's environment and directory.")

    def place_of(self, name: str, value: object) -> Location | None:
        """Return where a name got its value: the place with that text, else the first that can be it."""
        first, places = self.keys.get(name), self.written.get(name, [])
        if first is None or not isinstance(value, str):
            return first
        fitting = [one.location for one in places if one.form and re.fullmatch(one.form, value, re.DOTALL)]
        if fitting:
            return fitting[-1]
        unknown = [one.location for one in places if not one.form]
        is_other = any(one.location == first and one.form for one in places)
        return unknown[0] if unknown and is_other else first


@dataclass(slots=True)
class _Found:
    calls: list[Call] = field(default_factory=list)
    waivers: list[WaiverComment] = field(default_factory=list)
    keys: dict[str, Location] = field(default_factory=dict)
    written: dict[str, list[Written]] = field(default_factory=dict)
    reads: set[str] = field(default_factory=set)
    rejects: list[Location] = field(default_factory=list)
    chords: list[Location] = field(default_factory=list)
    import_sends: list[Location] = field(default_factory=list)
    looped_sends: list[LoopedSend] = field(default_factory=list)
    misuses: list[Misuse] = field(default_factory=list)
    revokes: list[Location] = field(default_factory=list)
    extents: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    early_sends: list[EarlySend] = field(default_factory=list)
    writes: list[DatabaseWrite] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


def read(document: Mapping[str, Any], root: Path, task_names: Mapping[tuple[str, int], str]) -> SourceFacts:
    """Read the source of loaded modules, and of other modules of the project that send tasks.

    `document` is that of the application (`repot/upstream/collector.py`); `task_names` maps file and first line of a
    function to the name of its task.
    """
    facts = _Found()
    unread = "" if document["complete"] else "it has too many modules"
    for module in document["modules"]:
        path = Path(module["path"])
        shown = shorten(path, root)
        names = {name: Symbol.read(one) for name, one in module["names"].items()}
        tasks = {line: name for (file, line), name in task_names.items() if file == module["path"] and module["loaded"]}
        # a module that the application does not import cannot configure it, and may be a script
        into = facts if module["loaded"] else replace(facts, keys={}, written={}, extents={}, import_sends=[])
        try:
            _read_module(into, path, shown, names, tasks, per_request=document["atomic_requests"])
        except (OSError, RecursionError, MemoryError) as error:
            unread = unread or f"{shown}, {type(error).__name__}"
        except (SyntaxError, ValueError):
            # what is loaded is Python, of a newer release than this one; other files may be templates
            if module["loaded"]:
                unread = unread or f"{shown} is in the syntax of another Python"
        if shown.startswith("/"):
            # outside the project: its names are not settings of the application
            facts.keys = {name: location for name, location in facts.keys.items() if location.file != shown}
            facts.written = {
                name: [one for one in places if one.location.file != shown] for name, places in facts.written.items()
            }
    return SourceFacts(
        calls=tuple(facts.calls),
        waivers=tuple(facts.waivers),
        keys=facts.keys,
        written=facts.written,
        reads=frozenset(facts.reads),
        rejects=tuple(facts.rejects),
        chords=tuple(facts.chords),
        import_sends=tuple(facts.import_sends),
        looped_sends=tuple(facts.looped_sends),
        misuses=tuple(facts.misuses),
        revokes=tuple(facts.revokes),
        extents=facts.extents,
        early_sends=tuple(facts.early_sends),
        writes=tuple(facts.writes),
        effects=tuple(facts.effects),
        unread=unread,
    )


def _read_module(
    found: _Found, path: Path, shown: str, names: Names, tasks: Mapping[int, str], *, per_request: bool
) -> None:
    """Collect the facts of one module.

    Raises:
        SyntaxError: it is not Python. Or ValueError.
        OSError: it cannot be read.
        RecursionError: it is nested too deeply. Or MemoryError.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    tree = ast.parse(text)
    _Reader(found, shown, names, tasks).visit(tree)
    if tasks or SENDS.search(text):
        transactions = read_transactions(tree, shown, names, tasks, per_request=per_request)
        found.early_sends += transactions.early_sends
        found.writes += transactions.writes
    found.effects += read_effects(tree, shown, tasks)
    found.waivers += _waivers(text, shown)


class _Reader(ast.NodeVisitor):
    """Visitor that collects the facts of one module."""

    def __init__(self, found: _Found, file: str, names: Names, tasks: Mapping[int, str]) -> None:
        self._found = found
        self._file = file
        self._names = names
        self._tasks = tasks
        self._task = ""
        self._self = ""
        self._class: tuple[int, int] | None = None
        self._caught: set[str] = set()
        self._function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
        #: Of the function; found when a value is first asked for.
        self._locals: dict[str, ast.expr] | None = None
        self._assigned: set[str] = set()
        #: Whether the code runs when the module is imported.
        self._at_import = True
        #: Whether the code runs again and again, and each message that it sends waits for its own confirm.
        self._looped, self._windows = False, 0

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._class = self._class, (first_line(node), node.end_lineno or node.lineno)
        self.generic_visit(node)
        self._class = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        first = first_line(node)
        self._found.extents[self._file, first] = self._class or (first, node.end_lineno or node.lineno)
        outer = self._task, self._self, self._class, self._function, self._locals
        self._task = self._tasks.get(first, self._task)
        self._self = node.args.args[0].arg if node.args.args else ""
        self._class = None
        self._function, self._locals = node, None
        self._visit_later(node)
        self._task, self._self, self._class, self._function, self._locals = outer

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_later(node)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in _NOT_AT_IMPORT:
            self._visit_later(node)
        else:
            self.generic_visit(node)

    def _visit_later(self, node: ast.AST) -> None:
        """Visit what does not run when the module is imported."""
        outer = self._at_import, self._looped
        self._at_import = self._looped = False
        self.generic_visit(node)
        self._at_import, self._looped = outer

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.target)
        self.visit(node.iter)
        self._visit_loop(node.body)
        for one in node.orelse:
            self.visit(one)

    visit_AsyncFor = visit_For  # noqa: N815 - ast's name

    def visit_While(self, node: ast.While) -> None:
        self._visit_loop([node.test, *node.body])
        for one in node.orelse:
            self.visit(one)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        for one in node.generators:
            self.visit(one)
        self._visit_loop([node.elt])

    visit_SetComp = visit_GeneratorExp = visit_ListComp  # noqa: N815 - ast's names

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        calls = [one.context_expr for one in node.items if isinstance(one.context_expr, ast.Call)]
        if any(_last_name(call.func) == "confirm_window" for call in calls):
            outer, self._looped = self._looped, False
            self._windows += 1
            self.generic_visit(node)
            self._windows -= 1
            self._looped = outer
        else:
            self.generic_visit(node)

    visit_AsyncWith = visit_With  # noqa: N815 - ast's name

    def _visit_loop(self, body: Iterable[ast.AST]) -> None:
        outer, self._looped = self._looped, not self._windows
        for one in body:
            self.visit(one)
        self._looped = outer

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        outer = self._caught
        self._caught = outer | {node.name} if node.name else outer
        self.generic_visit(node)
        self._caught = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's name

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        written = {_written_name(target) for target in targets} - {""}
        place = Written(self._location(node), _form(node.value))
        for name in written:
            self._key(name, node)
            self._found.written.setdefault(name, []).append(place)
        # `NAME = given.NAME` takes a setting over and does nothing with it
        outer, self._assigned = self._assigned, written
        self.generic_visit(node)
        self._assigned = outer

    visit_AnnAssign = visit_Assign  # noqa: N815 - ast's name

    def visit_Name(self, node: ast.Name) -> None:
        self._read(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._read(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._read(node)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self._key(key.value, key)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for keyword in node.keywords:
            if keyword.arg:
                self._key(CONSTRUCTOR.get(keyword.arg, keyword.arg), keyword.value)
        self._read(node)
        if called in ("Reject", "chord"):
            self._celerys(called, node)
        if called == "revoke" and isinstance(node.func, ast.Attribute) and _last_name(node.func.value) == "control":
            self._found.revokes.append(self._location(node))
        if isinstance(node.func, ast.Attribute):
            if called in _SENDING:
                self._sending(called, node, node.func.value)
            if called in _SENDING_NOW:
                self._sending_now(called, node, node.func.value)
        self.generic_visit(node)

    def _sending_now(self, called: str, node: ast.Call, receiver: ast.expr) -> None:
        # other objects have a method `delay`
        if called not in _CELERYS_OWN and not self._is_task(receiver):
            return
        if self._at_import:
            self._found.import_sends.append(self._location(node))
        elif self._looped and self._task:
            self._found.looped_sends.append(LoopedSend(self._task, self._location(node)))

    def _celerys(self, called: str, node: ast.Call) -> None:
        """Note a Reject that deletes its message, or a chord, if the name is Celery's."""
        found = self._symbol(node.func)
        module = found.module if found else ""
        if called == "Reject" and module == "celery.exceptions":
            requeue = next((word.value for word in node.keywords if word.arg == "requeue"), None)
            requeue = requeue or (node.args[1] if len(node.args) > 1 else None)
            if not (isinstance(requeue, ast.Constant) and requeue.value):
                self._found.rejects.append(self._location(node))
        elif called == "chord" and module.partition(".")[0] == "celery":
            self._found.chords.append(self._location(node))

    def _sending(self, called: str, node: ast.Call, receiver: ast.expr) -> None:
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        # other objects have methods `retry` and `set`
        retries = called == "retry"
        if called not in _CELERYS_OWN and not self._is_task(receiver):
            return
        self._misused(called, node, keywords)
        timed = keywords.keys() & {"countdown", "eta"}
        if not (retries or timed or "priority" in keywords):
            return
        given = [keywords[name] for name in ("countdown", "eta") if name in timed]
        delays = [self._seconds(one) for one in given if not (isinstance(one, ast.Constant) and one.value is None)]
        self._found.calls.append(
            Call(
                name=called,
                location=self._location(node),
                task=self._receiver(called, node, receiver),
                countdown_s=next(filter(None, delays), None),
                priority=self._number(keywords.get("priority")),
                # `**options` may hold a delay
                delayed=bool(timed) or len(keywords) < len(node.keywords),
                is_timed=any(delay != 0 for delay in delays),
            )
        )

    def _is_task(self, receiver: ast.expr) -> bool:
        """Return whether a receiver is the bound task, or a name of a task or signature."""
        while isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute):
            if receiver.func.attr in SIGNATURES:
                return True
            receiver = receiver.func.value
        itself = isinstance(receiver, ast.Name) and receiver.id == self._self and bool(self._task)
        found = self._symbol(receiver)
        return itself or (found is not None and found.celerys)

    def _misused(self, called: str, node: ast.Call, keywords: Mapping[str, ast.expr]) -> None:
        if called in ("retry", "apply_async") and "delay" in keywords:
            effect = "waits the default 180 s" if called == "retry" else "runs at once"
            self._found.misuses.append(Misuse(f"{called}(delay=...) {effect}; write countdown=", self._location(node)))
        key = keywords.get("idempotency_key")
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and not key.value.strip():
            self._found.misuses.append(Misuse(f"{called}(idempotency_key='') is refused", self._location(node)))
        first = node.args[0] if node.args else None
        if called == "retry" and isinstance(first, ast.Name) and first.id in self._caught:
            wrong = f"retry({first.id}, ...) uses it as the task's arguments; write exc={first.id}"
            self._found.misuses.append(Misuse(wrong, self._location(node)))

    def _receiver(self, called: str, node: ast.Call, receiver: ast.expr) -> str:
        """Return the name of the task that is sent; empty if the source does not show it."""
        if called == "retry":
            return self._task
        if called == "send_task":
            name = node.args[0] if node.args else None
            return str(name.value) if isinstance(name, ast.Constant) else ""
        # the task may be behind a signature, as in task.s(...).set
        while isinstance(receiver, ast.Call):
            receiver = receiver.func.value if isinstance(receiver.func, ast.Attribute) else ast.Name("")
        found = self._symbol(receiver)
        return found.task if found else ""

    def _symbol(self, node: ast.expr) -> Symbol | None:
        return symbol_behind(self._names, node)

    def _seconds(self, node: ast.expr | None) -> float | None:
        value = self._value(node)
        return value.total_seconds() if isinstance(value, timedelta) else value

    def _number(self, node: ast.expr | None) -> int | None:
        value = self._value(node)
        return int(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def _value(self, node: ast.expr | None) -> float | timedelta | None:
        """Return the certain number or duration of an expression, else None; `now() + d` counts as d."""
        match node:
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name() | ast.Attribute():
                return self._named(node)
            case ast.BinOp(left=left, op=operation, right=right):
                return _combine(operation, self._value(left), self._value(right), at_now=_is_now(left))
            case ast.Call(func=ast.Name(id="timedelta") | ast.Attribute(attr="timedelta")):
                return self._duration(node)
            case ast.Call(func=ast.Attribute(attr="total_seconds", value=value), args=[], keywords=[]):
                return self._value(value)
            case _:
                return None

    def _named(self, node: ast.Name | ast.Attribute) -> float | timedelta | None:
        """Return the value of a local name that is assigned once, or of a global."""
        if self._locals is None:
            self._locals = _assigned_once(self._function) if self._function else {}
        if isinstance(node, ast.Name) and node.id in self._locals:
            # removed meanwhile: two names may refer to each other
            value = self._locals.pop(node.id)
            found = self._value(value)
            self._locals[node.id] = value
            return found
        known = self._symbol(node)
        number: float | timedelta | None = known.value if known else None
        return number

    def _duration(self, node: ast.Call) -> timedelta | None:
        """Return the timedelta of a call with numbers, else None."""
        given = {word.arg: self._value(word.value) for word in node.keywords if word.arg}
        given |= dict(zip(("days", "seconds"), map(self._value, node.args), strict=False))
        numbers = {name: value for name, value in given.items() if isinstance(value, int | float)}
        try:
            return timedelta(**numbers) if numbers and numbers.keys() == given.keys() else None
        except (TypeError, ArithmeticError):
            return None

    def _read(self, node: ast.expr) -> None:
        name = _name_read(node)
        if isinstance(name, str) and name not in self._assigned:
            self._found.reads.add(name)

    def _key(self, name: str, node: ast.expr | ast.stmt) -> None:
        self._found.keys.setdefault(name, self._location(node))

    def _location(self, node: ast.expr | ast.stmt) -> Location:
        return Location(self._file, node.lineno)


def _assigned_once(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    """Return the local names that are assigned exactly once, with their values."""
    parameters = [argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
    stores = [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    assigned = {
        one.targets[0].id: one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name)
    }
    return {name: value for name, value in assigned.items() if stores.count(name) == 1 and name not in parameters}


def _form(node: ast.expr | None) -> str:
    """Return a regular expression of a text: the parts that the source shows, and anything between; else ""."""
    match node:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=values):
            forms = [_form(one) for one in values]
            return "".join(form or ".*" for form in forms) if any(forms) else ""
    return ""


def _last_name(node: ast.expr) -> str:
    """Return the last name of a dotted expression: `control` of `app.control`."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _written_name(target: ast.expr) -> str:
    """Return the name that an assignment sets: of `NAME`, `conf.NAME` and `conf["NAME"]`."""
    if isinstance(target, ast.Subscript):
        return str(target.slice.value) if isinstance(target.slice, ast.Constant) else ""
    return _last_name(target)


def _name_read(node: ast.expr) -> object:
    """Return the name that an expression reads: of `NAME`, `conf.NAME`, `conf["NAME"]` and two calls; else None."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Load()) | ast.Name(name, ast.Load()):
            return name
        case ast.Subscript(value, ast.Constant(name), ast.Load()) if _last_name(value) in _OF_SETTINGS:
            return name
        case ast.Call(ast.Attribute(value, "get"), [ast.Constant(name), *_]) if _last_name(value) in _OF_SETTINGS:
            return name
        case ast.Call(ast.Name("getattr"), [_, ast.Constant(name), *_]):
            return name
        case _:
            return None


def _is_now(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _NOW


def _combine(
    operation: ast.operator, left: float | timedelta | None, right: float | timedelta | None, *, at_now: bool
) -> float | timedelta | None:
    if at_now and isinstance(operation, ast.Add):
        return right
    if left is None or right is None:
        return None
    act = _OPERATIONS.get(type(operation))
    try:
        found: float | timedelta | None = act(left, right) if act else None
    except (TypeError, ArithmeticError):
        return None
    return found


def _waivers(text: str, file: str) -> Iterator[WaiverComment]:
    """Yield the waivers in comments; a comment on its own line applies to the next line of code."""
    if not _WAIVER.search(text):
        return
    pending: list[tuple[tuple[str, ...], str, int]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _WAIVER.search(token.string) if token.type == tokenize.COMMENT else None
            if match:
                rules = rule_names([match[1]])
                if token.line[: token.start[1]].strip():
                    yield WaiverComment(rules, match[2].strip(), Location(file, token.start[0]), token.start[0])
                else:
                    pending.append((rules, match[2].strip(), token.start[0]))
            elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                for rules, reason, line in pending:
                    yield WaiverComment(rules, reason, Location(file, line), token.start[0])
                pending.clear()
    except (tokenize.TokenError, IndentationError):
        return
