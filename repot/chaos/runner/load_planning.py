"""Turn the options of `repot chaos load` into a plan, or into one error before any server starts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from repot.chaos.runner import planning
from repot.chaos.runner.application import has_guarded_tasks, inspect, queues_of, require_consumed, sending
from repot.chaos.runner.campaign import CaseRunner, Plan
from repot.chaos.runner.case import Case
from repot.chaos.runner.load import Dispatch, Load, perform_load
from repot.chaos.runner.mix import Mix, read_sample, weighted
from repot.chaos.runner.target_task import Target
from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.scenario import Needs
from repot.errors import CheckFailed, ConfigInvalid, ExperimentFailed, Interrupted
from repot.worker.app_loader import load_app

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from celery import Celery

    from repot.chaos.report.load_report import LoadReport
    from repot.chaos.report.result import Unmeasured
    from repot.chaos.runner.campaign import Progress
    from repot.chaos.scenarios.profiles import Profile
    from repot.chaos.scenarios.scenario import Scenario
    from repot.config.broker_kinds import BrokerKind
    from repot.testbed.external import ExternalBroker

#: The name for none.
NO_FAULT = "no-fault"
#: All are made before the first is sent, and each has a history in the report.
_MOST_MESSAGES = 100_000


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the options of `repot chaos load` say; empty for those that are not given."""

    app: str
    tasks: tuple[str, ...] = ()
    sample: Path | None = None
    args: str | None = None
    arguments: str | None = None
    ledger: str = ""
    rate: float = 20
    for_s: float = 60
    faults: tuple[str, ...] = ()
    every_s: float = 5
    profile: str | None = None
    profiles_file: Path | None = None
    guard: bool = True
    queues: str = ""
    pool: str = ""
    processes: int = 2
    scale: float | None = None
    seed: int = 0
    urls: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load and the case that it runs as."""

    load: Load
    plan: Plan


def load_faults() -> dict[str, Scenario]:
    """Return the scenarios whose faults may happen at any instant, by name."""
    return {name: one for name, one in SCENARIOS.items() if one.any_instant}


def load_plan(given: LoadOptions) -> LoadPlan:
    """Return the plan of a load.

    Raises:
        ConfigInvalid: an option is wrong; names it.
        AppUnusable: there is no such application, or it cannot run under the profile.
        ExperimentFailed: the arguments of a message cannot be made.
    """
    # first: it makes what --arguments names importable
    app = load_app(given.app)
    mix, count = _mix(given), _count(given)
    brokers = planning.external(given.urls, given.hosts)
    faults = _faults(given.faults, harmless=bool(brokers))
    profile = _profile(given, brokers)
    app.loader.import_default_modules()
    planning.require_tasks(app, mix.tasks)
    dispatches, target = _dispatched(app, mix, count, given)
    load = Load(
        dispatches, given.rate, given.for_s, faults, bool(given.faults), given.every_s, given.processes,
        given.ledger, _command(given, profile),
    )  # fmt: skip
    case = Case(load.scenario, profile, given.guard and has_guarded_tasks(app))
    return LoadPlan(load, Plan((case,), given.seed, target, dict(brokers), judged=False))


def run_load(planned: LoadPlan, progress: Progress) -> LoadReport:
    """Run a load on servers that are started for it.

    Raises:
        ExperimentFailed: a step did not happen, or the verdicts do not add up.
        Interrupted: it was stopped.
        ProgramMissing, ServerFailed: a server did not start.
    """

    def perform(case: Case, testbed: Any) -> LoadReport:  # noqa: ANN401 - a testbed
        return perform_load(planned.load, runner.versions, case, testbed)

    runner: CaseRunner[LoadReport] = CaseRunner(planned.plan, progress, perform)
    runner.run(1)
    for one in runner.results:
        return one
    for none in runner.unmeasured:
        raise _failed(none)
    message = "interrupted before the load had its verdicts"
    raise Interrupted(message)


def _failed(none: Unmeasured) -> ExperimentFailed:
    return ExperimentFailed(f"the load has no verdicts: {none.why}")


def require_acceptable(report: LoadReport) -> None:
    """Accept a load whose verdicts are all acceptable.

    Raises:
        CheckFailed: some are not; says how many.
    """
    if report.bad:
        message = f"{len(report.bad)} of {len(report.task_results)} tasks have a verdict that is not acceptable"
        raise CheckFailed(message, hint="--json gives every delivery and run, and the faults that each met.")


def _mix(given: LoadOptions) -> Mix:
    if given.sample:
        others = {"--task": given.tasks, "--args": given.args, "--arguments": given.arguments}
        if stray := [name for name, value in others.items() if value]:
            message = f"--sample and {stray[0]} together"
            raise ConfigInvalid(message, hint="A sample has tasks and arguments of its own: leave one of both out.")
        return Mix(sample=read_sample(given.sample))
    if not given.tasks:
        message = "neither --task nor --sample"
        raise ConfigInvalid(message, hint="Name the tasks of the mix, as in --task shop.charge --task shop.mail=3.")
    if given.args and given.arguments:
        message = "--args and --arguments together"
        raise ConfigInvalid(message, hint="--args has fixed arguments; --arguments names a function that makes them.")
    args, kwargs = planning.arguments(given.args)
    make = planning.function(given.arguments) if given.arguments else None
    return Mix(weighted(given.tasks), args=args, kwargs=kwargs, make=make, made_by=given.arguments or "")


def _count(given: LoadOptions) -> int:
    count = round(given.rate * given.for_s)
    if not 1 <= count <= _MOST_MESSAGES:
        message = f"--rate {given.rate:g} for {given.for_s:g} s are {count} messages"
        raise ConfigInvalid(message, hint=f"A load has 1 to {_MOST_MESSAGES}: change --rate or --for.")
    return count


def _faults(names: Sequence[str], *, harmless: bool) -> tuple[Scenario, ...]:
    known = load_faults()
    if not names:
        return tuple(one for one in known.values() if not harmless or one.needs is Needs.ANY)
    for name in names:
        if name not in known and name != NO_FAULT:
            planning.scenario_called(name)
            message = f"--fault {name}: the fault of this scenario cannot happen at any instant"
            raise ConfigInvalid(message, hint=f"Choose from {', '.join(known)}; or {NO_FAULT} alone.")
    if NO_FAULT in names and len(set(names)) > 1:
        message = f"--fault {NO_FAULT} together with others"
        raise ConfigInvalid(message, hint="Leave it out.")
    chosen = [known[name] for name in dict.fromkeys(names) if name != NO_FAULT]
    return tuple(planning.harmless(chosen, names) if harmless else chosen)


def _profile(given: LoadOptions, brokers: Mapping[BrokerKind, ExternalBroker]) -> Profile:
    profile = planning.fitting_profile(given.app, given.profile, given.profiles_file)
    if brokers and profile.kind not in brokers:
        raise planning.elsewhere(profile.name)
    return profile


def _dispatched(app: Celery, mix: Mix, count: int, given: LoadOptions) -> tuple[tuple[Dispatch, ...], Target]:
    """Return the messages, each with its route, and the application as an experiment's target."""
    calls = mix.draw(count, Random(f"{given.seed}/mix"))  # noqa: S311 - repeatable
    routes = []
    for call in calls:
        planning.require_sendable(app, call.task, call.args, call.kwargs)
        routes.append(sending(app, call.task, call.args, call.kwargs))
    queues = planning.queues_in(given.queues)
    consumed = queues or tuple(dict.fromkeys((*(queue for queue, _ in routes), *queues_of(app))))
    for call, (queue, _) in zip(calls, routes, strict=True):
        require_consumed(call.task, queue, consumed)
    first = calls[0]
    application = inspect(app, first.task, first.args, first.kwargs, consumed, given.pool)
    target = Target(
        given.app, first.task, queues=queues, pool=given.pool, scale=given.scale,
        application=replace(application, replaced=tuple(_replaced(application.replaced, app, given.processes))),
    )  # fmt: skip
    dispatches = tuple(Dispatch(call, queue, options) for call, (queue, options) in zip(calls, routes, strict=True))
    return dispatches, target


def _replaced(replaced: Sequence[str], app: Celery, processes: int) -> list[str]:
    """Return what is replaced in a load: both workers have the same number of processes."""
    kept = [one for one in replaced if not one.startswith("worker_concurrency:")]
    stated = app.conf.worker_concurrency
    if stated and stated != processes:
        kept.append(f"worker_concurrency: {processes} in the place of {stated}")
    return kept


def _command(given: LoadOptions, profile: Profile) -> str:
    words = ["repot", "chaos", "load", "--app", given.app]
    words += [word for task in given.tasks for word in ("--task", task)]
    pairs = (
        ("--sample", given.sample), ("--args", given.args), ("--arguments", given.arguments),
        ("--ledger", given.ledger), ("--rate", f"{given.rate:g}"), ("--for", f"{given.for_s:g}s"),
        *(("--fault", name) for name in given.faults),
        ("--faults-every", f"{given.every_s:g}s"), ("--profile", profile.name), ("--profiles", given.profiles_file),
        ("--guard", "" if given.guard else "off"), ("--queues", given.queues), ("--pool", given.pool),
        ("--concurrency", given.processes), ("--scale", f"{given.scale:g}" if given.scale else ""),
        *(("--broker-url", planning.shown_url(url)) for url in given.urls),
        *(("--allow-host", host) for host in given.hosts),
        ("--seed", given.seed),
    )  # fmt: skip
    words += [word for name, value in pairs if value not in (None, "") for word in (name, str(value))]
    return shlex.join(words)
