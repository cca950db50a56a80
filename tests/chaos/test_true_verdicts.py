"""The verdict on applications that were not written for experiments agrees with their own ledger."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from support.chaos_apps import ledger, run, write_apps, write_pooled
from support.shared_rabbitmq import ask, vhost_of

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server

pytest_plugins = ["pytester"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The user's working directory."""
    write_apps(tmp_path)
    return tmp_path


# children

_ANSWERS = [f"answer d-{number}" for number in range(3)]
#: A task, its arguments, further options, the settings, the verdict, and what the application has done.
TREES = {
    "routed to other queues": (
        "shop.checkout", '["o"]', (), "redis-stock", "ok", ["checkout o", "mail o", "payment o"],
    ),
    "routed to other queues, with repot's settings": (
        "shop.checkout", '["o"]', (), "amqp-quorum", "ok", ["checkout o", "mail o", "payment o"],
    ),
    "a chord": ("llm.chord", '["d"]', (), "redis-late", "ok", [*_ANSWERS, "stored d"]),
    "a chord on the other broker": ("llm.chord", '["d"]', (), "amqp-late", "ok", [*_ANSWERS, "stored d"]),
    "a chain": ("llm.chain", '["d"]', (), "redis-stock", "ok", ["answer d", "stored d"]),
    "a group": ("llm.group", '["d"]', (), "redis-stock", "ok", _ANSWERS),
    "a callback": ("llm.link", '["d"]', (), "redis-stock", "ok", ["answer d", "stored d"]),
    "replaced by another task": ("llm.replace", '["d"]', (), "redis-stock", "redelivered", ["answer d"]),
    "due in an hour": ("shop.later", '["o"]', (), "redis-stock", "ok, children postponed", ["later o"]),
    "due in an hour, held by the broker": (
        "shop.later", '["o"]', (), "amqp-quorum", "ok, children postponed", ["later o"],
    ),
    "due after the scaled visibility timeout and before that of the application": (
        "etl.soon", "[1]", (), "redis-stock", "ok", ["load 1"],
    ),
    "to its own queue": ("etl.extract", "[2]", (), "redis-stock", "ok", ["load 0", "load 1"]),
    "a child that fails": ("etl.partly", "[]", (), "redis-stock", "ok, children failed", ["load 1"]),
    "a chain that breaks": ("llm.broken", '["d"]', (), "redis-stock", "ok, children never sent", []),
    "a child that cannot be sent": ("etl.unencodable", "[]", (), "redis-stock", "failed, children refused", []),
    "a retry that sends its children again": (
        "etl.again", "[1]", (), "redis-stock", "redelivered, children duplicated", ["load 1", "load 1"],
    ),
    "to a queue that no worker consumes": ("shop.elsewhere", '["o"]', (), "amqp-stock", "ok, children lost", []),
    "to a queue that is named": (
        "shop.elsewhere", '["o"]', ("--queues", "celery,abroad"), "amqp-stock", "ok", ["mail o"],
    ),
    "to queues that are not named": (
        "shop.checkout", '["o"]', ("--queues", "celery"), "redis-stock", "ok, children lost", ["checkout o"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_the_tree_of_a_task_is_judged(directory: Path, name: str) -> None:
    """Each of its tasks has an outcome, and no two experiments on one broker see each other's queues."""
    task, args, options, profile, verdict, done = TREES[name]
    found = run(directory, "no-fault", task, "--args", args, *options, profile=profile)
    assert verdict == found.verdict, found.talk
    assert done == ledger(directory, task.partition(".")[0])
    assert (4 if re.search("lost|duplicated|failed|never sent", verdict) else 0) == found.code
    assert not found.tasks("stranger")


def test_the_report_says_which_child_was_lost_and_why(directory: Path) -> None:
    found = run(
        directory,
        "no-fault",
        "shop.checkout",
        "--args",
        '["o"]',
        "--queues",
        "celery",
        "--junit",
        "junit.xml",
        "--sarif",
        "chaos.sarif",
    )
    children = {one["name"]: (one["verdict"], one["reason"]) for one in found.tasks("child")}
    why = "no worker consumes the queue {}; --queues names what workers consume"
    assert {"shop.pay": ("lost", why.format("payments")), "shop.mail": ("lost", why.format("mails"))} == children
    assert "--queues celery" in found.data["results"][0]["command"]
    for name in ("shop.pay", "payments"):
        assert name in (directory / "junit.xml").read_text()
    source = (directory / "shop.py").read_text().splitlines()
    placed = [
        one["locations"][0]["physicalLocation"]
        for one in json.loads((directory / "chaos.sarif").read_text())["runs"][0]["results"]
    ]
    assert {"shop.py"} == {one["artifactLocation"]["uri"] for one in placed}
    names = {source[one["region"]["startLine"] - 1] for one in placed}
    assert {
        '@app.task(name="shop.pay", base=IdempotentTask, idempotency=Policy(on_unknown=PARK))',
        '@app.task(name="shop.mail")',
    } == names


PAID = ("shop.pay", "shop.mail")


def test_children_that_two_runs_have_sent_are_twice(directory: Path) -> None:
    """The worker is killed before the ACK of a task whose children were sent: both are sent again, under other ids.

    A guard with a key of its arguments prevents the second payment, which is not lost.
    """
    found = run(directory, "killed-before-ack", "shop.checkout", "--args", '["o"]', profile="amqp-late")
    assert found.verdict == "duplicated, children duplicated"
    verdicts = {name: {one["verdict"] for one in found.tasks("child") if one["name"] == name} for name in PAID}
    assert "duplicated" in verdicts["shop.mail"]
    assert verdicts["shop.pay"] <= {"ok", "redelivered"}
    assert ledger(directory, "shop") == ["checkout o", "checkout o", "mail o", "mail o", "payment o"]


def test_what_is_due_in_an_hour_ends_no_other_wait(directory: Path) -> None:
    """The task that sent it is delivered again after the visibility timeout; before, it was *left* with its child."""
    found = run(directory, "killed-before-ack", "shop.later", "--args", '["o"]', profile="redis-late")
    assert found.verdict == "duplicated, children postponed", found.talk


def test_what_is_due_in_an_hour_and_no_longer_there_is_lost(directory: Path) -> None:
    found = run(directory, "broker-wiped@after-ack", "shop.later", "--args", '["o"]', profile="redis-stock")
    assert found.verdict.partition(", others")[0] == "ok, children lost", found.talk


# the fault meets the task where the scenario has it

#: Settings, the task, and the verdict: celery's prefetch of 4 leaves room behind the task under test, one of 1 none.
PREFETCHES = {
    "late acks, a prefetch of 1": ("redis-late", "llm.ask", "lost"),
    "late acks, a prefetch of 4": ("redis-late", "etl.load", "lost"),
    "early acks, a prefetch of 4": ("redis-stock", "etl.load", "lost"),
    "late acks, a prefetch of 1, RabbitMQ": ("amqp-late", "llm.ask", "lost"),
}


@pytest.mark.parametrize("name", PREFETCHES)
def test_no_step_waits_for_a_reservation_that_the_prefetch_rules_out(directory: Path, name: str) -> None:
    """The scaled visibility timeout runs meanwhile: the fault would meet the second delivery."""
    profile, task, verdict = PREFETCHES[name]
    found = run(directory, "child-killed", task, "--args", "[1]", "--repeat", "3", "--jobs", "2", profile=profile)
    assert [verdict] * 3 == found.verdicts
    # seconds since the task was sent
    assert all(window["begun"] < 5 for one in found.data["results"] for window in one["windows"])
    assert ledger(directory, task.partition(".")[0]) == []


#: How long the task has run when its worker is killed, and what is true then.
INTO = {"its function begins": ((), "redelivered"), "it has its lock": (("--into", "0.5s"), "lost")}


@pytest.mark.parametrize("when", INTO)
def test_a_worker_is_killed_in_the_middle_of_a_function(directory: Path, when: str) -> None:
    """A lock that is left behind is not seen at the first line; the second run returns without its work."""
    options, verdict = INTO[when]
    counts = ("--probe", "sh -c 'cat locks.ledger 2>/dev/null | wc -l'", "--expect", "1")
    found = run(directory, "killed-running", "locks.reserve", "--args", '["o"]', *options, *counts, profile="amqp-late")
    assert verdict == found.verdict, found.talk
    assert ["reserved o"] * (verdict != "lost") == ledger(directory, "locks")


def test_the_task_ended_before_it_had_run_for_so_long(directory: Path) -> None:
    found = run(directory, "killed-running", "etl.load", "--args", "[1]", "--into", "20s")
    assert found.verdict == "the task ended before it had run for 20 s"


def test_a_retry_without_a_countdown_of_its_own_comes_within_the_experiment(directory: Path) -> None:
    """With repot's settings a worker sends a task again whose process was killed, after its default delay of 180 s."""
    found = run(directory, "child-killed", "etl.load", "--args", "[1]", profile="redis-hardened")
    assert found.verdict == "redelivered", found.talk
    assert ledger(directory, "etl") == ["load 1"]
    scaled = {one["name"]: (one["own_s"], one["used_s"]) for one in found.data["results"][0]["scaled"]}
    assert scaled["default_retry_delay"] == (180, 1)


def test_a_task_that_is_to_run_again_after_the_experiment_has_no_verdict(directory: Path) -> None:
    found = run(directory, "no-fault", "etl.tomorrow", "--args", "[1]")
    assert "the task is to run again in" in found.verdict
    assert found.code == 1


def test_an_application_has_a_virtual_host_of_its_own_on_an_external_rabbitmq(
    directory: Path, rabbitmq: Server
) -> None:
    """Its queues have their names there, and those of other applications get nothing."""
    before = [one["name"] for one in ask(rabbitmq, "GET", "vhosts")]
    found = run(
        directory, "no-fault", "shop.checkout", "--args", '["o"]', "--broker-url", rabbitmq.url, profile="amqp-late",
        WORKER_MANAGEMENT_URL=rabbitmq.management_url,
    )  # fmt: skip
    assert found.verdict == "ok", found.talk
    assert ledger(directory, "shop") == ["checkout o", "mail o", "payment o"]
    assert before == [one["name"] for one in ask(rabbitmq, "GET", "vhosts")]
    assert not {"payments", "mails"} & {one["name"] for one in ask(rabbitmq, "GET", f"queues/{vhost_of(rabbitmq)}")}


# pools


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_the_workers_have_the_pool_of_the_application(directory: Path, pool: str) -> None:
    """Its setting would beat `--pool prefork` of Celery's command; only a pool of processes loses one of them."""
    app = write_pooled(directory, pool)
    found = run(
        directory, "no-fault", f"{app}.load", "killed-running", "child-killed", "--args", "[1]", profile="amqp-late"
    )
    assert ["ok", "redelivered", *(["lost"] if pool == "prefork" else [])] == found.verdicts, found.talk
    assert ledger(directory, app) == ["load 1", "load 1"]
    assert [f"the pool {pool} has no processes that could be killed"] * (pool != "prefork") == [
        one["why"] for one in found.data["unmeasured"]
    ]


def test_what_a_killed_green_worker_held_on_redis_is_left(directory: Path) -> None:
    """Kombu looks for overdue messages by a timer of the event loop, which a pool of greenlets has not."""
    app = write_pooled(directory, "gevent")
    found = run(directory, "killed-running", f"{app}.load", "--args", "[1]", profile="redis-late")
    assert found.verdict == "left, others left"
    assert ledger(directory, app) == []


def test_a_pool_that_no_experiment_can_have_is_refused_before_the_first_cell(directory: Path) -> None:
    app = write_pooled(directory, "support.pools:Own")
    found = run(directory, "no-fault", f"{app}.load", "--args", "[1]")
    assert found.code == 2
    assert "no experiment can run with the pool 'support.pools:Own' of the application" in found.talk
    assert "hint: --pool names another one: prefork, threads, solo, gevent, eventlet." in found.talk


def test_another_pool_can_be_named(directory: Path) -> None:
    app = write_pooled(directory, "gevent")
    found = run(directory, "child-killed", f"{app}.load", "--args", "[1]", "--pool", "prefork", profile="amqp-late")
    assert found.verdict == "lost"
    assert "--pool prefork" in found.data["results"][0]["command"]
    assert "worker_pool: prefork in the place of gevent" in found.data["results"][0]["replaced"]


# times

#: The visibility timeouts of both are scaled to 8 s at first; a run of 12 s is longer than that of one of them.
TIMES = {"etl": ("ok", 3600, 1), "hasty": ("duplicated", 10, 2)}


@pytest.mark.parametrize("app", TIMES)
def test_a_run_is_as_long_as_the_visibility_timeout_lets_it_be(directory: Path, app: str) -> None:
    verdict, timeout, runs = TIMES[app]
    found = run(directory, "no-fault", f"{app}.long", "--args", "[12]", profile="redis-late")
    assert verdict == found.verdict, found.talk
    # an attempt that was given up has left nothing behind
    assert ["long 12"] * runs == ledger(directory, app)[-runs:]
    (result,) = found.data["results"]
    scaled = {one["name"]: (one["own_s"], one["used_s"]) for one in result["scaled"]}
    own, used = scaled.get("visibility_timeout", (timeout, timeout))
    assert own == timeout
    assert (used > 12) == (timeout > 12)
    assert 12 <= result["longest_run_s"] < 14


#: What repot's own task does by itself in these scenarios is done to a user's: it works for long, or kills its process.
DONE_TO_IT = {
    "visibility-timeout": ("redis-late", "duplicated", 2),
    "poison": ("redis-late", "lost", 0),
}


@pytest.mark.parametrize("scenario", DONE_TO_IT)
def test_a_scenario_without_a_fault_happens_to_a_users_task(directory: Path, scenario: str) -> None:
    profile, verdict, effects = DONE_TO_IT[scenario]
    found = run(directory, scenario, "etl.load", "--args", "[1]", profile=profile)
    assert found.verdict.startswith(verdict), found.talk
    assert ["load 1"] * effects == ledger(directory, "etl")


def test_times_are_left_as_they_are_on_request(directory: Path) -> None:
    found = run(directory, "no-fault", "etl.load", "--args", "[1]", "--scale", "1")
    assert found.verdict == "ok"
    assert found.data["results"][0]["scaled"] == []
    assert "--scale 1" in found.data["results"][0]["command"]


# the application's world

WORLDS = {
    "two queues with one key": ("onekey.take", "redis-stock", "duplicated", ["taken 1", "taken 1"]),
    "two queues with one key, RabbitMQ": ("onekey.take", "amqp-stock", "duplicated", ["taken 1", "taken 1"]),
    "two queues with a key each": ("twokeys.take", "redis-stock", "ok", ["taken 1"]),
    "two queues with a key each, RabbitMQ": ("twokeys.take", "amqp-stock", "ok", ["taken 1"]),
    "a result backend that fails": ("failing.take", "redis-stock", "failed, others failed", ["taken 1"]),
    "a result backend that stores": ("storing.take", "redis-stock", "ok", ["taken 1"]),
}


@pytest.mark.parametrize("name", WORLDS)
def test_topology_and_result_backend_are_the_applications(directory: Path, name: str) -> None:
    task, profile, verdict, done = WORLDS[name]
    found = run(directory, "no-fault", task, "--args", "[1]", profile=profile)
    assert verdict == found.verdict, found.talk
    lines = ledger(directory, task.partition(".")[0])
    assert done == [line for line in lines if line != "stored"]
    # also the results of the tasks beside it
    assert ("stored" in lines) == (task == "storing.take")


def test_what_is_replaced_is_in_the_report(directory: Path) -> None:
    """Of the two applications one has a Redis for its results, which is not the one that it states."""
    found = run(directory, "no-fault", "llm.ask", "--args", "[1]", "--junit", "junit.xml")
    (result,) = found.data["results"]
    assert result["replaced"] == ["result_backend: a private Redis in the place of redis"]
    assert "visibility_timeout" in [one["name"] for one in result["scaled"]]
    assert run(directory, "no-fault", "shop.mail", "--args", "[1]").data["results"][0]["replaced"] == []


def test_a_fault_of_a_backend_that_is_the_applications_does_not_apply(directory: Path) -> None:
    found = run(directory, "results-down", "storing.take", "--args", "[1]")
    assert "the application's own result backend is used" in found.verdict


# what was never sent


def test_what_cannot_be_encoded_was_never_sent_and_no_test_passes(pytester: pytest.Pytester) -> None:
    write_apps(pytester.path)
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("profile", ["redis-stock", "amqp-stock"])
        @pytest.mark.chaos_app("etl:app")
        def test_it(chaos, profile):
            chaos.survives("no-fault", task="etl.load", args=[object()], profile=profile)
    """)
    found = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    found.assert_outcomes(failed=2)
    found.stdout.fnmatch_lines(["the arguments of etl.load cannot be encoded as json: *object*"])


def test_functions_make_arguments_and_remove_what_an_earlier_run_left(pytester: pytest.Pytester) -> None:
    write_apps(pytester.path)
    pytester.makepyfile("""
        import pytest
        from etl import LEDGER

        NODE = "'test_functions_make_arguments_and_remove_what_an_earlier_run_left.py::test_it[redis-late]'"

        @pytest.mark.chaos_app("etl:app")
        @pytest.mark.chaos_profile("redis-late")
        def test_it(chaos):
            made, counted = [], []

            def row():
                made.append(len(made))
                return [made[-1]]

            def rows(root, args, kwargs):
                counted.append(args)
                return len(LEDGER.read_text().splitlines()) if LEDGER.exists() else 0

            found = [
                chaos.survives(
                    "no-fault", task="etl.load", args=row, probe=rows, reset=lambda: LEDGER.unlink(missing_ok=True)
                )
                for _ in range(2)
            ]
            assert [one.task_under_test.effects for one in found] == [1, 1]
            assert LEDGER.read_text() == f"load {made[-1]}\\n"
            assert len(set(counted)) == len(made)
            # no option names a function of the test
            assert {one.command for one in found} == {"pytest " + NODE + " --repot-seed 0"}
    """)
    found = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    found.assert_outcomes(passed=1)


# ids


@pytest.mark.parametrize(("options", "same"), [((), False), (("--same-ids",), True)])
def test_task_ids_are_new_in_each_run_unless_they_are_to_be_the_same(
    directory: Path, options: tuple[str, ...], *, same: bool
) -> None:
    """What an application keeps by task id is not found again by the next run."""
    runs = [run(directory, "no-fault", "etl.load", "--args", "[1]", *options) for _ in range(2)]
    first, second = ({task["history"]["task"] for task in one.tasks("under test")} for one in runs)
    assert [one.verdict for one in runs] == ["ok", "ok"]
    assert same == (first == second)
    command = runs[0].data["results"][0]["command"]
    assert same == ("--same-ids" in command)
