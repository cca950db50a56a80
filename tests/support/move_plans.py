"""Plans of moves, as `repot move plan` prints them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from repot.cli.main import main
from repot.waiting import wait_until
from support.shared_rabbitmq import ask, vhost_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

    from support.moves import Way

#: Statistics of RabbitMQ that appear after some seconds.
_NOT_YET = "has not counted", "does not state"


def plan(path: Way, *words: str, code: int = 0) -> dict[str, Any]:
    """Return the plan as JSON, once RabbitMQ has counted everything."""
    command = ["move", "plan", "--json", *brokers(path), *words]

    def look() -> Result | None:
        found = CliRunner().invoke(main, command, env=environment(path))
        return None if any(one in found.stdout for one in _NOT_YET) else found

    result = wait_until(look, within_s=60, what="RabbitMQ has counted", poll_s=1)
    assert result is not None
    assert code == result.exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def text(path: Way, *words: str) -> str:
    """Return the plan as text."""
    return CliRunner().invoke(main, ["move", "plan", *brokers(path), *words], env=environment(path)).stdout


def environment(path: Way) -> dict[str, str]:
    return {"WORKER_LEASE_STORE": path.store.url}


def brokers(path: Way) -> list[str]:
    words = ["--from", path.source.url, "--to", path.target.url, "--map", f"{path.queue}={path.goal}"]
    for side, server in (("from", path.source), ("to", path.target)):
        words += [f"--{side}-management", server.management_url] if server.management_url else []
    return [*words, "--queue", path.queue]


@contextmanager
def policy(path: Way, definition: dict[str, Any]) -> Iterator[None]:
    """Set a policy for the target queue."""
    url = f"policies/{vhost_of(path.target)}/{path.name}"
    ask(path.target, "PUT", url, {"pattern": f"^{path.goal}$", "definition": definition, "apply-to": "queues"})
    try:
        yield
    finally:
        ask(path.target, "DELETE", url)
