"""A Redis or Valkey of one's own."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from repot.brokers import open_broker
from repot.brokers.local.launching import LOOPBACK, Launched, if_ours, start
from repot.config import BrokerUrl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from repot.brokers.local.process import GuardedFolder


def launch_redis(
    program: str, folder: Path, port: int, options: Iterable[str], *, home: GuardedFolder | None = None
) -> Launched:
    """Start one that keeps nothing on disk, unless `options`, added to its command line, say so."""
    command = [program, "--port", str(port), "--bind", LOOPBACK, "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *options]
    url = f"redis://{LOOPBACK}:{port}/0"
    process = start(command, folder, home=home)

    def identify() -> tuple[str, str]:
        with closing(open_broker(BrokerUrl.parse(url))) as broker:
            return if_ours(broker, str(process.pid))

    return Launched(process, port, url, identify)
