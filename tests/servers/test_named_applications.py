"""Commands look at the deployment of the application that is named, also where its addresses are in its own code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from kombu import Connection

from repot.brokers.message import Message, publish
from repot.deadletter.dead_letter import Death, make_dead_letter
from repot.deadletter.reason import Reason
from support.commands import start

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server

#: Its workers read database 3, and keep leases in 4.
SHOP = """
import repot
from celery import Celery

app = Celery("shop", broker="{broker}", backend="{results}")
app.conf.task_default_queue = "orders"
repot.configure(app)
"""
READ = {
    "dlq list": "/3",
    "dlq stats": "/3",
    "inflight list": "/3",
    "leases list": "/4",
    "leases jobs": "/4",
    "status": "/4",
}


@pytest.fixture
def shop(own: Server, tmp_path: Path) -> str:
    """The address of a server; the application's are databases of it."""
    url = own.url.rpartition("/")[0]
    (tmp_path / "shop.py").write_text(SHOP.format(broker=f"{url}/3", results=f"{url}/4"))
    return url


def said(directory: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    """Run repot without any setting of repot's but these; return its exit code and what it printed."""
    process = start(directory, *words, **environment)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize("command", READ)
def test_a_command_reads_the_addresses_of_the_application(shop: str, tmp_path: Path, command: str) -> None:
    for words, environment in (((*command.split(), "-A", "shop"), {}), (command.split(), {"WORKER_APP": "shop"})):
        code, out, err = said(tmp_path, *words, **environment)
        assert code == 0, err
        assert f"{shop}{READ[command]}" in out + err
        assert "no variable states" not in err


def test_the_next_command_of_a_status_reads_the_same_application(shop: str, tmp_path: Path) -> None:
    dead = make_dead_letter(
        Message(b"[[], {}, {}]", "application/json", "utf-8", {"id": str(uuid4()), "task": "shop.pay"}, {}),
        Death(Reason.FAILED, "orders", died_at=0.0, exception="ValueError", message=""),
    )
    with Connection(f"{shop}/3") as connection:
        publish(connection.default_channel, dead, "orders.dead")
    code, out, err = said(tmp_path, "status", "-A", "shop", "--json")
    assert code == 0, err
    following = json.loads(out)["next"]["command"]
    assert following == "repot dlq stats -A shop"
    code, out, err = said(tmp_path, *following.split()[1:], "--json")
    assert (code, [(one["dead_queue"], one["count"]) for one in json.loads(out)]) == (0, [("orders.dead", 1)]), err


@pytest.mark.parametrize(
    ("command", "what"),
    [("dlq list", "the broker"), ("inflight list", "the broker"), ("leases list", "the lease store")],
)
def test_a_command_says_that_it_reads_a_default_address(tmp_path: Path, command: str, what: str) -> None:
    """Another deployment may be there, or none."""
    _, _, err = said(tmp_path, *command.split())
    assert f"note: no variable states {what}, and no application is named" in " ".join(err.split())
