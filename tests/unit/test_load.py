"""The environment: read once, and every mistake said clearly without a secret."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repot.brokers import open_configured
from repot.cli.main import main
from repot.config import (
    BrokerUrl,
    ExplicitSettings,
    WorkerSettings,
    as_environment,
    child_environment,
    load,
    load_healthcheck,
    unknown_variables,
    variable,
)
from repot.errors import ConfigInvalid
from repot.healthcheck.queue_counts import QueueCounter

if TYPE_CHECKING:
    from collections.abc import Callable

PLANTED = "hunter2-s3cret"
SENTINEL = "sentinel://h:26379/0"


def test_defaults_are_redis_on_this_machine() -> None:
    found = load()
    assert found.broker_url.reveal() == "redis://localhost:6379/0"
    assert found.result_backend.reveal() == "redis://localhost:6379/1"


def test_the_environment_is_read_whatever_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_BROKER_URL", "amqp://host//")
    monkeypatch.setenv("worker_queue_names", "high, low")
    found = load()
    assert found.broker_url.scheme == "amqp"
    assert found.queue_names == ("high", "low")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("WORKER_BROKER_URL", "rabbit://host", "has the scheme 'rabbit'"),
        ("WORKER_BROKER_URL", "redis+socket://vhost", "names no file"),
        ("WORKER_RESULT_BACKEND", "nonsense://h", "names the backend 'nonsense', which Celery does not know"),
        ("WORKER_RESULT_BACKEND", f"reddis://:{PLANTED}@h", "did you mean redis?"),
        ("WORKER_RESULT_BACKEND", f"amqp://u:{PLANTED}@h//", "which Celery does not know"),
        ("WORKER_RESULT_BACKEND", "nonsense+x://h", "names the backend 'nonsense'"),
        ("WORKER_RESULT_BACKEND", "redis://a;redis://b", "lists several servers"),
        ("WORKER_LEASE_STORE", "redis+socket:///a;redis+socket:///b", "lists several servers"),
        ("WORKER_BROKER_URL", f"amqp://user:{PLANTED}/x@host//", "percent-encode"),
        ("WORKER_BROKER_URL", f"amqp://user:{PLANTED}@host//?heartbeat=5", "set WORKER_HEARTBEAT instead"),
        ("WORKER_BROKER_URL", f"redis://:{PLANTED}@host/0?socket_timeout=5", "set WORKER_SOCKET_TIMEOUT instead"),
        ("WORKER_BROKER_URL", f"redis://:{PLANTED}@a/0;amqp://user:{PLANTED}@b//", "mixes the transports"),
        ("WORKER_RESULT_BACKEND", f"redis://:{PLANTED}/x@host", "percent-encode"),
        ("WORKER_VISIBILITY_TIMEOUT", "-5", "greater than 0"),
        ("WORKER_SOCKET_TIMEOUT", "soon", "valid number"),
        ("WORKER_HEARTBEAT", "0", "greater than 0"),
        ("WORKER_TCP_USER_TIMEOUT", "1", "greater than 1"),
        ("WORKER_QUEUE_TYPE", "lazy", "'quorum' or 'classic'"),
        ("WORKER_TASK_ACKS_LATE", "maybe", "valid boolean"),
        ("WORKER_QUEUE_NAMES", "", "at least 1"),
        ("WORKER_TCP_USER_TIMEOUT", "inf", "finite"),
        ("WORKER_SOCKET_TIMEOUT", "nan", "finite"),
        ("WORKER_HEARTBEAT", "70000", "less than or equal to 3600"),
        ("WORKER_RESULT_BACKEND", "redis://a/1;redis://b/1", "lists several servers"),
    ],
)
def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigInvalid) as caught:
        load()
    assert name in caught.value.message
    assert said in caught.value.message
    assert PLANTED not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORKER_VISIBILTY_TIMEOUT": "5"}, "did you mean WORKER_VISIBILITY_TIMEOUT?"),
        ({"WORKER_BROKER_ULR": "amqp://h"}, "WORKER_BROKER_ULR is not a setting; did you mean WORKER_BROKER_URL?"),
        ({"worker_queue_name": "a"}, "did you mean WORKER_QUEUE_NAMES?"),
        ({"WORKER_APPS": "shop"}, "did you mean WORKER_APP?"),
        (
            {"CELERY_BROKER_URL": f"redis://:{PLANTED}@h", "WORKER_BROKER_URL": f"amqp://u:{PLANTED}@h"},
            "CELERY_BROKER_URL is redis://:**@h, but WORKER_BROKER_URL is amqp://u:**@h",
        ),
        (
            {"CELERY_BROKER_URL": "redis://a", "BROKER_URL": "redis://a", "worker_broker_url": "redis://b"},
            "CELERY_BROKER_URL is redis://a (`celery` has it from BROKER_URL), but WORKER_BROKER_URL is redis://b",
        ),
        (
            {"CELERY_RESULT_BACKEND": "rpc://", "WORKER_RESULT_BACKEND": "redis://h"},
            "CELERY_RESULT_BACKEND is rpc://, but WORKER_RESULT_BACKEND is redis://h",
        ),
        ({"CELERY_BROKER_URL": f"nothing://:{PLANTED}@h"}, "CELERY_BROKER_URL has the scheme 'nothing'"),
        (
            {"CELERY_BROKER_URL": f"nothing://:{PLANTED}@h", "WORKER_BROKER_URL": "redis://h"},
            "CELERY_BROKER_URL has the scheme 'nothing'",
        ),
        ({"CELERY_RESULT_BACKEND": "nothing://"}, "CELERY_RESULT_BACKEND "),
        ({"CELERY_BROKER_READ_URL": "redis://h"}, "CELERY_BROKER_READ_URL is set without WORKER_BROKER_WRITE_URL"),
        ({"WORKER_BROKER_READ_URL": "redis://h"}, "without WORKER_BROKER_WRITE_URL"),
        ({"WORKER_BROKER_URL": "sentinel://h:26379/0"}, "WORKER_SENTINEL_MASTER is missing"),
        ({"WORKER_TLS_KEY": "key.pem"}, "WORKER_TLS_CERTIFICATE and WORKER_TLS_KEY belong together"),
        (
            {"WORKER_TLS_VERIFY": "false", "WORKER_BROKER_URL": f"rediss://:{PLANTED}@h?ssl_cert_reqs=required"},
            "WORKER_BROKER_URL has the option ?ssl_cert_reqs=required, but WORKER_TLS_VERIFY is false",
        ),
        (
            {"WORKER_TLS_VERIFY": "true", "WORKER_LEASE_STORE": "rediss://h?ssl_cert_reqs=CERT_NONE"},
            "WORKER_LEASE_STORE has the option ?ssl_cert_reqs=CERT_NONE, but WORKER_TLS_VERIFY is true",
        ),
        (
            {"WORKER_TLS_VERIFY": "true", "CELERY_BROKER_URL": "rediss://a;rediss://b?ssl_check_hostname=no"},
            "CELERY_BROKER_URL has the option ?ssl_check_hostname=no, but WORKER_TLS_VERIFY is true",
        ),
        ({"WORKER_TASK_TIME_LIMIT": "5", "WORKER_TASK_SOFT_TIME_LIMIT": "5"}, "would have no effect"),
        ({"WORKER_QUEUE_NAMES": "a,a"}, "names a queue twice"),
        ({"WORKER_QUEUE_NAMES": "a.#"}, "wildcard"),
        ({"WORKER_QUEUE_NAMES": "a,a.dead"}, "dead letters would run again"),
        ({"WORKER_BROKER_READ_URL": "memory://", "WORKER_BROKER_WRITE_URL": "redis://"}, "cannot be bridged"),
        (
            {"WORKER_BROKER_READ_URL": "redis://h", "WORKER_BROKER_WRITE_URL": "amqps://h"},
            "amqps:// can only be bridged with",
        ),
    ],
)
def test_variables_that_do_not_belong_are_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigInvalid) as caught:
        load()
    assert said in caught.value.message
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize(
    "variables",
    [
        {"WORKER_BROKER_URL": "rediss://h?ssl_cert_reqs=none"},
        {"WORKER_BROKER_URL": "rediss://h?ssl_cert_reqs=required", "WORKER_TLS_VERIFY": "true"},
        {"WORKER_BROKER_URL": "rediss://h?ssl_cert_reqs=none&ssl_check_hostname=False", "WORKER_TLS_VERIFY": "0"},
        {"WORKER_BROKER_URL": "rediss://h?ssl_ca_certs=/a.crt", "WORKER_TLS_CA_CERTS": "/b.crt"},
    ],
)
def test_an_address_may_say_of_tls_what_no_variable_contradicts(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert variables["WORKER_BROKER_URL"].partition("?")[2] in load().broker_url.reveal()


@pytest.mark.parametrize(
    "backend",
    [
        "rpc", "rpc://", "django-db", "django-cache", "disabled", "", "pkg.mod:Class", "pkg.mod.Class",
        "pkg.mod:Class+redis://h", "mongodb://u:p@a:27017,b:27017/db", "cache+memcached://a:1;b:2/", "cache",
        "cache+memory://", "db+sqlite:///results.db", "database", "file:///results", "s3://", "elasticsearch://h",
        "azureblockblob://DefaultEndpointsProtocol=https;AccountName=x", "dynamodb://@eu", "couchbase://h",
    ],
)  # fmt: skip
def test_celerys_other_result_backends_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setenv("WORKER_RESULT_BACKEND", backend)
    assert backend == load().result_backend.reveal()


@pytest.mark.parametrize(
    ("given_backend", "read"),
    [
        ("redis", "redis://localhost"),
        ("redis://", "redis://localhost"),
        ("valkey://h/1", "redis://h/1"),
        ("redis+socket:///run/redis.sock", "redis+socket:///run/redis.sock"),
    ],
)
def test_results_on_redis_keep_leases(monkeypatch: pytest.MonkeyPatch, given_backend: str, read: str) -> None:
    monkeypatch.setenv("WORKER_RESULT_BACKEND", given_backend)
    found = load()
    assert read == found.result_backend.reveal()
    assert found.result_backend == found.store_url


def test_kubernetes_variables_of_a_service_called_worker_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORKER_PORT", "WORKER_PORT_80_TCP", "WORKER_SERVICE_HOST", "WORKER_SERVICE_PORT_HTTP"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:80")
    load()


#: Celery's own, those of other programs, and what people call theirs.
FOREIGN = (
    "WORKER_LOGLEVEL", "WORKER_LOG_LEVEL", "WORKER_CONCURRENCY", "WORKER_CLASS", "WORKER_NAME", "WORKER_TIMEOUT",
    "WORKER_SHUTDOWN_TIMEOUT", "WORKER_HOST", "WORKER_RELEASE", "WORKER_QUEUES", "worker_pool",
    "HEALTHCHECK_URL", "HEALTHCHECK_INTERVAL", "HEALTHCHECK_TIMEOUT", "HEALTHCHECK_PATH",
)  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_variable_of_another_program_ends_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, PLANTED)
    load_healthcheck(load())
    (line,) = unknown_variables()
    assert line.startswith(f"{name} is set, but is not a setting of repot")
    assert PLANTED not in line


def test_a_mistyped_variable_of_the_sidecar_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEALTHCHECK_PROT", "9001")
    with pytest.raises(ConfigInvalid, match=r"did you mean HEALTHCHECK_PORT\?"):
        load_healthcheck(load())
    assert unknown_variables() == []


def test_an_empty_path_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose hands an unset variable on as an empty one."""
    monkeypatch.setenv("WORKER_TLS_CA_CERTS", "")
    monkeypatch.setenv("WORKER_TASK_TIME_LIMIT", "")
    assert load().tls_ca_certs is None


def test_all_mistakes_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_HEARTBEAT", "-1")
    monkeypatch.setenv("WORKER_BROKER_URL", "nonsense")
    monkeypatch.setenv("WORKER_HARTBEAT", "5")
    with pytest.raises(ConfigInvalid, match="3 problems"):
        load()


def test_no_representation_shows_a_password(caplog: pytest.LogCaptureFixture) -> None:
    found = ExplicitSettings(
        broker_url=f"amqp://user:{PLANTED}@host//",  # type: ignore[arg-type]
        result_backend=f"redis://:{PLANTED}@host/1",  # type: ignore[arg-type]
    )
    with caplog.at_level(logging.INFO):
        logging.getLogger("repot").info("settings %s %r", found, found)
    for shown in (repr(found), str(found), caplog.text):
        assert PLANTED not in shown
        assert "user:**@host" in shown


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().heartbeat = 3  # type: ignore[misc]


def test_explicit_settings_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment must not follow what the caller's shell exports."""
    monkeypatch.setenv("WORKER_HEARTBEAT", "33")
    assert WorkerSettings().heartbeat == 33
    assert ExplicitSettings().heartbeat == 10
    assert ExplicitSettings().replace(prefetch_multiplier=2).heartbeat == 10


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    heartbeat=st.integers(1, 600),
    timeout=st.floats(0.1, 1e4),
    late=st.booleans(),
    kind=st.sampled_from(["quorum", "classic"]),
    names=st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=1, max_size=4, unique=True),
    url=st.sampled_from(["amqp://u:p%40ss@h:5672//", "redis://:x%2Fy@h/3", "amqps://a//;amqps://b//"]),
)
def test_settings_survive_the_way_through_an_environment(
    monkeypatch: pytest.MonkeyPatch, heartbeat: int, timeout: float, late: bool, kind: str, names: list[str], url: str
) -> None:
    """What a worker process is started with is what it reads."""
    given_settings = ExplicitSettings(
        heartbeat=heartbeat,
        socket_timeout=timeout,
        task_acks_late=late,
        queue_type=kind,  # type: ignore[arg-type]
        queue_names=tuple(names),
        broker_url=url,  # type: ignore[arg-type]
    )
    with monkeypatch.context() as patch:
        for name, value in as_environment(given_settings).items():
            patch.setenv(name, value)
        assert given_settings.model_dump() == load().model_dump()


@pytest.mark.parametrize("empty", [{}, {"WORKER_BROKER_URL": "", "WORKER_RESULT_BACKEND": ""}], ids=["unset", "empty"])
def test_an_address_that_only_celerys_variable_states_is_taken(
    monkeypatch: pytest.MonkeyPatch, empty: dict[str, str]
) -> None:
    """A deployment that has CELERY_BROKER_URL adopts repot without a change."""
    theirs = {
        "CELERY_BROKER_URL": "redis://a:6379/0",
        "CELERY_BROKER_READ_URL": "redis://b:6379/0",
        "CELERY_BROKER_WRITE_URL": "amqp://c:5672//",
        "CELERY_RESULT_BACKEND": "redis://d:6379/1",
    }
    for name, value in (theirs | empty).items():
        monkeypatch.setenv(name, value)
    found = load()
    fields = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")
    assert list(theirs.values()) == [getattr(found, field).reveal() for field in fields]
    assert set(fields) <= found.model_fields_set


def test_one_address_in_both_variables_is_no_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELERY_BROKER_URL", "WORKER_BROKER_URL"):
        monkeypatch.setenv(name, "amqp://user:password@h//")
    assert load().broker_url.reveal() == "amqp://user:password@h//"


def test_a_child_finds_its_address_in_the_variables_that_its_parent_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application may read it itself, and stop or run its tasks eagerly without it."""
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://elsewhere")
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "redis://elsewhere/1")
    child = child_environment(ExplicitSettings(broker_url="amqp://u:p@h"))  # type: ignore[arg-type]
    assert {name: value for name, value in child.items() if name.startswith("CELERY_")} == {
        "CELERY_BROKER_URL": "amqp://u:p@h"
    }


def test_a_child_gets_these_settings_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_HEARTBEAT", "33")
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://elsewhere")
    monkeypatch.setenv("OTHER", "kept")
    # an option of `celery worker`, and what an application reads itself
    monkeypatch.setenv("CELERY_WORKER_AUTOSCALE", "8,1")
    monkeypatch.setenv("CELERY_QUEUE_NAMES", "high")
    own = {"CELERY_CONFIG_MODULE": "shop.settings", "CELERY_ACKS_LATE": "1", "WORKER_SHIFT": "night"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    child = child_environment(ExplicitSettings(prefetch_multiplier=2))
    assert {name: value for name, value in child.items() if name.startswith(("WORKER_", "CELERY_"))} == {
        "WORKER_PREFETCH_MULTIPLIER": "2",
        **own,
    }
    assert child["OTHER"] == "kept"


def test_every_setting_has_a_description() -> None:
    for name, field in WorkerSettings.model_fields.items():
        assert field.description, variable(name)


def test_the_queues_of_the_command_line_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable serves `celery worker -Q` and the queues' declaration; ours wins."""
    monkeypatch.setenv("CELERY_QUEUE_NAMES", "high,low")
    assert load().queue_names == ("high", "low")
    monkeypatch.setenv("WORKER_QUEUE_NAMES", "mine")
    assert load().queue_names == ("mine",)


@pytest.mark.parametrize(
    ("autoscale", "url", "kind", "refused"),
    [
        ("4,4", "amqp://h//", "quorum", False),
        ("4,1", "amqp://h//", "quorum", True),
        ("4", "amqp://h//", "quorum", True),
        ("4,1", "amqp://h//", "classic", False),
        ("4,1", "redis://h/0", "quorum", False),
        ("", "amqp://h//", "quorum", False),
    ],
)
def test_autoscale_and_quorum_queues_exclude_each_other(
    monkeypatch: pytest.MonkeyPatch, autoscale: str, url: str, kind: str, *, refused: bool
) -> None:
    monkeypatch.setenv("CELERY_WORKER_AUTOSCALE", autoscale)
    monkeypatch.setenv("WORKER_BROKER_URL", url)
    monkeypatch.setenv("WORKER_QUEUE_TYPE", kind)
    if not refused:
        load()
        return
    with pytest.raises(ConfigInvalid, match="write 4,4 for a pool of one size"):
        load()


def test_a_sidecar_is_not_more_impatient_than_a_dead_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEALTHCHECK_STATUS_TIMEOUT", "60")
    assert load_healthcheck(load()).status_timeout == 60
    monkeypatch.setenv("WORKER_SOCKET_TIMEOUT", "16")
    with pytest.raises(ConfigInvalid, match="below 64 s"):
        load_healthcheck(load())


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({"WORKER_BROKER_URL": SENTINEL}, True),
        ({"WORKER_BROKER_URL": f"{SENTINEL}?ssl_cert_reqs=CERT_REQUIRED"}, True),
        ({"WORKER_BROKER_URL": f"{SENTINEL}?ssl_ca_certs=/ca.pem"}, False),
        ({"WORKER_BROKER_URL": "amqps://h//", "WORKER_MOVE_FROM": SENTINEL}, False),
        ({"WORKER_BROKER_URL": SENTINEL, "WORKER_MOVE_TO": "amqps://h//"}, False),
        ({"WORKER_BROKER_URL": SENTINEL, "WORKER_ROLLOUT_TARGET": "amqps://h//", "WORKER_ROLLOUT": "shop"}, False),
        ({"WORKER_BROKER_URL": SENTINEL, "WORKER_RESULT_BACKEND": "rediss://h/1"}, False),
    ],
)
def test_authorities_that_reach_no_address_are_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], *, is_refused: bool
) -> None:
    for name, value in {"WORKER_TLS_CA_CERTS": "/ca.pem", "WORKER_SENTINEL_MASTER": "main", **changes}.items():
        monkeypatch.setenv(name, value)
    if is_refused:
        with pytest.raises(ConfigInvalid, match="WORKER_TLS_CA_CERTS does not reach sentinel://"):
            load()
        return
    found = load()
    # each side by itself
    assert found.at(SENTINEL).broker_url.reveal() == SENTINEL
    assert found.at("amqps://h//").tls_ca_certs == found.tls_ca_certs


def _counted(other: BrokerUrl) -> None:
    QueueCounter(ExplicitSettings(), 1, other)


@pytest.mark.parametrize(
    "act",
    [lambda url: ExplicitSettings().at(url.reveal()), lambda url: open_configured(url, ExplicitSettings()), _counted],
    ids=["settings", "broker", "sidecar"],
)
def test_another_broker_that_the_settings_do_not_fit_is_explained(act: Callable[[BrokerUrl], object]) -> None:
    url = BrokerUrl.parse(f"sentinel://:{PLANTED}@h:26379/0")
    with pytest.raises(ConfigInvalid) as raised:
        act(url)
    assert raised.value.message.startswith("the settings are invalid with the address sentinel://:**@h:26379/0: ")
    assert "WORKER_SENTINEL_MASTER is missing" in raised.value.message


def test_status_names_a_broker_that_the_settings_do_not_fit() -> None:
    environment = {"WORKER_BROKER_URL": "redis://127.0.0.1:1/0", "WORKER_MOVE_FROM": f"sentinel://:{PLANTED}@s:26379/0"}
    shown = CliRunner().invoke(main, ["status"], env=environment)
    assert isinstance(shown.exception, SystemExit)
    assert "all of sentinel://:**@s:26379/0: the settings are invalid with the address" in " ".join(
        shown.output.split()
    )
    assert PLANTED not in shown.output
