"""`repot dlq` on queues that no setting names."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from redis import Redis

from repot.cli.main import main
from support import queues_app
from support.moves import declare, read, task

if TYPE_CHECKING:
    from click.testing import Result

    from repot.testbed import Server


@pytest.fixture(params=["own", "rabbitmq"])
def each(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def dead_letters_of(server: Server, queue: str, count: int) -> list[str]:
    """Put dead letters beside a queue; return their ids."""
    declare(server, f"{queue}.dead")
    messages = [task(number) for number in range(count)]
    with closing(server.open()) as broker:
        assert all(one.is_confirmed for one in broker.publish(f"{queue}.dead", messages))
    return [one.headers["id"] for one in messages]


def dlq(server: Server, *words: str, code: int = 0, **environment: str) -> Result:
    url, management = server.url, server.management_url
    variables = {"WORKER_BROKER_URL": url, **({"WORKER_MANAGEMENT_URL": management} if management else {})}
    done = CliRunner().invoke(main, ["dlq", *words], env={**variables, **environment})
    assert code == done.exit_code, done.output
    return done


@pytest.mark.promise("own")
def test_dead_letters_of_queues_that_no_setting_names_are_found(each: Server) -> None:
    queue = f"mail-{uuid4()}"
    ids = dead_letters_of(each, queue, 2)
    (shown,) = (one for one in json.loads(dlq(each, "stats", "--json").stdout) if one["dead_queue"] == f"{queue}.dead")
    assert shown["count"] == 2
    assert {*ids} <= {one["id"] for one in json.loads(dlq(each, "list", "--json").stdout)}
    assert f"{queue}.dead" in dlq(each, "show", ids[0]).stdout


def test_only_named_dead_letters_are_changed_without_an_id(each: Server) -> None:
    """The others may be another application's."""
    queue = f"mail-{uuid4()}"
    ids = dead_letters_of(each, queue, 3)
    left = dlq(each, "discard", "--all", "--execute")
    assert f"note: '{queue}.dead' is left as it is" in left.stderr
    assert len(read(each, f"{queue}.dead")) == 3
    assert "1 discarded" in dlq(each, "discard", ids[0], "--execute").stderr
    assert "2 discarded" in dlq(each, "discard", "--all", "--queue", queue, "--execute").stderr
    assert read(each, f"{queue}.dead") == []


def test_an_application_names_its_dead_letters(own: Server) -> None:
    queues_app.app.conf.update(broker_url=own.url, broker_transport_options={})
    dead_letters_of(own, "mail", 2)
    assert "2 discarded" in dlq(own, "discard", "--all", "--execute", WORKER_APP="support.queues_app").stderr


def test_what_cannot_be_looked_for_is_said(own: Server) -> None:
    dead_letters_of(own, "mail", 1)
    with Redis.from_url(own.url) as client:
        command: Any = client.execute_command
        command("ACL SETUSER", "looker", "on", ">secret", "~*", "&*", "+@all", "-scan")
        url = own.url.replace("redis://", "redis://looker:secret@")
        found = dlq(own, "list", WORKER_BROKER_URL=url)
        assert "note: dead letters may be in other queues as well: SCAN is refused" in found.stderr
        client.rename("mail.dead", "shop:mail.dead")
        found = dlq(own, "stats")
        assert "note: 1 messages wait under the prefix 'shop:', dead letters among them" in found.stderr
