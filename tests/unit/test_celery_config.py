"""Settings become a Celery configuration by the URL's scheme alone."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest
from celery import Celery
from celery.app.defaults import NAMESPACES, flatten
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection

from repot.config import ExplicitSettings, Role, celery_config
from repot.config.urls import AMQP_SCHEMES, REDIS_SCHEMES
from repot.upstream.capabilities import CAPABILITIES, Before


def config_for(url: str, role: Role = Role.WORKER, **settings: Any) -> dict[str, Any]:
    return celery_config(ExplicitSettings(broker_url=url, **settings), role)  # type: ignore[arg-type]


def tls_of(config: dict[str, Any]) -> dict[str, Any]:
    """What kombu makes of the address."""
    options: Any = Connection(config["broker_url"]).ssl
    return dict(options)


@pytest.mark.parametrize("scheme", REDIS_SCHEMES)
def test_redis_gets_what_long_tasks_need(scheme: str) -> None:
    host = "/run/redis.sock" if scheme == "redis+socket" else "host/0"
    config = config_for(f"{scheme}://{host}", sentinel_master="main")
    options = config["broker_transport_options"]
    assert options["visibility_timeout"] == 7200
    assert options["unacked_restore_interval"] == 10
    assert options["unacked_restore_throttle"] == 1
    assert options["unacked_mutex_expire"] == 30
    assert options["socket_timeout"]
    assert options["socket_connect_timeout"]
    assert options["health_check_interval"]
    assert options["client_name"]
    assert options["socket_keepalive_options"] == {
        socket.TCP_KEEPIDLE: 30,
        socket.TCP_KEEPINTVL: 5,
        socket.TCP_KEEPCNT: 3,
    }
    assert not {"broker_heartbeat", "control_queue_durable", "broker_use_ssl"} & set(config)
    assert [queue.exchange.type for queue in config["task_queues"]] == ["direct"]


@pytest.mark.parametrize("interval", [1, 60])
def test_a_worker_that_dies_in_its_scan_keeps_the_others_from_theirs_for_three_intervals(interval: int) -> None:
    options = config_for("redis://host/0", restore_interval=interval)["broker_transport_options"]
    assert 3 * interval == options["unacked_mutex_expire"]


@pytest.mark.parametrize("scheme", AMQP_SCHEMES)
def test_rabbitmq_gets_what_long_tasks_need(scheme: str) -> None:
    config = config_for(f"{scheme}://host//", queue_names="high,low")
    options = config["broker_transport_options"]
    assert options["confirm_publish"] is True
    # a confirm without a read timeout waits for ever
    assert options["read_timeout"]
    assert options["write_timeout"]
    assert options["socket_settings"][socket.TCP_USER_TIMEOUT] > 1000
    assert config["broker_heartbeat"] == 10
    assert (config["control_queue_exclusive"], config["control_queue_durable"]) == (False, True)
    assert "visibility_timeout" not in options
    for queue in config["task_queues"]:
        assert queue.exchange.name == ""
        assert queue.queue_arguments["x-queue-type"] == "quorum"
        assert f"{queue.name}.dead" == queue.queue_arguments["x-dead-letter-routing-key"]
    assert [queue.name for queue in config["task_queues"]] == ["high", "low"]


def test_a_client_keeps_the_exclusive_reply_queue() -> None:
    """A durable one would stay behind for 10 s after each ping."""
    assert "control_queue_durable" not in config_for("amqp://host//", Role.CLIENT)


def test_classic_queues_are_direct_and_have_dead_letters() -> None:
    config = config_for("amqp://host//", queue_type="classic")
    (queue,) = config["task_queues"]
    assert queue.queue_arguments == {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "celery.dead"}


def test_without_a_dead_letter_queue_no_argument_names_one() -> None:
    (queue,) = config_for("amqp://host//", dead_letter_queue="")["task_queues"]
    assert queue.queue_arguments == {"x-queue-type": "quorum"}


def test_a_bridge_reads_here_and_writes_there() -> None:
    settings = ExplicitSettings(
        broker_read_url="redis://old/0",  # type: ignore[arg-type]
        broker_write_url="amqp://new//",  # type: ignore[arg-type]
    )
    config = celery_config(settings)
    assert config["broker_read_url"] == "redis://old/0"
    # Celery declares its delayed delivery on broker_url
    assert config["broker_write_url"] == config["broker_url"] == "amqp://new//"
    # each transport ignores the other's options
    assert {"visibility_timeout", "confirm_publish"} <= set(config["broker_transport_options"])


@pytest.mark.parametrize("verify", [True, False])
def test_redis_tls_verifies_by_default(verify: bool) -> None:
    config = config_for("rediss://:p%40@host/0", tls_verify=verify, tls_ca_certs="/ca.pem")
    made = tls_of(config)
    assert (ssl.CERT_REQUIRED if verify else ssl.CERT_NONE) == made["ssl_cert_reqs"]
    assert verify is made["ssl_check_hostname"]
    assert made["ssl_ca_certs"] == "/ca.pem"
    assert Connection(config["broker_url"]).password == "p@"


def test_an_option_in_the_address_wins() -> None:
    config = config_for("rediss://host/0?ssl_ca_certs=/mine.pem", tls_ca_certs="/ca.pem")
    assert tls_of(config)["ssl_ca_certs"] == "/mine.pem"


@pytest.mark.parametrize("verify", [True, False])
def test_rabbitmq_tls_verifies_by_default(verify: bool) -> None:
    options = config_for("amqps://host//", tls_verify=verify, tls_ca_certs="/ca.pem")["broker_use_ssl"]
    assert (ssl.CERT_REQUIRED if verify else ssl.CERT_NONE) == options["cert_reqs"]
    assert verify is ("server_hostname" in options)


def test_result_tls_verifies() -> None:
    config = config_for("redis://host/0", result_backend="rediss://host/1")
    assert config["redis_backend_use_ssl"]["ssl_cert_reqs"] == ssl.CERT_REQUIRED


def test_failover_lists_reach_celery_as_they_are() -> None:
    assert config_for("amqp://a//;amqp://b//")["broker_url"] == "amqp://a//;amqp://b//"
    assert Connection(config_for("amqp://a//;amqp://b//")["broker_url"]).alt == ["amqp://a//", "amqp://b//"]


@given(
    url=st.sampled_from(["redis://h/0", "rediss://h/0", "amqp://h//", "amqps://h//"]),
    heartbeat=st.integers(1, 120),
    timeout=st.integers(1, 10**6),
    prefetch=st.integers(1, 50),
    queue_type=st.sampled_from(["quorum", "classic"]),
)
def test_any_configuration_is_one_celery_accepts(
    url: str, heartbeat: int, timeout: int, prefetch: int, queue_type: str
) -> None:
    """Pure: the same settings, the same configuration; and no key that Celery does not know."""
    settings = ExplicitSettings(
        broker_url=url,  # type: ignore[arg-type]
        heartbeat=heartbeat,
        visibility_timeout=timeout,
        prefetch_multiplier=prefetch,
        queue_type=queue_type,  # type: ignore[arg-type]
    )
    config = celery_config(settings)
    assert config == celery_config(settings)
    # one is read by Celery's Redis backend and one advised in its manual, but they are missing in its list of settings
    known = {*dict(flatten(NAMESPACES)), "redis_backend_health_check_interval", "visibility_timeout"}
    # what repot itself reads where Celery does not
    known |= {key for one in CAPABILITIES if one.before is Before.SUPPLIED for key in one.keys}
    assert set(config) <= known
    app = Celery("test", set_as_current=False)
    app.conf.update(config)
    assert app.conf.broker_url.startswith(url)
