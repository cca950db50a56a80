"""Private servers come up for real, side by side, and never outlive their caller."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from repot.errors import ProgramMissing, ServerFailed
from repot.testbed import (
    ReapedProcess,
    executables,
    free_port,
    rabbitmq_server,
    reaper,
    redis_server,
    toxiproxy_server,
)
from repot.testbed import servers as local_servers
from repot.testbed.process import ReapedDirectory
from repot.waiting import wait_until
from support.installed import require
from support.leftovers import ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.testbed import Server

#: Starts all three, says which processes run, and waits to be ended.
CALLER = """
import json, os, sys
from contextlib import ExitStack
from pathlib import Path
import psutil
from repot.testbed import rabbitmq_server, redis_server, toxiproxy_server
with ExitStack() as stack:
    servers = [stack.enter_context(start()) for start in (redis_server, rabbitmq_server, toxiproxy_server)]
    print(json.dumps({
        "pids": [server.process.pid for server in servers],
        "directories": [str(server.directory) for server in servers],
        "ports": [server.port for server in servers],
    }), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def _all_programs() -> None:
    for program in (executables.REDIS, executables.RABBITMQ, executables.TOXIPROXY):
        require(program)


def running(pids: list[int]) -> list[int]:
    """Those that still run; one that only waits to be reaped does not."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture
def caller() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CALLER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.promise("is killed")
@pytest.mark.usefixtures("_all_programs")
@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_nothing_stays_when_the_caller(caller: subprocess.Popen[str], how: str) -> None:
    assert caller.stdout is not None
    assert caller.stdin is not None
    told = json.loads(caller.stdout.readline())
    assert len(running(told["pids"])) == 3
    # Redis, Toxiproxy, the node and its children, its port mapper, and a reaper for each
    assert len(ours(told["directories"])) >= 7
    if how == "is killed":
        caller.send_signal(signal.SIGKILL)
    else:
        caller.stdin.close()
    caller.wait(timeout=30)
    wait_until(lambda: not ours(told["directories"]), within_s=15, what="every process is gone")
    wait_until(lambda: not any(map(os.path.exists, told["directories"])), within_s=15, what="every directory is gone")


@pytest.mark.usefixtures("_all_programs")
def test_several_run_side_by_side(redis: Server, rabbitmq: Server, toxiproxy: Server) -> None:
    with ExitStack() as stack:
        servers = [redis, rabbitmq, toxiproxy, *(stack.enter_context(redis_server()) for _ in range(2))]
        servers += [stack.enter_context(start()) for start in (rabbitmq_server, toxiproxy_server)]
        assert len({server.port for server in servers}) == 7
        for server in servers:
            if server.name != "Toxiproxy":
                assert server.open().depth("nothing").is_drained


def listening_at(process: psutil.Process) -> list[str]:
    """Its addresses; none of a short-lived one that has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return [one.laddr.ip for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    return []


@pytest.mark.promise
@pytest.mark.usefixtures("_all_programs")
def test_they_listen_on_loopback_alone() -> None:
    with redis_server() as redis, rabbitmq_server() as rabbitmq, toxiproxy_server() as toxiproxy:
        directories = [str(server.directory) for server in (redis, rabbitmq, toxiproxy)]
        listening = [address for process in ours(directories) for address in listening_at(process)]
    # Redis, Toxiproxy, AMQP, the management API, Erlang's distribution and its port mapper
    assert len(listening) >= 6
    assert {"127.0.0.1"} >= set(listening) - {"::1", "::ffff:127.0.0.1"}


def test_a_missing_program_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(executables, "_MORE_DIRECTORIES", ())
    for program in (executables.REDIS, executables.RABBITMQ, executables.TOXIPROXY):
        with pytest.raises(ProgramMissing) as caught:
            program.find()
        assert "is not installed" in caught.value.message
        for way in ("Debian, Ubuntu:", "macOS: brew install", "Docker:"):
            assert way in caught.value.hint


def test_a_server_that_dies_at_the_start_shows_its_last_lines() -> None:
    require(executables.REDIS)
    with pytest.raises(ServerFailed) as caught, redis_server("--no-such-option", "1"):
        pass
    assert "exited with 1 while starting" in caught.value.message
    assert "no-such-option" in caught.value.hint


def test_a_port_taken_meanwhile_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another port is tried, because one found free can be gone a moment later."""
    require(executables.REDIS)
    with redis_server() as first:
        ports = iter([first.port, free_port()])
        monkeypatch.setattr(local_servers, "free_port", lambda: next(ports))
        with redis_server() as second:
            assert second.port != first.port
            assert second.open().depth("nothing").is_drained


def test_a_command_that_cannot_start_says_so(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="could not be started"):
        ReapedProcess(["/no/such/program"], log=tmp_path / "log", environment={})


def test_a_reaped_process_takes_its_children_along(tmp_path: Path) -> None:
    code = "import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()"
    with ReapedProcess([sys.executable, "-c", code], log=tmp_path / "log", environment=dict(os.environ)) as process:
        wait_until(process.log_tail, within_s=30, what="the child is named")
        child = int(process.log_tail())
        assert [process.pid, child] == running([process.pid, child])
    wait_until(lambda: not running([process.pid, child]), within_s=30, what="both are gone")
    assert process.exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_reaped_process_takes_process_groups_along(tmp_path: Path, how: str) -> None:
    """As supervisord starts its programs: ended at `stop`, and when the command itself was killed."""
    code = """
import subprocess
child = subprocess.Popen(['sleep', '600'], process_group=0)
print(child.pid, flush=True)
child.wait()
"""
    with ReapedProcess([sys.executable, "-c", code], log=tmp_path / "log", environment=dict(os.environ)) as process:
        wait_until(process.log_tail, within_s=30, what="the child is named")
        child = int(process.log_tail())
        assert os.getpgid(child) == child
        if how == "kill":
            process.signal(signal.SIGKILL)
            wait_until(lambda: process.exit_code is not None, within_s=30, what="the reaper has ended")
            assert not running([child])
    wait_until(lambda: not running([process.pid, child]), within_s=30, what="both are gone")


def test_a_process_stands_still_until_the_last_who_wants_it_has_left(tmp_path: Path) -> None:
    with ReapedProcess(["sleep", "600"], log=tmp_path / "log", environment=dict(os.environ)) as process:
        first, second = process.frozen(), process.frozen()
        first.__enter__()
        second.__enter__()
        assert _stands_still(process)
        first.__exit__(None, None, None)
        assert _stands_still(process)
        second.__exit__(None, None, None)
        wait_until(lambda: not _stands_still(process), within_s=30, what="it goes on")


def _stands_still(process: ReapedProcess) -> bool:
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


#: Four threads that use a processor outside the interpreter's lock.
BUSY = """
import hashlib, threading
def work():
    while True:
        hashlib.sha256(bytes(200_000)).digest()
for _ in range(4):
    threading.Thread(target=work).start()
print("works", flush=True)
"""


@pytest.mark.parametrize("how", [ReapedProcess.frozen, ReapedProcess.all_frozen])
def test_no_thread_runs_once_a_process_is_frozen(tmp_path: Path, how: Callable[..., Any]) -> None:
    command = [sys.executable, "-c", BUSY]
    with ReapedProcess(command, log=tmp_path / "log", environment=dict(os.environ)) as process:
        wait_until(process.log_tail, within_s=20, what="it works")
        for _ in range(50):
            with how(process):
                threads = Path(f"/proc/{process.pid}/task").glob("*/status")
                states = [line for one in threads for line in one.read_text().splitlines() if line.startswith("State")]
                assert states == ["State:\tT (stopped)"] * 5


#: Makes files for a second, as a worker does that is ended a moment later than its server.
WRITER = """
import os, sys, time
end, number = time.monotonic() + 1, 0
while time.monotonic() < end and os.path.exists(sys.argv[1]):
    number += 1
    try:
        open(os.path.join(sys.argv[1], str(number)), "w").close()
    except FileNotFoundError:
        break
    if number == 1:
        print("writes", flush=True)
"""


def test_a_directory_is_removed_also_while_a_process_writes_into_it() -> None:
    directory = ReapedDirectory("repot-written-")
    command = [sys.executable, "-c", WRITER, str(directory.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline()
        directory.close()
    assert not directory.path.exists()


def test_a_port_mapper_that_is_slow_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [TimeoutError, TimeoutError, ConnectionRefusedError]

    def connect(*_: object, **__: object) -> None:
        raise answers.pop(0)

    monkeypatch.setattr(socket, "create_connection", connect)
    reaper.end_epmd(1)
    assert not answers


AS_NOBODY = """#!/bin/sh
chown -R nobody "$HOME"
exec setpriv --reuid nobody --regid nogroup --clear-groups "{program}" "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv becomes another user")
def test_another_user_than_root_can_run_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's own rabbitmq-server command would refuse."""
    require(executables.RABBITMQ)
    program = Path(executables.RABBITMQ.find())
    if "chroot" in program.read_text(errors="replace"):
        pytest.skip("this rabbitmq-server changes its root directory, which only root can do")
    wrapper = tmp_path / "rabbitmq-server"
    wrapper.write_text(AS_NOBODY.format(program=program))
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with rabbitmq_server() as server:
        users = {process.username() for process in ours([str(server.directory)]) if process.pid == server.process.pid}
        assert users == {"nobody"}
        assert server.open().depth("nothing").is_drained
