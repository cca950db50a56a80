"""Celery's own integration tests: run once, with or without repot, on a Redis and a virtual host of its own."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.recording import CONFIGURED, POOL, RECORD
from repot.errors import DeadlineExceeded
from repot.testbed import LOOPBACK, ReapedProcess, redis_server
from repot.testbed.process import ReapedDirectory
from repot.waiting import wait_until
from support.shared_rabbitmq import whole_rabbitmq, with_virtual_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from repot.testbed import Server

_TOOLS = Path(__file__).parents[2] / ".tools"


def _suite() -> Path:
    """Where scripts/celery_tests puts the tests of the installed minor release, or else those of the locked one."""
    own = _TOOLS / f"celery-tests-{'.'.join(version('celery').split('.')[:2])}"
    return own if own.exists() else _TOOLS / "celery-tests"


SUITE = _suite()

BROKERS = ("redis", "rabbitmq")

#: Pools of the worker. The first is the one that Celery's tests choose themselves, for a worker in their own process;
#: with another one the worker is a process of its own.
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")

#: Needs an account at Azure and its library, which other tests do not.
_NOT_RUN = "t/integration/test_backend.py"

#: A run that hangs is ended; the tests it did not come to have no outcome.
LONGEST_RUN_S = 3600.0

PASSED, FAILED, SKIPPED, MISSING = "passed", "failed", "skipped", "missing"


@dataclass(frozen=True, slots=True)
class Arm:
    """One broker, whether `repot.configure` was called, and the worker's pool."""

    broker: str
    is_configured: bool
    pool: str = POOLS[0]

    def __str__(self) -> str:
        """As people call it."""
        pool = "" if self.pool == POOLS[0] else f"{self.pool}, "
        return f"{self.broker}, {pool}{'repot' if self.is_configured else 'stock'}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended, and what a failure said."""

    status: str
    text: str = ""


def run(
    arm: Arm, tests: Sequence[str] = (), *, within_s: float = LONGEST_RUN_S, progress: Callable[[int], None] = print
) -> dict[str, Outcome]:
    """Run the tests named, or all; `progress` hears now and then how many have ended. Return the outcome of each.

    Raises:
        RuntimeError: pytest itself failed, so that no outcome says anything.
    """
    with ExitStack() as stack:
        # gone with this process, however that ends
        directory = stack.enter_context(ReapedDirectory("repot-conformance-")).path
        redis = stack.enter_context(redis_server())
        broker = redis if arm.broker == "redis" else stack.enter_context(_virtual_host())
        record = directory / "record"
        record.touch()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("WORKER_", "CELERY_"))},
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
            "PYTHONPATH": os.pathsep.join(map(str, (SUITE / "packages", *Path(__file__).parents[1:3]))),
            "TEST_BROKER": broker.url,
            "TEST_BACKEND": redis.url,
            # as Celery's own CI does; some tests read the log
            "WORKER_LOGLEVEL": "INFO",
            "REDIS_HOST": LOOPBACK,
            "REDIS_PORT": str(redis.port),
            # kombu dumps there what a channel cannot give back at its end
            "TMPDIR": str(directory),
            RECORD: str(record),
            **(_ours(directory) if arm.is_configured else {}),
            **({} if arm.pool == POOLS[0] else {POOL: arm.pool}),
        }
        with ReapedProcess(_command(tests), log=directory / "log", environment=environment, directory=SUITE) as pytest:

            def has_ended() -> bool:
                progress(len(outcomes(_lines(record))))
                return pytest.exit_code is not None

            with suppress(DeadlineExceeded):
                wait_until(has_ended, within_s=within_s, what=f"Celery's tests end ({arm})", poll_s=2)
            # None it hangs, 0 all passed, 1 some failed
            if pytest.exit_code not in (None, 0, 1):
                message = f"pytest ended with {pytest.exit_code} ({arm}):\n{pytest.log_tail(40)}"
                raise RuntimeError(message)
        return outcomes(_lines(record))


@contextmanager
def _virtual_host() -> Iterator[Server]:
    with whole_rabbitmq() as server, with_virtual_host(server) as found:
        yield found


def outcomes(lines: Iterable[Mapping[str, Any]]) -> dict[str, Outcome]:
    """The last word on each test; one that pytest ran again at once counts by its last run."""
    found: dict[str, Outcome] = {}
    for line in lines:
        test, phase, outcome = line["test"], line["phase"], line["outcome"]
        if outcome == "failed":
            found[test] = Outcome(FAILED, f"{phase}: {line['text']}")
        elif outcome == "skipped":
            # a failure that Celery expects, or a test that is not for this broker
            found[test] = Outcome(SKIPPED, line["text"])
        elif outcome == "passed" and phase == "call":
            found[test] = Outcome(PASSED)
    return found


def _ours(directory: Path) -> dict[str, str]:
    """No setting but where its files go: what else repot changes is what is compared."""
    status_dir = directory / "status"
    status_dir.mkdir()
    return {CONFIGURED: "1", "WORKER_STATUS_DIR": str(status_dir)}


def _command(tests: Sequence[str]) -> list[str]:
    plugins = ("celery.contrib.pytest", "conformance.recording", "no:repot", "no:cacheprovider", "no:xdist")
    return [
        sys.executable,
        "-m",
        "pytest",
        *(f"-p{plugin}" for plugin in plugins),
        "-q",
        f"--ignore={_NOT_RUN}",
        *(tests or ["t/integration"]),
    ]


def _lines(record: Path) -> list[dict[str, Any]]:
    # the last line may be half written
    return [json.loads(line) for line in record.read_text().splitlines(keepends=True) if line.endswith("\n")]
