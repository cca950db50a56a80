"""Applications to judge: good ones without a finding, and changes of them."""

from __future__ import annotations

import os
import socket
import ssl
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu import Exchange, Queue

from repot.brokers.facts import Permissions, RabbitFacts, RedisFacts
from repot.config.endpoints import endpoints
from repot.doctor.collect import read_app
from repot.doctor.config import DoctorConfig
from repot.doctor.facts import Bounds, Deployment, Facts, StartCommand
from repot.doctor.registry import own_rules
from repot.doctor.rule import Location
from repot.doctor.runner import run_rules
from support.bill import bill
from support.releases import needs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.doctor.runner import Report

RULES = own_rules()

#: On any release: tests/unit/doctor/test_configured.py; applications on old ones: tests/apps/test_old_releases.py.
NEWEST = needs("celery", "5.7", "the good application of these tests has settings of the newest release")

TASKS: dict[str, Any] = {
    "task_acks_late": True,
    "task_retry_on_worker_lost": True,
    "task_time_limit": 600,
    "task_soft_time_limit": 540,
    "worker_prefetch_multiplier": 1,
    "worker_soft_shutdown_timeout": 900.0,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_deduplicate_successful_tasks": True,
    "broker_connection_max_retries": None,
    "result_backend": "redis://localhost:6379/1",
}
REDIS_OPTIONS: dict[str, Any] = {
    "visibility_timeout": 7200,
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
    "socket_timeout": 15,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "socket_keepalive_options": {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3},
    "health_check_interval": 10,
    "claim": "atomic",
    "claim_lease": 15.0,
}
AMQP_OPTIONS: dict[str, Any] = {
    "confirm_publish": True,
    "read_timeout": 15,
    "write_timeout": 15,
    "socket_settings": {socket.TCP_USER_TIMEOUT: 15000},
}
QUORUM: dict[str, Any] = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "celery.dead",
}
GOOD_REDIS: dict[str, Any] = {
    **TASKS,
    "broker_url": "redis://localhost:6379/0",
    "broker_transport_options": REDIS_OPTIONS,
}
GOOD_RABBITMQ: dict[str, Any] = {
    **TASKS,
    "broker_url": "amqp://shop:a-good-password@localhost//",
    "broker_transport_options": AMQP_OPTIONS,
    "broker_heartbeat": 10,
    "worker_soft_shutdown_timeout": 15,
    "control_queue_exclusive": False,
    "control_queue_durable": True,
    "task_queues": [Queue("celery", Exchange("celery", "topic"), routing_key="celery", queue_arguments=QUORUM)],
    "task_default_queue_type": "quorum",
    "task_default_exchange_type": "topic",
}
#: A project without any files.
ROOT = Path(__file__).parent / "no-project"

#: A worker's command whose options leave everything as configured.
PLAIN = StartCommand("celery -A shop worker", {}, Location("Procfile", 1))
PROCFILE = Location("Procfile", 2)

REDIS_SAYS = RedisFacts(
    product="Redis",
    version="7.2.4",
    info={"role": "master", "used_memory": 10, "connected_clients": 10, "cluster_enabled": 0},
    config={
        "maxmemory": "1000",
        "maxmemory-policy": "noeviction",
        "appendonly": "yes",
        "save": "",
        "timeout": "0",
        "maxclients": "10000",
        "client-output-buffer-limit": "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
    },
    clock_ahead_s=0.0,
    exchanges=frozenset({"celery", "celery.pidbox", "celeryev"}),
    largest_message_bytes=0,
)
RABBITMQ_SAYS = RabbitFacts(
    version="4.0.5",
    mechanisms=("PLAIN",),
    deprecated={"transient_nonexcl_queues": "permitted"},
    deprecated_in_use=(),
    policies=(),
    queues={},
    exchanges={"": "direct", "celery_delayed_27": "topic"},
    bindings=(),
    alarms=(),
    permissions=Permissions(".*", ".*", ".*"),
    guest_exists=False,
    default_queue_type="classic",
    queue_limit=None,
)


#: Lines that are pasted below the configuration of every application.
PASTED: ContextVar[str] = ContextVar("pasted", default="")


def application(conf: Mapping[str, Any], **options: Any) -> Celery:
    """An application with one task, `shop.bill` by default, of these options."""
    app = Celery("shop", set_as_current=False)
    # a copy: what is pasted changes dictionaries in place
    app.conf.update(deepcopy(dict(conf)))
    known = {"app": app, "os": os, "socket": socket, "ssl": ssl, "Queue": Queue, "Exchange": Exchange}
    exec(PASTED.get(), known)  # noqa: S102 - what the doctor itself says to write
    app.task(**{"name": "shop.bill", "shared": False, **options})(bill)  # type: ignore[no-untyped-call,unused-ignore]
    return app


def facts(
    conf: Mapping[str, Any],
    *,
    task: Mapping[str, Any] | None = None,
    bounds: Bounds | None = None,
    workers: tuple[StartCommand, ...] = (PLAIN,),
    **changes: Any,
) -> Facts:
    """The facts of an application with this configuration, and whatever else is changed in them."""
    found = read_app(application(conf, **(task or {})), "shop", DoctorConfig(ROOT, bounds=bounds or Bounds()))
    return replace(found, **{"deployment": Deployment(workers, (), (), ()), **changes})


def judge(found: Facts, rule: str = "", config: DoctorConfig | None = None) -> Report:
    """What one rule, or every rule, says of the facts."""
    return run_rules(found, {rule: RULES[rule]} if rule else RULES, config or DoctorConfig(ROOT), RULES)


@dataclass(frozen=True)
class Case:
    """A rule with an application that trips it, and one close to it that does not."""

    rule: str
    bad: Callable[[], Facts]
    good: Callable[[], Facts]
    #: A part of the finding's message; an empty one would be in every message.
    says: str
    note: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Its name in a list of tests."""
        return f"{self.rule} {self.note}".strip()


def redis(**changes: Any) -> dict[str, Any]:
    """The good configuration for Redis with some settings changed."""
    return {**GOOD_REDIS, **changes}


def redis_options(**changes: Any) -> dict[str, Any]:
    """The same with some transport options changed; None takes one out."""
    options = {name: value for name, value in {**REDIS_OPTIONS, **changes}.items() if value is not None}
    return {**GOOD_REDIS, "broker_transport_options": options}


def stock(**changes: Any) -> dict[str, Any]:
    """The good configuration for Redis without claims, with some settings changed."""
    return {**redis_options(claim=None, claim_lease=None), **changes}


def stock_options(**changes: Any) -> dict[str, Any]:
    """The same with some transport options changed; None takes one out."""
    return redis_options(claim=None, claim_lease=None, **changes)


def rabbitmq(**changes: Any) -> dict[str, Any]:
    """The good configuration for RabbitMQ with some settings changed."""
    return {**GOOD_RABBITMQ, **changes}


def amqp_options(**changes: Any) -> dict[str, Any]:
    """The same with some transport options changed; None takes one out."""
    options = {name: value for name, value in {**AMQP_OPTIONS, **changes}.items() if value is not None}
    return {**GOOD_RABBITMQ, "broker_transport_options": options}


def queue(name: str = "celery", kind: str = "topic", **options: Any) -> Queue:
    """A queue behind an exchange of its own name."""
    return Queue(name, Exchange(name, kind), routing_key=name, **options)


def classic(**options: Any) -> dict[str, Any]:
    """The good configuration for RabbitMQ with one classic queue behind a direct exchange."""
    return rabbitmq(
        task_queues=[queue(kind="direct", **options)],
        task_default_queue_type="classic",
        task_default_exchange_type="direct",
    )


def worker(**options: Any) -> tuple[StartCommand, ...]:
    """A worker's command with these options."""
    return (StartCommand("celery -A shop worker ...", options, Location("Procfile", 1)),)


def elsewhere(address: str) -> dict[str, Any]:
    """Changes of the facts that put the broker elsewhere."""
    return {"servers": endpoints(address), "write_servers": endpoints(address)}


VERIFIED = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
