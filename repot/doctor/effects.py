"""Read what a task does outside: requests, mails and payments whose lost answer raises what the task retries.

Only a call that is known by its import counts, in the task's own function. Calls are not followed into other functions.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repot.doctor.rule import Location
from repot.doctor.source_names import first_line
from repot.upstream.collector import dotted_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_ANY = frozenset({"builtins:Exception", "builtins:BaseException"})
_OS = _ANY | {"builtins:OSError", "builtins:ConnectionError", "builtins:TimeoutError"}


def _of(package: str, names: str) -> frozenset[str]:
    return frozenset(f"{package}:{name}" for name in names.split())


#: By library: what it raises where no answer arrives, and the classes above. An error that the other side answered, or
#: that says that nothing was sent (`requests.ConnectTimeout`), is not among them.
_UNANSWERED: Mapping[str, frozenset[str]] = {
    "requests": _ANY
    | {"builtins:OSError"}
    | _of("requests", "RequestException ConnectionError Timeout ReadTimeout ChunkedEncodingError"),
    "httpx": _ANY
    | _of("httpx", "HTTPError RequestError TransportError TimeoutException ReadTimeout NetworkError ReadError")
    | _of("httpx", "ProtocolError RemoteProtocolError"),
    "urllib": _OS | _of("urllib", "URLError") | _of("http", "HTTPException RemoteDisconnected"),
    "mail": _OS | _of("smtplib", "SMTPException SMTPServerDisconnected"),
    "stripe": _ANY | _of("stripe", "StripeError APIConnectionError"),
}

#: Functions with an effect outside.
_FUNCTIONS = {
    "requests.post": "requests",
    "httpx.post": "httpx",
    "django.core.mail.send_mail": "mail",
    "django.core.mail.send_mass_mail": "mail",
    "django.core.mail.mail_admins": "mail",
    "django.core.mail.mail_managers": "mail",
}
#: Functions whose first argument is the method of HTTP.
_WITH_A_METHOD = {"requests.request": "requests", "httpx.request": "httpx"}
_SESSIONS = {"requests.Session": "requests", "requests.session": "requests", "httpx.Client": "httpx"}
#: Methods with an effect, of what these constructors make.
_METHODS: Mapping[str, tuple[str, frozenset[str]]] = {
    **{name: (library, frozenset({"post"})) for name, library in _SESSIONS.items()},
    **{f"smtplib.{name}": ("mail", frozenset({"send_message", "sendmail"})) for name in ("SMTP", "SMTP_SSL")},
    **{
        f"django.core.mail.{name}": ("mail", frozenset({"send"})) for name in ("EmailMessage", "EmailMultiAlternatives")
    },
}
#: What runs when it is called, as by on_commit.
_CALLED_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
#: A key by which the other side knows the repetition, or a look whether it has happened.
_IS_KNOWN = re.compile(r"idempot|dedup", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Effect:
    """A call of a task's function with an effect outside, which raises where no answer arrives.

    Attributes:
        raised: what it raises then, and the classes above, as `requests:Timeout`.
        escapes: whether such an exception leaves the function.
        retried_at: where the function catches one and retries; None if it does not.
    """

    task: str
    name: str
    location: Location
    raised: frozenset[str]
    escapes: bool = True
    retried_at: Location | None = None


def read_effects(tree: ast.Module, file: str, tasks: Mapping[int, str]) -> Iterator[Effect]:
    """Yield the effects of a module's tasks; `tasks` are their names by the first line of their functions."""
    functions = {
        first_line(node): node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    names = _bound(tree.body, {})
    for line, task in tasks.items():
        if line in functions and not _IS_KNOWN.search(ast.unparse(functions[line])):
            yield from _Reader(task, file, functions[line], names).effects()


class _Reader:
    """Reads one function."""

    def __init__(
        self, task: str, file: str, node: ast.FunctionDef | ast.AsyncFunctionDef, names: Mapping[str, str]
    ) -> None:
        self._task, self._file, self._body = task, file, node.body
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        hidden = {one.arg for one in given}
        self._self = given[0].arg if given else ""
        self._names = _bound(node.body, {name: path for name, path in names.items() if name not in hidden})

    def effects(self) -> Iterator[Effect]:
        yield from self._within(self._body, ())

    def _within(self, body: Iterable[ast.AST], around: tuple[ast.Try, ...]) -> Iterator[Effect]:
        """Yield the effects of statements; `around` are the blocks that catch what they raise, innermost first."""
        for node in body:
            if isinstance(node, _CALLED_LATER) or self._suppresses(node):
                continue
            if isinstance(node, ast.Try):
                yield from self._within(node.body, (node, *around))
                yield from self._within([*node.handlers, *node.orelse, *node.finalbody], around)
                continue
            if isinstance(node, ast.Call) and (library := self._library(node)):
                yield self._effect(node, _UNANSWERED[library], around)
            yield from self._within(ast.iter_child_nodes(node), around)

    def _suppresses(self, node: ast.AST) -> bool:
        given = [one.context_expr for one in node.items] if isinstance(node, ast.With) else []
        return any(isinstance(one, ast.Call) and self._path(one.func) == "contextlib.suppress" for one in given)

    def _effect(self, node: ast.Call, raised: frozenset[str], around: tuple[ast.Try, ...]) -> Effect:
        effect = Effect(self._task, f"{ast.unparse(node.func)}()", Location(self._file, node.lineno), raised)
        for block in around:
            for handler in block.handlers:
                if not self._caught(handler.type) & raised:
                    continue
                retry = self._retry(handler.body)
                if retry or not _raises_again(handler):
                    at = Location(self._file, retry.lineno) if retry else None
                    return replace(effect, escapes=False, retried_at=at)
        return effect

    def _library(self, node: ast.Call) -> str:
        """Return the library of a call with an effect; "" for any other call."""
        if any(word.arg == "fail_silently" and not _is_false(word.value) for word in node.keywords):
            return ""
        if any(word.arg == "headers" and isinstance(word.value, ast.Call) for word in node.keywords):
            # a function that makes headers may add a key
            return ""
        called = self._path(node.func)
        first = node.args[0] if node.args else None
        if called in _WITH_A_METHOD:
            is_post = isinstance(first, ast.Constant) and str(first.value).upper() == "POST"
            return _WITH_A_METHOD[called] if is_post else ""
        if called == "urllib.request.urlopen":
            return "urllib" if self._posts(node) else ""
        if called.startswith("stripe.") and called.endswith(".create"):
            return "stripe"
        return _FUNCTIONS.get(called) or self._of_an_object(node.func)

    def _of_an_object(self, function: ast.expr) -> str:
        if not isinstance(function, ast.Attribute):
            return ""
        owner = function.value
        maker = self._path(owner.func) if isinstance(owner, ast.Call) else _made(self._path(owner))
        library, methods = _METHODS.get(maker, ("", frozenset()))
        return library if function.attr in methods else ""

    def _posts(self, node: ast.Call) -> bool:
        """Return whether a call of urlopen, or of the Request that it is given, has data."""
        if len(node.args) > 1 or any(word.arg == "data" for word in node.keywords):
            return True
        first = node.args[0] if node.args else None
        is_request = isinstance(first, ast.Call) and self._path(first.func) == "urllib.request.Request"
        return is_request and isinstance(first, ast.Call) and self._posts_itself(first)

    def _posts_itself(self, request: ast.Call) -> bool:
        method = next((word.value for word in request.keywords if word.arg == "method"), None)
        if method is not None:
            return isinstance(method, ast.Constant) and method.value == "POST"
        return len(request.args) > 1 or any(word.arg == "data" for word in request.keywords)

    def _caught(self, node: ast.expr | None) -> frozenset[str]:
        """Return the classes that a handler catches, as `requests:Timeout`."""
        if node is None:
            return frozenset({"builtins:BaseException"})
        listed = node.elts if isinstance(node, ast.Tuple) else [node]
        return frozenset(self._class(one) for one in listed)

    def _class(self, node: ast.expr) -> str:
        path = self._path(node) or dotted_name(node)
        package, _, name = path.rpartition(".")
        if path in ("IOError", "EnvironmentError"):
            name = "OSError"
        return f"{package.partition('.')[0] or 'builtins'}:{name}"

    def _retry(self, body: list[ast.stmt]) -> ast.Call | None:
        """Return the call of `self.retry` that a handler makes, whatever it caught; None if it looks at that first."""
        for node in body:
            if isinstance(node, ast.If) and "retries" not in ast.unparse(node.test):
                continue
            for one in ast.walk(node):
                if isinstance(one, ast.Call) and dotted_name(one.func) == f"{self._self}.retry":
                    return one
        return None

    def _path(self, node: ast.expr) -> str:
        """Return the full path of what a name stands for: `requests.post`; `requests.Session()` of an object."""
        dotted = dotted_name(node)
        first, dot, rest = dotted.partition(".")
        known = self._names.get(first, "")
        return f"{known}{dot}{rest}" if known else ""


def _here(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and what is in them, but nothing that runs when it is called."""
    for node in nodes:
        if not isinstance(node, _CALLED_LATER):
            yield node
            yield from _here(ast.iter_child_nodes(node))


def _imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the paths that names stand for which these statements import."""
    paths: dict[str, str] = {}
    for node in _here(nodes):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            paths |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                paths[alias.asname or top] = alias.name if alias.asname else top
    return paths


def _bound(nodes: list[ast.stmt], known: Mapping[str, str]) -> dict[str, str]:
    """Return the known names with those that these statements bind: to what a constructor makes, else to nothing."""
    found = {**known, **_imported(nodes)}
    bound = [one.id for one in _here(nodes) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    values = {name: value for one in _here(nodes) for name, value in _bindings(one)}
    for name in bound:
        value = values.get(name) if bound.count(name) == 1 else None
        maker = dotted_name(value.func) if isinstance(value, ast.Call) else ""
        first, dot, rest = maker.partition(".")
        found[name] = f"{found[first]}{dot}{rest}()" if found.get(first) else ""
    return found


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a node binds to a value."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node.value
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name):
                yield item.optional_vars.id, item.context_expr


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler raises what it caught."""
    raises = [one.exc for node in handler.body for one in ast.walk(node) if isinstance(one, ast.Raise)]
    return any(one is None or (isinstance(one, ast.Name) and one.id == handler.name) for one in raises)


def _made(path: str) -> str:
    """Return the constructor of an object's path; "" for any other."""
    return path.removesuffix("()") if path.endswith("()") else ""


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value
