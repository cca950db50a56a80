"""Turn command-line arguments into a plan, or into one error before any server starts."""

from __future__ import annotations

import difflib
import json
import shlex
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from celery.utils.imports import cwd_in_path
from kombu.serialization import dumps
from kombu.utils.imports import symbol_by_name

from repot.chaos.instruments.failpoints import Phase
from repot.chaos.runner.application import OTHER_TASKS, inspect
from repot.chaos.runner.campaign import Plan, cases
from repot.chaos.runner.probe import Probe, expected_effects
from repot.chaos.runner.target_task import Target
from repot.chaos.scenarios import profiles as known
from repot.chaos.scenarios.catalogue import ALL, SCENARIOS, SMOKE
from repot.chaos.scenarios.expectations import cells
from repot.chaos.scenarios.scenario import AT, Needs, Scenario
from repot.config import BrokerUrl, load
from repot.config.endpoints import endpoints
from repot.config.settings import broker_url_of
from repot.errors import AppUnusable, ConfigInvalid
from repot.masking import masked
from repot.testbed.external import ExternalBroker
from repot.worker.app_loader import load_app
from repot.worker.configure import configured_with

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from celery import Celery

    from repot.chaos.runner.case import Case
    from repot.chaos.scenarios.profiles import Profile
    from repot.config.broker_kinds import BrokerKind

#: The worst and the best settings on both brokers: all smoke scenarios run under them.
_SMOKE_PROFILES = ("redis-stock", "redis-hardened", "amqp-quorum")
#: Under other profiles the smoke selection has single scenarios, without the guard.
_SMOKE_CELLS = {
    "redis-late": ("dropped-ack", "killed-running", "child-killed"),
    "amqp-late": ("dropped-ack", "killed-running", "child-killed"),
    "amqp-classic": ("connection-reset", "killed-running"),
}


def plan(
    *,
    names: Sequence[str] = (),
    profiles: Sequence[str] = (),
    own_profiles: Path | None = None,
    guards: Sequence[bool] | None = None,
    target: Target | None = None,
    brokers: Mapping[BrokerKind, ExternalBroker] | None = None,
    seed: int = 0,
    repeat: int = 1,
) -> Plan:
    """Return the plan of a campaign.

    Without own profiles, without an own task and on private brokers, the cells are those of the table of
    expectations, and are compared with it. The seed decides random amounts and task ids, not the order.

    Raises:
        ConfigInvalid: an argument is wrong; names it.
        AppUnusable: the application cannot run under a named profile.
    """
    target, brokers = target or Target(), brokers or {}
    mine = known.from_file(own_profiles) if own_profiles else {}
    chosen = [_profile(name, mine) for name in (profiles or mine or known.PROFILES)]
    if brokers:
        chosen = list(_on(brokers, chosen, named=bool(profiles)))
    if target.app:
        chosen = _fitting(target.app, chosen, named=bool(profiles or mine))
    scenarios = _scenarios(names)
    if target.into_s and not any(one.phase is Phase.RUNNING and one.fault for one in scenarios):
        message = f"--into {target.into_s:g}s: no fault of {', '.join(names)} meets a task that runs"
        raise ConfigInvalid(message, hint="Name such a scenario, as killed-running, or NAME@running.")
    if brokers:
        scenarios = harmless(scenarios, names)
    planned = cases(scenarios, chosen, _guards(target, guards), repeat)
    judged = not target.app
    if judged and not profiles and not mine:
        planned = tuple(case for case in planned if (case.profile.name, case.guard) in _known_cells(case))
    if tuple(names) == (SMOKE,) and not profiles and not mine:
        planned = tuple(case for case in planned if _is_smoke(case))
    if not planned:
        message = "these scenarios, profiles and brokers leave nothing to run"
        raise ConfigInvalid(message, hint="`repot chaos list` names scenarios and profiles.")
    options = _options(target, own_profiles, brokers.values())
    return Plan(planned, seed=seed, target=target, external=dict(brokers), judged=judged, options=options)


def _on(brokers: Container[BrokerKind], chosen: Iterable[Profile], *, named: bool) -> Iterator[Profile]:
    """Yield the profiles of these brokers' kinds; a named one of another kind is an error."""
    for one in chosen:
        if one.kind in brokers:
            yield one
        elif named:
            raise elsewhere(one.name)


def queues_in(text: str) -> tuple[str, ...]:
    """Return the names of queues that a text has, separated by commas."""
    return tuple(filter(None, text.split(",")))


def elsewhere(profile: str) -> ConfigInvalid:
    """Return the error of a named profile that needs a broker of another kind."""
    message = f"the profile {profile} does not run on the broker that --broker-url names"
    return ConfigInvalid(message, hint="Name another one by --profile; `repot chaos list` shows them.")


def _guards(target: Target, given: Sequence[bool] | None) -> tuple[bool, ...]:
    """Return with and without which guards cells run: an application that has none is always plain."""
    if not target.is_guarded:
        return (False,)
    if given is not None:
        return tuple(given)
    return (True,) if target.app else (False, True)


def _is_smoke(case: Case) -> bool:
    """Return whether a case of a smoke scenario belongs to the smoke selection."""
    single = case.scenario.name in _SMOKE_CELLS.get(case.profile.name, ()) and not case.guard
    return single or case.profile.name in _SMOKE_PROFILES


def _known_cells(case: Case) -> list[tuple[str, bool]]:
    """Return the cells where the scenario applies; one that was moved to another phase applies to the same."""
    return cells(case.scenario.name.partition(AT)[0])


def _options(target: Target, own_profiles: Path | None, brokers: Iterable[ExternalBroker]) -> str:
    """Return the command-line options common to all cases, to run one again; passwords are masked."""
    words = ["--profiles", str(own_profiles)] if own_profiles else []
    for broker in brokers:
        words += ["--broker-url", str(broker.url)]
        words += [
            word
            for server in endpoints(broker.url.servers)
            if not server.is_local
            for word in ("--allow-host", server.host)
        ]
    return f"{target.options} {shlex.join(words)}".strip()


def _fitting(app: str, profiles: Sequence[Profile], *, named: bool) -> list[Profile]:
    """Return the profiles under which an application can run: after `repot.configure`, those of repot's settings."""
    bare = [one.name for one in profiles if one.settings is None]
    if not bare or configured_with(load_app(app)) is None:
        return list(profiles)
    if named:
        message = f"the application {app!r} calls repot.configure, so it cannot run under {', '.join(bare)}"
        raise AppUnusable(message, hint="Choose profiles of repot's settings; `repot chaos list` names them.")
    return [one for one in profiles if one.settings is not None]


def harmless(scenarios: Sequence[Scenario], names: Sequence[str]) -> list[Scenario]:
    """Return the scenarios that do not harm the broker; refuse a named one that does."""
    harmful = [one.name for one in scenarios if one.needs is not Needs.ANY and one.name in names]
    if harmful:
        message = f"{', '.join(harmful)} would harm the broker that --broker-url names"
        raise ConfigInvalid(message, hint="Leave --broker-url out: a private broker is started for it.")
    return [one for one in scenarios if one.needs is Needs.ANY]


def scenario_called(name: str) -> Scenario:
    """Return the scenario of a name; `NAME@PHASE` moves its fault to another phase.

    Raises:
        ConfigInvalid: there is no such scenario or phase, or the fault cannot be moved.
    """
    base, at, phase = name.partition(AT)
    scenario = SCENARIOS.get(base)
    if scenario is None:
        raise _unknown([*SCENARIOS, ALL, SMOKE], what="scenario", name=base)
    if not at or phase == scenario.phase:
        return scenario
    if phase not in list(Phase):
        raise _unknown(list(Phase), what="phase", name=phase)
    if not scenario.has_other_phases:
        message = f"{base} has a fixed phase and cannot be moved to {phase!r}"
        raise ConfigInvalid(message, hint=f"`repot chaos explain {base}` describes it.")
    return scenario.moved_to(Phase(phase))


@dataclass(frozen=True, slots=True)
class Options:
    """What the options of `repot chaos run` say of the target task; empty for those that are not given."""

    app: str | None = None
    task: str | None = None
    args: str | None = None
    arguments: str | None = None
    probe: str | None = None
    expect: str | None = None
    reset: str | None = None
    queues: str = ""
    pool: str = ""
    scale: float | None = None
    same_ids: bool = False
    into_s: float | None = None


def target(given: Options) -> Target:
    """Return the target task: a user's or repot's own.

    Raises:
        ConfigInvalid: the options do not fit together.
        AppUnusable: there is no such application.
    """
    if not given.app:
        stray = [f"--{name}" for name, value in asdict(given).items() if value and name != "same_ids"]
        if stray:
            message = f"{', '.join(stray)} without --app"
            raise ConfigInvalid(message, hint="Name your application, as in --app shop.celery:app.")
        return Target(same_ids=given.same_ids)
    if not given.task:
        message = "--app without --task"
        raise ConfigInvalid(message, hint="Name the task under test, as in --task shop.tasks.charge.")
    if given.expect and not given.probe:
        message = "--expect without --probe"
        raise ConfigInvalid(message, hint="Only a probe counts effects: name a command that prints how many there are.")
    if given.args and given.arguments:
        message = "--args and --arguments together"
        raise ConfigInvalid(message, hint="--args has fixed arguments; --arguments names a function that makes them.")
    args, kwargs = arguments(given.args)
    made = Target(
        given.app, given.task, args, kwargs,
        made_by=given.arguments or "",
        probe=Probe(given.probe, expected_effects(given.expect)) if given.probe else None,
        reset=given.reset or "",
        queues=queues_in(given.queues),
        pool=given.pool,
        scale=given.scale,
        same_ids=given.same_ids,
        into_s=given.into_s or 0,
    )  # fmt: skip
    return task_of(made)


def task_of(made: Target) -> Target:
    """Return a user's task, once its application, its arguments and its probe were tried.

    Raises:
        ConfigInvalid: the application has no such task, cannot send these arguments, or no worker would consume it.
        AppUnusable: there is no such application.
        ExperimentFailed: the probe fails.
    """
    app = load_app(made.app)
    app.loader.import_default_modules()
    require_tasks(app, (made.task,))
    if made.made_by and made.make is None:
        made = replace(made, make=function(made.made_by))
    tried = made.with_arguments()
    require_sendable(app, made.task, tried.args, tried.kwargs)
    application = inspect(app, made.task, tried.args, dict(tried.kwargs), made.queues, made.pool)
    made = replace(made, application=application)
    # a wrong probe fails now, not after a minute
    tried.count(str(uuid4()))
    return made


def require_tasks(app: Celery, tasks: Iterable[str]) -> None:
    """Accept names of tasks that an application has.

    Raises:
        ConfigInvalid: it has no such task.
    """
    for task in tasks:
        if task not in app.tasks:
            names = sorted(name for name in app.tasks if not name.startswith(OTHER_TASKS))
            raise _unknown(names, what="task", name=task)


def require_sendable(app: Celery, task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that the task or its serializer does not take: no broker would ever get the message.

    Raises:
        ConfigInvalid: names what is missing or too much; or the serializer, and what it does not take.
    """
    hint = "A producer would get this error as well; nothing would be sent."
    if app.tasks[task].typing:
        # as `Task.apply_async` does
        try:
            app.tasks[task].__header__(*args, **kwargs)  # type: ignore[attr-defined] # not in the stubs
        except TypeError as error:
            message = f"the arguments of {task} do not fit: {error}"
            raise ConfigInvalid(message, hint=f"{hint} --args or --arguments gives them.") from error
    serializer = app.tasks[task].serializer or app.conf.task_serializer
    try:
        dumps((args, dict(kwargs)), serializer=serializer)
    except Exception as error:
        # any exception of a serializer that the application registered
        message = f"the arguments of {task} cannot be encoded as {serializer}: {masked(str(error))}"
        raise ConfigInvalid(message, hint=hint) from error


def function(name: str) -> Callable[[], object]:
    """Return the function that `--arguments` names.

    Raises:
        ConfigInvalid: no such function exists.
    """
    try:
        # as for --app: from the current directory
        with cwd_in_path():
            found = symbol_by_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"--arguments {name} was not found: {error}"
        raise ConfigInvalid(
            message,
            hint="Name a module of this directory or of the path, and a function in it, as in --arguments "
            "shop.chaos:order.",
        ) from error
    if not callable(found):
        message = f"--arguments {name} is a {type(found).__name__}, not a function"
        raise ConfigInvalid(message, hint="It is called without arguments before each run of a cell.")
    return cast("Callable[[], object]", found)


def profile_for(app: str) -> str:
    """Return the profile of an application's own settings and broker kind; without an application, repot's.

    Raises:
        AppUnusable: there is no such application.
        ConfigInvalid: its URL does not name one kind of broker.
    """
    if not app:
        return "redis-hardened"
    found = load_app(app)
    adopted = configured_with(found)
    try:
        url = adopted.read_url if adopted else broker_url_of(found.conf.broker_read_url)
    except ValueError as error:
        message = f"the application {app!r} does not name one kind of broker: {error}"
        raise ConfigInvalid(message, hint="Name a profile; `repot chaos list` shows them.") from error
    if url.is_serverless:
        message = f"the application {app!r} uses {url}, which has no server that could fail"
        raise ConfigInvalid(message, hint="Name a profile; `repot chaos list` shows them.")
    queue_type = adopted.queue_type if adopted else None
    fitting = (
        profile.name
        for profile in known.PROFILES.values()
        if profile.kind == url.kind
        and (profile.settings is None) == (adopted is None)
        and (profile.settings or {}).get("queue_type", queue_type) == queue_type
    )
    return next(fitting)


def fitting_profile(app: str, name: str | None, own_profiles: Path | None = None) -> Profile:
    """Return the profile of a name, of a file's profiles as well; without a name that of the application's settings.

    Raises:
        ConfigInvalid: there is no such profile.
        AppUnusable: there is no such application, or it cannot run under this profile.
    """
    mine = known.from_file(own_profiles) if own_profiles else {}
    chosen = name or (next(iter(mine)) if len(mine) == 1 else profile_for(app))
    return _fitting(app, [_profile(chosen, mine)], named=True)[0]


def shown_url(url: str) -> str:
    """Return the address of a broker with its password masked."""
    return str(BrokerUrl.parse(url))


def require_known(scenarios: Iterable[str], profiles: Iterable[str]) -> None:
    """Accept names of scenarios and profiles.

    Raises:
        ConfigInvalid: one does not exist.
    """
    for name in scenarios:
        scenario_called(name)
    for name in profiles:
        _profile(name, {})


def external(urls: Iterable[str], hosts: Iterable[str]) -> dict[BrokerKind, ExternalBroker]:
    """Return external brokers, by kind.

    Raises:
        ConfigInvalid: a URL is wrong, or names a host beyond loopback that was not allowed by name.
    """
    found: dict[BrokerKind, ExternalBroker] = {}
    for text in urls:
        try:
            url = BrokerUrl.parse(text)
        except ValueError as error:
            message = f"--broker-url {error}"
            raise ConfigInvalid(message, hint="As in --broker-url redis://localhost:6379/0.") from error
        if url.is_serverless or url.scheme == "redis+socket":
            message = f"--broker-url is {url}, a link that cannot be cut"
            raise ConfigInvalid(message, hint="Name the broker's host and port.")
        for server in endpoints(list(url.servers)):
            if not server.is_local and server.host not in hosts:
                message = f"--broker-url names {server.host!r}, which is not on this machine"
                raise ConfigInvalid(
                    message,
                    hint="An experiment cuts its own links and kills its own workers only, but sends tasks to that "
                    f"broker. To allow that, add --allow-host {server.host}.",
                )
        assert url.kind is not None
        found[url.kind] = ExternalBroker(url, _management_url())
    return found


def _management_url() -> str:
    """Return the URL of RabbitMQ's management API from the environment; empty if it is not set."""
    found = load().management_url
    return found.reveal() if found else ""


def _scenarios(names: Sequence[str]) -> list[Scenario]:
    return list({one.name: one for name in names or (ALL,) for one in _called(name)}.values())


def _called(name: str) -> list[Scenario]:
    """Return the scenario of a name, or those of `all` or `smoke`; with a phase, those of them that can be moved."""
    group, at, phase = name.partition(AT)
    if group not in (ALL, SMOKE):
        return [scenario_called(name)]
    found = [one for one in SCENARIOS.values() if one.smoke or group == ALL]
    return [scenario_called(f"{one.name}{AT}{phase}") for one in found if one.has_other_phases] if at else found


def _profile(name: str, mine: Mapping[str, Profile]) -> Profile:
    if name == known.ENVIRONMENT:
        return known.from_environment()
    found = mine.get(name) or known.PROFILES.get(name)
    if found is None:
        raise _unknown([*known.PROFILES, *mine, known.ENVIRONMENT], what="profile", name=name)
    return found


def arguments(text: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what `--args` says; nothing without it.

    Raises:
        ConfigInvalid: it is neither a JSON list nor an object.
    """
    if text is None:
        return (), {}
    try:
        found = json.loads(text)
    except ValueError as error:
        message = f"--args is not JSON: {error}"
        raise ConfigInvalid(message, hint="""As in --args '[1, "order-7"]' or --args '{"order": 7}'.""") from error
    if isinstance(found, dict):
        return (), found
    if isinstance(found, list):
        return tuple(found), {}
    message = "--args is neither a JSON list nor an object"
    raise ConfigInvalid(message, hint="""As in --args '[1, "order-7"]' or --args '{"order": 7}'.""")


def _unknown(names: Sequence[str], *, what: str, name: str) -> ConfigInvalid:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names) or 'none'}."
    return ConfigInvalid(f"there is no {what} {name!r}", hint=hint)
