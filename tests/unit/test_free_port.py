"""A port that a process was given is not given to another one before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from repot.errors import ServerFailed
from repot.testbed import free_port, startup

ONE = "from repot.testbed import free_port, startup; startup._PORTS = range({0}, {0} + 1); print(free_port())"


@pytest.mark.skipif(sys.platform != "linux", reason="ports are reserved on Linux")
def test_no_port_is_given_twice_while_its_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(startup, "_PORTS", range(port, port + 1))
    with pytest.raises(ServerFailed, match=f"no port of 127.0.0.1 from {port} to {port} is free"):
        free_port()
    command = [sys.executable, "-c", ONE.format(port)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"no port of 127.0.0.1 from {port} to {port} is free" in refused.stderr
    startup._reservations.pop().close()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{port}\n" == done.stdout
