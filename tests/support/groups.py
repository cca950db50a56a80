"""The group of each test: `unit` and `promises`, which `make test` runs, or one of the campaign's.

A test without a server is a unit test. One with servers belongs to the campaign, unless it is marked as the proof of a
promise: `@pytest.mark.promise`, or `@pytest.mark.promise("redis-redis")` for the cases with this text in their id.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

TESTS = Path(__file__).parents[1]

UNIT, PROMISES = "unit", "promises"

#: Where unit tests are; in these files of `tests/servers` they are those whose store is a file or in memory.
UNIT_PATHS = (
    "tests/unit",
    "tests/upstream",
    *(f"tests/servers/test_{name}.py" for name in ("database", "deliveries", "job_store", "lease_store")),
    *(f"tests/servers/test_{name}.py" for name in ("move_journal", "outbox", "rollout_record", "rollout_store")),
    "tests/servers/test_store_rules.py",
    "tests/servers/test_transaction.py",
)

#: Groups of the tests that need one of these servers, with the files of `tests/servers` that have such tests.
SERVERS_APART = {
    "mariadb": (
        *(f"test_{name}.py" for name in ("database", "deliveries", "green_pools", "job_store", "lease_store", "move")),
        *(f"test_{name}.py" for name in ("move_journal", "outbox", "rollout_record", "rollout_store", "store_facts")),
        *(f"test_{name}.py" for name in ("store_outages", "store_rules", "transaction", "transaction_workers")),
    ),
    "valkey": tuple(
        f"test_{name}.py" for name in ("addresses", "job_store", "lease_store", "rollout_record", "rollout_store")
    ),
}

#: The files of the other groups, as patterns below `tests/`; the first that matches decides.
FILES = {
    "compose": ("compose/*",),
    "kubernetes": ("kubernetes/*",),
    "conformance": ("conformance/*",),
    "wheel": ("distribution/*",),
    "browser": ("chaos/test_report_page.py", "servers/test_rollout_page*.py", "servers/test_site_in_a_browser.py"),
    "pages": ("servers/test_pages.py", "servers/test_examples.py", "servers/test_rollout_tutorial.py"),
    "verdicts": ("chaos/test_true_verdicts.py",),
    "mistakes": ("chaos/test_planted_mistakes.py",),
    "chaos": ("chaos/*", "servers/test_campaign.py"),
    "doctor": ("apps/*", "processes/*", "servers/test_doctor.py", "servers/test_init*.py"),
    "moves": (
        "servers/test_move*.py",
        "servers/test_kills.py",
        "servers/test_inflight*.py",
        "servers/test_old_*.py",
    ),
    "rollouts": (
        "servers/test_rollout*.py",
        "servers/test_routing.py",
        "servers/test_dashboard.py",
        "servers/test_alerts.py",
    ),
    "effects": (
        *(f"servers/test_{name}*.py" for name in ("guard", "lease", "store_", "transaction", "database")),
        *(f"servers/test_{name}*.py" for name in ("job_", "submission", "outbox")),
    ),
    "workers": (
        "health/*",
        *(f"servers/test_{name}.py" for name in ("claim*", "closing", "command_mailbox", "confirm_window", "costs")),
        *(
            f"servers/test_{name}.py"
            for name in ("dead_letters", "deliveries", "dlq_queues", "embedded_worker", "expiries", "partial_results")
        ),
        *(
            f"servers/test_{name}.py"
            for name in ("metric_labels", "mixed_fleets", "prefetch", "releases", "requeue_orphans", "tracing")
        ),
        *(f"servers/test_{name}.py" for name in ("forked_producers", "heartbeats", "waiting_messages", "worker")),
    ),
    "brokers": (
        "upstream/test_bugs.py",
        *(f"servers/test_{name}.py" for name in ("addresses", "answers", "browse", "connecting", "cut_links", "depth")),
        *(f"servers/test_{name}.py" for name in ("faults", "green_pools", "held_queues", "named_applications")),
        "servers/test_network_partition.py",
        *(f"servers/test_{name}.py" for name in ("primary", "private_servers", "status", "schemas", "empty_lists")),
        *(f"servers/test_{name}.py" for name in ("publish", "queue_limit", "queue_reader", "refused_commands")),
        *(f"servers/test_{name}.py" for name in ("readable_output", "rights", "test_brokers", "tls")),
    ),
}

_IN_THE_PROCESS = {"memory", "sqlite"}
_SERVERS = {"mariadb", "own", "postgresql", "rabbitmq", "redis", "server", "servers", "toxiproxy", "valkey"}


def group_of(item: pytest.Item) -> str:
    """Return the name of the group that runs a test.

    Raises:
        LookupError: no group has its file.
    """
    path = item.path.relative_to(TESTS)
    if not needs_a_server(path, chosen := _chosen(item), getattr(item, "fixturenames", ())):
        if not f"tests/{path}".startswith(UNIT_PATHS):
            message = f"tests/{path} has tests without a server, and is not in UNIT_PATHS of tests/support/groups.py"
            raise LookupError(message)
        return UNIT
    if is_promise(item):
        return PROMISES
    if path.parts[0] == "servers":
        for name, files in SERVERS_APART.items():
            if name in {*chosen, *getattr(item, "fixturenames", ())}:
                if path.name not in files:  # the group would leave it out
                    message = f"tests/{path} needs {name}, and is not in SERVERS_APART of tests/support/groups.py"
                    raise LookupError(message)
                return name
    return group_of_file(path)


def may_have(name: str, path: Path) -> bool:
    """Return whether a file below `tests/` can have tests of a group; to import one that has none takes time."""
    if name == UNIT:
        return f"tests/{path}".startswith(UNIT_PATHS)
    if path.parts[0] == "unit":
        return False
    if name == PROMISES:
        return "pytest.mark.promise" in (TESTS / path).read_text()
    if name in SERVERS_APART:
        return path.name in SERVERS_APART[name]
    try:
        return group_of_file(path) == name
    except LookupError:  # tests/upstream, whose other files are unit tests
        return False


def group_of_file(path: Path) -> str:
    """Return the group of a file below `tests/` whose tests need servers or processes.

    Raises:
        LookupError: no group has it.
    """
    for name, patterns in FILES.items():
        if any(path.match(pattern) for pattern in patterns):
            return name
    message = f"no group in tests/support/groups.py has tests/{path}"
    raise LookupError(message)


def needs_a_server(path: Path, chosen: set[str], fixtures: Sequence[str]) -> bool:
    """Return whether a test is more than a unit test, by its file, the words among its parameters, and its fixtures."""
    if path.parts[0] in {"unit", "upstream"} and path.name != "test_bugs.py":
        return False
    if path.parts[0] != "servers":
        return True
    return not chosen & _IN_THE_PROCESS or bool(_SERVERS & {*chosen, *fixtures})


def is_promise(item: pytest.Item) -> bool:
    """Return whether a test is marked as the proof of a promise, as for the case of its parameters."""
    case = item.name.partition("[")[2]
    return any(not mark.args or any(text in case for text in mark.args) for mark in item.iter_markers("promise"))


def _chosen(item: pytest.Item) -> set[str]:
    found: set[str] = set()
    for value in getattr(getattr(item, "callspec", None), "params", {}).values():
        words = [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, str)]
        # a way of a move, as in "rabbitmq-redis-mariadb", names its servers
        found |= {part for one in words for part in (one, *one.split("-"))}
    return found
