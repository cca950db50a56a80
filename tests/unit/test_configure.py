"""An existing application adopts the settings with one call."""

from __future__ import annotations

import gc
import subprocess
import sys
from ssl import CERT_NONE, CERT_REQUIRED
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from weakref import ReferenceType, ref

import pytest
from celery import Celery
from celery.app import base
from celery.app.amqp import AMQP
from celery.backends.base import DisabledBackend
from celery.backends.redis import RedisBackend
from celery.local import Proxy
from kombu import Exchange, Queue

import repot
from repot.config import ExplicitSettings, delays, load
from repot.config.endpoints import endpoints
from repot.errors import AppUnusable, ConfigInvalid
from repot.upstream.sibling_app import sibling_of
from repot.upstream.tasks import bound_before, options_by_configuration
from repot.worker.app_loader import load_app, load_configured_app
from repot.worker.configure import configure, configured_with
from repot.worker.effective_config import CELERY_DEFAULT, effective_config
from support.releases import needs

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = "hunter2-s3cret"
RABBIT = ExplicitSettings(
    broker_url=f"amqp://user:{PLANTED}@host//",  # type: ignore[arg-type]
    result_backend=f"redis://:{PLANTED}@host/1",  # type: ignore[arg-type]
)


def shop(**theirs: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update(theirs)
    return app


def test_a_variable_wins_over_the_application() -> None:
    app = shop(broker_url="redis://elsewhere", worker_prefetch_multiplier=4, task_queues=[Queue("own"), Queue("b")])
    app.conf.broker_transport_options = {"global_keyprefix": "shop:", "socket_timeout": 99}
    repot.configure(
        app,
        ExplicitSettings(
            broker_url="redis://here/0",  # type: ignore[arg-type]
            prefetch_multiplier=2,
            socket_timeout=7,
            queue_names=("a", "b"),
        ),
    )
    assert app.conf.broker_url == "redis://here/0"
    assert app.conf.worker_prefetch_multiplier == 2
    assert app.conf.broker_transport_options["socket_timeout"] == 7
    # what repot knows nothing of stays, an option or a queue
    assert app.conf.broker_transport_options["global_keyprefix"] == "shop:"
    assert [queue.name for queue in app.conf.task_queues] == ["a", "b", "own"]


def test_the_applications_settings_override_repots_defaults() -> None:
    """Nothing that was configured changes in silence: not the queue, nor the results, nor the visibility timeout."""
    app = shop(
        broker_url="redis://elsewhere/3",
        result_backend="db+sqlite:///results",
        task_default_queue="shop",
        worker_prefetch_multiplier=4,
        broker_transport_options={"visibility_timeout": 43200},
        task_serializer="pickle",
        accept_content=["pickle"],
    )
    repot.configure(app, ExplicitSettings())
    assert app.conf.broker_url == "redis://elsewhere/3"
    assert app.conf.result_backend == "db+sqlite:///results"
    assert app.conf.task_default_queue == "shop"
    assert [queue.name for queue in app.conf.task_queues] == ["shop"]
    assert app.conf.worker_prefetch_multiplier == 4
    assert app.conf.accept_content == ["pickle"]
    # and the rest gets the defaults
    assert app.conf.broker_transport_options["visibility_timeout"] == 43200
    assert app.conf.broker_transport_options["socket_timeout"] == 15
    assert app.conf.task_acks_late is True
    origins = {line.key: line.origin for line in effective_config(app)}
    assert origins["broker_url"] == origins["broker_transport_options.visibility_timeout"] == "application"
    assert origins["task_acks_late"] == "WORKER_TASK_ACKS_LATE (repot's default)"


def test_the_applications_broker_decides_when_no_variable_does() -> None:
    app = shop(broker_url="amqp://elsewhere//")
    repot.configure(app, ExplicitSettings())
    assert app.conf.broker_heartbeat == 10
    assert app.conf.task_queues[0].queue_arguments["x-queue-type"] == "quorum"


def test_queues_without_a_word_of_their_own_are_as_ours() -> None:
    """Wherever their names come from; exchange and key are those of stock Celery."""
    theirs = [Queue("celery"), Queue("keyed", routing_key="k"), Queue("own", queue_arguments={"x-max-length": 9})]
    app = shop(broker_url="amqp://elsewhere//", task_queues=theirs, task_default_queue="main")
    repot.configure(app, ExplicitSettings())
    queues: Any = app.amqp.queues
    assert list(queues.consume_from) == ["celery", "keyed", "own"]
    for name, key in (("celery", "main"), ("keyed", "k"), ("made", "made")):
        assert queues[name].queue_arguments["x-queue-type"] == "quorum"
        assert f"{name}.dead" == queues[name].queue_arguments["x-dead-letter-routing-key"]
        assert ("direct", key) == (queues[name].exchange.type, queues[name].routing_key)
    assert queues["own"].queue_arguments == {"x-max-length": 9}


def test_a_queue_given_as_an_object_is_declared_as_those_of_its_name_are() -> None:
    """By `queue=` or a route; RabbitMQ refuses to declare it in two ways."""
    own = Queue("own", queue_arguments={"x-max-length": 9})
    app = shop(broker_url="amqp://elsewhere//", task_queues=[Queue("celery"), own])
    repot.configure(app, ExplicitSettings())
    for name in ("celery", "made"):
        routed: Any = app.amqp.router.route({"queue": Queue(name)}, "shop.add")
        assert arguments_of(app, name) == routed["queue"].queue_arguments
    as_it_is: Any = app.amqp.router.route({"queue": Queue("own")}, "shop.add")
    assert None is as_it_is["queue"].queue_arguments


class TheirAMQP(AMQP):  # type: ignore[misc,unused-ignore]
    """With a setting that is an attribute."""

    argsrepr_maxsize = 7


def test_an_application_keeps_its_own_way_to_queues() -> None:
    app = Celery("shop", amqp=TheirAMQP, set_as_current=False)
    for _ in range(2):
        configure(app, RABBIT)
    assert app.amqp.argsrepr_maxsize == 7
    assert arguments_of(app, "made")["x-queue-type"] == "quorum"


@needs("celery", "5.5", "no delays of its own")
def test_applications_that_are_not_configured_are_left_alone() -> None:
    """`send_task` asks this of every application in the process; Celery's own delays go on."""
    configure(shop(), RABBIT)
    theirs = shop(task_queues=[Queue("q", Exchange("q", "topic"), "q", queue_arguments={"x-queue-type": "quorum"})])
    module: Any = base
    assert module.detect_quorum_queues(theirs, "amqp") == (True, "q")
    configure(theirs, RABBIT)
    assert module.detect_quorum_queues(theirs, "amqp") == (False, "")


def test_priorities_of_queues_make_them_classic() -> None:
    """Quorum queues refuse `x-max-priority`, and Celery says it of every queue then."""
    app = shop(broker_url="amqp://elsewhere//", task_queue_max_priority=10)
    repot.configure(app, ExplicitSettings())
    arguments = arguments_of(app, "celery")
    assert arguments["x-max-priority"] == 10
    assert "x-queue-type" not in arguments
    repot.configure(app, ExplicitSettings(queue_type="quorum"))
    assert arguments_of(app, "celery")["x-queue-type"] == "quorum"


def arguments_of(app: Celery, queue: str) -> dict[str, Any]:
    found: Any = app.amqp.queues[queue]
    return dict(found.queue_arguments or {})


def test_a_second_call_is_seen_by_queues_that_were_read() -> None:
    app = shop()
    repot.configure(app, RABBIT)
    assert arguments_of(app, "celery")["x-queue-type"] == "quorum"
    repot.configure(app, RABBIT.replace(queue_type="classic", queue_names=("b",)))
    assert list(app.amqp.queues) == ["b"]
    assert "x-queue-type" not in arguments_of(app, "b")


@pytest.mark.parametrize("exchange", [delays.EXIT, "celery_delayed_0", "celery_delayed_3"])
@pytest.mark.parametrize("url", ["redis://elsewhere", "amqp://elsewhere//"])
def test_what_comes_out_of_a_delay_goes_back_to_its_queue(url: str, exchange: str) -> None:
    """A bridge back to Redis sends the retry there, where there is no such exchange."""
    app = shop(broker_url=url)
    repot.configure(app, ExplicitSettings())
    key = f"{'0.' * 27}1{delays.delayed_key('a.other', 1)[55:]}"
    routed: Any = app.amqp.router.route({"exchange": exchange, "routing_key": key, "priority": 3}, "shop.add")
    assert routed.pop("queue").name == "a.other"
    assert routed == {"priority": 3}


@pytest.mark.parametrize("name", ["other", "a.other", "ü", "two words", "100%", "a*b", "c.#", "#", "x" * 150])
def test_the_key_of_a_delay_names_its_queue(name: str) -> None:
    key = delays.delayed_key(name, 5)
    assert name == delays.queue_of(key)
    assert key.replace(".", "")[25:28] == "101"
    # as one word: a pattern for one name matches no other
    assert len(key.split(".")) == 30


@pytest.mark.parametrize("levels", [1, 2, 12, 27, 28])
@pytest.mark.parametrize("seconds", [1, 3, 4095, 4096, 2**28 - 1, 2**40])
def test_a_delay_asks_for_no_level_that_is_missing(levels: int, seconds: int) -> None:
    """The longest delay of those that exist, if it is shorter: the worker delays it again."""
    stated = delays.delayed_key("other", seconds, levels).replace(".", "")[:28]
    assert min(seconds, 2**levels - 1) == int(stated, 2)
    assert f"celery_delayed_{levels - 1}" == delays.entry(levels)


@pytest.mark.parametrize("levels", [0, 29])
def test_there_are_between_one_and_28_levels(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_DELAY_LEVELS", str(levels))
    with pytest.raises(ConfigInvalid, match="WORKER_DELAY_LEVELS"):
        load()


def test_a_name_too_long_for_a_key_is_not_delayed_by_the_broker() -> None:
    assert delays.delayed_key("x" * 250, 5) == ""
    assert delays.queue_of("0." * 28 + "celery") == ""


def test_queues_given_as_a_mapping_stay() -> None:
    app = shop(task_queues={"own": {"exchange": "own", "routing_key": "own"}})
    repot.configure(app, ExplicitSettings(queue_names=("a",)))
    assert [queue.name for queue in app.conf.task_queues] == ["a", "own"]


def test_an_address_of_the_application_that_cannot_be_used_is_named() -> None:
    app = shop(broker_url=f"sqs://user:{PLANTED}@host")
    with pytest.raises(ConfigInvalid, match="WORKER_BROKER_URL has the scheme 'sqs'") as caught:
        repot.configure(app, ExplicitSettings())
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "in_force", "read"),
    [
        (["redis://a/0", "redis://b/0"], ["redis://a/0", "redis://b/0"], "redis://a/0;redis://b/0"),
        (("amqp://a//", "amqp://b//"), ("amqp://a//", "amqp://b//"), "amqp://a//;amqp://b//"),
        ("pyamqp://", "pyamqp://", "pyamqp://localhost"),
        (None, None, "amqp://localhost"),
        # neither kombu nor Celery knows this one
        ("valkey://h/2", "redis://h/2", "redis://h/2"),
    ],
)
def test_an_address_of_the_application_is_taken_as_celery_takes_it(theirs: Any, in_force: Any, read: str) -> None:
    app = shop(broker_url=theirs)
    assert read == repot.configure(app, ExplicitSettings()).broker_url.reveal()
    assert in_force == app.conf.broker_url
    assert ("redis" if read.startswith("redis") else "amqp") == app.connection_for_write().transport.driver_type


@pytest.mark.parametrize(
    ("theirs", "read"),
    [
        ("redis", "redis://localhost"),
        ("redis://", "redis://localhost"),
        ("valkey://h/2", "redis://h/2"),
        (None, "disabled"),
        pytest.param(
            RedisBackend,
            "celery.backends.redis:RedisBackend",
            marks=needs("celery", "5.7", "a backend is an address or a name"),
        ),
        ("celery.backends.redis:RedisBackend", "celery.backends.redis:RedisBackend"),
    ],
)
def test_results_of_the_application_are_taken_as_celery_takes_them(theirs: Any, read: str) -> None:
    app = shop(result_backend=theirs)
    assert read == repot.configure(app, ExplicitSettings()).result_backend.reveal()
    assert (DisabledBackend if theirs is None else RedisBackend) is type(app.backend)


def test_leases_follow_results_whose_server_stands_in_settings_of_their_own() -> None:
    app = shop(result_backend="redis", redis_host="results", redis_db=4, redis_password=f"{PLANTED}/@")
    store = repot.configure(app, ExplicitSettings()).store_url
    assert store is not None
    backend: Any = app.backend
    params = backend.connparams
    (server,) = endpoints(store.reveal())
    assert ("results", 4, f"{PLANTED}/@") == (params["host"], params["db"], params["password"])
    assert ("results", "4", f"{PLANTED}/@") == (server.host, server.path, server.password)


def test_a_result_backend_that_celery_does_not_know_is_refused_at_once() -> None:
    app = shop(result_backend=f"nonsense://u:{PLANTED}@host")
    with pytest.raises(ConfigInvalid, match="WORKER_RESULT_BACKEND names the backend 'nonsense'") as caught:
        repot.configure(app, ExplicitSettings())
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("scheme", ["memory", "filesystem"])
def test_without_a_server_everything_about_a_broker_is_left_alone(
    scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"data_folder_in": "/tmp/x"}
    app = shop(broker_url=f"{scheme}://", result_backend="cache+memory://", broker_transport_options=options)
    repot.configure(app, ExplicitSettings(queue_names=("a", "b")))
    assert options == app.conf.broker_transport_options
    assert app.conf.task_acks_late is True
    assert [(queue.name, queue.queue_arguments, queue.exchange.type) for queue in app.conf.task_queues] == [
        ("a", None, "direct"),
        ("b", None, "direct"),
    ]
    set_by_us = {line.key for line in effective_config(app) if "repot" in line.origin}
    assert not {key for key in set_by_us if key.startswith(("broker_", "control_", "redis_"))}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"{scheme}:// has no server and is for tests only; settings of a broker do not apply"


@pytest.mark.parametrize(
    ("broker", "stated", "backend", "warned"),
    [
        ("amqp://u:p@mq.internal//", {}, {}, True),
        ("redis://cache.internal:6379/0", {}, {}, True),
        ("amqp://127.0.0.1//;amqp://mq.internal//", {}, {}, True),
        ("redis://localhost:6379/0", {}, {}, False),
        ("amqp://u:p@mq.internal//", {"result_backend": "disabled://"}, {}, False),
        ("amqp://u:p@mq.internal//", {}, {"result_backend": "redis://results.internal/1"}, False),
    ],
)
def test_results_that_go_to_this_machine_by_default_are_named(
    broker: str, stated: dict[str, Any], backend: dict[str, Any], caplog: pytest.LogCaptureFixture, *, warned: bool
) -> None:
    """A send would wait there for 20 s, in an application that worked without a result backend."""
    repot.configure(shop(broker_url=broker, **backend), ExplicitSettings(**stated))
    assert ("results go to redis://localhost:6379/1, repot's default" in caplog.text) is warned


@pytest.mark.parametrize("given_timeout", [None, 1200])
def test_all_three_visibility_timeouts_are_the_same(given_timeout: int | None) -> None:
    """Celery's manual asks for all of them; the one that kombu reads decides."""
    app = shop(broker_transport_options={"visibility_timeout": 43200}, result_backend="redis://h/1")
    changes: dict[str, Any] = {"visibility_timeout": given_timeout} if given_timeout else {}
    repot.configure(app, ExplicitSettings(**changes))
    assert {given_timeout or 43200} == {
        app.conf.visibility_timeout,
        app.conf.broker_transport_options["visibility_timeout"],
        app.conf.result_backend_transport_options["visibility_timeout"],
    }


@pytest.mark.parametrize("read_again", [False, True], ids=["once", "read again"])
def test_variables_of_celerys_do_not_override_what_was_configured(
    monkeypatch: pytest.MonkeyPatch, *, read_again: bool
) -> None:
    """A second application, for the other broker of a rollout, has its own address; `pending` is not yet read."""
    loaded, pending, stock = shop(), Celery("pending", set_as_current=False), shop()
    for name in ("BROKER_URL", "BROKER_READ_URL", "BROKER_WRITE_URL", "RESULT_BACKEND"):
        monkeypatch.setenv(f"CELERY_{name}", "redis://elsewhere/7")
    for app in (loaded, pending):
        repot.configure(app, RABBIT)
        if read_again:
            app.config_from_object(SimpleNamespace(broker_url="redis://other"))
        for found in (app, sibling_of(app)):
            assert {RABBIT.broker_url.reveal()} == {
                found.conf.broker_url, found.conf.broker_read_url, found.conf.broker_write_url
            }  # fmt: skip
            assert RABBIT.result_backend.reveal() == found.conf.result_backend
    assert stock.conf.broker_url == "redis://elsewhere/7"


#: How projects state the address of their broker, each with one of its own.
OWN_WAYS = {
    "a variable": "import os\napp.conf.broker_url = os.environ['REDIS_URL']",
    "the constructor": "import os\napp = Celery(broker=os.environ['BROKER_URL'], set_as_current=False)",
    "a class": "class Settings:\n    broker_url = 'redis://own/1'\napp.config_from_object(Settings)",
    "a class with a prefix": (
        "class Settings:\n    CELERY_BROKER_URL = 'redis://own/1'\n"
        "app.config_from_object(Settings(), namespace='CELERY')"
    ),
    "YAML": "import yaml\napp.conf.update(yaml.safe_load('broker_url: redis://own/1'))",
    "old names": "app.conf.update(BROKER_URL='redis://own/1')",
}


@pytest.mark.parametrize(
    ("own", "options"),
    [
        ({"broker_url": "rediss://h/0"}, {"ssl_cert_reqs": CERT_REQUIRED, "ssl_check_hostname": True}),
        (
            {"broker_url": ["rediss://h/0", "rediss://i/0"]},
            {"ssl_cert_reqs": CERT_REQUIRED, "ssl_check_hostname": True},
        ),
        (
            {"broker_url": "rediss://h/0?ssl_cert_reqs=none"},
            # redis-py before 6 refuses to check the name in a certificate that it does not verify
            {"ssl_cert_reqs": CERT_NONE, "ssl_check_hostname": False},
        ),
        (
            {"broker_url": "rediss://h/0?ssl_check_hostname=false"},
            {"ssl_cert_reqs": CERT_REQUIRED, "ssl_check_hostname": False},
        ),
        (
            {"broker_url": "rediss://h/0", "broker_use_ssl": {"ssl_cert_reqs": CERT_NONE}},
            {"ssl_cert_reqs": CERT_NONE},
        ),
    ],
)
def test_a_server_that_the_application_names_is_verified_unless_it_says_otherwise(
    own: dict[str, Any], options: dict[str, Any]
) -> None:
    """Kombu verifies nothing at rediss:// without options."""
    app = shop(**own)
    repot.configure(app, ExplicitSettings())
    for connection in (app.connection_for_read(), app.connection_for_write()):
        assert options == connection.ssl


@pytest.mark.parametrize("url", ["redis://h/0", "rediss://h/0", "valkey://h/0"])
def test_an_address_that_repot_completes_stays_the_applications(url: str) -> None:
    """With options of TLS, or another scheme; `config show` and a worker's first lines named a variable."""
    app = shop(broker_url=url)
    for _ in range(2):
        repot.configure(app, ExplicitSettings())
        assert [one.origin for one in effective_config(app) if one.key == "broker_url"] == ["application"]


@pytest.mark.parametrize("lines", OWN_WAYS.values(), ids=OWN_WAYS)
def test_an_application_keeps_its_own_way_to_state_its_broker(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """WORKER_BROKER_URL has precedence over each."""
    monkeypatch.setenv("REDIS_URL", "redis://own/1")
    monkeypatch.setenv("BROKER_URL", "redis://own/1")
    for stated in ("redis://own/1", "amqp://u:p@new//"):
        names: dict[str, Any] = {"Celery": Celery, "app": Celery(set_as_current=False)}
        exec(lines, names)  # noqa: S102 - the table above
        repot.configure(names["app"])
        assert stated == names["app"].conf.broker_url
        assert stated.startswith(f"{names['app'].connection_for_write().transport_cls}://")
        monkeypatch.setenv("WORKER_BROKER_URL", "amqp://u:p@new//")


def test_an_address_of_celerys_variable_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://h:6379/3")
    app = shop(broker_url="redis://prod")
    repot.configure(app)
    found = {line.key: line for line in effective_config(app)}["broker_url"]
    assert (found.value, found.origin) == ("redis://h:6379/3", "CELERY_BROKER_URL (environment)")
    app.conf.update(broker_url="redis://prod")
    found = {line.key: line for line in effective_config(app)}["broker_url"]
    assert (found.value, found.origin) == ("redis://prod", "application")


def test_a_change_afterwards_is_the_applications() -> None:
    app = shop()
    repot.configure(app, RABBIT)
    app.conf.update(broker_url="amqp://prod//")
    found = {line.key: line for line in effective_config(app)}
    assert found["broker_url"].origin == "application"


@pytest.mark.parametrize(
    ("namespace", "theirs"),
    [
        (None, {"broker_url": "redis://elsewhere", "event_queue_prefix": "shop"}),
        ("CELERY", {"CELERY_BROKER_URL": "redis://elsewhere", "CELERY_EVENT_QUEUE_PREFIX": "shop"}),
    ],
)
def test_a_configuration_that_is_read_later_does_not_undo_it(namespace: str | None, theirs: dict[str, str]) -> None:
    app = Celery("shop", set_as_current=False)
    repot.configure(app, RABBIT)
    app.config_from_object(SimpleNamespace(**theirs), namespace=namespace)
    assert RABBIT.broker_url.reveal() == app.conf.broker_url
    assert app.conf.task_acks_late is True
    assert app.conf.event_queue_prefix == "shop"


#: Prints what Celery reads from configurations, before and after repot configures another application of the process.
READ_BY_CELERY = """
import re
from types import SimpleNamespace
import repot
from celery import Celery
from repot.upstream.collector import settings

SHAPES = [(None, SimpleNamespace(**names)) for names in (
    {}, {"CELERYD_CONCURRENCY": 77}, {"worker_concurrency": 7}, {"worker_concurrency": 7, "CELERYD_CONCURRENCY": 77},
    {"CELERY_ACKS_LATE": True, "BROKER_URL": "redis://old/1"}, {"CELERY_WORKER_CONCURRENCY": 7},
)] + [("CELERY", SimpleNamespace(**names)) for names in (
    {"CELERYD_CONCURRENCY": 77}, {"CELERY_WORKER_CONCURRENCY": 7, "CELERYD_CONCURRENCY": 77},
    {"CELERY_ACKS_LATE": True, "BROKER_URL": "redis://old/1"}, {"worker_concurrency": 7}, {"CELERY_QUEUES": []},
)]

def seen():
    found = []
    for namespace, source in SHAPES:
        for on_app in ({}, {"CELERYD_PREFETCH_MULTIPLIER": 5}, {"CELERY_ACKS_LATE": True}):
            app = Celery(set_as_current=False)
            app.config_from_object(source, namespace=namespace)
            app.conf.update(on_app)
            found.append({key: re.sub(" at 0x\\\\w+", "", repr(value)) for key, value, own in settings(app)})
    return found

before = seen()
repot.configure(Celery("other", broker="redis://localhost/0", set_as_current=False))
assert before == seen(), [set(a.items()) ^ set(b.items()) for a, b in zip(before, seen()) if a != b]
"""


def test_what_celery_does_not_read_without_repot_it_does_not_read_with_it() -> None:
    """Celery before 5.7 ignores old names in a namespace: a queue of CELERY_QUEUES must not appear with `configure`."""
    done = subprocess.run([sys.executable, "-c", READ_BY_CELERY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_effective_values_know_their_origin_and_hide_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_HEARTBEAT", "7")
    monkeypatch.setenv("WORKER_BROKER_URL", RABBIT.broker_url.reveal())
    app = Celery("shop", set_as_current=False)
    app.conf.update(event_queue_prefix="shop")
    app.conf.security_key_password = PLANTED
    repot.configure(app)
    found = {line.key: line for line in effective_config(app)}
    assert (found["broker_heartbeat"].value, found["broker_heartbeat"].origin) == (7, "WORKER_HEARTBEAT (environment)")
    assert found["task_acks_late"].origin == "WORKER_TASK_ACKS_LATE (repot's default)"
    assert found["control_queue_durable"].origin == "repot"
    assert found["event_queue_prefix"].origin == "application"
    assert found["enable_utc"].origin == CELERY_DEFAULT
    assert found["broker_url"].masked_value == "amqp://user:**@host//"
    assert PLANTED not in str(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise RuntimeError('boom')", "fails on import: RuntimeError: boom"),
        ("import sys; sys.exit('bye')", "fails on import: SystemExit: bye"),
        ("app = 5", "not a Celery application"),
        ("from celery import Celery; app = Celery('x')", "does not take its broker from WORKER_BROKER_URL"),
    ],
)
def test_an_unusable_application_is_an_error_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    name = f"shop{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AppUnusable, match=said):
        load_configured_app(f"{name}:app")


def test_repots_own_application_is_found() -> None:
    app = load_app("repot.worker.app")
    app.loader.import_default_modules()
    assert {"repot.run", "repot.fail", "repot.die", "repot.retry"} <= set(app.tasks)
    # long enough for a task of an hour, and over before Redis hands it out a second time
    assert 3600 < (app.tasks["repot.run"].time_limit or 0) < (ExplicitSettings().visibility_timeout or 0)


def test_a_proxy_of_an_application_is_the_application() -> None:
    """`celery.current_app`, which a worker is not started with."""
    app = Celery("shop", set_as_current=False)
    configure(cast("Celery", Proxy(lambda: app)), ExplicitSettings())
    assert configured_with(app) is not None


def test_an_application_that_is_dropped_goes() -> None:
    """As stock Celery's does: tests, and processes that make many, must not keep every one."""

    def made() -> ReferenceType[Celery]:
        app = shop()
        configure(app, RABBIT)
        assert app.amqp.queues
        return ref(app)

    dropped = [made() for _ in range(50)]
    gc.collect()
    assert sum(one() is not None for one in dropped) == 0


def nothing() -> None:
    """The body of a task."""


def test_a_configuration_that_is_loaded_afterwards_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """What it states is hidden by repot's defaults, and nothing said so."""

    class Late:
        result_backend = "redis://theirs/7"

    app, in_time = shop(), shop()
    for one in (app, in_time):
        one.config_from_object({"task_acks_late": False})
        repot.configure(one, ExplicitSettings())
    assert "came after" not in caplog.text
    app.config_from_object(Late)
    assert app.conf.task_default_queue
    assert "app.config_from_object(<class" in caplog.text
    assert "call repot.configure(app) after it" in caplog.text
    caplog.clear()
    repot.configure(app, ExplicitSettings())
    assert app.conf.result_backend == "redis://theirs/7"
    assert in_time.conf.task_default_queue
    assert "came after" not in caplog.text


def test_tasks_that_were_made_before_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """They keep Celery's early ACK: a killed worker loses them, and nothing said so."""
    app = shop(broker_url="redis://h/0")
    app.task(name="shop.early", shared=False)(nothing)
    app.task(name="shop.own", shared=False, acks_late=True)(nothing)
    assert not app.tasks["shop.early"].acks_late
    earlier = options_by_configuration(app)
    repot.configure(app, ExplicitSettings())
    assert "tasks that were made before repot.configure(app) keep acks_late=False" in caplog.text
    named = bound_before(app, earlier)["acks_late=False"]
    assert ("shop.early" in named, "shop.own" in named) == (True, False)
    caplog.clear()
    in_time = shop(broker_url="redis://h/0")
    in_time.task(name="shop.add", shared=False)(nothing)
    repot.configure(in_time, ExplicitSettings())
    assert in_time.tasks["shop.add"].acks_late
    repot.configure(in_time, ExplicitSettings())
    assert "made before" not in caplog.text
