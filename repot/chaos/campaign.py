"""Many cases, several at a time, on private servers."""

from __future__ import annotations

import logging
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
from typing import TYPE_CHECKING, Protocol, TypeVar

from repot.brokers.local import redis_server, toxiproxy_server
from repot.brokers.local.process import GuardedFolder
from repot.chaos.case import Case, Laboratory
from repot.chaos.expectations import expectation
from repot.chaos.experiment import perform
from repot.chaos.grounds import Grounds
from repot.chaos.profiles import PROFILES, SCALED
from repot.chaos.result import About, Campaign, Result, Unmeasured
from repot.chaos.scenarios import SCENARIOS
from repot.chaos.target import Target
from repot.config.masking import masked
from repot.errors import ExperimentFailed, Inapplicable, Interrupted, RepotError, VerdictUnexpected
from repot.waiting import stop_on_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from repot.brokers.local.ground import Ground
    from repot.chaos.grounds import Loan
    from repot.chaos.profiles import Profile
    from repot.chaos.scenarios import Scenario

log = logging.getLogger(__name__)

_LIBRARIES = ("repot", "celery", "kombu", "amqp", "redis", "billiard")

T = TypeVar("T")


class Progress(Protocol):
    """Who is told how a campaign goes; called from several threads."""

    def serves(self, product: str, version: str, url: str) -> None:
        """A private server serves."""

    def step(self, case: Case, text: str) -> None:
        """A case goes on."""

    def result(self, result: Result | Unmeasured) -> None:
        """A case has its verdict, or none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign is to do.

    Attributes:
        existing: brokers of somebody's own, by the scheme of their address; nothing is done to them.
        judged: whether results are compared with the table: not so for a user's own task.
        options: what the command needs beside scenario, profile, guard and seed to run a case again.
    """

    cases: tuple[Case, ...]
    seed: int = 0
    target: Target = field(default_factory=Target)
    existing: Mapping[str, Ground] = field(default_factory=dict)
    judged: bool = True
    options: str = ""


def cases(
    scenarios: Iterable[Scenario], profiles: Iterable[Profile], guards: Sequence[bool], repeat: int
) -> tuple[Case, ...]:
    """All cases, those first whose brokers are few: they take longest together."""
    found = [
        Case(scenario, profile, guard, number)
        for number in range(1, repeat + 1)
        for scenario in scenarios
        for profile in profiles
        for guard in guards
    ]
    return tuple(sorted(found, key=lambda case: -case.scenario.needs.rarity))


def run(plan: Plan, *, jobs: int, progress: Progress) -> Campaign:
    """Carry the cases out, at most `jobs` at a time.

    Asked to stop, by Ctrl-C or SIGTERM, it ends all it started and returns what it has.

    Raises:
        ProgramMissing, ServerFailed: a server is not there.
    """
    begun, created = monotonic(), datetime.now().astimezone()
    found = _Running(plan, progress)
    found.carry_out(jobs)
    order = {case.name: number for number, case in enumerate(plan.cases)}
    return Campaign(
        created=created.isoformat(timespec="seconds"),
        took_s=monotonic() - begun,
        seed=plan.seed,
        versions=found.versions,
        scaled=dict(SCALED),
        scenarios=tuple(
            About(one.name, one.title, one.lesson)
            for one in _in_order({case.scenario.name: case.scenario for case in plan.cases}, SCENARIOS)
        ),
        profiles=tuple(
            About(one.name, one.title, "")
            for one in _in_order({case.profile.name: case.profile for case in plan.cases}, PROFILES)
        ),
        results=tuple(sorted(found.results, key=lambda one: order[one.cell.run(one.number)])),
        unmeasured=tuple(sorted(found.unmeasured, key=lambda one: order[one.cell.run(one.number)])),
        interrupted=found.stop.is_set(),
        app=plan.target.name,
    )


def _in_order(used: Mapping[str, T], known: Iterable[str]) -> list[T]:
    """Those that were used, in the order in which they are known; a user's own last."""
    names = [name for name in known if name in used]
    return [used[name] for name in (*names, *(name for name in used if name not in names))]


class _Running:
    """A campaign that goes on."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._pending = list(plan.cases)
        self._starting = Lock()
        self.stop = Event()
        self.results: list[Result] = []
        self.unmeasured: list[Unmeasured] = []
        self.versions = {name: version(name) for name in _LIBRARIES} | {"python": platform.python_version()}

    def carry_out(self, jobs: int) -> None:
        """Do all cases, and end all that was started for them."""
        stack = ExitStack()
        try:
            self._toxiproxy = stack.enter_context(toxiproxy_server())
            self._results = stack.enter_context(redis_server())
            self._serves(self._toxiproxy.name, self._toxiproxy.version, self._toxiproxy.url)
            self._grounds = Grounds(
                lambda found: self._serves(found.product, found.version, found.url_at(found.port)),
                self._plan.existing,
                self.stop,
            )
            stack.callback(self._grounds.close)
            # gone also when this process is killed, after the workers that write into it
            self._home = stack.enter_context(GuardedFolder("repot-experiments-"))
            # asked to stop, each case ends by itself: no interrupt strikes between two steps
            stack.enter_context(stop_on_signal(self.stop))
            self._share_out(jobs)
        finally:
            _attempt(stack.close)

    def _share_out(self, jobs: int) -> None:
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            futures = [pool.submit(self._work) for _ in range(jobs)]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                # the others end, too: the pool waits for them
                self.stop.set()
                raise

    def _serves(self, product: str, version: str, url: str) -> None:
        self.versions[product] = version
        self._progress.serves(product, version, url)

    def _work(self) -> None:
        """Do one case after another."""
        while True:
            try:
                loan = self._grounds.lend(self._pending)
            except Interrupted:
                return
            found = self._found(loan)
            if found:
                self._note(found)
            without_result = found is None or (isinstance(found, Unmeasured) and found.failed)
            # whatever harm was done when it failed may still be
            _attempt(partial(self._grounds.give_back, loan, broken=without_result))

    def _found(self, loan: Loan) -> Result | Unmeasured | None:
        """What a case gives; nothing if it was interrupted. One that fails, however, is no reason to end the others."""
        case = loan.case
        try:
            return self._one(case, self._grounds.start(loan))
        except Interrupted:
            return None
        except RepotError as error:
            return self._failed(case, error.message, error.hint)
        except Exception as error:
            log.exception("%s failed", case.name)
            return self._failed(case, f"{type(error).__name__}: {masked(str(error))}")

    def _one(self, case: Case, ground: Ground) -> Result | Unmeasured:
        plan = self._plan
        expected = expectation(case.cell, ground.product, ground.version) if plan.judged else None
        laboratory = Laboratory(
            ground, self._results, self._toxiproxy.url, self._home.path, self._home, plan.seed,
            plan.target, plan.options, expected, self._progress.step, self.stop, self._starting,
        )  # fmt: skip
        try:
            return perform(case, laboratory)
        except Inapplicable as error:
            # the table says that it means something here
            if expected is not None:
                raise
            again = case.command(plan.seed, plan.options)
            return Unmeasured(case.cell, case.number, error.message, failed=False, command=again)

    def _failed(self, case: Case, *why: str) -> Unmeasured:
        kept = self._keep_logs(case)
        told = "\n".join(filter(None, (*why, f"Its logs are in {kept}" if kept else "")))
        again = case.command(self._plan.seed, self._plan.options)
        return Unmeasured(case.cell, case.number, told, failed=True, command=again)

    def _note(self, found: Result | Unmeasured) -> None:
        if isinstance(found, Unmeasured):
            self.unmeasured.append(found)
        else:
            self.results.append(found)
        _attempt(partial(self._progress.result, found))

    def _keep_logs(self, case: Case) -> Path | None:
        """Copy the workers' logs to where they stay; not what says how they reach their servers. None once stopped."""
        if self.stop.is_set() or not (self._home.path / case.name).exists():
            return None
        kept = Path(tempfile.mkdtemp(prefix="repot-failed-"))
        # multiprocessing's folders come and go meanwhile
        with suppress(shutil.Error, OSError):
            ignored = shutil.ignore_patterns("pymp-*", "*.order")
            shutil.copytree(self._home.path / case.name, kept, dirs_exist_ok=True, ignore=ignored)
        return kept


def _attempt(act: Callable[[], None]) -> None:
    """Do what no verdict depends on, as tidying up; what fails is told."""
    try:
        act()
    except Exception:
        log.exception("a step beside the experiments failed")


def require_measured(campaign: Campaign) -> None:
    """Accept a campaign that came to its end, with a verdict for each cell that has one by nature.

    Raises:
        ExperimentFailed: some cases have no verdict; names them.
        Interrupted: somebody stopped it.
    """
    if campaign.interrupted:
        message = f"interrupted after {len(campaign.results)} verdicts"
        raise Interrupted(message)
    failed = [f"{one.cell.name}: {one.why}" for one in campaign.unmeasured if one.failed]
    if failed:
        message = f"{len(failed)} cases have no verdict:\n" + "\n".join(failed)
        raise ExperimentFailed(message, hint="Is the machine too busy for the scaled times? Then try --jobs 2.")


def require_expected(campaign: Campaign) -> None:
    """Accept results that all agree with the table; where it says nothing, those that are nothing bad.

    Raises:
        ExperimentFailed, Interrupted: as `require_measured`.
        VerdictUnexpected: some do not agree; names them.
    """
    require_measured(campaign)
    odd = [
        f"{found.cell.name}: {found.finding}" + (f", not {found.expected}" if found.expected else "")
        for found in campaign.unexpected
    ]
    if odd:
        message = f"{len(odd)} of {len(campaign.results)} verdicts are not the expected ones:\n" + "\n".join(odd)
        raise VerdictUnexpected(message, hint="--html FILE draws what happened, --json gives every delivery and run.")
