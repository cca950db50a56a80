"""Start a private Redis or Valkey."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from repot.brokers import open_broker
from repot.config import BrokerUrl
from repot.testbed.startup import LOOPBACK, Launched, if_ours, start

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from repot.testbed.process import ReapedDirectory


def launch_redis(program: str, directory: Path, home: ReapedDirectory, port: int, options: Iterable[str]) -> Launched:
    """Start one that keeps nothing on disk, unless `options` of its command line change that."""
    command = [program, "--port", str(port), "--bind", LOOPBACK, "--dir", str(directory)]
    command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *options]
    url = f"redis://{LOOPBACK}:{port}/0"
    process = start(command, directory, home)

    def identify() -> tuple[str, str]:
        with closing(open_broker(BrokerUrl.parse(url))) as broker:
            return if_ours(broker, str(process.pid))

    return Launched(process, port, url, identify)
