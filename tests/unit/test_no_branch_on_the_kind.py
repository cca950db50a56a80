"""No code outside `config/` and `brokers/` asks which kind of broker it has: it calls the port or a registry."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: These know the kinds: settings and the adapters; an upstream point is about one library's one class.
KNOWING = ("repot/config/", "repot/brokers/", "repot/upstream/")
#: These read the name of a result backend, which is no broker.
ABOUT_RESULTS = {"repot/doctor/collect.py", "repot/worker/configure.py"}
_NAMES = {"redis", "amqp", "rediss", "amqps", "rabbitmq", "Redis", "RabbitMQ", "Valkey"}
_CLASSES = {"RedisBroker", "RabbitBroker", "RedisFacts", "RabbitFacts"}
_QUESTIONS = {"is_redis", "is_rabbitmq"}


def _names_a_kind(node: ast.AST) -> bool:
    """Whether an expression is one kind of broker: by its scheme, its product or its constant."""
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(map(_names_a_kind, node.elts))
    if isinstance(node, ast.Attribute):
        return node.attr in {"REDIS", "RABBITMQ"} and isinstance(node.value, ast.Name) and node.value.id == "BrokerKind"
    return isinstance(node, ast.Constant) and node.value in _NAMES


def _tested(node: ast.AST) -> list[ast.AST]:
    """The expressions of a node that would make it a branch if they named a kind."""
    match node:
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.MatchValue():
            return [node.value]
        case ast.Subscript():
            return [node.slice]
    return []


def branches(source: str) -> list[int]:
    """The lines that ask for the kind of a broker."""
    found = []
    for node in ast.walk(ast.parse(source)):
        asks = isinstance(node, ast.Attribute) and node.attr in _QUESTIONS
        by_class = (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") == "isinstance"
            and any(isinstance(one, ast.Name) and one.id in _CLASSES for one in ast.walk(node.args[1]))
        )
        if asks or by_class or any(map(_names_a_kind, _tested(node))):
            found.append(getattr(node, "lineno", 0))
    return sorted(found)


def _modules() -> dict[str, Path]:
    files = {str(file.relative_to(ROOT)): file for file in (ROOT / "repot").rglob("*.py")}
    return {name: file for name, file in files.items() if not name.startswith(KNOWING) and name not in ABOUT_RESULTS}


def test_no_branch_on_the_kind_of_broker() -> None:
    found = {name: branches(file.read_text()) for name, file in _modules().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "if url.is_redis: pass",
        "found = 'redis' if fast else 'amqp'",
        "if broker.product == 'RabbitMQ': pass",
        "if kind is BrokerKind.REDIS: pass",
        "if scheme in ('redis', 'rediss'): pass",
        "isinstance(broker, (RedisBroker, str))",
        "profiles['amqp']",
        "match url.scheme:\n    case 'redis': pass",
    ],
)
def test_each_form_of_a_branch_is_noticed(line: str) -> None:
    assert branches(line)


@pytest.mark.parametrize("line", ["start('redis')", "_REDIS = BrokerKind.REDIS"])
def test_a_name_alone_is_no_branch(line: str) -> None:
    assert branches(line) == []
