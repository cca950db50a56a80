"""Command-line arguments become a plan, or one error before a server starts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from repot.chaos import faults
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.report.result import Cell, CellVerdict, WorkerOutcome
from repot.chaos.runner import planning
from repot.chaos.runner.application import has_guarded_tasks
from repot.chaos.runner.target_task import Target
from repot.chaos.runner.verdict import Verdict
from repot.chaos.scenarios.catalogue import SCENARIOS, declared
from repot.chaos.scenarios.expectations import alternatives, cells, expectation, parse, table
from repot.chaos.scenarios.profiles import PROFILES, from_environment, from_file
from repot.chaos.scenarios.scenario import Needs
from repot.config.broker_kinds import BrokerKind
from repot.errors import ConfigInvalid
from repot.idempotency import IdempotentTask


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("ok", CellVerdict(Verdict.OK)),
        ("parked", CellVerdict(Verdict.PARKED)),
        ("lost, others duplicated", CellVerdict(Verdict.LOST, Verdict.DUPLICATED)),
        ("ok, worker hung", CellVerdict(Verdict.OK, worker=WorkerOutcome.HUNG)),
        (
            "redelivered, others lost, worker exited",
            CellVerdict(Verdict.REDELIVERED, Verdict.LOST, WorkerOutcome.EXITED),
        ),
    ],
)
def test_a_verdict_is_written_as_it_is_read(text: str, verdict: CellVerdict) -> None:
    assert verdict == parse(text)
    assert text == str(verdict)


@pytest.mark.parametrize("text", ["", "fine", "ok, others fine", "ok worker hung", "ok, worker dead", "ok, nonsense"])
def test_text_that_is_not_a_verdict_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(text)


def test_every_entry_of_the_table_is_valid() -> None:
    """A typing error would leave a cell without an expectation."""
    for name in SCENARIOS:
        assert table(name), f"{name} expects nothing"
        assert {profile for profile, _ in cells(name)} <= set(PROFILES)


FAULT_MODULE = """
from repot.chaos.scenarios.scenario import Scenario

SCENARIOS = (Scenario("mine", "A test's own", "One file is enough.", None, None),)
"""


def test_a_module_among_the_faults_registers_its_scenarios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(FAULT_MODULE)
    monkeypatch.setattr(faults, "__path__", [*faults.__path__, str(tmp_path)])
    # what is imported meanwhile is forgotten afterwards
    monkeypatch.setitem(sys.modules, "repot.chaos.faults.mine", None)
    del sys.modules["repot.chaos.faults.mine"]
    names = [one.name for one in declared()]
    assert {"mine", "dropped-ack", "link-down"} <= set(names)
    assert len(names) == len(set(names))


def test_the_table_has_no_scenario_that_does_not_exist() -> None:
    from repot.chaos.scenarios.expectations import _table

    assert set(_table()) <= set(SCENARIOS)


def test_known_bad_cells_are_expected_to_be_bad() -> None:
    """Celery's defaults on Redis lose and double work; a table without bad cells is wrong."""
    bad = [cell for name in SCENARIOS for cell, found in table(name).items() if all(one.is_bad for one in found)]
    assert {"redis-stock", "amqp-stock"} <= {cell.profile for cell in bad}
    lost = {cell.scenario for cell in bad if cell.profile == "redis-stock"}
    assert {"killed-before-receive", "lost-in-flight", "killed-running", "child-killed"} <= lost


def test_no_effect_is_expected_to_be_duplicated_with_the_guard() -> None:
    doubled = [
        cell.name
        for name in SCENARIOS
        for cell, verdicts in table(name).items()
        for found in verdicts
        if cell.guard and Verdict.DUPLICATED in (found.task, found.others)
    ]
    # RERUN repeats a task with an unknown outcome once its lease has expired
    assert {name.partition("/")[0] for name in doubled} <= {"frozen-rerun"}


def test_nothing_is_lost_where_the_settings_promise_it() -> None:
    """Under repot's settings RabbitMQ keeps accepted messages, unless the fault destroys them."""
    destroying = {"broker-wiped", "queue-deleted"}
    lost = {
        cell.scenario
        for name in SCENARIOS
        for cell, verdicts in table(name).items()
        for found in verdicts
        if cell.profile.startswith(("amqp-classic", "amqp-quorum")) and Verdict.LOST in (found.task, found.others)
    }
    assert lost == destroying


def test_an_entry_lists_several_possible_verdicts() -> None:
    assert (CellVerdict(Verdict.OK), CellVerdict(Verdict.OK, worker=WorkerOutcome.EXITED)) == alternatives(
        "ok | ok, worker exited"
    )


def test_an_entry_for_a_version_wins_from_that_version_on(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"x": {"p": ["ok", "ok"], "p @ RabbitMQ 4.3": ["left", "ok"], "p @ RabbitMQ 4.0": ["lost", "ok"]}}
    monkeypatch.setattr("repot.chaos.scenarios.expectations._table", lambda: entries)
    found = [
        " | ".join(map(str, expectation(Cell("x", "p", guard=False), product, version) or ()))
        for product, version in [
            ("RabbitMQ", "3.10.8"),
            ("RabbitMQ", "4.0.5"),
            ("RabbitMQ", "4.2"),
            ("RabbitMQ", "4.3.6"),
            ("RabbitMQ", "10.0"),
            ("Redis", "8.0"),
        ]
    ]
    assert found == ["ok", "lost", "lost", "left", "left", "ok"]
    assert expectation(Cell("x", "q", guard=False), "Redis", "8") is None


def test_without_arguments_the_plan_is_the_whole_table() -> None:
    plan = planning.plan()
    assert plan.judged
    assert set(SCENARIOS) == {case.scenario.name for case in plan.cases}
    assert all((case.profile.name, case.guard) in cells(case.scenario.name) for case in plan.cases)
    assert len(plan.cases) == len({case.name for case in plan.cases})


def test_smoke_is_a_small_part() -> None:
    plan = planning.plan(names=("smoke",))
    assert 10 < len(plan.cases) < 80
    assert all(case.scenario.smoke for case in plan.cases)
    further = {"redis-late", "amqp-late", "amqp-classic"}
    assert further | {"redis-stock", "redis-hardened", "amqp-quorum"} == {case.profile.name for case in plan.cases}
    assert not any(case.guard for case in plan.cases if case.profile.name in further)


def test_named_profiles_are_run_even_without_an_expectation() -> None:
    plan = planning.plan(names=("dropped-ack",), profiles=("amqp-quorum", "redis-late"), guards=(True,), repeat=2)
    assert len(plan.cases) == 4


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"names": ("dropped-akc",)}, "no scenario 'dropped-akc'", "Did you mean dropped-ack?"),
        ({"names": ("dropped-akc@running",)}, "no scenario 'dropped-akc'", "Did you mean dropped-ack?"),
        ({"names": ("dropped-ack@runing",)}, "no phase 'runing'", "Did you mean running?"),
        ({"names": ("all@runing",)}, "no phase 'runing'", "Did you mean running?"),
        ({"names": ("dropped-ack@",)}, "no phase ''", "before-receive, received"),
        *(
            ({"names": (f"{name}@started",)}, f"{name} has a fixed phase", f"`repot chaos explain {name}`")
            for name in (
                "no-fault",
                "poison",
                "lost-in-flight",
                "publish-blackhole",
                "delivery-limit",
                "ack-cut",
                "consumer-timeout",
            )
        ),
        ({"profiles": ("redis",)}, "no profile 'redis'", "redis-"),
        ({"own_profiles": Path("/no/such/file")}, "cannot be read", "docs/scenarios.md"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_it(arguments: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(ConfigInvalid, match=message) as caught:
        planning.plan(**arguments)  # type: ignore[arg-type]
    assert hint in caught.value.hint


def test_a_fault_can_be_moved_to_another_phase() -> None:
    plan = planning.plan(names=("link-down@before-ack",))
    assert {Phase.BEFORE_ACK} == {case.scenario.phase for case in plan.cases}
    assert {SCENARIOS["link-down"].fault} == {case.scenario.fault for case in plan.cases}
    # the cells are known, the verdicts are not
    assert cells("link-down") == [(case.profile.name, case.guard) for case in plan.cases]
    assert all(expectation(case.cell, "Redis", "7.0") is None for case in plan.cases)
    assert "repot chaos run link-down@before-ack --profile" in plan.cases[0].command(plan.seed, plan.options)
    # the name of a worker has one @
    assert all("@" not in case.name for case in plan.cases)


def test_all_movable_faults_can_be_moved_to_one_phase() -> None:
    plan = planning.plan(names=("all@received", "reset-received@received"), profiles=("amqp-quorum",), guards=(True,))
    names = [case.scenario.name for case in plan.cases]
    assert {Phase.RECEIVED} == {case.scenario.phase for case in plan.cases}
    assert {"reset-received", "link-down@received", "broker-killed@received"} <= set(names)
    assert len(names) == len(set(names)) == sum(one.has_other_phases for one in SCENARIOS.values())


def test_a_scenario_that_is_named_twice_runs_once() -> None:
    few = planning.plan(names=("smoke",), profiles=("amqp-quorum",))
    assert few.cases == planning.plan(names=("smoke", "dropped-ack"), profiles=("amqp-quorum",)).cases


def test_a_phase_of_its_own_is_the_scenario_itself() -> None:
    assert planning.scenario_called("link-down@running") is SCENARIOS["link-down"]


def test_a_task_with_a_failpoint_at_its_retry_retries() -> None:
    assert planning.scenario_called("link-down@retry-publish").retries == 1
    assert planning.scenario_called("link-down@received").retries == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (planning.Options(task="shop.charge"), "--task without --app"),
        (planning.Options(args="[1]", probe="true"), "--args, --probe without --app"),
        (planning.Options(arguments="shop:make", expect="1", reset="true"), "--arguments, --expect, --reset without"),
        (planning.Options("shop:app"), "--app without --task"),
        (planning.Options("shop:app", "shop.charge", expect="1"), "--expect without --probe"),
        (planning.Options("shop:app", "shop.charge", "[1]", "shop:make"), "--args and --arguments together"),
        (
            planning.Options("repot.worker.app", "repot.run", arguments="shop:make"),
            "--arguments shop:make was not found",
        ),
        (planning.Options("repot.worker.app", "repot.run", arguments="os:sep"), "os:sep is a str, not a function"),
    ],
)
def test_options_that_belong_together_are_required(given: planning.Options, message: str) -> None:
    with pytest.raises(ConfigInvalid, match=message):
        planning.target(given)


@pytest.mark.parametrize("text", ["{", "7", '"x"'])
def test_arguments_are_json(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="--args"):
        planning.target(planning.Options("repot.worker.app", "repot.run", text))


@pytest.mark.parametrize("text", ["[1, 2, 3]", '{"order": 7}'])
def test_arguments_that_the_task_does_not_take_are_refused(text: str) -> None:
    """A producer gets the same error from `apply_async`."""
    with pytest.raises(ConfigInvalid, match=r"the arguments of repot.run do not fit: .*(argument)"):
        planning.target(planning.Options("repot.worker.app", "repot.run", text))


def test_a_function_for_arguments_is_found_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders_of_this_directory.py").write_text("def new(): return [7]\n")
    monkeypatch.chdir(tmp_path)
    assert planning.function("orders_of_this_directory:new")() == [7]


def test_a_fault_in_the_middle_of_a_run_needs_a_scenario_that_meets_a_run() -> None:
    target = planning.target(planning.Options("repot.worker.app", "repot.run", into_s=2))
    assert "--into 2s" in target.options
    with pytest.raises(ConfigInvalid, match="--into 2s: no fault of killed-received meets a task that runs"):
        planning.plan(names=("killed-received",), target=target)
    assert planning.plan(names=("killed-received@running", "killed-received"), target=target).cases


@pytest.mark.parametrize(
    ("text", "args", "kwargs"), [("[1, 2]", (1, 2), {}), ('{"seconds": 7}', (), {"seconds": 7}), (None, (), {})]
)
def test_arguments_are_given_by_place_or_by_name(
    text: str | None, args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    found = planning.target(planning.Options("repot.worker.app", "repot.run", text))
    assert (args, kwargs) == (found.args, found.kwargs)


@pytest.mark.parametrize(
    ("is_guarded", "given", "guards"),
    [
        (True, None, [True]),
        (True, (False, True), [False, True]),
        # nothing is guarded there, whatever is asked for
        (False, None, [False]),
        (False, (True,), [False]),
        (False, (False, True), [False]),
    ],
    ids=str,
)
def test_a_users_task_runs_with_the_guard_that_its_application_has(
    is_guarded: bool, given: tuple[bool, ...] | None, guards: list[bool]
) -> None:
    found = planning.target(planning.Options("repot.worker.app", "repot.run"))
    assert found.application
    target = replace(found, application=replace(found.application, is_guarded=is_guarded))
    plan = planning.plan(names=("link-down",), profiles=("redis-hardened",), guards=given, target=target)
    assert guards == [case.guard for case in plan.cases]


def test_an_application_is_guarded_if_a_task_of_its_own_is() -> None:
    guarded, plain = IdempotentTask(), object()
    cases: tuple[tuple[dict[str, object], bool], ...] = (
        ({"shop.mail": plain}, False),
        ({"shop.mail": plain, "repot.guarded_under_test": guarded, "celery.chord": plain}, False),
        ({"shop.mail": plain, "shop.charge": guarded}, True),
    )
    for tasks, expected in cases:
        assert expected == has_guarded_tasks(SimpleNamespace(tasks=tasks))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_without_repot_is_an_applications_own_settings(name: str) -> None:
    """Of repot's own task these are Celery's defaults."""
    profile = PROFILES[name]
    shown = profile.title_for("shop:app")
    assert profile.title == profile.title_for("")
    is_kept = name.partition("-")[2] in ("stock", "late")
    assert is_kept == ("your application's own settings" in shown)
    assert not is_kept or "defaults" not in shown


def test_a_users_task_is_not_compared_with_the_table() -> None:
    target = planning.target(planning.Options("repot.worker.app", "repot.run"))
    plan = planning.plan(names=("link-down",), profiles=("redis-hardened",), target=target)
    assert not plan.judged
    assert "--app repot.worker.app --task repot.run --args '[]'" in plan.cases[0].command(plan.seed, plan.options)


def test_a_task_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigInvalid, match=r"no task 'repot\.rum'"):
        planning.target(planning.Options("repot.worker.app", "repot.rum"))


@pytest.mark.parametrize(
    "url", ["redis://prod.example.com/0", "amqp://u:pl4nted@10.0.0.7//", "redis://[2001:db8::1]:6379/0"]
)
def test_a_broker_beyond_this_machine_must_be_allowed_by_name(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="not on this machine") as caught:
        planning.external([url], [])
    assert "--allow-host" in caught.value.hint
    assert "pl4nted" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("url", ["memory://", "filesystem://", "redis+socket:///run/redis.sock"])
def test_a_link_that_cannot_be_cut_is_refused(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="a link that cannot be cut"):
        planning.external([url], [])


def test_a_named_profile_of_another_broker_is_refused() -> None:
    brokers: Any = {BrokerKind.REDIS: None}
    with pytest.raises(ConfigInvalid, match="the profile amqp-quorum does not run on the broker"):
        planning.plan(names=["no-fault"], profiles=["redis-late", "amqp-quorum"], brokers=brokers)


def test_an_environment_without_a_server_is_not_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_BROKER_URL", "memory://")
    with pytest.raises(ConfigInvalid, match="which has no server that could fail"):
        from_environment()


def test_the_seed_does_not_change_which_cases_run_or_their_order() -> None:
    """A seed decides random amounts and task ids; one case with its seed is a whole run again."""
    plan = planning.plan(seed=3)
    assert planning.plan(seed=4).cases == plan.cases
    assert " --seed 3" in plan.cases[0].command(plan.seed, plan.options)


def test_the_same_seed_gives_the_same_random_choices_to_a_case() -> None:
    """Another seed, repetition, cell or campaign on an external broker gives others."""
    first, second = planning.plan(names=("no-fault",), profiles=("amqp-late",), guards=(False,), repeat=2).cases
    other = planning.plan(names=("no-fault",), profiles=("redis-late",), guards=(False,)).cases[0]
    assert first.random(3).getrandbits(128) == replace(first).random(3).getrandbits(128)
    drawn = [
        source.getrandbits(128)
        for source in (first.random(3), first.random(4), second.random(3), other.random(3), first.random(3, "token"))
    ]
    assert len(drawn) == len(set(drawn))


def test_rare_brokers_come_first() -> None:
    """The cases that take longest start first."""
    needs = [case.scenario.needs for case in planning.plan().cases]
    assert sorted(needs, key=list(Needs).index, reverse=True) == needs


PROFILE = """
[mine]
base = "amqp-quorum"
title = "as in production"
settings = { heartbeat = 4, deduplicate_successful_tasks = false }

[theirs]
base = "redis-stock"
celery = { task_acks_late = true }
"""


def test_own_profiles_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(PROFILE)
    found = from_file(path)
    assert found["mine"].title == "as in production"
    settings = found["mine"].worker_settings(broker_url="amqp://localhost")
    assert (settings.heartbeat, settings.deduplicate_successful_tasks) == (4, False)
    bare = found["theirs"].bare(found["theirs"].worker_settings(broker_url="redis://localhost"))
    assert bare is not None
    assert bare["task_acks_late"] is True
    # kombu's own 300 s would outlast every fault
    assert bare["broker_transport_options"]["unacked_mutex_expire"] == 3
    plan = planning.plan(names=("dropped-ack",), own_profiles=path, guards=(False,))
    assert [case.profile.name for case in plan.cases] == ["mine", "theirs"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mine", "cannot be read"),
        ("[mine]\nbase = 'nothing'", "has the unknown base 'nothing'"),
        ("[mine]\ntitle = 'x'", "mine.base"),
        ("[mine]\nbase = 'redis-hardened'\nsetings = {}", "mine.setings"),
        ("[mine]\nbase = 'redis-hardened'\nsettings = { heartbeet = 1 }", "wrong"),
        ("[mine]\nbase = 'redis-hardened'\nsettings = { broker_url = 'redis://:pl4nted@x' }", "sets broker_url"),
        ("[mine]\nbase = 'redis-stock'\nsettings = { heartbeat = 1 }", "runs Celery without repot"),
        ("[mine]\nbase = 'redis-hardened'\ncelery = { task_acks_late = true }", "is configured by repot"),
        ("[redis-stock]\nbase = 'redis-hardened'", "name of a built-in profile"),
    ],
)
def test_a_wrong_profile_is_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(ConfigInvalid, match=message) as caught:
        from_file(path)
    assert "pl4nted" not in str(caught.value)


def test_the_environment_is_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its URLs are not part of it: an experiment has its own brokers."""
    monkeypatch.setenv("WORKER_BROKER_URL", "amqp://user:pl4nted@prod.example.com//")
    monkeypatch.setenv("WORKER_QUEUE_TYPE", "classic")
    # nor are the times that are scaled
    monkeypatch.setenv("WORKER_HEARTBEAT", "60")
    found = from_environment()
    assert (found.kind, dict(found.settings or {})) == (BrokerKind.RABBITMQ, {"queue_type": "classic"})


@pytest.mark.parametrize(
    ("profile", "guard", "reserves"),
    [("redis-stock", False, 4), ("redis-stock", True, 3), ("redis-late", False, 3), ("amqp-quorum", False, 0)],
)
def test_late_acks_leave_the_prefetch_one_less(profile: str, *, guard: bool, reserves: int) -> None:
    assert reserves == PROFILES[profile].reserves(guard=guard)


UNENCODABLE: dict[str, list[object]] = {
    "json": [object(), {1, object()}, lambda: None],
    "pickle": [lambda: None],
    "nosuch": [1],
}


@pytest.mark.parametrize(("serializer", "value"), [(name, one) for name, ones in UNENCODABLE.items() for one in ones])
def test_arguments_that_cannot_be_sent_are_refused_before_anything_starts(
    serializer: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's own serializer decides, not the application's."""
    source = f"""
from celery import Celery
app = Celery("unsent_{serializer}", task_serializer="json")
@app.task(name="{serializer}.t", serializer="{serializer}")
def t(*args, **kwargs): ...
"""
    (tmp_path / f"unsent_{serializer}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for args, kwargs in (((value,), {}), ((), {"order": value})):
        with pytest.raises(ConfigInvalid, match=f"the arguments of {serializer}.t cannot be encoded"):
            planning.task_of(Target(f"unsent_{serializer}:app", f"{serializer}.t", args, kwargs))
