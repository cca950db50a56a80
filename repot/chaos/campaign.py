"""Many cases on shared private servers, several at a time."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Protocol

from repot.brokers.local import BROKER_SERVERS, redis_server, toxiproxy_server
from repot.chaos.experiment import Case, Laboratory, Result, perform
from repot.chaos.workers import require_obedient
from repot.config import ExplicitSettings
from repot.errors import ExperimentFailed, VerdictUnexpected
from repot.waiting import stop_on_signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from repot.brokers.local import Server
    from repot.chaos.scenarios import Scenario


class Progress(Protocol):
    """Who is told how a campaign goes; called from several threads."""

    def server(self, server: Server) -> None:
        """A private server serves."""

    def step(self, case: Case, text: str) -> None:
        """A case goes on."""

    def result(self, result: Result) -> None:
        """A case has its verdict."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The repetitions of one scenario on one broker, with one setting."""

    scenario: str
    broker: str
    deduplicate: bool
    runs: int
    equal: bool
    as_expected: bool


def plan(scenarios: Iterable[Scenario], brokers: Iterable[str], deduplicate: Iterable[bool], repeat: int) -> list[Case]:
    """List the cases, broker by broker."""
    return [
        Case(scenario, broker, setting, number)
        for broker, scenario, setting, number in product(
            brokers, tuple(scenarios), tuple(deduplicate), range(1, repeat + 1)
        )
    ]


def run(cases: Sequence[Case], *, jobs: int, app: str, progress: Progress) -> list[Result]:
    """Carry the cases out on private servers, at most `jobs` at a time, and return their results in order.

    Raises:
        ExperimentFailed: a case has no verdict; the others are stopped.
        ProgramMissing, ServerFailed: a server is not there.
    """
    stop = Event()
    starting = Lock()
    with ExitStack() as stack:
        toxiproxy = stack.enter_context(toxiproxy_server())
        results = stack.enter_context(redis_server())
        # gone with that server, also when this process is killed
        folder = results.folder / "experiments"
        servers = {}
        for name in dict.fromkeys(case.broker for case in cases):
            servers[name] = stack.enter_context(BROKER_SERVERS[name]())
            progress.server(servers[name])
        require_obedient(ExplicitSettings(app=app, broker_url=servers[cases[0].broker].url))

        def one(case: Case) -> Result:
            laboratory = Laboratory(
                broker=servers[case.broker],
                results_url=results.results_url,
                toxiproxy_url=toxiproxy.url,
                folder=folder,
                app=app,
                say=progress.step,
                stop=stop,
                starting=starting,
            )
            try:
                result = perform(case, laboratory)
            except ExperimentFailed as error:
                raise _with_logs_kept(error, folder) from error
            progress.result(result)
            return result

        # asked to stop, each case ends by itself: no interrupt strikes between two steps
        stack.enter_context(stop_on_signal(stop))
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=jobs))
        # entered last, left first: nobody waits for a thread that waits for a worker
        stack.callback(stop.set)
        futures = [pool.submit(one, case) for case in cases]
        stack.callback(lambda: [future.cancel() for future in futures])
        wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((found for found in futures if found.done() and found.exception()), None)
        if failed:
            failed.result()
        return [future.result() for future in futures]


def _with_logs_kept(error: ExperimentFailed, folder: Path) -> ExperimentFailed:
    """The same failure, naming a copy of the workers' logs that stays."""
    kept = Path(tempfile.mkdtemp(prefix="repot-failed-"))
    # multiprocessing's folders come and go meanwhile
    with suppress(shutil.Error):
        shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("pymp-*"))
    return ExperimentFailed(error.message, hint="\n".join(filter(None, (error.hint, f"All logs are in {kept}"))))


def require_expected(results: Sequence[Result]) -> None:
    """Accept results that all agree with their scenarios' tables.

    Raises:
        VerdictUnexpected: some do not; names them.
    """
    odd = [result.case.name for result in results if not result.as_expected]
    if odd:
        message = f"{len(odd)} of {len(results)} verdicts are not the expected ones: {', '.join(odd)}"
        raise VerdictUnexpected(message, hint="--html FILE draws what happened, --json gives every delivery and run.")


def summarize(results: Sequence[Result]) -> Iterator[Summary]:
    """Say of each scenario, broker and setting whether its repetitions agree, and agree with the table."""
    groups: dict[tuple[str, str, bool], list[Result]] = {}
    for result in results:
        case = result.case
        groups.setdefault((case.scenario.name, case.broker, case.deduplicate), []).append(result)
    for (scenario, broker, deduplicate), group in groups.items():
        found = {(result.verdict, result.consumed_again, result.others_lost) for result in group}
        yield Summary(
            scenario,
            broker,
            deduplicate,
            runs=len(group),
            equal=len(found) == 1,
            as_expected=all(result.as_expected for result in group),
        )
