"""Read what a module does in transactions: tasks that it sends before a commit, and rows that its tasks write.

Only a name that is known counts: by the object behind it, by its import, or by its one assignment or annotation.
"""

from __future__ import annotations

import ast
import re
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from repot.doctor.rule import Location
from repot.doctor.source_names import SIGNATURES, Names, Symbol, first_line, symbol_behind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class EarlySend:
    """A task that is sent in an open transaction; `where`: "inside transaction.atomic()", "before session.commit()"."""

    name: str
    where: str
    location: Location


@dataclass(frozen=True, slots=True)
class DatabaseWrite:
    """A row that a task writes, outside `self.transaction()`."""

    task: str
    name: str
    location: Location


class _Kind(Enum):
    TASK = auto()
    #: Called, it is a transaction; as a decorator, it opens one for each call.
    ATOMIC = auto()
    TRANSACTION = auto()
    #: A sessionmaker class, what it makes, and what that makes; a connection counts as a session.
    SESSION_MAKER = auto()
    SESSION_FACTORY = auto()
    SESSION = auto()
    ENGINE_MAKER = auto()
    ENGINE = auto()
    TABLE_MAKER = auto()
    TABLE = auto()
    #: An insert, update or delete of SQLAlchemy's.
    STATEMENT_MAKER = auto()
    STATEMENT = auto()
    MODEL = auto()
    QUERY = auto()
    ROW = auto()


#: Classes and functions, by package and name.
_KNOWN = {
    ("django", "atomic"): _Kind.ATOMIC,
    ("django", "Atomic"): _Kind.ATOMIC,
    ("django", "Model"): _Kind.MODEL,
    ("sqlalchemy", "sessionmaker"): _Kind.SESSION_MAKER,
    ("sqlalchemy", "async_sessionmaker"): _Kind.SESSION_MAKER,
    ("sqlalchemy", "scoped_session"): _Kind.SESSION_FACTORY,
    ("sqlalchemy", "async_scoped_session"): _Kind.SESSION_FACTORY,
    ("sqlalchemy", "Session"): _Kind.SESSION_FACTORY,
    ("sqlalchemy", "AsyncSession"): _Kind.SESSION_FACTORY,
    ("sqlmodel", "Session"): _Kind.SESSION_FACTORY,
    ("sqlmodel", "AsyncSession"): _Kind.SESSION_FACTORY,
    ("sqlalchemy", "create_engine"): _Kind.ENGINE_MAKER,
    ("sqlalchemy", "create_async_engine"): _Kind.ENGINE_MAKER,
    ("sqlalchemy", "Engine"): _Kind.ENGINE_MAKER,
    ("sqlalchemy", "AsyncEngine"): _Kind.ENGINE_MAKER,
    ("sqlalchemy", "Connection"): _Kind.SESSION_FACTORY,
    ("sqlalchemy", "AsyncConnection"): _Kind.SESSION_FACTORY,
    ("sqlalchemy", "Table"): _Kind.TABLE_MAKER,
    ("sqlalchemy", "insert"): _Kind.STATEMENT_MAKER,
    ("sqlalchemy", "update"): _Kind.STATEMENT_MAKER,
    ("sqlalchemy", "delete"): _Kind.STATEMENT_MAKER,
}

#: What a call of a kind returns.
_CALLED = {
    _Kind.ATOMIC: _Kind.TRANSACTION,
    _Kind.SESSION_MAKER: _Kind.SESSION_FACTORY,
    _Kind.SESSION_FACTORY: _Kind.SESSION,
    # a scoped session
    _Kind.SESSION: _Kind.SESSION,
    _Kind.ENGINE_MAKER: _Kind.ENGINE,
    _Kind.TABLE_MAKER: _Kind.TABLE,
    _Kind.STATEMENT_MAKER: _Kind.STATEMENT,
    _Kind.MODEL: _Kind.ROW,
}

#: What a method of a kind returns.
_METHODS = {
    **{
        (kind, method): _Kind.TRANSACTION
        for kind in (_Kind.SESSION, _Kind.SESSION_FACTORY, _Kind.ENGINE)
        for method in ("begin", "begin_nested")
    },
    (_Kind.ENGINE, "connect"): _Kind.SESSION,
    (_Kind.SESSION, "query"): _Kind.QUERY,
    **{(_Kind.TABLE, method): _Kind.STATEMENT for method in ("insert", "update", "delete")},
    **{
        (_Kind.QUERY, method): _Kind.ROW
        for name in ("get", "first", "last", "latest", "earliest", "create")
        for method in (name, f"a{name}")
    },
}

#: Methods that write, by the kind that has them.
_WRITES = {
    _Kind.SESSION: frozenset(
        {"add", "add_all", "merge", "delete", "flush", "bulk_save_objects"}
        | {"bulk_insert_mappings", "bulk_update_mappings"}
    ),
    _Kind.QUERY: frozenset(
        prefix + name
        for prefix in ("", "a")
        for name in ("create", "bulk_create", "bulk_update", "get_or_create", "update_or_create", "update", "delete")
    ),
    _Kind.ROW: frozenset({"save", "delete", "asave", "adelete"}),
}

#: Methods of Django's querysets that only read.
_READING = frozenset(
    {"all", "count", "distinct", "earliest", "exclude", "exists", "filter", "first", "get", "in_bulk", "iterator"}
    | {"last", "latest", "only", "order_by", "prefetch_related", "select_related", "using", "values", "values_list"}
)
#: Beside them, what writes nothing: methods that log, or that send or prepare a task, and builtins.
_HARMLESS = (
    _READING | {"apply_async", "delay", "s", "send_task", "si"} | {"debug", "error", "exception", "info", "warning"}
)
_BUILTINS = {"dict", "enumerate", "int", "len", "list", "max", "min", "range", "set", "sorted", "str", "tuple", "zip"}
#: A database that takes no writes, by its name in `atomic(using=...)`.
_REPLICA = re.compile(r"replica|read_?only|reader|slave", re.IGNORECASE)

_EXECUTING = frozenset({"execute", "executemany", "scalar", "scalars", "exec"})
_WRITING_SQL = re.compile(r"\s*(insert|update|delete|replace|merge)\b", re.IGNORECASE)
_HTTP_METHODS = frozenset({"delete", "get", "patch", "post", "put"})
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)

#: What was sent since the first write of each session that has not committed since.
_Pending = dict[str, tuple[EarlySend, ...]]


class _Opened(NamedTuple):
    """A transaction in the source: what opens it, and its statements; without `opening`, nothing more is known."""

    where: str
    opening: ast.expr | None = None
    body: list[ast.stmt] = []  # noqa: RUF012 - it is not changed

    def only_reads(self, sent: ast.Call) -> bool:
        """Return whether nothing is written on the way through it to a call that sends, and from there on."""
        return self.opening is not None and _only_reads(self.opening, _way(self.body, sent)[0])


def _way(body: list[ast.stmt], target: ast.AST) -> tuple[list[ast.AST], bool]:
    """Return what may run together with `target`, and whether the way ends with it: no branch beside its own."""
    found: list[ast.AST] = []
    reached = False
    for node in body:
        holds = any(one is target for one in ast.walk(node))
        reached = reached or holds
        if not isinstance(node, ast.If):
            found.append(node)
            if holds and _ends([node]):
                return found, True
            continue
        found.append(node.test)
        branches = [node.body, node.orelse]
        if holds and not any(one is target for one in ast.walk(node.test)):
            own = next(one for one in branches if any(target in ast.walk(inner) for inner in one))
            inside, is_end = _way(own, target)
            found += inside
            if is_end or _ends(own):
                return found, True
            continue
        found += [one for branch in branches if reached or not _ends(branch) for one in branch]
    return found, False


class Transactions(NamedTuple):
    """What one module does: tasks it sends before a commit, and rows that its tasks write."""

    early_sends: tuple[EarlySend, ...]
    writes: tuple[DatabaseWrite, ...]


def read_transactions(
    tree: ast.Module, file: str, names: Names, tasks: Mapping[int, str], *, per_request: bool
) -> Transactions:
    """Read a module: `names` are its globals, `tasks` the tasks by the first line of their functions.

    `per_request`: Django opens a transaction for each call of a view (ATOMIC_REQUESTS).
    """
    reader = _Reader(file, names, tasks, per_request=per_request)
    reader.visit(tree)
    return reader.transactions


class _Reader(ast.NodeVisitor):
    """Visitor that collects, of one module, what is sent in open transactions and what tasks write."""

    def __init__(self, file: str, names: Names, tasks: Mapping[int, str], *, per_request: bool) -> None:
        self._file, self._names, self._tasks, self._per_request = file, names, tasks, per_request
        self._early: dict[Location, EarlySend] = {}
        self._writes: list[DatabaseWrite] = []
        self._with_transaction: set[str] = set()
        self._imports: dict[str, tuple[str, str]] = {}
        self._scope: dict[str, _Kind | None] = {}
        self._task = self._self = ""
        self._in_class = self._is_inner = False
        self._open: tuple[_Opened, ...] = ()
        self._pending: _Pending = {}

    @property
    def transactions(self) -> Transactions:
        early_sends = sorted(self._early.values(), key=lambda one: one.location.line)
        # a task that uses self.transaction() knows what is outside of it
        writes = (one for one in self._writes if one.task not in self._with_transaction)
        return Transactions(tuple(early_sends), tuple(writes))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        package = (node.module or "").partition(".")[0] if not node.level else ""
        self._imports |= {one.asname or one.name: (package, one.name) for one in node.names}

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._in_class = self._in_class, True
        self.generic_visit(node)
        self._in_class = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        opened = tuple(
            _Opened(f"inside @{ast.unparse(one)}", one, node.body)
            for one in node.decorator_list
            if self._kind(one) in (_Kind.ATOMIC, _Kind.TRANSACTION)
        )
        if not opened and self._is_view(node):
            opened = (_Opened("inside the transaction of the request (ATOMIC_REQUESTS)"),)
        outer = self._task, self._self, self._in_class
        self._task = self._tasks.get(first_line(node), self._task)
        self._self = node.args.args[0].arg if node.args.args else ""
        self._in_class = False
        # what is defined in a transaction runs when it is called, as by on_commit
        with self._apart(opened):
            for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                self._scope[one.arg] = self._annotated(one.annotation)
            self._visit_all(node.body)
        self._task, self._self, self._in_class = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's name

    def visit_Lambda(self, node: ast.Lambda) -> None:
        with self._apart():
            self.visit(node.body)

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            kind = _Kind.TASK if self._is_task(node.value) else self._kind(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._bind(target, kind)

    visit_AnnAssign = visit_Assign  # noqa: N815 - ast's name

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._bind(node.target, _Kind.ROW if self._kind(node.iter) is _Kind.QUERY else None)
        self._visit_all([*node.body, *node.orelse])

    visit_AsyncFor = visit_For  # noqa: N815 - ast's name

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        outer, sessions = self._open, []
        for item in node.items:
            self.visit(item.context_expr)
            kind = self._kind(item.context_expr)
            if kind is _Kind.TRANSACTION:
                self._open += (_Opened(f"inside {_shortened(item.context_expr)}", item.context_expr, node.body),)
            if item.optional_vars is not None:
                # begin() of a factory or an engine returns a session or a connection
                self._bind(item.optional_vars, _Kind.SESSION if kind is _Kind.TRANSACTION else kind)
                sessions.append(ast.unparse(item.optional_vars))
        self._visit_all(node.body)
        self._open = outer
        for name in sessions:
            # closed, so what was not committed is rolled back
            self._pending.pop(name, None)

    visit_AsyncWith = visit_With  # noqa: N815 - ast's name

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before = dict(self._pending)
        self._visit_all(node.body)
        after = {} if _ends(node.body) else self._pending
        self._pending = before
        self._visit_all(node.orelse)
        other = {} if _ends(node.orelse) else self._pending
        self._pending = {name: (*after.get(name, ()), *other.get(name, ())) for name in after | other}

    def visit_Try(self, node: ast.Try) -> None:
        before = dict(self._pending)
        self._visit_all([*node.body, *node.orelse])
        after = self._pending
        for handler in node.handlers:
            self._pending = dict(before)
            self._visit_all(handler.body)
        self._pending = after
        self._visit_all(node.finalbody)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return
        receiver, method = node.func.value, node.func.attr
        kind = self._kind(receiver)
        if self._sends(receiver, method):
            self._sent(node)
        elif kind is _Kind.SESSION and method in ("commit", "rollback"):
            sent = self._pending.pop(ast.unparse(receiver), ())
            if method == "commit":
                self._early = {one.location: one for one in sent} | self._early
        elif self._is_write(kind, method, node):
            self._wrote(receiver if kind is _Kind.SESSION else None, node)
        elif method == "transaction" and self._is_self(receiver):
            self._with_transaction.add(self._task)

    def _sent(self, node: ast.Call) -> None:
        name, location = _shortened(node), self._location(node)
        writing = [one.where for one in self._open if not one.only_reads(node)]
        if writing:
            self._early[location] = EarlySend(name, writing[-1], location)
        self._pending = {
            session: (*sends, EarlySend(name, f"before {session}.commit()", location))
            for session, sends in self._pending.items()
        }

    def _wrote(self, session: ast.expr | None, node: ast.Call) -> None:
        if session is not None:
            self._pending.setdefault(ast.unparse(session), ())
        if self._task:
            self._writes.append(DatabaseWrite(self._task, ast.unparse(node.func), self._location(node)))

    def _sends(self, receiver: ast.expr, method: str) -> bool:
        if method == "send_task":
            found = symbol_behind(self._names, receiver)
            return found is None or found.celerys
        return method in ("delay", "apply_async") and self._is_task(receiver) and not self._waits_for_commit(receiver)

    def _waits_for_commit(self, node: ast.expr) -> bool:
        """Return whether an expression is a task that sends itself after the commit, or a signature of one."""
        match node:
            case ast.Call(func=ast.Attribute(value=task, attr=method)) if method in SIGNATURES:
                return self._waits_for_commit(task)
            case ast.Name(id=name) if name in self._scope:
                return False
        found = symbol_behind(self._names, node)
        return found is not None and found.sends_on_commit

    def _is_task(self, node: ast.expr) -> bool:
        """Return whether an expression is a task, or a signature of some."""
        match node:
            case ast.Name(id=name) if name in self._scope:
                return self._scope[name] is _Kind.TASK or self._is_self(node)
            case ast.Call(func=ast.Attribute(value=value, attr=method)):
                return method in SIGNATURES or self._is_task(value)
            case ast.Call(func=function):
                return _is_of_celery(symbol_behind(self._names, function))
            case ast.BinOp(left=left, op=ast.BitOr()):
                return self._is_task(left)
        found = symbol_behind(self._names, node)
        return found is not None and found.celerys

    def _is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self._self and bool(self._task)

    def _is_view(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Return whether a function is a view of Django's by its form: `f(request)`, or `post(self, request)`."""
        if (
            not self._per_request
            or isinstance(node, ast.AsyncFunctionDef)
            or self._is_inner
            or first_line(node) in self._tasks
        ):
            return False
        names = [one.arg for one in node.args.args]
        exempt = any("non_atomic_requests" in ast.unparse(one) for one in node.decorator_list)
        place = 1 if self._in_class and node.name in _HTTP_METHODS else 0
        return names[place : place + 1] == ["request"] and not exempt

    def _is_write(self, kind: _Kind | None, method: str, node: ast.Call) -> bool:
        if kind is not None and method in _WRITES.get(kind, ()):
            return True
        return method in _EXECUTING and bool(node.args) and self._is_writing(node.args[0])

    def _is_writing(self, statement: ast.expr) -> bool:
        match statement:
            case ast.Constant(value=str(text)) | ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
                return bool(_WRITING_SQL.match(text))
            case ast.Call(func=ast.Name(id="text") | ast.Attribute(attr="text"), args=[first, *_]):
                return self._is_writing(first)
        return self._kind(statement) is _Kind.STATEMENT

    def _kind(self, node: ast.expr) -> _Kind | None:
        """Return what an expression is, if it is one of the kinds that count."""
        match node:
            case ast.Name(id=name) if name in self._scope:
                return self._scope[name]
            case ast.Await(value=value):
                return self._kind(value)
            case ast.Call():
                return self._returned(node)
            case ast.Attribute(value=value, attr=name) if name.endswith("objects"):
                return _Kind.QUERY if self._kind(value) is _Kind.MODEL else None
        return self._named(node)

    def _returned(self, node: ast.Call) -> _Kind | None:
        if isinstance(node.func, ast.Attribute):
            owner, method = self._kind(node.func.value), node.func.attr
            if method == "transaction" and self._is_self(node.func.value):
                return _Kind.TRANSACTION
            if owner is not None:
                # further methods of a query or a statement refine it
                return _METHODS.get((owner, method), owner if owner in (_Kind.QUERY, _Kind.STATEMENT) else None)
        return _called(self._kind(node.func))

    def _named(self, node: ast.expr) -> _Kind | None:
        """Return the kind of a global name, by its object or else by its import."""
        found = symbol_behind(self._names, node)
        if found is not None:
            return _kind_of(found)
        match node:
            case ast.Name(id=name) if name not in self._names:
                return _KNOWN.get(self._imports.get(name, ("", "")))
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name not in self._names:
                return _KNOWN.get((self._imports.get(name, ("", ""))[0], attribute))
        return None

    def _annotated(self, node: ast.expr | None) -> _Kind | None:
        """Return the kind of an instance of an annotation: `Session`, `Annotated[Session, ...]`, `Session | None`."""
        match node:
            case ast.Subscript(slice=ast.Tuple(elts=[first, *_])):
                return self._annotated(first)
            case ast.BinOp(left=left):
                return self._annotated(left)
            case None:
                return None
        # Annotated[Session, ...] behind a name
        found = symbol_behind(self._names, node)
        return _called(_kind_of(found.origin) if found and found.origin else self._kind(node))

    def _bind(self, target: ast.expr, kind: _Kind | None) -> None:
        for one in ast.walk(target):
            # the object behind a global name is known better
            if isinstance(one, ast.Name) and (self._is_inner or one.id not in self._names):
                self._scope[one.id] = kind if one is target else None

    @contextmanager
    def _apart(self, opened: tuple[_Opened, ...] = ()) -> Iterator[None]:
        """Read a function: with names of its own, in the transactions that its decorators open."""
        outer = self._scope, self._open, self._pending, self._is_inner
        self._scope, self._open, self._pending, self._is_inner = dict(self._scope), opened, {}, True
        yield
        self._scope, self._open, self._pending, self._is_inner = outer

    def _visit_all(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

    def _location(self, node: ast.expr) -> Location:
        return Location(self._file, node.lineno)


def _kind_of(symbol: Symbol) -> _Kind | None:
    """Return what an object is: a class or one below it, a function, or an instance of such a class."""
    known = (kind for one in symbol.classes if (kind := _KNOWN.get(_package_and_name(one))))
    kind = next(known, None)
    return _called(kind) if symbol.kind == "instance" else kind


def _package_and_name(one: str) -> tuple[str, str]:
    package, _, name = one.partition(":")
    return package, name


def _called(kind: _Kind | None) -> _Kind | None:
    return _CALLED.get(kind) if kind else None


def _is_of_celery(symbol: Symbol | None) -> bool:
    """Return whether an object is a class or function of Celery's, such as `chain`."""
    return symbol is not None and symbol.kind in ("class", "function") and symbol.module.partition(".")[0] == "celery"


def _ends(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], _ENDS)


def _only_reads(opening: ast.expr, body: Iterable[ast.AST]) -> bool:
    """Return whether a transaction leaves nothing to commit: on a replica, or it reads and no call could write."""
    if isinstance(opening, ast.Call):
        using = [word.value for word in opening.keywords if word.arg == "using"] + opening.args[:1]
        if any(_REPLICA.search(ast.unparse(one)) for one in using):
            return True
    inside = [one for statement in body for one in ast.walk(statement)]
    if any(isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) for one in inside):
        # an object of SQLAlchemy's, or one that is saved elsewhere
        return False
    called = [one.func for one in inside if isinstance(one, ast.Call)]
    methods = {one.attr for one in called if isinstance(one, ast.Attribute)}
    functions = {getattr(one, "id", "") for one in called if not isinstance(one, ast.Attribute)}
    return bool(methods & _READING) and methods <= _HARMLESS and functions <= _BUILTINS


def _shortened(node: ast.expr) -> str:
    """Return a call without its arguments."""
    return f"{ast.unparse(node.func)}()" if isinstance(node, ast.Call) else ast.unparse(node)
