"""Kill workers, producers, the controller and both brokers of a rollout, and account for every id.

    python benchmarks/rollout_kills.py [--kills 30] [--from redis] [--to rabbitmq] [--ending done|abort] [--seed 1]
        [--rate 50] [--web] [--stops] [--cluster] [--keep DIRECTORY] [--json]

Private servers: the two brokers, and a Redis for the rollout's record, results, leases and the lines of the runs, which
is not killed. Producers send single tasks, countdowns, ETAs, retries, tasks that send tasks, groups, chains, chords and
guarded tasks; `repot rollout start` leads. At random instants a process of a pool, a whole worker, a producer, the
controller or a broker is killed with SIGKILL and started again, a broker with its data. A fifth of the kills is kept
for the drain (with `--ending abort` for the abort, which a person asks for in a step that gives the target half of the
work or more: a target without work has nothing to lose). A rollout that was aborted by itself, because its target was
away, is promoted again.

With `--web` the producers are a web application under uvicorn with two workers, which two clients ask to send, and a
beat sends as well; a unit is sent if the answer says so. Kills take a worker of uvicorn, and the beat. With `--stops` a
broker is also stopped (SIGSTOP) for up to four seconds, and RabbitMQ has a memory alarm for as long.

When it has ended, the workers of the side that became empty are killed at once: what is left
there is stranded.

Every id of a unit whose sending returned must have finished. Ids that did not are told apart:

- `parked`: a guarded task of unknown outcome, which waits for an operator as its policy says;
- `failed`: Celery has recorded a failure under the id;
- `by redis`: Redis' own file says that a message of the unit was taken and never recorded as in hand, which happens
  without a rollout as well (kombu's BRPOP);
- `by chord`: all parts are counted in the result backend, and the worker that was to send the body was killed;
- `lost`: none of these.

Beside them it prints what `repot rollout status --json` says of each side and what the application's own signals
counted; of the side that became empty, by how much the account is open, and which messages and runs it does not have.

Exits with 4 if one is lost, if a guarded effect happened more often than its policy allows, if something is stranded,
or if the rollout did not end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

import psutil
from redis import Redis
from redis_log import DURABLE, vanished
from rollout_account import Account, account_of, show

from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings
from repot.config.environment import child_environment
from repot.errors import DeadlineExceeded, RepotError
from repot.rollout.phases import Phase
from repot.rollout.rollout import open_rollout
from repot.routing.side import Side
from repot.testbed import (
    LOOPBACK,
    ReapedProcess,
    free_port,
    rabbitmq_cluster,
    redis_server,
    standalone_rabbitmq,
    standalone_redis,
)
from repot.testbed.nodes import is_listened_on
from repot.testbed.rabbitmq_faults import management
from repot.testbed.rabbitmqctl import evaluate
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from repot.brokers import Broker
    from repot.routing.record import RolloutRecord
    from repot.testbed.nodes import Node, NodeBroker

NAME, QUEUE = "storm", "storm"
#: Victim -> how often of ten kills.
WEIGHTS = {"pool process": 2, "worker": 2, "producer": 1, "controller": 2, "source": 1.5, "target": 1.5}
#: The same with `--web` and with `--stops`.
_WEB, _STOPS = {"beat": 1}, {"source stopped": 1, "target stopped": 1, "memory alarm": 1}
_PAUSES_S, _PAUSES_AT_THE_END_S = (0.5, 4.0), (0.2, 2.0)
_AWAY_S, _STOPPED_S = (0.0, 2.0), (0.5, 4.0)
_RESERVED = 0.2
_FIRST_AFTER_S = 10
#: A person asks for the abort at this step, so many seconds after it began: the target must have work by then.
_ASKED_AT, _ASKED_AFTER_S = 0.5, 5.0
#: A quorum queue of a RabbitMQ that was killed may stay without a leader; it is what an operator does.
_ELECT = 'ra:trigger_election({{list_to_atom("%2F_{queue}"), node()}}).'
_STUCK_AFTER_S = 45
_VISIBILITY_S, _LEASE_S = 10, 5
#: As long as tasks run it goes on: a busy machine works off a backlog for minutes.
_ENDS_WITHIN_S, _SETTLES_WITHIN_S, _QUIET_S = 900, 1800, 40
#: RabbitMQ waits three minutes for the confirm of what a quorum queue dead-letters, as it does with what was delayed,
#: before it sends it again.
_DEAD_LETTERED_AGAIN_S = 200
_CLOCK = Event()


@dataclass(slots=True)
class Kept:
    """A process that is started again when it has ended."""

    name: str
    start: Callable[[], ReapedProcess]
    process: ReapedProcess = field(init=False)
    #: Exit codes of those that ended by themselves.
    ended: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start it."""
        self.process = self.start()

    def kill(self) -> None:
        """Kill it with all that it started."""
        self.process.stop()
        self.process = self.start()

    def keep(self) -> None:
        """Start it again, if it has ended by itself."""
        code = self.process.exit_code
        if code is not None:
            self.ended.append(code)
            self.kill()


class Crew:
    """All processes of the experiment."""

    def __init__(self, settings: ExplicitSettings, directory: Path, plan: list[str], given: Any) -> None:
        self._settings, self._directory, self._plan = settings, directory, plan
        self._number, self._port = 0, free_port()
        rate, seed = given.rate, given.seed
        self.workers = {
            side: [Kept(f"{side} worker", lambda side=side: self._worker(side)) for _ in range(2)] for side in Side
        }
        self.sending = [Kept("web", self._web), Kept("beat", self._beat)] if given.web else []
        urls = [f"http://{LOOPBACK}:{self._port}"] if given.web else []
        self.producers = [Kept("producer", lambda: self._producer(rate / 2, seed, *urls)) for _ in range(2)]
        self.controller = Kept("controller", self._controller)

    def _next(self, name: str) -> str:
        self._number += 1
        return f"{name}-{self._number}"

    def _worker(self, side: Side) -> ReapedProcess:
        settings = self._settings.replace(rollout_side=side.value)
        return start_worker(self._next(f"{side}-worker"), QUEUE, settings, self._directory, 2)

    def _run(self, name: str, *words: str, **variables: str) -> ReapedProcess:
        environment = child_environment(self._settings) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= variables
        return ReapedProcess(
            [sys.executable, *words],
            log=self._directory / f"{name}.log",
            environment=environment | {"TMPDIR": str(self._directory)},
        )

    def _producer(self, rate: float, seed: int, *urls: str) -> ReapedProcess:
        name = self._next("producer")
        program = str(Path(__file__).with_name("rollout_storm_producer.py"))
        file = str(self._directory / f"{name}.sent")
        return self._run(name, program, file, str(rate), f"{seed} {name}", *urls)

    def _web(self) -> ReapedProcess:
        options = ("--host", LOOPBACK, "--port", str(self._port), "--workers", "2", "--log-level", "warning")
        started = self._run(self._next("web"), "-m", "uvicorn", "rollout_storm_web:web", *options)
        wait_until(lambda: is_listened_on(self._port), within_s=60, what="uvicorn listens")
        return started

    def _beat(self) -> ReapedProcess:
        name = self._next("beat")
        schedule, sent = (str(self._directory / f"{name}.{kind}") for kind in ("schedule", "sent"))
        words = ("-m", "celery", "-A", self._settings.app, "beat", "--schedule", schedule, "--pidfile", "")
        return self._run(name, *words, STORM_BEAT=sent)

    def _controller(self) -> ReapedProcess:
        return self._run(self._next("controller"), "-m", "repot", "rollout", "start", NAME, *self._plan, "--execute")

    def command(self, *words: str) -> str:
        """Run `repot rollout`."""
        done = subprocess.run(
            [sys.executable, "-m", "repot", "rollout", *words],
            env=child_environment(self._settings),
            check=False,
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    def keep(self, *, controller: bool = True) -> None:
        """Start again what has ended by itself."""
        for one in (*(one for side in self.workers.values() for one in side), *self.sending, *self.producers):
            one.keep()
        if controller:
            self.controller.keep()

    def dismiss(self, side: Side) -> None:
        """Kill the workers of a side for good."""
        for one in self.workers.pop(side):
            one.process.stop()

    def end_producers(self) -> None:
        """Let each finish its unit."""
        for one in self.producers:
            one.process.signal(signal.SIGTERM)
        wait_until(
            lambda: all(one.process.exit_code is not None for one in self.producers), within_s=120, what="producers end"
        )
        self.producers.clear()
        while self.sending:
            self.sending.pop().process.stop()

    def stop(self) -> None:
        """Kill all."""
        workers = (one for side in self.workers.values() for one in side)
        for one in (*workers, *self.producers, *self.sending, self.controller):
            one.process.stop()


@dataclass(slots=True)
class Result:
    """What a run found."""

    title: str
    load: float = 0.0
    phase: str = ""
    seconds: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    stranded: dict[str, int] = field(default_factory=dict)
    #: RabbitMQ's queues that hold messages at the end, and those of which it does not know: without a leader.
    left_in_queues: dict[str, int | None] = field(default_factory=dict)
    #: Queues for which an election was asked.
    elected: list[str] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    failures: list[str] = field(default_factory=list)
    #: By side: what `rollout status` says, and what the application's signals counted.
    sides: dict[str, dict[str, int]] = field(default_factory=dict)
    signals: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The last entry of the history: the account of the side that became empty.
    said: str = ""
    emptied: str = ""

    @property
    def summary(self) -> dict[str, int]:
        """Return what counts."""
        account = self.account
        causes = Counter(cause for cause in account.missing.values())
        ids = sum(found["ids"] for found in account.kinds.values())
        return {
            "accepted": ids,
            "lost": causes["lost"],
            "guarded twice": len(account.doubled),
            "stranded": sum(self.stranded.values()),
            "parked": causes["parked"],
            "by redis": causes["by redis"],
            "by chord": causes["by chord"],
            **self._account_of_the_side(),
        }

    def _account_of_the_side(self) -> dict[str, int]:
        """Return by how much the account of the side that became empty says that it is open, and what it misses."""
        said = re.search(r"(\d+) messages sent there, (\d+) tasks finished there(?:, (\d+) sent again)?", self.said)
        if said is None:
            return {}
        sent, finished, again = (int(one or 0) for one in said.groups())
        signals = self.signals[self.emptied]
        return {
            "account: not ended": sent - finished - again,
            "account: sends not counted": signals["published"] - sent,
            "account: ends not counted": signals["ended"] - finished - again,
        }

    @property
    def is_good(self) -> bool:
        """Whether nothing is lost, doubled or stranded, and it ended."""
        account = self.account
        return not (account.lost or account.doubled or any(self.stranded.values()) or self.failures)


class Storm:
    """One run."""

    def __init__(self, brokers: dict[Side, NodeBroker], store_url: str, directory: Path, given: Any) -> None:
        self._brokers, self._directory, self._given = brokers, directory, given
        self._rng = random.Random(f"{given.seed} {given.ending}")  # noqa: S311 - to be repeated
        rabbit = next((one for one in brokers.values() if _is_rabbit(one)), None)
        self.settings = ExplicitSettings(
            app="rollout_storm_app",
            broker_url=_url(brokers[Side.SOURCE]),  # type: ignore[arg-type]
            rollout=NAME,
            rollout_target=_url(brokers[Side.TARGET]),  # type: ignore[arg-type]
            result_backend=f"{store_url.removesuffix('/0')}/1",  # type: ignore[arg-type]
            lease_store=store_url,  # type: ignore[arg-type]
            management_url=rabbit.primary.launched.management_url if rabbit else None,  # type: ignore[arg-type]
            queue_names=(QUEUE,),
            lease=_LEASE_S,
            visibility_timeout=_VISIBILITY_S,
            restore_interval=1,
            socket_timeout=5,
            dead_letter_queue="{queue}.dead",
            status_dir=directory / "status",
        )
        self._results: Any = Redis.from_url(self.settings.result_backend.reveal(), decode_responses=True)
        names = "/".join(f"{one.product} {one.version}" for one in brokers.values())
        self.result = Result(f"{names}, to {given.ending}, seed {given.seed}")
        self._restarts: dict[Side, Thread] = {}
        #: Whether it was asked to end by an abort; the phase, and since when.
        self._asked = False
        self._known = ("", monotonic())
        #: The generation of the step in which the abort is asked for, and since when it has been known.
        self._step = (0, 0.0)

    def run(self) -> Result:
        """Run from the start to the account."""
        kills = self._planned()
        # an abort is asked for within a step: until then no one may be the last
        bake_s = max(5, round(self._given.kills * (0.7 if self._given.ending == "done" else 4)))
        plan = ["--steps", "10,50,100", "--bake", f"{bake_s}s", "--samples", "50", "--tolerance", "0.05"]
        begun = monotonic()
        crew = Crew(self.settings, self._directory, plan, self._given)
        with ExitStack() as stack:
            opened = stack.enter_context(open_rollout(NAME, self.settings))
            stack.callback(crew.stop)
            self._record = opened.record
            wait_until(lambda: self._phase() == Phase.CANARY, within_s=60, what="the canary begins", poll_s=0.2)
            self.result.load = os.getloadavg()[0]
            try:
                self._strike_all(crew, kills)
            except DeadlineExceeded as error:
                self.result.failures.append(error.message)
            self.result.phase = self._phase()
            self.result.seconds = monotonic() - begun
            empty = Side.SOURCE if self.result.phase == Phase.DONE else Side.TARGET
            self.result.emptied = str(empty)
            crew.dismiss(empty)
            self._join()
            _CLOCK.wait(5)
            crew.end_producers()
            self._settle(crew)
            self._compare(crew, opened.records.history(NAME))
        self.result.stranded = self._left(empty)
        self.result.left_in_queues = self._not_empty()
        self._judge()
        return self.result

    def _phase(self) -> str:
        with suppress(RepotError):
            return str(self._record().phase)
        return ""

    def _planned(self) -> list[str]:
        """Return the victims; each kind in its share, in random order."""
        weights = WEIGHTS | (_WEB if self._given.web else {}) | (_STOPS if self._given.stops else {})
        total = sum(weights.values())
        found = [name for name, weight in weights.items() for _ in range(round(self._given.kills * weight / total))]
        self._rng.shuffle(found)
        while len(found) < self._given.kills:
            found.append(self._rng.choice(list(weights)))
        return found[: self._given.kills]

    def _strike_all(self, crew: Crew, kills: list[str]) -> None:
        """Kill, and go on until the rollout has ended as it is to end."""
        wanted = Phase.DONE if self._given.ending == "done" else Phase.ABORTED
        reserved, due, until = round(len(kills) * _RESERVED), monotonic() + _FIRST_AFTER_S, monotonic() + _ENDS_WITHIN_S
        while monotonic() < until:
            _CLOCK.wait(0.05)
            phase = self._look()
            crew.keep(controller=phase not in (Phase.DONE, Phase.ABORTED))
            if phase == wanted and (wanted is Phase.DONE or self._asked):
                return
            early = len(kills) > reserved
            if self._lead(crew, phase, ends=wanted is Phase.ABORTED and not early):
                due = monotonic()
            in_the_end = phase == Phase.DRAIN if wanted is Phase.DONE else phase == Phase.ABORT and self._asked
            if kills and monotonic() > due and (early or in_the_end):
                victim = kills.pop()
                key = f"{victim} in {phase}"
                self.result.kills[key] = self.result.kills.get(key, 0) + 1
                self._kill(crew, victim)
                due = monotonic() + self._rng.uniform(*(_PAUSES_AT_THE_END_S if in_the_end else _PAUSES_S))
        message = f"the rollout has not ended as {wanted} within {_ENDS_WITHIN_S} s"
        raise DeadlineExceeded(message)

    def _look(self) -> str:
        """Return the phase; help a queue without a leader after a while."""
        phase, (known, since) = self._phase(), self._known
        if phase != known:
            self._known = phase, monotonic()
        elif phase in (Phase.DRAIN, Phase.ABORT) and monotonic() > since + _STUCK_AFTER_S:
            self._elect()
            self._known = phase, monotonic()
        return phase

    def _lead(self, crew: Crew, phase: str, *, ends: bool) -> bool:
        """Do what a person would do; return whether it was asked to end."""
        if phase == Phase.ABORTED:
            crew.command("promote", NAME, "--why", "the target is back")
        elif phase == Phase.PAUSED:
            crew.command("resume", NAME, "--why", "go on")
        elif ends and not self._asked and phase == Phase.CANARY and self._target_works():
            crew.command("abort", NAME, "--why", "wrong day")
            self._asked = True
            return True
        return False

    def _target_works(self) -> bool:
        """Return whether the target has had a large share for a while."""
        with suppress(RepotError):
            record = self._record()
            if record.weights.default < _ASKED_AT:
                self._step = (0, 0.0)
            elif record.generation != self._step[0]:
                self._step = (record.generation, monotonic())
            else:
                return monotonic() > self._step[1] + _ASKED_AFTER_S
        return False

    def _kill(self, crew: Crew, victim: str) -> None:
        workers = [one for side in crew.workers.values() for one in side]
        match victim:
            case "pool process":
                _kill_child(self._rng.choice(workers).process)
            case "worker":
                self._rng.choice(workers).kill()
            case "producer" if crew.sending:
                _kill_child(crew.sending[0].process, "spawn_main")
            case "producer":
                self._rng.choice(crew.producers).kill()
            case "controller":
                crew.controller.kill()
            case "beat":
                crew.sending[1].kill()
            case _:
                self._strike_broker(victim)

    def _strike_broker(self, victim: str) -> None:
        if victim == "memory alarm":
            side = next(side for side, one in self._brokers.items() if _is_rabbit(one))
            self._disturb(side, self._hold, self._brokers[side].out_of_memory())  # type: ignore[attr-defined]
        elif victim.endswith(" stopped"):
            side = Side(victim.removesuffix(" stopped"))
            self._disturb(side, self._hold, self._brokers[side].paused())
        else:
            side = Side(victim)
            self._await(side)
            node, away_s = self._rng.choice(self._brokers[side].nodes), self._rng.uniform(*_AWAY_S)
            node.kill()
            self._disturb(side, self._restart, node, away_s)

    def _await(self, side: Side) -> None:
        if side in self._restarts:
            self._restarts[side].join()

    def _disturb(self, side: Side, what: Callable[..., None], *arguments: Any) -> None:
        """Do something to a broker, when what was done to it before is over."""
        self._await(side)
        self._restarts[side] = Thread(target=what, args=(side, *arguments))
        self._restarts[side].start()

    def _hold(self, side: Side, disturbed: AbstractContextManager[None]) -> None:
        try:
            with disturbed:
                _CLOCK.wait(self._rng.uniform(*_STOPPED_S))
        except RepotError as error:
            self.result.failures.append(f"{side}: {error.message}")

    def _restart(self, side: Side, node: Node, away_s: float) -> None:
        _CLOCK.wait(away_s)
        try:
            node.start_again()
            self._brokers[side].restore()
        except RepotError as error:
            self.result.failures.append(f"{side}: {error.message}")

    def _join(self) -> None:
        for one in self._restarts.values():
            one.join()

    def _settle(self, crew: Crew) -> None:
        """Wait until every expected id ran, or nothing has happened for a while."""
        seen, since = -1, monotonic()
        self._elect()

        def settled() -> bool:
            nonlocal seen, since
            crew.keep(controller=False)
            count = self._results.llen(f"{self.settings.lease_prefix}:ran")
            if count != seen:
                seen, since = count, monotonic()
            quiet_s = monotonic() - since
            if quiet_s > _QUIET_S and not self._held():
                return True
            return quiet_s > _DEAD_LETTERED_AGAIN_S or (quiet_s > 5 and not self._account().missing)

        with suppress(DeadlineExceeded):
            wait_until(settled, within_s=_SETTLES_WITHIN_S, what="all is quiet", poll_s=1)

    def _not_empty(self) -> dict[str, int | None]:
        """Return the queues of RabbitMQ that hold messages, or do not say how many."""
        rabbits = [one.primary for one in self._brokers.values() if _is_rabbit(one)]
        queues = [queue for one in rabbits for queue in management(one).get("/api/queues")]
        return {queue["name"]: queue.get("messages") for queue in queues if queue.get("messages") != 0}

    def _held(self) -> bool:
        """Return whether RabbitMQ holds messages other than dead letters, as far as it knows."""
        with suppress(RepotError):
            return bool(self._not_empty().keys() - {f"{QUEUE}.dead"})
        return True

    def _elect(self) -> None:
        """Ask for the election of a leader where a queue has none."""
        with suppress(RepotError):
            for queue in [name for name, count in self._not_empty().items() if count is None]:
                self.result.elected.append(queue)
                for one in self._brokers.values():
                    if _is_rabbit(one):
                        evaluate(one.primary.launched.variables, _ELECT.format(queue=queue))

    def _account(self, gone: list[str] | None = None, dead: set[str] | None = None) -> Account:
        files = sorted(self._directory.glob("*.sent"))
        return account_of(files, self._results, self.settings, gone or [], dead or set())

    def _compare(self, crew: Crew, history: list[RolloutRecord]) -> None:
        """Read what the rollout counted on each side beside what the application's signals did."""
        said = json.loads(crew.command("status", NAME, "--json"))["sides"]
        self.result.history = [f"{one.phase} at {one.weights.default:.0%}: {one.why}" for one in history]
        self.result.said = self.result.history[-1]
        for side in Side:
            self.result.sides[side] = {name: said[side][name] for name in ("sent", "finished", "retried")}
            self.result.signals[side] = {
                name: int(self._results.hget(f"{self.settings.lease_prefix}:{name}", side) or 0)
                for name in ("published", "ended")
            }

    def _left(self, side: Side) -> dict[str, int]:
        """Return what the side that became empty holds, once its broker can say."""
        with closing(_opened(self._brokers[side])) as broker:
            _CLOCK.wait(broker.depth_lag_s + 1)
            depth = broker.depth(QUEUE)
        return {"ready": depth.ready, "in hand": depth.unacked, "delayed": depth.delayed}

    def _judge(self) -> None:
        gone = [
            id_
            for one in self._brokers.values()
            if "redis" in one.primary.launched.url
            for id_ in vanished(one.primary.data)
        ]
        dead: set[str] = set()
        for one in self._brokers.values():
            with closing(_opened(one)) as broker, suppress(RepotError):
                dead |= {message.headers["id"] for message in broker.scan(f"{QUEUE}.dead")}  # type: ignore[attr-defined]
        self.result.account = self._account(gone, dead)


def _kill_child(process: ReapedProcess, named: str = "") -> None:
    """Kill one of its children; `named` is in its command, as a spawned process has a helper beside."""
    with suppress(psutil.Error, IndexError):
        children = psutil.Process(process.pid).children()
        random.choice([one for one in children if named in " ".join(one.cmdline())]).kill()  # noqa: S311


def _is_rabbit(broker: NodeBroker) -> bool:
    return "amqp" in broker.primary.launched.url


def _opened(broker: NodeBroker) -> Broker:
    """Connect, also if a busy machine keeps the management API from answering for a while."""

    def connected() -> Broker | None:
        with suppress(RepotError):
            return broker.open()
        return None

    found = wait_until(connected, within_s=120, what="the broker answers", poll_s=1)
    assert found is not None
    return found


def _url(broker: NodeBroker) -> str:
    return ";".join(one.launched.url for one in broker.nodes)


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--from", dest="source", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--to", dest="target", choices=("redis", "rabbitmq"), default="rabbitmq")
    parser.add_argument("--ending", choices=("done", "abort"), default="done")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=50, help="tasks a second")
    parser.add_argument("--web", action="store_true", help="producers are a web application, and a beat")
    parser.add_argument("--stops", action="store_true", help="brokers are also stopped, and RabbitMQ has an alarm")
    parser.add_argument("--cluster", action="store_true", help="RabbitMQ is a cluster of three nodes")
    parser.add_argument("--keep", type=Path, help="directory for the logs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    makers = {
        "redis": lambda: standalone_redis(*DURABLE),
        "rabbitmq": rabbitmq_cluster if given.cluster else standalone_rabbitmq,
    }
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        directory = given.keep or scratch
        directory.mkdir(exist_ok=True)
        store = stack.enter_context(redis_server())
        brokers: dict[Side, NodeBroker] = {
            Side.SOURCE: stack.enter_context(makers[given.source]()),
            Side.TARGET: stack.enter_context(makers[given.target]()),
        }
        result = Storm(brokers, store.url, directory, given).run()
    if given.json:
        print(json.dumps(asdict(result) | {"is_good": result.is_good}, indent=2))
    else:
        show(result)
    return 0 if result.is_good else 4


if __name__ == "__main__":
    sys.exit(main())
