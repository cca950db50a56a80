"""`repot move` as an operator uses it."""

from __future__ import annotations

import json
import re
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from repot.cli.main import main
from repot.migrate.move import open_move
from repot.waiting import wait_until
from support.moves import Way, declare, places, task, way
from support.shared_rabbitmq import ask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from repot.testbed import Server

pytestmark = pytest.mark.usefixtures("quick_plans")


@pytest.fixture
def path(redis: Server, rabbitmq: Server) -> Way:
    return way(redis, rabbitmq, redis)


@pytest.fixture
def repot(redis: Server, tmp_path: Path) -> Callable[..., Result]:
    """Run a command with a lease store and a directory of its own."""
    environment = {"WORKER_LEASE_STORE": redis.url, "WORKER_MOVE_DIR": str(tmp_path / "moves")}
    return lambda *words: CliRunner().invoke(main, ["move", *words], env=environment)


def brokers(path: Way) -> list[str]:
    words = ["--from", path.source.url, "--to", path.target.url, "--to-management", path.target.management_url]
    return [*words, "--map", f"{path.queue}={path.goal}", "--queue", path.queue]


def output(result: Result, code: int = 0) -> Any:
    assert code == result.exit_code, result.output
    return json.loads(result.stdout)


@pytest.mark.promise
def test_nothing_moves_without_execute_and_a_plan_says_what_would(path: Way, repot: Callable[..., Result]) -> None:
    path.fill([task(place, priority=3 * (place % 2)) for place in range(10)])
    dry = repot("start", "--name", path.name, *brokers(path))
    assert dry.exit_code == 0, dry.output
    assert "nothing was changed" in dry.stderr
    assert len(path.left()) == 10
    (queue,) = output(repot("plan", "--json", *brokers(path)))["queues"]
    assert queue["source"] == {"ready": 10, "unacked": 0, "delayed": 0}
    assert queue["looked_at"] == queue["tasks"]["shop.charge"]["count"] == 10
    assert queue["tasks"]["shop.charge"]["priorities"] == {"0 -> 9": 5, "3 -> 6": 5}
    assert repot("status", path.name).exit_code == 1


def test_a_plan_refuses_what_has_no_queue_to_go_to(path: Way, repot: Callable[..., Result]) -> None:
    path.fill([task(0)])
    words = [word.replace(path.goal, "not-there") for word in brokers(path)]
    refused = repot("plan", *words)
    assert refused.exit_code == 4
    assert "the target has no queue 'not-there'" in refused.stdout
    assert repot("start", "--name", path.name, "--execute", *words).exit_code == 4
    assert len(path.left()) == 1


@pytest.mark.parametrize("server", ["redis", "rabbitmq"])
def test_a_queue_is_not_moved_into_itself(
    request: pytest.FixtureRequest, redis: Server, repot: Callable[..., Result], server: str
) -> None:
    """It would never end; another queue of the same broker is another matter."""
    broker: Server = request.getfixturevalue(server)
    same = way(broker, broker, redis)
    same.fill([task(place) for place in range(3)])
    named = broker.url.replace("127.0.0.1", "localhost")
    words = ["--from", broker.url, "--to", named, "--queue", same.queue]
    words += [word for side in ("from", "to") for word in (f"--{side}-management", broker.management_url)]
    for command in (
        ("plan",),
        ("start", "--name", same.name, "--execute"),
        ("start", "--name", "f", "--execute", "--force"),
    ):
        refused = repot(*command, *words)
        assert refused.exit_code == 4, refused.output
        assert f"would read what it wrote: '{same.queue}'" in refused.stderr
    assert len(same.left()) == 3
    assert repot("start", "--name", same.name, "--execute", *words, "--map", f"{same.queue}={same.goal}").exit_code == 0
    assert len(same.arrived()) == 3


@pytest.mark.promise
def test_a_move_is_watched_paused_stopped_and_resumed(path: Way, repot: Callable[..., Result]) -> None:
    path.fill([task(place) for place in range(60)])
    results: list[Result] = []
    words = ("start", "--name", path.name, "--execute", "--rate", "5", *brokers(path))
    mover = threading.Thread(target=lambda: results.append(repot(*words)))
    # a signal handler needs the main thread; the command's own process has one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("signal.signal", lambda *_: None)
        mover.start()
        wait_until(lambda: delivered(repot, path) > 0, within_s=60, what="the first messages are moved")
        assert repot("pause", path.name).exit_code == 0
        wait_until(lambda: is_still(repot, path), within_s=60, what="the move is paused", poll_s=1.5)
        assert repot("stop", path.name).exit_code == 0
        mover.join(60)
    assert not mover.is_alive()
    assert results[0].exit_code == 1, results[0].output
    assert "stopped by an operator" in results[0].stderr
    shown = output(repot("status", path.name, "--json"))
    assert (shown["state"], shown["closes"], shown["is_alive"]) == ("ended", True, False)
    assert [one["what"] for one in shown["audit"]] == ["started", "asked: pause", "asked: stop", "ended"]
    assert 0 < shown["delivered"] < 60
    counts = output(repot("resume", path.name, "--execute", "--json"))
    assert (counts["reserved"], counts["delivered"], counts["still_reserved"]) == (60, 60, 0)
    assert len(path.arrived()) == 60


def delivered(repot: Callable[..., Result], path: Way) -> int:
    result = repot("status", path.name, "--json")
    return 0 if result.exit_code else int(json.loads(result.stdout)["delivered"])


def is_still(repot: Callable[..., Result], path: Way) -> bool:
    """Whether nothing moves for longer than a paused mover looks again, and it is alive."""
    before = output(repot("status", path.name, "--json"))
    again: list[dict[str, Any]] = []

    def look() -> bool:
        again.append(output(repot("status", path.name, "--json")))
        return len(again) > 4

    wait_until(look, within_s=60, what="five looks", poll_s=0.5)
    return {before["delivered"]} == {one["delivered"] for one in again} and bool(again[-1]["is_alive"])


@pytest.mark.promise
def test_a_resumed_move_keeps_its_pace_and_its_priorities(path: Way, repot: Callable[..., Result]) -> None:
    path.fill([task(place, priority=3) for place in range(12)])
    words = ["--rate", "500", "--window", "4", "--max-depth", "90", "--limit", "4", "--priority", "keep"]
    output(repot("start", "--name", path.name, *brokers(path), *words, "--execute", "--json"))
    # a limit ended the move, and does not end the next one
    resumed = repot("resume", path.name, "--window", "3", "--execute", "--json")
    assert output(resumed)["delivered"] == 12
    assert "as the move was started: --priority keep --rate 500.0 --max-depth 90" in resumed.stderr
    assert {3} == {message.properties["priority"] for message in path.arrived()}
    # what was stated then counts from then on
    assert "--window 3 --rate 500.0 --max-depth 90" in repot("resume", path.name, "--execute").stderr


def test_what_a_move_proposes_for_dead_letters_can_be_typed(path: Way, repot: Callable[..., Result]) -> None:
    """No setting names the source of a move from --from."""
    dead = f"{path.queue}.dead"
    declare(path.source, dead)
    with closing(path.source.open()) as broker:
        assert all(one.is_confirmed for one in broker.publish(dead, [task(7)]))
    path.fill([task(1)])
    moved = repot("start", "--name", path.name, *brokers(path), "--execute")
    assert moved.exit_code == 0, moved.output
    (command,) = re.findall("`repot (dlq list [^`]*)` reads them", moved.stderr)
    listed = CliRunner().invoke(main, [*command.split(), "--dead-queue", dead], env={"WORKER_QUEUE_NAMES": path.queue})
    assert listed.exit_code == 0, listed.output
    assert "00000007-" in listed.stdout


@pytest.mark.promise
def test_a_password_appears_nowhere_but_in_the_file_of_the_addresses(
    path: Way, repot: Callable[..., Result], tmp_path: Path
) -> None:
    path.fill([task(0)])
    secret = path.target.url.replace("guest:guest", "guest:planted-secret")
    words = [word.replace(path.target.url, secret) for word in brokers(path)]
    for command in (("plan",), ("start", "--name", path.name, "--execute"), ("status", path.name)):
        result = repot(*command, *(words if command[0] != "status" else ()))
        assert result.exit_code == 8, result.output
        assert "planted-secret" not in result.output + result.stderr
    (file,) = (tmp_path / "moves").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.promise
def test_one_mover_a_queue(path: Way, repot: Callable[..., Result]) -> None:
    """A queue that another mover holds is refused, with who holds it."""
    path.fill([task(0)])
    with closing(path.source.open()) as broker:
        hold = broker.hold(path.queue, "the move 'other', process 7", 60, lambda _: False)  # type: ignore[attr-defined]
        result = repot("start", "--name", path.name, "--execute", *brokers(path))
        assert result.exit_code == 5
        assert "process 7" in result.stderr
        hold.release()
    assert repot("start", "--name", path.name, "--execute", *brokers(path)).exit_code == 0


def test_a_start_that_is_refused_changes_nothing_of_the_move(path: Way, repot: Callable[..., Result]) -> None:
    """Its mover goes on, and what goes on later does it as that one did."""
    path.fill([task(0)])
    words = ("start", "--name", path.name, "--execute", *brokers(path))
    assert repot(*words, "--rate", "100", "--priority", "keep").exit_code == 0
    with open_move(path.order(), path.settings) as move:
        token = move.journal.acquire("the move 'other', process 7", 60)
        before = move.journal.read()
        result = repot(*words)
        assert (result.exit_code, "process 7" in result.stderr) == (5, True)
        assert move.journal.read() == before
        move.journal.release(token)


def test_without_a_queue_for_dead_letters_nothing_is_quarantined(path: Way, tmp_path: Path) -> None:
    """Neither the name "" is written to, nor does the target refuse it for ever."""
    path.fill([task(0, headers={"expires": "2020-01-01T00:00:00+00:00"}), task(1)])
    environment = {
        "WORKER_LEASE_STORE": path.store.url,
        "WORKER_MOVE_DIR": str(tmp_path),
        "WORKER_DEAD_LETTER_QUEUE": "",
    }
    for words, code in ((("plan",), 4), (("start", "--name", path.name, "--force", "--execute"), 4)):
        result = CliRunner().invoke(main, ["move", *words, *brokers(path)], env=environment)
        assert result.exit_code == code, result.output
        assert "WORKER_DEAD_LETTER_QUEUE is empty" in result.output + result.stderr
    assert places(path.left()) == [0, 1]
    assert path.arrived() == []


def test_progress_states_no_rate_before_there_is_one(path: Way, repot: Callable[..., Result]) -> None:
    path.fill([task(place) for place in range(60)])
    shown = repot("start", "--name", path.name, "--execute", *brokers(path), "--window", "10", "--json")
    # the queues that were found come first
    found, first, *_ = [json.loads(line) for line in shown.stderr.splitlines()]
    assert path.queue in found["queues"][0]
    assert (first["moved"], first["rate"], first["seconds_left"]) == (10, None, None)
    said = repot("revert", path.name, "--execute").stderr.splitlines()
    assert "60 moved" in said[0]
    assert "/s" not in said[0]


@pytest.mark.parametrize(
    ("user", "hint"),
    [
        ("wrong", "user name or the password is wrong"),
        ("untagged", "set_user_tags untagged monitoring"),
        ("elsewhere", "set_permissions"),
    ],
)
def test_a_refusal_of_the_management_api_names_its_cause(
    path: Way, repot: Callable[..., Result], user: str, hint: str
) -> None:
    """All three answers are 401; a tag helps against one of them."""
    for name, tags in (("untagged", ""), ("elsewhere", "management")):
        ask(path.target, "PUT", f"users/{name}", {"password": "planted", "tags": tags})
    words = [word.replace("guest:guest", f"{user}:planted") for word in brokers(path)]
    refused = repot("plan", *words)
    assert refused.exit_code == 8, refused.output
    assert hint in refused.stderr
    assert ("set_user_tags" in refused.stderr) == (user == "untagged")
    assert "planted" not in refused.output + refused.stderr


def test_a_name_belongs_to_one_pair_of_brokers(path: Way, repot: Callable[..., Result]) -> None:
    declare(path.target, path.queue)
    assert repot("start", "--name", path.name, "--execute", *brokers(path)).exit_code == 0
    words = [word.replace("/0", "/3") for word in brokers(path)]
    found = repot("start", "--name", path.name, "--execute", *words)
    # another database has a journal of its own
    assert found.exit_code == 0
    assert repot("start", "--name", "no name", "--execute", *brokers(path)).exit_code == 2


@pytest.mark.promise
def test_a_move_is_reverted(path: Way, repot: Callable[..., Result]) -> None:
    path.fill([task(place) for place in range(10)])
    assert repot("start", "--name", path.name, "--execute", *brokers(path)).exit_code == 0
    (dry,) = output(repot("revert", path.name, "--json"))
    assert {"queue": path.queue, "to": path.goal, "delivered": 10, "given_back": 0, "in_target": 10, "gone": 0} == dry
    assert (len(path.arrived()), len(path.left())) == (10, 0)
    said = repot("revert", path.name)
    assert f"{path.goal} -> {path.queue}: 10 of 10 delivered would go back" in said.stdout
    assert "nothing was changed; add --execute" in said.stderr
    assert output(repot("revert", path.name, "--execute", "--json"))["delivered"] == 10
    assert (len(path.arrived()), len(path.left())) == (0, 10)
    shown = output(repot("status", path.name, "--json"))
    assert (shown["direction"], shown["given_back"]["delivered"], shown["closes"]) == ("back", 10, True)
    assert "given_back:      reserved 10, delivered 10" in repot("status", path.name).stdout
    assert repot("verify", path.name).exit_code == 0
    assert output(repot("resume", path.name, "--execute", "--json"))["delivered"] - 10 == 10
    assert (len(path.arrived()), len(path.left())) == (10, 0)
