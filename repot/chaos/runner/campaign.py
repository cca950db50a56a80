"""Run a campaign: many cases, several at a time, on private servers."""

from __future__ import annotations

import platform
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from repot.chaos.report.result import About, Campaign, Result, Unmeasured
from repot.chaos.runner.application import places_of
from repot.chaos.runner.broker_pool import BrokerPool
from repot.chaos.runner.case import Case, Testbed
from repot.chaos.runner.experiment import perform
from repot.chaos.runner.target_task import Target
from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.expectations import expectation
from repot.chaos.scenarios.profiles import PROFILES, SCALED
from repot.errors import CheckFailed, ExperimentFailed, Interrupted, NotApplicable, RepotError
from repot.logs import get_logger
from repot.masking import masked
from repot.testbed import redis_server, toxiproxy_server
from repot.testbed.process import ReapedDirectory
from repot.testbed.servers import BROKER_VARIABLE, TOXIPROXY_VARIABLE
from repot.waiting import stop_on_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from repot.chaos.runner.broker_pool import Acquisition
    from repot.chaos.scenarios.profiles import Profile
    from repot.chaos.scenarios.scenario import Scenario
    from repot.config.broker_kinds import BrokerKind
    from repot.testbed.test_broker import TestBroker

log = get_logger(__name__)

_LIBRARIES = ("repot", "celery", "kombu", "amqp", "redis", "billiard")

T = TypeVar("T")
R = TypeVar("R")


class Progress(Protocol):
    """Receives the progress of a campaign; called from several threads."""

    def serves(self, product: str, version: str, variable: str, url: str) -> None:
        """Report a private server that serves at `url`; `variable` of the environment names such an address."""

    def step(self, case: Case, text: str) -> None:
        """Report a step of a case."""

    def result(self, result: Result | Unmeasured) -> None:
        """Report the result of a case, or that it has none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign is to do.

    Attributes:
        external: brokers of the user's; no fault touches them.
        judged: whether results are compared with the table of expectations; False for a user's own task.
        options: command-line options, beside scenario, profile, guard and seed, that run a case again.
    """

    cases: tuple[Case, ...]
    seed: int = 0
    target: Target = field(default_factory=Target)
    external: Mapping[BrokerKind, TestBroker] = field(default_factory=dict)
    judged: bool = True
    options: str = ""


def cases(
    scenarios: Iterable[Scenario], profiles: Iterable[Profile], guards: Sequence[bool], repeat: int
) -> tuple[Case, ...]:
    """Return all cases; first those whose brokers are scarce, since they take longest together."""
    found = [
        Case(scenario, profile, guard, number)
        for number in range(1, repeat + 1)
        for scenario in scenarios
        for profile in profiles
        for guard in guards
    ]
    return tuple(sorted(found, key=lambda case: -case.scenario.needs.rarity))


def run(plan: Plan, *, jobs: int, progress: Progress, stop: Event | None = None) -> Campaign:
    """Run the cases, at most `jobs` at a time.

    On Ctrl-C or SIGTERM, or once `stop` is set, stop everything that was started and return the results so far.

    Raises:
        ProgramMissing, ServerFailed: a server did not start.
    """
    begun, created = monotonic(), datetime.now().astimezone()
    runner = CaseRunner(plan, progress, perform, progress.result, stop)
    runner.run(jobs)
    order = {case.name: number for number, case in enumerate(plan.cases)}
    return Campaign(
        created=created.isoformat(timespec="seconds"),
        took_s=monotonic() - begun,
        seed=plan.seed,
        versions=runner.versions,
        # a user's application has times of its own
        scaled={} if plan.target.app else dict(SCALED),
        scenarios=tuple(
            About(one.name, one.title, one.lesson)
            for one in _in_order({case.scenario.name: case.scenario for case in plan.cases}, SCENARIOS)
        ),
        profiles=tuple(
            About(one.name, one.title_for(plan.target.app), "")
            for one in _in_order({case.profile.name: case.profile for case in plan.cases}, PROFILES)
        ),
        results=tuple(sorted(runner.results, key=lambda one: order[one.cell.run(one.number)])),
        unmeasured=tuple(sorted(runner.unmeasured, key=lambda one: order[one.cell.run(one.number)])),
        interrupted=runner.stop.is_set(),
        app=plan.target.name,
        probe=str(masked(plan.target.probe.name)) if plan.target.probe else "",
        places=places_of(plan.target.app) if plan.target.app else {},
    )


def _in_order(used: Mapping[str, T], known: Iterable[str]) -> list[T]:
    """Return those that were used, in the order of `known`; a user's own last."""
    names = [name for name in known if name in used]
    return [used[name] for name in (*names, *(name for name in used if name not in names))]


class CaseRunner(Generic[R]):
    """Runs the cases of a plan on servers that it starts, each as `perform` does."""

    def __init__(
        self,
        plan: Plan,
        progress: Progress,
        perform: Callable[[Case, Testbed], R],
        note: Callable[[R | Unmeasured], None] = lambda _: None,
        stop: Event | None = None,
    ) -> None:
        """Call `note` with what each case gives; end early once `stop` is set."""
        self._plan = plan
        self._progress = progress
        self._performed = perform
        self._noted = note
        self._pending = list(plan.cases)
        self._starting = Lock()
        self.stop = stop or Event()
        self.results: list[R] = []
        self.unmeasured: list[Unmeasured] = []
        self.versions = {name: version(name) for name in _LIBRARIES} | {"python": platform.python_version()}

    def run(self, jobs: int) -> None:
        """Run all cases; stop everything that was started for them."""
        stack = ExitStack()
        try:
            self._toxiproxy = stack.enter_context(toxiproxy_server())
            self._results = stack.enter_context(redis_server())
            self._report_server(self._toxiproxy.name, self._toxiproxy.version, TOXIPROXY_VARIABLE, self._toxiproxy.url)
            self._brokers = BrokerPool(
                lambda found: self._report_server(
                    found.product, found.version, BROKER_VARIABLE, found.url_at(found.port)
                ),
                self._plan.external,
                self.stop,
            )
            stack.callback(self._brokers.close)
            # removed also when this process is killed, after the workers that write to it
            self._home = stack.enter_context(ReapedDirectory("repot-experiments-"))
            # on a signal each case ends by itself, and no interrupt is raised between two steps
            stack.enter_context(stop_on_signal(self.stop))
            self._run_threads(jobs)
        finally:
            _attempt(stack.close)

    def _run_threads(self, jobs: int) -> None:
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            futures = [pool.submit(self._work) for _ in range(jobs)]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                # the pool waits for the other threads
                self.stop.set()
                raise

    def _report_server(self, product: str, version: str, variable: str, url: str) -> None:
        self.versions[product] = version
        self._progress.serves(product, version, variable, url)

    def _work(self) -> None:
        """Run one case after another."""
        while True:
            try:
                acquisition = self._brokers.acquire(self._pending)
            except Interrupted:
                return
            outcome = self._outcome(acquisition)
            if outcome:
                self._note(outcome)
            without_result = outcome is None or (isinstance(outcome, Unmeasured) and outcome.failed)
            # a case that failed may have left its broker harmed
            _attempt(partial(self._brokers.release, acquisition, broken=without_result))

    def _outcome(self, acquisition: Acquisition) -> R | Unmeasured | None:
        """Return what a case gives; None if it was interrupted. A failure does not end the other cases."""
        case = acquisition.case
        try:
            return self._perform(case, self._brokers.start(acquisition))
        except Interrupted:
            return None
        except RepotError as error:
            return self._failed(case, error.message, error.hint)
        except Exception as error:
            log.exception("%s failed", case.name)
            return self._failed(case, f"{type(error).__name__}: {masked(str(error))}")

    def _perform(self, case: Case, test_broker: TestBroker) -> R | Unmeasured:
        plan = self._plan
        expected = expectation(case.cell, test_broker.product, test_broker.version) if plan.judged else None
        testbed = Testbed(
            test_broker, self._results, self._toxiproxy.url, self._home.path, self._home, plan.seed,
            plan.target, plan.options, expected, self._progress.step, self.stop, self._starting,
        )  # fmt: skip
        try:
            return self._performed(case, testbed)
        except NotApplicable as error:
            # the table of expectations says that it applies here
            if expected is not None:
                raise
            command = case.command(plan.seed, plan.options)
            return Unmeasured(case.cell, case.number, error.message, failed=False, command=command)

    def _failed(self, case: Case, *why: str) -> Unmeasured:
        logs = self._keep_logs(case)
        text = "\n".join(filter(None, (*why, f"Its logs are in {logs}" if logs else "")))
        command = case.command(self._plan.seed, self._plan.options)
        return Unmeasured(case.cell, case.number, text, failed=True, command=command)

    def _note(self, outcome: R | Unmeasured) -> None:
        if isinstance(outcome, Unmeasured):
            self.unmeasured.append(outcome)
        else:
            self.results.append(outcome)
        _attempt(partial(self._noted, outcome))

    def _keep_logs(self, case: Case) -> Path | None:
        """Copy the workers' logs to a directory that stays, without the files that hold URLs. None after a stop."""
        if self.stop.is_set() or not (self._home.path / case.name).exists():
            return None
        kept = Path(tempfile.mkdtemp(prefix="repot-failed-"))
        # multiprocessing's directories come and go meanwhile
        with suppress(shutil.Error, OSError):
            ignored = shutil.ignore_patterns("pymp-*", "*.app")
            shutil.copytree(self._home.path / case.name, kept, dirs_exist_ok=True, ignore=ignored)
        return kept


def _attempt(act: Callable[[], None]) -> None:
    """Do what no verdict depends on, such as a clean-up; log a failure."""
    try:
        act()
    except Exception:
        log.exception("a step outside the experiments failed")


def require_measured(campaign: Campaign) -> None:
    """Accept a campaign that was completed, with a verdict for each case that applies.

    Raises:
        ExperimentFailed: some cases failed; names them.
        Interrupted: it was stopped.
    """
    if campaign.interrupted:
        message = f"interrupted after {len(campaign.results)} verdicts"
        raise Interrupted(message)
    failed = [f"{one.cell.name}: {one.why}" for one in campaign.unmeasured if one.failed]
    if failed:
        message = f"{len(failed)} cases have no verdict:\n" + "\n".join(failed)
        raise ExperimentFailed(message)


def require_expected(campaign: Campaign) -> None:
    """Accept results that all agree with the table, or are not bad where the table has no entry.

    Raises:
        ExperimentFailed, Interrupted: as `require_measured`.
        CheckFailed: some do not; names them.
    """
    require_measured(campaign)
    odd = [
        f"{found.cell.name}: {found.verdict}" + (f", not {found.expected}" if found.expected else "")
        for found in campaign.unexpected
    ]
    if odd:
        message = f"{len(odd)} of {len(campaign.results)} verdicts are not the expected ones:\n" + "\n".join(odd)
        raise CheckFailed(message, hint="--html FILE draws what happened, --json gives every delivery and run.")
