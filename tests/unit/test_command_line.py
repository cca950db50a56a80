"""What a worker's command line says, against what its settings and its application say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals

import repot

QUORUM = {"WORKER_BROKER_URL": "amqp://h//"}
CLASSIC = {**QUORUM, "WORKER_QUEUE_TYPE": "classic"}
REDIS = {"WORKER_BROKER_URL": "redis://h/0"}


@pytest.mark.parametrize(
    ("variables", "conf", "options", "refused"),
    [
        # as Celery's command has parsed it, and as a program may write it
        (QUORUM, {}, {"autoscale": (8, 2)}, "--autoscale is '8,2', but the prefetch of quorum queues cannot grow"),
        (QUORUM, {}, {"autoscale": "8,2"}, "write 8,8 for a pool of one size"),
        (QUORUM, {}, {"autoscale": (8, 0)}, "--autoscale is '8,0'"),
        ({**QUORUM, "CELERY_WORKER_AUTOSCALE": "4,4"}, {}, {"autoscale": (8, 2)}, "--autoscale is '8,2'"),
        (QUORUM, {}, {"autoscale": (8, 8)}, ""),
        (QUORUM, {}, {"autoscale": None, "concurrency": 8}, ""),
        (QUORUM, {"task_default_queue_type": "classic"}, {"autoscale": (8, 2)}, ""),
        (CLASSIC, {}, {"autoscale": (8, 2)}, ""),
        (REDIS, {}, {"autoscale": (8, 2)}, ""),
        (REDIS, {}, {"queues": ["orders", "orders.dead"]}, "is a queue that -Q consumes; dead letters would run again"),
        (REDIS, {}, {"queues": "orders, orders.dead"}, "which for 'orders' is a queue that -Q consumes"),
        ({**REDIS, "WORKER_DEAD_LETTER_QUEUE": ""}, {}, {"queues": ["orders", "orders.dead"]}, ""),
        (REDIS, {}, {"queues": ["celery.dead"]}, ""),
        ({**REDIS, "WORKER_QUEUE_NAMES": "a,b"}, {}, {"queues": ["a"]}, ""),
        (REDIS, {}, {"soft_time_limit": 20.0, "time_limit": 10.0}, "--soft-time-limit is not below --time-limit"),
        ({**REDIS, "WORKER_TASK_TIME_LIMIT": "10"}, {}, {"soft_time_limit": 20.0}, "is not below task_time_limit"),
        (REDIS, {"task_soft_time_limit": 20}, {"time_limit": 10.0}, "task_soft_time_limit is not below --time-limit"),
        ({**REDIS, "WORKER_TASK_TIME_LIMIT": "10"}, {}, {"soft_time_limit": 20.0, "time_limit": 30.0}, ""),
        (REDIS, {}, {"soft_time_limit": 5.0, "time_limit": None}, ""),
        # they take precedence over the settings, which refuse none of these
        (
            QUORUM,
            {},
            {
                "pool": "solo",
                "prefetch_multiplier": 4,
                "optimization": "fair",
                "max_tasks_per_child": 10,
                "without_heartbeat": True,
                "beat": True,
            },
            "",
        ),
    ],
)
def test_what_a_variable_may_not_say_an_option_may_not_say(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    conf: dict[str, Any],
    options: dict[str, Any],
    refused: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)
    repot.configure(app)

    def start() -> None:
        signals.celeryd_init.send("w@h", instance=SimpleNamespace(app=app), conf=app.conf, options=options)

    if not refused:
        start()
        return
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 2
    assert refused in capsys.readouterr().err
