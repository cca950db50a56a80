"""Passwords and control characters of others, in a real broker and a real store: no command shows them."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from kombu import Connection
from redis import Redis

from repot.brokers.message import Message, publish
from repot.cli.main import main
from repot.deadletter.dead_letter import HEADER
from repot.rollout.rollout import open_rollout
from repot.routing.record import Change
from support.hostile import CONTROLS, PLANTED, SHAPES, is_safe
from support.reports import between, environment, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.config import WorkerSettings
    from repot.testbed import Server

HOSTILE = f"{CONTROLS} {'; '.join(SHAPES)}"

#: Commands that print what others wrote; as text and as JSON.
COMMANDS = (
    "dlq list",
    "dlq show dead-one",
    "dlq stats",
    "rollout status {name}",
    "rollout history {name}",
    "move plan --from {source} --to {target} --to-management {management}",
    "inflight list",
    "leases list",
)


@pytest.fixture(scope="module")
def settings(redis: Server, rabbitmq: Server) -> Iterator[WorkerSettings]:
    """A queue and a dead-letter queue on Redis, and a rollout, each with hostile text."""
    found = between(redis, rabbitmq, redis)
    queue = found.queue_names[0]
    headers = {"task": f"shop.pay{CONTROLS}", "id": "dead-one", "lang": HOSTILE}
    death = {"reason": "failed", "queue": queue, "exception": f"ValueError{CONTROLS}", "message": HOSTILE}
    header = json.dumps({**death, "traceback": f"Traceback\n  {HOSTILE}\n", "worker": HOSTILE})
    with Connection(redis.url) as connection, connection.channel() as channel:
        for place, more in ((queue, {}), (f"{queue}.dead", {HEADER: header})):
            publish(channel, Message(b"[[], {}, {}]", "application/json", "utf-8", headers | more), place)
    with open_rollout(found.rollout, found) as opened:
        opened.begin(plan_of(opened), "ann")
        opened.records.change(opened.record(), Change(f"eve{CONTROLS}", HOSTILE))
    yield found
    with closing(Redis.from_url(redis.url)) as client:
        client.delete(queue, f"{queue}.dead")


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_shows_a_password_or_controls_the_terminal(
    settings: WorkerSettings, command: str, form: tuple[str, ...]
) -> None:
    queue = ("--queue", settings.queue_names[0]) if command.startswith(("dlq", "move")) else ()
    urls = {"source": settings.broker_url.reveal(), "target": settings.rollout_target.reveal()}  # type: ignore[union-attr]
    urls["management"] = settings.management_url.reveal()  # type: ignore[union-attr]
    words = command.format(name=settings.rollout, **urls).split()
    done = CliRunner(env=_variables(settings)).invoke(main, [*words, *queue, *form])
    assert done.exit_code in (0, 4), done.output
    assert is_safe(done.output)
    if command.startswith(("dlq list", "rollout status", "move plan")):
        # the text itself is there
        assert "owned" in done.output


def test_an_error_shows_no_password_and_does_not_control_the_terminal(settings: WorkerSettings) -> None:
    done = CliRunner(env=_variables(settings)).invoke(main, ["rollout", "status", f"x{CONTROLS}password={PLANTED}"])
    assert done.exit_code
    assert is_safe(done.output)


def _variables(settings: WorkerSettings) -> dict[str, str]:
    return environment(settings)
