"""What `make test` and `make campaign` run: groups of commands, each group alone by its name."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from support import groups as tests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
BIN = Path(PYTHON).parent

#: Processes of pytest on two processors, if nothing runs beside them: most tests wait for a broker.
PROCESSES = "6"
#: The same where others run beside them.
PROCESSES_BESIDE_OTHERS = "3"
#: Those of a group in one of the lanes: each costs its imports, and servers of its own.
PROCESSES_IN_A_LANE = "2"

#: Names the tests to which a group owes its time.
_SLOWEST = ("--durations", "12", "--durations-min", "5")

#: The minor release of Celery in an environment, whose own tests are run there.
_MINORS = {"oldest": "5.4", "celery-5.4": "5.4", "celery-5.5": "5.5", "celery-5.6": "5.6"}


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a group.

    Attributes:
        words: the command; its program may be in `.venv/bin`.
        python: the interpreter that runs pytest, which repeats a test that failed; None if the command is not pytest.
        has_servers: its tests are no unit tests, and may use the RabbitMQ of the run.
    """

    words: tuple[str, ...]
    python: str | None = None
    has_servers: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Commands that run one after another, and end with the first that fails.

    Attributes:
        about: what they test, for `--list`.
        beside: commands that run meanwhile, also one after another; each uses one processor.
        needs: scripts that install what is missing; each takes moments if nothing is.
        is_apart: it runs only when it is named, as the public workflow does: a campaign has no time for it.
    """

    name: str
    about: str
    commands: tuple[Command, ...]
    needs: tuple[tuple[str, ...], ...] = ()
    beside: tuple[Command, ...] = ()
    is_apart: bool = False


def _run(*words: str) -> Command:
    return Command(words)


def _pytest(name: str, python: str = PYTHON, processes: str = PROCESSES_IN_A_LANE, chosen: str = "") -> Command:
    spread = ("--numprocesses", processes, "--dist", "loadgroup", *_SLOWEST)
    some = ("-k", chosen) if chosen else ()
    return Command((python, "-m", "pytest", "tests", "--group", name, *spread, *some), python, has_servers=True)


def _unit(python: str, *options: str, paths: Sequence[str] = tests.UNIT_PATHS) -> Command:
    words = (python, "-m", "pytest", *paths, "--group", tests.UNIT, "--numprocesses", PROCESSES_BESIDE_OTHERS, *options)
    return Command(words, python)


def _projects(name: str) -> Command:
    python = _python_of(name)
    paths = ("tests/apps", "tests/conformance")
    words = (python, "-m", "pytest", *paths, "--numprocesses", PROCESSES_IN_A_LANE, "--dist", "loadgroup")
    return Command(words, python)


def _of(
    name: str,
    about: str,
    *needs: str,
    beside: Sequence[str] = (),
    before: Sequence[Command] = (),
    processes: str = PROCESSES_IN_A_LANE,
) -> Group:
    """Return the group of tests with servers of this name.

    `needs` are parts of `scripts/setup`, `beside` environments whose workers or applications the tests use.
    """
    parts = (*(("scripts/setup", one) for one in needs), *(("scripts/environment", one) for one in beside))
    return Group(name, about, (*before, _pytest(name, processes=processes)), parts)


def _unit_on(name: str) -> Group:
    """Return the group of unit tests in the environment of another release of Celery."""
    about = f"unit tests on Celery {_MINORS[name]}"
    return Group(name, about, (_unit(_python_of(name)),), _environment(name), is_apart=True)


def _every_unit_on(name: str, *options: str, about: str = "", projects: bool = False) -> Group:
    """Return the group of all unit tests on the oldest or the newest allowed libraries."""
    commands = (_unit(_python_of(name), *options), *((_projects(name),) if projects else ()))
    about = f"all unit tests on the {name} allowed libraries{about}"
    needs = _environment(name) if projects else _environment(name)[:1]
    return Group(f"every-unit-{name}", about, commands, needs, is_apart=True)


def _environment(name: str) -> tuple[tuple[str, ...], ...]:
    minor = _MINORS.get(name)
    return (("scripts/environment", name), ("scripts/celery_tests", *([minor] if minor else [])))


def _promises_on(minor: str) -> Group:
    """Return the group that proves each promise in an environment with another release of Celery."""
    release = f"celery-{minor}"
    commands = (_pytest("promises", _python_of(release), PROCESSES_BESIDE_OTHERS),)
    needs = (*_environment(release), ("scripts/setup", "postgresql"))
    return Group(f"promises-{minor}", f"each promise on Celery {minor}", commands, needs, is_apart=True)


def _python_of(name: str) -> str:
    return f".tools/{name}/bin/python"


#: Groups that run beside each other. With more processes nothing ends earlier, and what has a time limit is late.
LANES = 4

_UNIT = _unit(PYTHON)
_SUITE = (("scripts/celery_tests",),)

#: What `make lint` and its like run.
PARTS = (
    Group("lint", "ruff, the lint of words, actionlint", (
        _run("ruff", "check", "."),
        _run("ruff", "format", "--check", "."),
        _run(PYTHON, "scripts/words"),
        _run("scripts/actionlint"),
    )),
    Group("types", "mypy --strict", (_run("mypy"),)),
    Group("contract", "which package may import which", (_run("lint-imports"),)),
    Group("unit", "tests without servers", (_UNIT,)),
)  # fmt: skip

#: Unit tests that meet the libraries most.
_ON_LIBRARIES = ("tests/upstream", *(f"tests/unit/test_{name}.py" for name in ("capabilities", "configure", "load")))


def _with_libraries() -> tuple[str, ...]:
    """Return the files of unit tests that use a library which repot stands on, and those of stores.

    Without those that `make test` runs on the oldest libraries.
    """
    uses = re.compile(r"^\s*(?:from|import) (?:amqp|billiard|celery|kombu|redis|sqlalchemy)\b", re.MULTILINE)
    files = (path for path in sorted((tests.TESTS / "unit").glob("test_*.py")) if uses.search(path.read_text()))
    of_unit, *others = tests.UNIT_PATHS
    found = dict.fromkeys((*others, *(f"{of_unit}/{path.name}" for path in files)))
    return tuple(path for path in found if path not in _ON_LIBRARIES)


#: What `make test` runs, in this order.
TEST = (
    Group(
        "check",
        "tests without servers, beside them lint, types and the import contract",
        (_UNIT,),
        beside=tuple(command for part in PARTS[:-1] for command in part.commands),
    ),
    Group(
        "upstream-oldest",
        "the contract with the libraries on the oldest allowed ones, Celery 5.4 among them",
        (_unit(_python_of("oldest"), paths=_ON_LIBRARIES),),
        _environment("oldest"),
    ),
    Group(
        "promises",
        "each promise of the docs once, on real servers",
        (_pytest("promises", processes=PROCESSES),),
        (("scripts/setup", "postgresql"), *_SUITE),
    ),
)

#: Of Celery's own tests what a campaign has time for; `make conformance` runs all.
_CONFORMANCE = _run(PYTHON, "-m", "conformance", "t/integration/test_tasks.py")
_COVERAGE = ("--cov", "--cov-report=")
_EACH_OUTAGE = ("--faults", "8", "--seed", "2707", "--long", "0")

#: What `make campaign` runs, the longest in front: a lane that is free takes the next.
CAMPAIGN = (
    _of(
        "doctor", "the doctor on servers and on whole projects, repot init, commands as processes", "postgresql",
        beside=("application-4.4", "application-5.2"),
    ),
    _of("moves", "moves of a backlog, killed at each instant", "postgresql"),
    _of("rollouts", "rollouts, and where producers send", "postgresql", "prometheus"),
    _of(
        "workers", "what workers do when a broker fails, dead letters, claims, probes", "postgresql",
        beside=("celery-5.4", "celery-5.5", "celery-5.6", "web-servers"),
    ),
    _of("chaos", "the fault matrix' smoke, its commands, its pytest plugin"),
    # an engine without layers builds for minutes, for which a test has no time
    _of("compose", "the compose files, where a Docker engine answers", before=(_run("scripts/images"),)),
    _of("pages", "every command of every page, typed", "postgresql"),
    Group("conformance", "Celery's own tests with and without repot", (
        _pytest("conformance"), _CONFORMANCE,
    ), _SUITE),
    _of("brokers", "the brokers' adapters, private servers, rights, TLS, bugs of libraries"),
    _of("effects", "guarded tasks, leases, jobs, the outbox, transactions", "postgresql", "mariadb"),
    Group(
        "oldest", "unit tests that use libraries, and whole projects, on the oldest allowed libraries",
        (_unit(_python_of("oldest"), paths=_with_libraries()), _projects("oldest")), _environment("oldest"),
    ),
    Group(
        "newest", "the contract with the libraries on the newest allowed ones",
        (_unit(_python_of("newest"), paths=_ON_LIBRARIES),), _environment("newest")[:1],
    ),
    # with these seeds each kind of fault comes: the eight of a store and the four of transactions once each
    Group("storms", "the long experiments at a small size", (
        _run(PYTHON, "benchmarks/claims_storm.py", "--faults", "12"),
        _run(PYTHON, "benchmarks/move_kills.py", "--kills", "2"),
        _run(PYTHON, "benchmarks/transaction_kills.py", "--kills", "4", "--seed", "26"),
        _run(PYTHON, "benchmarks/store_outages.py", *_EACH_OUTAGE, "--store", "redis"),
        _run(PYTHON, "benchmarks/store_outages.py", *_EACH_OUTAGE, "--store", "postgresql"),
        _run(PYTHON, "benchmarks/claims_cut.py", "--seconds", "5", "--pools", "threads,gevent"),
    ), (("scripts/setup", "postgresql"),)),
    Group("verdicts", "some of the verdicts on applications that were not written for experiments", (
        _pytest("verdicts", chosen="chord or breaks or two_runs or reservation"),
    )),
    Group("mistakes", "for each verdict a planted mistake of an application, and its right twin, on Redis", (
        _pytest("mistakes", chosen="once"),
    )),
    _of("browser", "pages in a headless Chromium", "browser"),
    Group("mutants", "a sixth of the planted defects, each of which must turn tests red", (
        _run(PYTHON, "-m", "mutants", "--every", "6"),
    )),
    _of("mariadb", "the stores on MariaDB", "mariadb"),
    # they are built once by each process
    _of("wheel", "sdist and wheel, tried in an empty environment", processes="1"),
    _of("valkey", "the stores on Valkey, where one is installed"),
    Group("site", "the docs site: every page in its place, no broken link", (
        _run("mkdocs", "build", "--strict"),
    )),
    Group("every-verdict", "all verdicts on such applications", (_pytest("verdicts"),), is_apart=True),
    Group("every-mistake", "each planted mistake and its twin five times on each broker", (
        _pytest("mistakes", chosen="five_times"),
    ), is_apart=True),
    # to build helm takes minutes of both processors
    replace(_of("kubernetes", "the chart and the manifests, where Go is installed", "kubernetes"), is_apart=True),
    Group("every-cell", "the whole fault matrix, each verdict as the table of expectations has it", (
        _run("repot", "chaos", "run", "all", "--jobs", "12"),
    ), is_apart=True),
    Group("every-mutant", "all planted defects: make mutants", (_run(PYTHON, "-m", "mutants"),), is_apart=True),
    _every_unit_on("oldest"),
    _every_unit_on("newest", *_COVERAGE, about=", with the floor of their coverage, and whole projects", projects=True),
    _unit_on("celery-5.4"),
    _unit_on("celery-5.5"),
    _unit_on("celery-5.6"),
    _promises_on("5.4"),
    _promises_on("5.5"),
    _promises_on("5.6"),
)  # fmt: skip


def named(names: Sequence[str], groups: Sequence[Group]) -> Iterator[Group]:
    """Yield the groups of these names, in the order of `groups`.

    Raises:
        LookupError: there is no such group.
    """
    known = {group.name for group in groups}
    for name in names:
        if name not in known:
            message = f"there is no group {name!r}; there are {', '.join(sorted(known))}"
            raise LookupError(message)
    yield from (group for group in groups if group.name in names)
