"""`repot doctor --live` on real servers: what it finds, what it cannot know, and that it changes nothing."""

from __future__ import annotations

import json
import ssl
import sys
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

import amqp
import pytest
import redis as redis_py
import trustme
from celery import Celery
from kombu import Connection, Exchange, Producer, Queue

from repot.brokers import Depth, RabbitFacts, RedisFacts, Unknown, inspect, open_broker
from repot.chaos.instruments.journal import READY, Journal
from repot.chaos.runner.worker_process import READY_WITHIN_S
from repot.chaos.runner.workers import start_worker
from repot.config import BrokerUrl, ExplicitSettings, inherited_environment
from repot.config.endpoints import endpoints
from repot.doctor.collect import DoctorRequest, collect_from
from repot.doctor.config import DoctorConfig
from repot.errors import AccessRefused, BrokerUnreachable, TlsFailed
from repot.idempotency.rights import GUARD
from repot.testbed import executables, free_port, rabbitmq_server, redis_server
from repot.waiting import wait_until
from repot.worker.configure import configure
from support import forked
from support.installed import require
from support.judging import GOOD_RABBITMQ, GOOD_REDIS, QUORUM, judge
from support.judging import facts as facts_of
from support.rabbitmqctl import disk_alarm
from support.shared_rabbitmq import ask
from support.shop import APPS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from repot.doctor.runner import Violation
    from repot.testbed import Server

PASSWORD = "pl4nted-s3cret"


class Admin:
    """An administrator of a private RabbitMQ, with a virtual host for one test."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.vhost = f"doctor-{uuid4().hex[:8]}"
        self.ask("PUT", f"vhosts/{self.vhost}")
        self.url = self.user("shop")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return ask(self.server, method, path, body)

    def user(self, name: str, tags: str = "administrator", **rights: str) -> str:
        """Make a user of this virtual host, and return the address with it."""
        user = f"{name}-{self.vhost}"
        self.ask("PUT", f"users/{user}", {"password": PASSWORD, "tags": tags})
        granted = {"configure": ".*", "write": ".*", "read": ".*"} | rights
        self.ask("PUT", f"permissions/{self.vhost}/{user}", granted)
        return f"amqp://{user}:{PASSWORD}@127.0.0.1:{self.server.port}/{self.vhost}"

    def policy(self, name: str, pattern: str, definition: dict[str, Any]) -> None:
        body = {"pattern": pattern, "definition": definition, "apply-to": "queues"}
        self.ask("PUT", f"policies/{self.vhost}/{name}", body)

    def declare(self, name: str, **arguments: Any) -> None:
        body = {"durable": True, "arguments": arguments}
        self.ask("PUT", f"queues/{self.vhost}/{quote(name, safe='')}", body)

    def inspect(self, url: str = "") -> RabbitFacts:
        found = inspect(endpoints(url or self.url), management_url=self.server.management_url)
        assert isinstance(found, RabbitFacts)
        return found

    def findings(self, rule: str, conf: dict[str, Any] | None = None, url: str = "") -> list[str]:
        found = replace(facts_of(conf or GOOD_RABBITMQ), live=self.inspect(url))
        report = judge(found, rule)
        assert report.not_judged == ()
        return [one.finding.message for one in report.findings]


@pytest.fixture
def admin(rabbitmq: Server) -> Iterator[Admin]:
    """A virtual host of its own, gone afterwards."""
    one = Admin(rabbitmq)
    yield one
    one.ask("DELETE", f"vhosts/{one.vhost}")


@pytest.fixture
def database(redis: Server) -> Iterator[redis_py.Redis]:
    """The private Redis, empty and at its defaults before and after."""
    with redis_py.Redis(port=redis.port, decode_responses=True) as client:
        client.flushall()
        before = client.config_get("*")
        yield client
        client.flushall()
        client.acl_deluser("shop")
        for name in ("maxmemory-policy", "appendonly", "timeout", "maxmemory", "client-output-buffer-limit"):
            client.config_set(name, before[name])


def redis_findings(server: Server, rule: str, url: str = "", **options: Any) -> list[str]:
    live = inspect(endpoints(url or server.url), **options)
    report = judge(replace(facts_of(GOOD_REDIS), live=live), rule)
    assert report.not_judged == ()
    return [one.finding.message for one in report.findings]


def doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the doctor, on repot's own application where no other is named."""
    return forked.run(
        [sys.executable, "-m", "repot", "doctor", *arguments],
        env=inherited_environment(without=("WORKER_", "CELERY_")) | {"WORKER_APP": "repot.worker.app"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def durable_redis() -> Iterator[Server]:
    """A Redis as it should be for a broker."""
    require(executables.REDIS)
    with redis_server("--appendonly", "yes") as server:
        yield server


def start_once(url: str, results: str, tmp_path: Path) -> None:
    """Let a worker of repot's own application declare what it declares."""
    settings = ExplicitSettings(broker_url=url, result_backend=results, journal=tmp_path / "journal")  # type: ignore[arg-type]
    with start_worker("doctor@here", "celery", settings, tmp_path) as worker:
        journal = Journal(tmp_path / "journal")

        def ready() -> bool:
            assert worker.exit_code is None, worker.log_tail(30)
            return any(line.kind == READY for line in journal.read())

        wait_until(ready, within_s=READY_WITHIN_S, what="the worker is ready")


def test_repots_own_application_is_clean_on_redis() -> None:
    with durable_redis() as server:
        found = doctor(
            "--live",
            "--format=json",
            "--fail-on=warning",
            WORKER_BROKER_URL=server.url,
            WORKER_RESULT_BACKEND=server.results_url,
        )
    report = json.loads(found.stdout)["applications"][0]
    assert (report["findings"], report["not_judged"]) == ([], [])
    assert found.returncode == 0, found.stderr
    assert server.version == report["broker"]["version"]


def test_repots_own_application_is_clean_on_rabbitmq(admin: Admin, redis: Server, tmp_path: Path) -> None:
    start_once(admin.url, redis.results_url, tmp_path)
    found = doctor(
        "--live",
        "--format=json",
        "--fail-on=warning",
        WORKER_BROKER_URL=admin.url,
        WORKER_RESULT_BACKEND=redis.results_url,
        WORKER_MANAGEMENT_URL=admin.server.management_url,
    )
    report = json.loads(found.stdout)["applications"][0]
    assert report["findings"] == []
    assert report["not_judged"] == []
    assert found.returncode == 0, found.stderr
    assert PASSWORD not in found.stdout + found.stderr


@pytest.mark.promise
def test_a_live_run_changes_nothing_on_redis() -> None:
    """Every command it sends is one that only reads, by the server's own account of it."""
    with redis_server() as server, redis_py.Redis(port=server.port, decode_responses=True) as database:
        app = Celery("writer", broker=server.url, set_as_current=False)
        app.send_task("shop.bill", queue="celery")
        keys = {key: database.dump(key) for key in database.scan_iter()}
        settings = database.config_get("*")
        before = executed(database)
        found = doctor("--live", "--format=json", WORKER_BROKER_URL=server.url)
        sent = executed(database) - before
        assert json.loads(found.stdout)["applications"][0]["broker"]["version"] == server.version
        assert keys == {key: database.dump(key) for key in database.scan_iter()}
        assert settings == database.config_get("*")
        flags = database.command()
    assert {"info", "config|get"} <= sent.keys()
    reading = {name for name in sent if "readonly" in flags.get(name, {}).get("flags", [])}
    # of the rest, what is about the connection or the server; EVAL_RO cannot write; EVALSHA of no script, and an EVAL
    # that returns a number, meet the rights; the script that is loaded looks at keys
    assert sent.keys() - reading <= {
        "hello",
        "client|setinfo",
        "select",
        "ping",
        "info",
        "config|get",
        "time",
        "eval_ro",
        "client|tracking",
        "evalsha",
        "eval",
        "script|load",
    }


def executed(database: redis_py.Redis) -> Counter[str]:
    """How often the server has carried out each command."""
    stats = database.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): int(one["calls"]) for name, one in stats.items()})


@pytest.mark.promise
@pytest.mark.xdist_group("harmed rabbitmq")
def test_a_live_run_changes_nothing_on_rabbitmq(harmed_rabbitmq: Server) -> None:
    """Definitions and messages of the whole server are the same before and after; its user may not even declare.

    What expires by itself is left out: the mailboxes of other tests' workers do so meanwhile.
    """
    admin = Admin(harmed_rabbitmq)
    admin.declare("celery", **QUORUM)
    with Connection(admin.url) as connection:
        connection.Producer().publish({}, routing_key="celery")

    def state() -> Any:
        definitions = lasting(admin.ask("GET", "definitions"))
        found = admin.ask("GET", f"queues/{admin.vhost}")
        return definitions, [(queue["name"], queue.get("messages")) for queue in found]

    wait_until(lambda: state()[1] == [("celery", 1)], within_s=60, what="the message is counted")
    before = state()
    reader = admin.user("reader", tags="monitoring", configure="^$", write="^$", read="^$")
    found = doctor(
        "--live",
        "--format=json",
        WORKER_BROKER_URL=reader,
        WORKER_MANAGEMENT_URL=admin.server.management_url,
    )
    assert admin.server.version == json.loads(found.stdout)["applications"][0]["broker"]["version"]
    after = state()
    users = [user["name"] for user in after[0]["users"] if not user["name"].startswith("reader-")]
    assert before[1] == after[1]
    assert [user["name"] for user in before[0]["users"]] == users
    for part in ("queues", "exchanges", "bindings", "policies", "parameters", "vhosts"):
        assert before[0][part] == after[0][part]


def lasting(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return definitions without the queues that expire, and their bindings."""
    expire = {queue["name"] for queue in definitions["queues"] if "x-expires" in queue["arguments"]}
    return {
        part: [one for one in found if not expire & {one.get("name"), one.get("destination")}]
        if part in ("queues", "bindings")
        else found
        for part, found in definitions.items()
    }


@pytest.mark.parametrize(
    ("rule", "option", "value"),
    [
        ("RPT701", "maxmemory-policy", "allkeys-lru"),
        ("RPT702", "appendonly", "no"),
        ("RPT703", "client-output-buffer-limit", "normal 1048576 0 0"),
        ("RPT704", "maxmemory", "1200000"),
        ("RPT705", "timeout", "300"),
    ],
)
def test_what_is_wrong_with_a_redis(
    database: redis_py.Redis, redis: Server, rule: str, option: str, value: str
) -> None:
    database.config_set("appendonly", "yes")
    assert redis_findings(redis, rule) == []
    database.config_set(option, value)
    assert redis_findings(redis, rule)


@pytest.mark.parametrize("right", ["client|tracking", "evalsha", "eval"])
def test_a_user_of_redis_that_cannot_claim(database: redis_py.Redis, redis: Server, right: str) -> None:
    database.acl_setuser(
        "shop", enabled=True, passwords=[f"+{PASSWORD}"], commands=["+@all", f"-{right}"], keys=["*"], channels=["*"]
    )
    url = redis.url.replace("redis://", f"redis://shop:{PASSWORD}@")
    found = doctor("--live", "--format=json", "--select=RPT714", WORKER_BROKER_URL=url)
    (one,) = json.loads(found.stdout)["applications"][0]["findings"]
    assert one["message"].startswith(f"it refuses {right.upper().replace('|', ' ')} (")
    fallback = doctor("--live", "--format=json", "--select=RPT714", WORKER_BROKER_URL=url, WORKER_REDIS_CLAIM="brpop")
    assert json.loads(fallback.stdout)["applications"][0]["findings"] == []


def left(*arguments: str, **variables: str) -> list[str]:
    """What the doctor says of messages where the application does not look."""
    found = doctor(*arguments, "--format=json", "--select=RPT221", **variables)
    report = json.loads(found.stdout)["applications"][0]
    assert report["not_judged"] == [], found.stderr
    return [one["message"] for one in report["findings"]]


@pytest.mark.usefixtures("database")
def test_messages_where_the_application_does_not_look(redis: Server) -> None:
    for queue, options in (("celery", {}), ("forgotten", {}), ("celery", {"global_keyprefix": "shop:"})):
        sender = Celery(broker=redis.url, set_as_current=False, broker_transport_options=options)
        sender.send_task("shop.mail", queue=queue)
    other, beside = left("--live", WORKER_BROKER_URL=redis.url)
    assert other == "'forgotten' holds 1 waiting, and neither the application nor a start command names it"
    assert "'shop:'" in beside


def test_a_queue_that_nobody_names(admin: Admin) -> None:
    admin.declare("forgotten", **QUORUM)
    given = ("--live", "--management-url", admin.server.management_url)
    assert left(*given, WORKER_BROKER_URL=admin.url) == []
    with Connection(admin.url) as connection:
        Producer(connection.default_channel).publish({}, routing_key="forgotten")
    # RabbitMQ counts from time to time
    found = wait_until(
        lambda: left(*given, WORKER_BROKER_URL=admin.url), within_s=30, what="RabbitMQ has counted it", poll_s=1
    )
    assert found == ["'forgotten' holds 1 waiting, and neither the application nor a start command names it"]


def test_another_application_in_the_same_database(database: redis_py.Redis, redis: Server) -> None:
    for name in ("celery", "billing"):
        with Connection(redis.url) as connection:
            Queue(name, Exchange(name), routing_key=name)(connection.default_channel).declare()
    assert redis_findings(redis, "RPT708") == ["it holds bindings of 'billing'"]
    database.flushall()
    assert redis_findings(redis, "RPT708") == []


def test_a_message_that_rabbitmq_refuses(database: redis_py.Redis, redis: Server, admin: Admin) -> None:
    database.lpush("celery", "x" * (16 << 20))
    moved = replace(facts_of(GOOD_RABBITMQ), live=replace(admin.inspect(), version="4.0.5"))
    small = inspect(endpoints(redis.url), queues=["celery"])
    assert list(judge(replace(moved, source_live=small), "RPT207").findings) == []
    database.lpush("celery", "x" * ((16 << 20) + 1))
    assert judge(replace(moved, source_live=inspect(endpoints(redis.url), queues=["celery"])), "RPT207").findings


def test_the_middle_of_a_long_list_is_unknown(database: redis_py.Redis, redis: Server) -> None:
    database.lpush("celery", *["x"] * 201)
    found = inspect(endpoints(redis.url), queues=["celery"])
    assert isinstance(found, RedisFacts)
    assert isinstance(found.largest_message_bytes, Unknown)


@pytest.mark.parametrize(
    ("rule", "options"),
    [("RPT709", ["--replicaof", "127.0.0.1", "1"]), ("RPT711", ["--cluster-enabled", "yes"])],
)
def test_a_redis_that_cannot_be_a_broker(rule: str, options: list[str]) -> None:
    require(executables.REDIS)
    with redis_server(*options) as server:
        assert redis_findings(server, rule)


def test_a_broker_and_a_lease_store_that_are_demoted(redis: Server) -> None:
    """As after a failover: alive, reached by the old address, and read-only."""
    rules = "--select=RPT709", "--select=RPT713"

    def found(server: Server, *more: Server) -> dict[str, str]:
        # the user of the store may run its scripts, and may not ask for INFO
        store = server.url.replace("redis://", "redis://leases:word@")
        said = doctor(
            "--app=support.guarded_app:app",
            "--live",
            "--format=json",
            *rules,
            WORKER_BROKER_URL=";".join(one.url for one in (server, *more)),
            WORKER_RESULT_BACKEND=server.results_url,
            WORKER_LEASE_STORE=store,
            PYTHONPATH=APPS,
        )
        report = json.loads(said.stdout)["applications"][0]
        assert report["not_judged"] == [], said.stderr
        return {one["rule"]: one["message"] for one in report["findings"]}

    with redis_server() as server, redis_py.Redis(port=server.port) as client:
        client.execute_command(*f"ACL SETUSER leases on >word {GUARD.acl()}".split())  # type: ignore[no-untyped-call]
        assert found(server) == {}
        client.replicaof("127.0.0.1", 1)
        assert found(server) == {
            "RPT709": "it follows 127.0.0.1",
            "RPT713": "its role is replica",
        }
        # a worker goes on with the next server of its list
        assert {"RPT713"} == found(server, redis).keys()


def test_a_redis_that_cannot_save(database: redis_py.Redis, redis: Server, tmp_path: Path) -> None:
    assert redis_findings(redis, "RPT706") == []
    directory = database.config_get("dir")["dir"]
    with redis_server("--enable-protected-configs", "yes") as server, redis_py.Redis(port=server.port) as client:
        gone = tmp_path / "gone"
        gone.mkdir()
        client.config_set("dir", str(gone))
        gone.rmdir()
        client.bgsave()
        wait_until(
            lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", within_s=30, what="the save fails"
        )
        assert redis_findings(server, "RPT706") == ["rdb_last_bgsave_status is err"]
    assert directory


def test_what_a_user_of_redis_may_not_ask_is_unknown(database: redis_py.Redis, redis: Server) -> None:
    """Never fine: the rules say so, and name the line that would help."""
    database.acl_setuser("shop", enabled=True, passwords=[f"+{PASSWORD}"], commands=["+@all", "-config"], keys=["*"])
    url = redis.url.replace("redis://", f"redis://shop:{PASSWORD}@")
    found = doctor("--live", "--format=json", "--select=RPT7", WORKER_BROKER_URL=url)
    report = json.loads(found.stdout)["applications"][0]
    missing = {one["rule"]: one["remedy"] for one in report["not_judged"]}
    # what INFO tells, too, is known
    assert {"RPT703", "RPT705"} == set(missing)
    assert "ACL SETUSER shop +config|get" in missing["RPT703"]
    assert "ACL SETUSER shop +config|get" in found.stderr
    assert PASSWORD not in found.stdout + found.stderr
    # and the line helps
    database.acl_setuser("shop", enabled=True, commands=["+config|get"])
    again = doctor("--live", "--format=json", "--select=RPT7", WORKER_BROKER_URL=url)
    assert json.loads(again.stdout)["applications"][0]["not_judged"] == []


def test_a_user_of_redis_that_may_ask_nothing(database: redis_py.Redis, redis: Server) -> None:
    """As after the advice to leave out @dangerous: every rule about the server is not judged, and none is an error."""
    database.acl_setuser(
        "shop", enabled=True, passwords=[f"+{PASSWORD}"], commands=["+@all", "-@dangerous"], keys=["*"]
    )
    url = redis.url.replace("redis://", f"redis://shop:{PASSWORD}@")
    found = doctor("--live", "--format=json", "--select=RPT7", WORKER_BROKER_URL=url)
    report = json.loads(found.stdout)["applications"][0]
    assert found.returncode == 0, found.stderr
    assert report["findings"] == []
    missing = {one["rule"]: one["remedy"] for one in report["not_judged"]}
    assert {"RPT701", "RPT702", "RPT703", "RPT704", "RPT705", "RPT706", "RPT707", "RPT709", "RPT710", "RPT711"} | {
        "RPT714"
    } == set(missing)
    assert "ACL SETUSER shop +info" in missing["RPT706"]


def test_policies_that_cut_queues_short(admin: Admin) -> None:
    admin.policy("short", "^other", {"message-ttl": 60000})
    assert admin.findings("RPT802") == []
    admin.policy("short", "^cel", {"message-ttl": 60000, "max-length": 10})
    assert len(admin.findings("RPT802")) == 2


def test_a_queue_that_exists_otherwise(admin: Admin) -> None:
    admin.declare("celery", **QUORUM)
    assert admin.findings("RPT604") == []
    classic = {**GOOD_RABBITMQ, "task_queues": [Queue("celery", Exchange("celery", "topic"), routing_key="celery")]}
    assert admin.findings("RPT604", classic) == ["'celery' exists as a quorum queue, but is declared as classic"]
    assert admin.findings("RPT319", classic) == [
        "'celery' is a quorum queue on the broker, but declared without a type"
    ]


def adopting(admin: Admin, *names: str, broker_url: str = "", **theirs: Any) -> Celery:
    """An application whose WORKER_QUEUE_NAMES are `names`."""
    app = Celery("shop", set_as_current=False)
    app.conf.update(theirs)
    url: Any = broker_url or admin.url
    management: Any = admin.server.management_url
    configure(app, ExplicitSettings(broker_url=url, management_url=management, queue_names=names))
    return app


def declare(app: Celery) -> None:
    """Do what a worker does on its start."""
    with app.connection_for_write() as connection:
        for queue in app.amqp.queues.values():
            queue(connection.channel()).declare()


@pytest.mark.parametrize("target", [False, True], ids=["today", "target"])
def test_a_queue_that_is_adopted_late(admin: Admin, redis: Server, tmp_path: Path, *, target: bool) -> None:
    """Made by a flip that did not name it, without dead letters: the worker that declares it would end with 406."""
    admin.declare("other", **{"x-queue-type": "quorum"})

    def findings(app: Celery, rule: str) -> list[Violation]:
        request = DoctorRequest("shop", admin.url if target else None, live=True)
        return list(judge(collect_from(app, request, DoctorConfig(tmp_path)), rule).findings)

    today = redis.url if target else ""
    (one,) = findings(adopting(admin, "celery", "other", broker_url=today), "RPT604")
    assert "'other' exists without x-dead-letter-exchange, but is declared with ''" in one.finding.message
    assert (one.finding.setting, "WORKER_QUEUE_NAMES=celery,other.v2" in one.fix) == ("task_queues", True)
    with pytest.raises(amqp.PreconditionFailed, match="x-dead-letter"):
        declare(adopting(admin, "celery", "other"))
    # both ways that it names
    assert findings(adopting(admin, "celery", "other.v2", broker_url=today), "RPT604") == []
    declare(adopting(admin, "celery", "other.v2"))
    kept: dict[str, Any] = {"task_queues": [Queue("other", queue_arguments={"x-queue-type": "quorum"})]}
    assert "Queue('other', queue_arguments={'x-queue-type': 'quorum'})" in one.fix
    assert findings(adopting(admin, "celery", broker_url=today, **kept), "RPT604") == []
    declare(adopting(admin, "celery", **kept))
    assert f'rabbitmqctl set_policy -p {admin.vhost} other \'^other$\' \'{{"dead-letter-exchange": "",' in one.fix
    admin.policy("other", "^other$", {"dead-letter-exchange": "", "dead-letter-routing-key": "other.dead"})
    assert findings(adopting(admin, "celery", broker_url=today, **kept), "RPT205") == []


def test_without_a_management_api_what_is_known_stays_judged(admin: Admin) -> None:
    """A task that runs for longer than RabbitMQ's consumer timeout, and an exit code that must not turn green."""
    variables = {"WORKER_BROKER_URL": admin.url, "WORKER_TASK_TIME_LIMIT": "7200", "WORKER_RESULT_BACKEND": "rpc://"}
    silent = ("--live", "--management-url", "http://127.0.0.1:1")
    found = doctor("-A", "support.job_app", "--select=RPT113,RPT114", "--format=json", *silent, **variables)
    (one,) = json.loads(found.stdout)["applications"]
    assert (4, {"RPT113"}) == (found.returncode, {finding["rule"] for finding in one["findings"]}), found.stderr
    assert one["not_judged"] == []


def test_a_dead_letter_target_that_does_not_exist(admin: Admin) -> None:
    admin.declare("celery", **QUORUM)
    assert admin.findings("RPT805") == ["'celery' sends dead letters to the queue 'celery.dead', which does not exist"]
    admin.declare("celery.dead")
    assert admin.findings("RPT805") == []


def test_a_limit_of_queues_is_compared_with_what_the_deployment_needs(admin: Admin) -> None:
    assert admin.findings("RPT806") == []
    admin.ask("PUT", f"vhost-limits/{admin.vhost}/max-queues", {"value": 32})
    (found,) = admin.findings("RPT806")
    assert found.startswith("the virtual host may have 32 queues and has 0; the deployment needs 33 (1 of tasks, ")
    admin.ask("PUT", f"vhost-limits/{admin.vhost}/max-queues", {"value": 33})
    assert admin.findings("RPT806") == []


def test_delay_queues_appear_with_the_first_worker(admin: Admin, redis: Server, tmp_path: Path) -> None:
    assert admin.findings("RPT209")
    start_once(admin.url, redis.results_url, tmp_path)
    assert admin.findings("RPT209") == []
    assert admin.findings("RPT210") == []
    other = {**GOOD_RABBITMQ, "task_queues": [Queue("new", Exchange("new", "topic"), "new", queue_arguments=QUORUM)]}
    assert admin.findings("RPT210", other) == ["'new' is not bound to 'celery_delayed_delivery'"]


def test_a_user_that_may_not_declare(admin: Admin) -> None:
    assert admin.findings("RPT803") == []
    user = admin.user("poor", configure="^celery$", write=".*", read=".*")
    found = admin.findings("RPT803", url=user)
    drawn = "00000000-0000-0000-0000-000000000000"
    expected = f"'{drawn}.reply.celery.pidbox', 'celery.dead', 'celery.pidbox', 'celery_delayed_0'"
    assert [f"configure '^celery$' leaves out {expected}"] == found


def test_what_a_user_of_rabbitmq_may_not_ask_is_unknown(admin: Admin) -> None:
    found = admin.inspect(admin.user("plain", tags="management"))
    assert isinstance(found.permissions, Unknown)
    assert "administrator" in found.permissions.remedy
    assert found.alarms == ()
    nothing = admin.inspect(admin.user("untagged", tags=""))
    assert isinstance(nothing.alarms, Unknown)
    assert "monitoring" in nothing.alarms.remedy
    assert nothing.version == admin.server.version
    elsewhere = inspect(endpoints(admin.url), management_url="http://127.0.0.1:1")
    assert isinstance(elsewhere, RabbitFacts)
    assert isinstance(elsewhere.queues, Unknown)
    assert "WORKER_MANAGEMENT_URL" in elsewhere.queues.remedy


@pytest.mark.xdist_group("harmed rabbitmq")
def test_an_alarm_is_found(harmed_rabbitmq: Server) -> None:
    one = Admin(harmed_rabbitmq)
    with disk_alarm(harmed_rabbitmq):
        wait_until(lambda: bool(one.findings("RPT801")), within_s=20, what="the alarm is raised")
        assert "disk" in one.findings("RPT801")[0]


def test_a_virtual_host_whose_queues_become_quorum(admin: Admin) -> None:
    if admin.server.version.startswith("3.10"):
        pytest.skip("RabbitMQ 3.10 has no default queue type for a virtual host")
    admin.ask("PUT", f"vhosts/{admin.vhost}", {"default_queue_type": "quorum"})
    classic = {**GOOD_RABBITMQ, "task_queues": [Queue("celery", Exchange("celery"), routing_key="celery")]}
    assert admin.findings("RPT319", classic) == [
        "'celery' will become a quorum queue: the virtual host's default is quorum"
    ]


def test_a_server_that_denies_transient_queues(admin: Admin) -> None:
    """The version does not tell: the server does."""
    if not admin.server.version.startswith("4.3"):
        pytest.skip("RabbitMQ 4.3 is the first that says what it denies")
    assert admin.findings("RPT311", {**GOOD_RABBITMQ, "control_queue_durable": False}) == []
    with rabbitmq_server("deprecated_features.permit.transient_nonexcl_queues = false") as strict:
        one = Admin(strict)
        assert one.findings("RPT311") == []
        assert one.findings("RPT311", {**GOOD_RABBITMQ, "control_queue_durable": False})


@pytest.mark.parametrize("target", [False, True])
def test_a_broker_that_is_down(redis: Server, *, target: bool) -> None:
    url = "amqp://shop:pl4nted-s3cret@127.0.0.1:1//"
    where = ("--target", url) if target else ()
    found = doctor("--live", *where, WORKER_BROKER_URL=redis.url if target else url)
    assert_one_error(found, 3, "did not answer")


@pytest.mark.parametrize(
    "options", [{"ssl_cert_reqs": ssl.CERT_NONE}, {"cert_reqs": ssl.CERT_NONE}], ids=["of redis", "of rabbitmq"]
)
def test_tls_options_of_today_are_not_given_to_a_target_of_another_kind(
    admin: Admin, redis: Server, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Neither library knows those of the other. The target answers; today's broker here has no TLS."""
    today, target = (redis.url, admin.url) if "ssl_cert_reqs" in options else (admin.url, redis.url)
    app = Celery("shop", set_as_current=False, broker=today)
    app.conf.broker_use_ssl = options
    with pytest.raises((TlsFailed, BrokerUnreachable)) as refused:
        collect_from(app, DoctorRequest("shop", target, live=True), DoctorConfig(tmp_path))
    assert f":{BrokerUrl.parse(today).addresses[0][1]}/" in refused.value.message


def test_wrong_credentials(admin: Admin, database: redis_py.Redis, redis: Server) -> None:
    database.acl_setuser("shop", enabled=True, passwords=["+right"], commands=["+@all"], keys=["*"])
    for url in (admin.url.replace(PASSWORD, f"x{PASSWORD}"), redis.url.replace("//", f"//shop:{PASSWORD}@")):
        assert_one_error(doctor("--live", WORKER_BROKER_URL=url), 8, "refuses")


def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    require(executables.REDIS)
    port = free_port()
    made = trustme.CA().issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    options = ["--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(tmp_path / "cert.pem")]
    options += ["--tls-cert-file", str(tmp_path / "cert.pem"), "--tls-key-file", str(tmp_path / "key.pem")]
    with redis_server(*options):
        found = doctor("--live", WORKER_BROKER_URL=f"rediss://:{PASSWORD}@127.0.0.1:{port}/0")
    assert_one_error(found, 9, "no trusted TLS connection")


def assert_one_error(found: subprocess.CompletedProcess[str], exit_code: int, said: str) -> None:
    assert exit_code == found.returncode, found.stderr
    assert said in found.stderr
    assert found.stderr.count("error: ") == 1
    assert "hint: " in found.stderr
    assert "Traceback" not in found.stderr
    assert PASSWORD not in found.stdout + found.stderr


@pytest.mark.parametrize("error", [AccessRefused, TlsFailed])
def test_each_refusal_is_a_kind_of_its_own(error: type[BrokerUnreachable]) -> None:
    assert error.exit_code != BrokerUnreachable.exit_code


def test_a_user_that_may_only_look_can_count(admin: Admin) -> None:
    """The port to a broker asks nothing that takes an administrator."""
    url = admin.user("counter", tags="monitoring")
    with closing(open_broker(BrokerUrl.parse(url), management_url=admin.server.management_url)) as broker:
        assert Depth(ready=0, unacked=0) == broker.depth("celery")
    nowhere = url.replace(admin.vhost, "nowhere")
    with pytest.raises(BrokerUnreachable, match=r"no virtual host 'nowhere'|401"):
        open_broker(BrokerUrl.parse(nowhere), management_url=admin.server.management_url)
