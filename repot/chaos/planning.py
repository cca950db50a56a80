"""From what somebody typed to a plan, or to one clear error before anything is started."""

from __future__ import annotations

import difflib
import json
import shlex
from typing import TYPE_CHECKING, Any

from repot.brokers.local.existing import ExistingGround
from repot.chaos import profiles as known
from repot.chaos.campaign import Plan, cases
from repot.chaos.expectations import cells
from repot.chaos.scenarios import ALL, AT, SCENARIOS, SMOKE, Needs, Scenario
from repot.chaos.target import Target
from repot.config import BrokerUrl, load, refuse_overriding
from repot.config.endpoints import endpoints
from repot.errors import AppUnusable, ConfigInvalid
from repot.worker.apps import load_app
from repot.worker.configure import configured_with
from repot.worker.gates import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from repot.chaos.case import Case
    from repot.chaos.profiles import Profile

#: Worst, and best, on either broker.
_SMOKE_PROFILES = ("redis-stock", "redis-hardened", "amqp-quorum")


def plan(
    *,
    names: Sequence[str] = (),
    profiles: Sequence[str] = (),
    own_profiles: Path | None = None,
    guards: Sequence[bool] | None = None,
    target: Target | None = None,
    brokers: Mapping[str, ExistingGround] | None = None,
    seed: int = 0,
    repeat: int = 1,
) -> Plan:
    """What is to be done.

    Without profiles of one's own, without a task of one's own and on private brokers,
    the cells are those of the table of expectations, and are compared with it.

    Raises:
        ConfigInvalid: naming what is wrong.
        AppUnusable: the application cannot run under a profile that was named.
    """
    refuse_overriding()
    target, brokers = target or Target(), brokers or {}
    mine = known.from_file(own_profiles) if own_profiles else {}
    few = _SMOKE_PROFILES if tuple(names) == (SMOKE,) else tuple(known.PROFILES)
    chosen = [_profile(name, mine) for name in (profiles or mine or few)]
    if brokers:
        chosen = [one for one in chosen if one.broker in brokers]
    if target.app:
        chosen = _fitting(target.app, chosen, named=bool(profiles or mine))
    scenarios = _scenarios(names)
    if brokers:
        scenarios = _harmless(scenarios, names)
    wanted = tuple(guards) if guards is not None else ((True,) if target.app else (False, True))
    found = cases(scenarios, chosen, wanted, repeat)
    judged = not target.app
    if judged and not profiles and not mine:
        found = tuple(case for case in found if (case.profile.name, case.guard) in _known_cells(case))
    if not found:
        message = "these scenarios, profiles and brokers leave nothing to run"
        raise ConfigInvalid(message, hint="`repot chaos list` names scenarios and profiles.")
    options = _options(target, own_profiles, brokers.values())
    return Plan(found, seed=seed, target=target, existing=dict(brokers), judged=judged, options=options)


def _known_cells(case: Case) -> list[tuple[str, bool]]:
    """Where its scenario means something; one that was moved to another phase does so in the same places."""
    return cells(case.scenario.name.partition(AT)[0])


def _options(target: Target, own_profiles: Path | None, brokers: Iterable[ExistingGround]) -> str:
    """What runs one of the cases again, beside what tells it from the others; passwords are masked."""
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
    """Profiles under which an application can run: one that calls `repot.configure` has repot's settings."""
    bare = [one.name for one in profiles if one.settings is None]
    if not bare or configured_with(load_app(app)) is None:
        return list(profiles)
    if named:
        message = f"the application {app!r} calls repot.configure, so it cannot run under {', '.join(bare)}"
        raise AppUnusable(message, hint="Choose profiles of repot's settings; `repot chaos list` names them.")
    return [one for one in profiles if one.settings is not None]


def _harmless(scenarios: Sequence[Scenario], names: Sequence[str]) -> list[Scenario]:
    """Scenarios that do nothing to the broker; one that does is refused if it was asked for by name."""
    harmful = [one.name for one in scenarios if one.needs is not Needs.ANY and one.name in names]
    if harmful:
        message = f"{', '.join(harmful)} would harm the broker that --broker-url names"
        raise ConfigInvalid(message, hint="Leave --broker-url out: a private broker is started for it.")
    return [one for one in scenarios if one.needs is Needs.ANY]


def scenario_called(name: str) -> Scenario:
    """The scenario of that name; `NAME@PHASE` is one whose fault strikes at another phase.

    Raises:
        ConfigInvalid: there is none.
    """
    base, at, phase = name.partition(AT)
    found = SCENARIOS.get(base)
    if found is None:
        raise _unknown([*SCENARIOS, ALL, SMOKE], what="scenario", name=base)
    if not at or phase == found.phase:
        return found
    if phase not in list(Phase):
        raise _unknown(list(Phase), what="phase", name=phase)
    if not found.has_other_phases:
        message = f"{base} strikes where it must, and cannot be moved to {phase!r}"
        raise ConfigInvalid(message, hint=f"`repot chaos explain {base}` says what it does.")
    return found.moved_to(Phase(phase))


def target(app: str | None, task: str | None, arguments: str | None, probe: str | None) -> Target:
    """A task of the user's, or repot's own.

    Raises:
        ConfigInvalid: what was said does not belong together.
        AppUnusable: there is no such application.
    """
    if not app:
        given = {"--task": task, "--args": arguments, "--probe": probe}
        stray = [name for name, value in given.items() if value]
        if stray:
            message = f"{', '.join(stray)} without --app"
            raise ConfigInvalid(message, hint="Name your application, as in --app shop.celery:app.")
        return Target()
    if not task:
        message = "--app without --task"
        raise ConfigInvalid(message, hint="Name the task to strike, as in --task shop.tasks.charge.")
    args, kwargs = _arguments(arguments)
    return task_of(app, task, args, kwargs, probe or "")


def task_of(app: str, task: str, args: tuple[Any, ...], kwargs: dict[str, Any], probe: str) -> Target:
    """A task of the user's.

    Raises:
        ConfigInvalid: the application has no such task.
        AppUnusable: there is no such application.
        ExperimentFailed: the probe counts nothing.
    """
    found = load_app(app)
    found.loader.import_default_modules()
    if task not in found.tasks:
        names = sorted(name for name in found.tasks if not name.startswith(("celery.", "repot.")))
        raise _unknown(names, what="task", name=task)
    made = Target(app, task, args, kwargs, probe)
    # a probe that fails must not do so after a minute
    made.effects("")
    return made


def profile_for(app: str) -> str:
    """The profile of an application's own settings, on the kind of broker that it uses; of none, repot's.

    Raises:
        AppUnusable: there is no such application.
        ConfigInvalid: its address names no one kind of broker.
    """
    if not app:
        return "redis-hardened"
    found = load_app(app)
    adopted = configured_with(found)
    try:
        url = adopted.read_url if adopted else BrokerUrl.parse(found.conf.broker_read_url or "amqp://")
    except ValueError as error:
        message = f"the application {app!r} does not say which kind of broker it uses: {error}"
        raise ConfigInvalid(message, hint="Name a profile; `repot chaos list` shows them.") from error
    if url.is_serverless:
        message = f"the application {app!r} uses {url}, which has no server that could fail"
        raise ConfigInvalid(message, hint="Name a profile; `repot chaos list` shows them.")
    broker = "redis" if url.is_redis else "amqp"
    queue_type = adopted.queue_type if adopted else None
    fitting = (
        profile.name
        for profile in known.PROFILES.values()
        if profile.broker == broker
        and (profile.settings is None) == (adopted is None)
        and (profile.settings or {}).get("queue_type", queue_type) == queue_type
    )
    return next(fitting)


def require_known(scenarios: Iterable[str], profiles: Iterable[str]) -> None:
    """Accept names of scenarios and profiles.

    Raises:
        ConfigInvalid: there is no such thing.
    """
    for name in scenarios:
        scenario_called(name)
    for name in profiles:
        _profile(name, {})


def existing(urls: Iterable[str], hosts: Iterable[str]) -> dict[str, ExistingGround]:
    """Brokers of somebody's own, by the scheme of their address.

    Raises:
        ConfigInvalid: an address is wrong, or names a host beyond loopback that was not allowed by name.
    """
    found: dict[str, ExistingGround] = {}
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
                    hint=f"An experiment cuts links and kills workers of its own, but sends tasks to that broker. If "
                    f"that is what you want, say --allow-host {server.host}.",
                )
        found["redis" if url.is_redis else "amqp"] = ExistingGround(url, _management_url())
    return found


def _management_url() -> str:
    """Where RabbitMQ's management API is, if the environment says it."""
    found = load().management_url
    return found.reveal() if found else ""


def _scenarios(names: Sequence[str]) -> list[Scenario]:
    return list({one.name: one for name in names or (ALL,) for one in _called(name)}.values())


def _called(name: str) -> list[Scenario]:
    """The scenario of that name, or those of `all` or `smoke`; at a phase, those of them that can be moved."""
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


def _arguments(text: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
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
    guess = f"Did you mean {near[0]}?" if near else f"There is {', '.join(names) or 'none'}."
    return ConfigInvalid(f"there is no {what} {name!r}", hint=guess)
