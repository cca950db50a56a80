"""What is typed becomes a plan, or one clear error before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from repot.chaos import planning
from repot.chaos.expectations import alternatives, cells, expectation, parse, table
from repot.chaos.profiles import PROFILES, from_environment, from_file
from repot.chaos.result import Cell, Fate, Finding
from repot.chaos.scenarios import SCENARIOS, Needs
from repot.chaos.verdict import Word
from repot.errors import ConfigInvalid
from repot.worker.gates import Phase


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("ok", Finding(Word.OK)),
        ("set aside", Finding(Word.SET_ASIDE)),
        ("lost, others duplicated", Finding(Word.LOST, Word.DUPLICATED)),
        ("ok, worker hung", Finding(Word.OK, worker=Fate.HUNG)),
        ("redelivered, others lost, worker exited", Finding(Word.REDELIVERED, Word.LOST, Fate.EXITED)),
    ],
)
def test_a_finding_is_written_as_it_is_read(text: str, finding: Finding) -> None:
    assert finding == parse(text)
    assert text == str(finding)


@pytest.mark.parametrize("text", ["", "fine", "ok, others fine", "ok worker hung", "ok, worker dead", "ok, nonsense"])
def test_what_is_no_finding_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(text)


def test_every_entry_of_the_table_can_be_read_and_names_what_there_is() -> None:
    """All of it: a slip of the pen would leave a cell without an expectation."""
    for name in SCENARIOS:
        assert table(name), f"{name} expects nothing"
        assert {profile for profile, _ in cells(name)} <= set(PROFILES)


def test_the_table_has_no_scenario_that_does_not_exist() -> None:
    from repot.chaos.expectations import _table

    assert set(_table()) <= set(SCENARIOS)


def test_known_bad_cells_are_expected_to_be_bad() -> None:
    """Celery's defaults on Redis lose and double work; a table that says otherwise is wrong."""
    bad = [cell for name in SCENARIOS for cell, found in table(name).items() if all(one.is_bad for one in found)]
    assert {"redis-stock", "amqp-stock"} <= {cell.profile for cell in bad}
    lost = {cell.scenario for cell in bad if cell.profile == "redis-stock"}
    assert {"killed-before-receive", "lost-in-flight", "killed-running", "child-killed"} <= lost


def test_no_effect_is_expected_to_be_doubled_with_the_guard() -> None:
    doubled = [
        cell.name
        for name in SCENARIOS
        for cell, findings in table(name).items()
        for found in findings
        if cell.guard and Word.DUPLICATED in (found.subject, found.others)
    ]
    # RERUN repeats what is in doubt, once the lease has run out
    assert {name.partition("/")[0] for name in doubled} <= {"frozen-rerun"}


def test_nothing_is_lost_where_the_settings_promise_it() -> None:
    """By repot's settings RabbitMQ keeps what it accepted, unless somebody destroys it."""
    destroying = {"broker-wiped", "queue-deleted"}
    lost = {
        cell.scenario
        for name in SCENARIOS
        for cell, findings in table(name).items()
        for found in findings
        if cell.profile.startswith(("amqp-classic", "amqp-quorum")) and Word.LOST in (found.subject, found.others)
    }
    assert lost == destroying


def test_what_chance_decides_is_listed() -> None:
    assert (Finding(Word.OK), Finding(Word.OK, worker=Fate.EXITED)) == alternatives("ok | ok, worker exited")


def test_an_entry_for_a_version_wins_from_that_version_on(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"x": {"p": ["ok", "ok"], "p @ RabbitMQ 4.3": ["left", "ok"], "p @ RabbitMQ 4.0": ["lost", "ok"]}}
    monkeypatch.setattr("repot.chaos.expectations._table", lambda: entries)
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
    assert ["ok", "lost", "lost", "left", "left", "ok"] == found
    assert expectation(Cell("x", "q", guard=False), "Redis", "8") is None


def test_without_words_everything_the_table_knows_is_planned() -> None:
    plan = planning.plan()
    assert plan.judged
    assert set(SCENARIOS) == {case.scenario.name for case in plan.cases}
    assert all((case.profile.name, case.guard) in cells(case.scenario.name) for case in plan.cases)
    assert len(plan.cases) == len({case.name for case in plan.cases})


def test_smoke_is_a_small_part() -> None:
    plan = planning.plan(names=("smoke",))
    assert 10 < len(plan.cases) < 80
    assert all(case.scenario.smoke for case in plan.cases)


def test_chosen_profiles_are_run_even_where_nothing_is_expected() -> None:
    plan = planning.plan(names=("dropped-ack",), profiles=("amqp-quorum", "redis-late"), guards=(True,), repeat=2)
    assert 4 == len(plan.cases)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"names": ("dropped-akc",)}, "no scenario 'dropped-akc'", "Did you mean dropped-ack?"),
        ({"names": ("dropped-akc@running",)}, "no scenario 'dropped-akc'", "Did you mean dropped-ack?"),
        ({"names": ("dropped-ack@runing",)}, "no phase 'runing'", "Did you mean running?"),
        ({"names": ("all@runing",)}, "no phase 'runing'", "Did you mean running?"),
        ({"names": ("dropped-ack@",)}, "no phase ''", "before-receive, received"),
        *(
            ({"names": (f"{name}@started",)}, f"{name} strikes where it must", f"`repot chaos explain {name}`")
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
def test_what_does_not_exist_is_named(arguments: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(ConfigInvalid, match=message) as caught:
        planning.plan(**arguments)  # type: ignore[arg-type]
    assert hint in caught.value.hint


def test_a_fault_strikes_at_another_phase() -> None:
    plan = planning.plan(names=("link-down@before-ack",))
    assert {Phase.BEFORE_ACK} == {case.scenario.phase for case in plan.cases}
    assert {SCENARIOS["link-down"].fault} == {case.scenario.fault for case in plan.cases}
    # where it means something is known, what comes of it is not
    assert cells("link-down") == [(case.profile.name, case.guard) for case in plan.cases]
    assert all(expectation(case.cell, "Redis", "7.0") is None for case in plan.cases)
    assert "repot chaos run link-down@before-ack --profile" in plan.cases[0].command(plan.seed, plan.options)
    # the name of a worker has one @
    assert all("@" not in case.name for case in plan.cases)


def test_all_faults_strike_at_one_phase() -> None:
    plan = planning.plan(names=("all@received", "reset-received@received"), profiles=("amqp-quorum",), guards=(True,))
    names = [case.scenario.name for case in plan.cases]
    assert {Phase.RECEIVED} == {case.scenario.phase for case in plan.cases}
    assert {"reset-received", "link-down@received", "broker-killed@received"} <= set(names)
    assert len(names) == len(set(names)) == sum(one.has_other_phases for one in SCENARIOS.values())


def test_what_is_named_twice_is_run_once() -> None:
    few = planning.plan(names=("smoke",), profiles=("amqp-quorum",))
    assert few.cases == planning.plan(names=("smoke", "dropped-ack"), profiles=("amqp-quorum",)).cases


def test_a_phase_of_its_own_is_the_scenario_itself() -> None:
    assert planning.scenario_called("link-down@running") is SCENARIOS["link-down"]


def test_a_task_that_is_to_be_held_at_its_retry_retries() -> None:
    assert 1 == planning.scenario_called("link-down@retry-publish").retries
    assert 0 == planning.scenario_called("link-down@received").retries


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, "shop.charge", None, None), "--task without --app"),
        ((None, None, "[1]", "true"), "--args, --probe without --app"),
        (("shop:app", None, None, None), "--app without --task"),
    ],
)
def test_options_that_belong_together_are_asked_for(given: tuple[str | None, ...], message: str) -> None:
    with pytest.raises(ConfigInvalid, match=message):
        planning.target(*given)


@pytest.mark.parametrize("text", ["{", "7", '"x"'])
def test_arguments_are_json(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="--args"):
        planning.target("repot.worker.app", "repot.run", text, None)


@pytest.mark.parametrize(
    ("text", "args", "kwargs"), [("[1, 2]", (1, 2), {}), ('{"a": 7}', (), {"a": 7}), (None, (), {})]
)
def test_arguments_are_given_by_place_or_by_name(
    text: str | None, args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    found = planning.target("repot.worker.app", "repot.run", text, None)
    assert (args, kwargs) == (found.args, found.kwargs)


def test_a_task_of_ones_own_is_not_judged_by_the_table_and_runs_with_the_guard() -> None:
    target = planning.target("repot.worker.app", "repot.run", None, None)
    plan = planning.plan(names=("link-down",), profiles=("redis-hardened",), target=target)
    assert not plan.judged
    assert [True] == [case.guard for case in plan.cases]
    assert "--app repot.worker.app --task repot.run --args '[]'" in plan.cases[0].command(plan.seed, plan.options)


def test_a_task_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigInvalid, match=r"no task 'repot\.rum'"):
        planning.target("repot.worker.app", "repot.rum", None, None)


@pytest.mark.parametrize(
    "url", ["redis://prod.example.com/0", "amqp://u:pl4nted@10.0.0.7//", "redis://[2001:db8::1]:6379/0"]
)
def test_a_broker_beyond_this_machine_must_be_allowed_by_name(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="not on this machine") as caught:
        planning.existing([url], [])
    assert "--allow-host" in caught.value.hint
    assert "pl4nted" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("url", ["memory://", "filesystem://", "redis+socket:///run/redis.sock"])
def test_a_link_that_cannot_be_cut_is_refused(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="a link that cannot be cut"):
        planning.existing([url], [])


def test_an_environment_without_a_server_is_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_BROKER_URL", "memory://")
    with pytest.raises(ConfigInvalid, match="which has no server that could fail"):
        from_environment()


def test_the_same_seed_gives_the_same_order_of_cases() -> None:
    assert planning.plan(seed=3).cases == planning.plan(seed=3).cases


def test_rare_brokers_come_first() -> None:
    """What takes longest begins first."""
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


def test_profiles_of_ones_own_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(PROFILE)
    found = from_file(path)
    assert "as in production" == found["mine"].title
    settings = found["mine"].worker_settings(broker_url="amqp://localhost")
    assert (4, False) == (settings.heartbeat, settings.deduplicate_successful_tasks)
    bare = found["theirs"].bare(found["theirs"].worker_settings(broker_url="redis://localhost"))
    assert bare is not None
    assert bare["task_acks_late"] is True
    # kombu's own 300 s would outlast every fault
    assert 3 == bare["broker_transport_options"]["unacked_mutex_expire"]
    plan = planning.plan(names=("dropped-ack",), own_profiles=path, guards=(False,))
    assert ["mine", "theirs"] == [case.profile.name for case in plan.cases]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mine", "cannot be read"),
        ("[mine]\nbase = 'nothing'", "has the base 'nothing'"),
        ("[mine]\ntitle = 'x'", "mine.base"),
        ("[mine]\nbase = 'redis-hardened'\nsetings = {}", "mine.setings"),
        ("[mine]\nbase = 'redis-hardened'\nsettings = { heartbeet = 1 }", "wrong"),
        ("[mine]\nbase = 'redis-hardened'\nsettings = { broker_url = 'redis://:pl4nted@x' }", "sets broker_url"),
        ("[mine]\nbase = 'redis-stock'\nsettings = { heartbeat = 1 }", "is Celery without repot"),
        ("[mine]\nbase = 'redis-hardened'\ncelery = { task_acks_late = true }", "is configured by repot"),
        ("[redis-stock]\nbase = 'redis-hardened'", "one of repot's own"),
    ],
)
def test_a_wrong_profile_is_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(ConfigInvalid, match=message) as caught:
        from_file(path)
    assert "pl4nted" not in str(caught.value)


def test_the_environment_is_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its addresses are not: an experiment has brokers of its own."""
    monkeypatch.setenv("WORKER_BROKER_URL", "amqp://user:pl4nted@prod.example.com//")
    monkeypatch.setenv("WORKER_QUEUE_TYPE", "classic")
    # nor are the times that are scaled
    monkeypatch.setenv("WORKER_HEARTBEAT", "60")
    found = from_environment()
    assert ("amqp", {"queue_type": "classic"}) == (found.broker, dict(found.settings or {}))


@pytest.mark.parametrize(
    ("profile", "guard", "reserves"),
    [("redis-stock", False, 4), ("redis-stock", True, 3), ("redis-late", False, 3), ("amqp-quorum", False, 0)],
)
def test_late_acks_leave_the_prefetch_one_less(profile: str, *, guard: bool, reserves: int) -> None:
    assert reserves == PROFILES[profile].reserves(guard=guard)
