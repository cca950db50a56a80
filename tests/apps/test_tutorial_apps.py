"""Applications as the tutorials write them: each planted mistake is found, and a good configuration is silent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.judging import NEWEST
from support.tutorials import Edit, Judge, Plant, Shape, Variant, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What is found in these projects is said for the newest release; tests/apps/test_old_releases.py has others.
pytestmark = NEWEST

PLANTED = "hunter2-s3cret"

FIRST_STEPS = Shape("first_steps", "tasks")
CONFIG_MODULE = Shape("config_module", "tasks")
NEXT_STEPS = Shape("next_steps", "proj")
NAMESPACE = Shape("django_namespace", "shop")
CLASS = Shape("class_config", "worker")
FACTORY = Shape("flask_factory", "make_celery")
OLD_NAMES = Shape("old_names", "oldapp")
TASK_CLASSES = Shape("task_classes", "pipeline")
ROUTING = Shape("routing_priorities", "media")
BEAT = Shape("beat", "clock")
ATTRIBUTES = Shape("fastapi_worker", "worker.celery")
INSTANCE = Shape("settings_instance", "main.celery")
CONF_UPDATE = Shape("flask_conf_update", "webapp.celery")

#: Findings of every application that uses a broker with its defaults.
ON_REDIS = {"RPT203", "RPT219", "RPT301", "RPT302", "RPT308"}
ON_RABBITMQ = {"RPT112", "RPT116", "RPT203", "RPT204", "RPT306", "RPT308", "RPT401"}

#: What is found in each as it stands, and nothing else.
AS_WRITTEN: list[tuple[Shape, set[str]]] = [
    (FIRST_STEPS, ON_REDIS | {"RPT103"}),
    (CONFIG_MODULE, ON_RABBITMQ | {"RPT103"}),
    (NEXT_STEPS, ON_RABBITMQ | {"RPT103"}),
    # four tasks of half an hour in a row are longer than the visibility timeout of one hour
    (NAMESPACE, ON_REDIS | {"RPT101", "RPT110"}),
    (CLASS, ON_REDIS | {"RPT103", "RPT110"}),
    (FACTORY, ON_REDIS | {"RPT103"}),
    # late acks without a word on lost workers, pickle, names of Celery 3
    (OLD_NAMES, (ON_REDIS - {"RPT203"}) | {"RPT107", "RPT110", "RPT201", "RPT405", "RPT503"}),
    # some of its tasks are late, some delayed, one is put back when its process dies
    (
        TASK_CLASSES,
        ON_RABBITMQ | {"RPT103", "RPT106", "RPT107", "RPT110", "RPT120", "RPT201", "RPT309"},
    ),
    # one of its queues knows no priorities
    (ROUTING, ON_RABBITMQ | {"RPT103", "RPT114", "RPT309", "RPT602"}),
    (BEAT, ON_REDIS | {"RPT103"}),
    (ATTRIBUTES, ON_REDIS | {"RPT103"}),
    (INSTANCE, ON_REDIS | {"RPT103"}),
    # CELERY_RESULT_BACKEND is an old name here, as no namespace makes it a new one
    (CONF_UPDATE, ON_REDIS | {"RPT103", "RPT503"}),
]


def line(rule: str, about: str, file: str, text: str, after: str = "", *, at: str | None = None) -> Plant:
    """A mistake that is more text: below a line, or at the end of the file."""
    return Plant(rule, about, Edit(file, text, after=after), at)


def change(rule: str, about: str, file: str, old: str, new: str, *, at: str | None = None) -> Plant:
    """A mistake that is other text."""
    return Plant(rule, about, Edit(file, new, instead_of=old), at)


def also(rule: str, about: str, at: str = "") -> Plant:
    """What must be found, too, of the mistakes planted beside it."""
    return Plant(rule, about, None, at)


def named(file: str, text: str, after: str = "") -> Plant:
    """A name that Celery does not know."""
    return line("RPT502", text.partition("=")[0].strip().rpartition(".")[2], file, text, after)


def updated(rule: str, about: str, text: str, *, at: str | None = None) -> Plant:
    """A keyword of `app.conf.update`."""
    return line(rule, about, "proj/celery.py", text, "result_expires", at=at)


def in_class(rule: str, about: str, text: str, *, at: str | None = None) -> Plant:
    """An attribute of the class that is the configuration."""
    return line(rule, about, "worker.py", text, "worker_max_tasks_per_child", at=at)


def in_dict(rule: str, about: str, text: str, *, at: str | None = None) -> Plant:
    """An entry of the dictionary that is the configuration."""
    return line(rule, about, "site_app/__init__.py", text, '"task_ignore_result": True', at=at)


def in_instance(rule: str, about: str, text: str) -> Plant:
    """An attribute of the class whose instance is the configuration."""
    return line(rule, about, "project/config.py", text, "DEBUG = True")


def option(text: str, function: str, task: str, decorator: str) -> Plant:
    """An option of a task that Celery does not know."""
    old = f"{decorator}\n{function}"
    new = f"{decorator[:-1]}, {text})\n{function}"
    return Plant("RPT509", task, Edit("pipeline.py", new, instead_of=old))


OPTIONS = "broker_transport_options"
BAD_AMQP = "{'visibility_timeout': 7200, 'confirm_publish': False}"
MISSPELT = "{'visibility_timout': 43200}"
TOMORROW = "datetime.now(timezone.utc) + timedelta(days=1)"
BY_CONSTANT = """\

LATER = 24 * 60 * 60


def later():
    rename_product.s(1, "x").set(countdown=LATER).delay()"""
BY_NAME = """\

def by_name():
    app.send_task("billing.remind", countdown=7200)"""
SOLO = "worker: celery -A proj worker -P solo"
THREADS = """\
[program:worker]
command=celery -A worker worker --pool=threads"""
EXPORTER = """\
services:
  monitor:
    command: celery-exporter --broker-url redis://redis"""
COMPOSE_PING = """\
services:
  worker:
    command: celery -A shop worker
    healthcheck:
      test: ["CMD", "celery", "-A", "shop", "inspect", "ping"]"""
DOCKER_PING = """\
FROM python:3.13
HEALTHCHECK --interval=30s \\
  CMD celery -A proj inspect ping -d celery@$HOSTNAME
CMD ["celery", "-A", "proj", "worker"]"""
MISTAKES = [
    Variant(
        FIRST_STEPS,
        (
            named("tasks.py", "app.conf.task_ack_late = True"),
            named("tasks.py", "app.conf.worker_prefetch_multipler = 1"),
            named("tasks.py", "app.conf.task_reject_on_worker_loss = True"),
            named("tasks.py", "app.conf.result_expire = 3600"),
            named("tasks.py", "app.conf.visibility_timeout = 43200"),
            named("tasks.py", "app.conf.CELERY_TASK_ACKS_LATE = True"),
            change(
                "RPT502",
                "task_default_retry_delay",
                "tasks.py",
                'app = Celery("tasks",',
                'app = Celery("tasks", task_default_retry_delay=10,',
            ),
        ),
        note="misspelt",
    ),
    Variant(
        FIRST_STEPS,
        (
            line("RPT212", "result_expires", "tasks.py", "app.conf.result_expires = None"),
            line("RPT313", "broker_pool_limit", "tasks.py", "app.conf.broker_pool_limit = 0"),
            line("RPT405", "task_serializer", "tasks.py", "app.conf.task_serializer = 'pickle'"),
            line("RPT405", "accept_content", "tasks.py", "app.conf.accept_content = ['json', 'pickle']"),
            change("RPT510", "", "tasks.py", "return a * b", "return multiply.apply_async((a, b), delay=1)"),
            line(
                "RPT317",
                "worker_send_task_events",
                "Procfile",
                "monitor: celery-exporter --broker-url=redis://localhost",
            ),
        ),
        edits=(Edit("Procfile", "worker: celery -A tasks worker"),),
        note="settings and an exporter",
    ),
    Variant(
        FIRST_STEPS,
        (also("RPT501", "broker_url"), also("RPT501", "result_backend")),
        environment=(
            ("CELERY_BROKER_URL", "redis://localhost:6379/5"),
            ("CELERY_RESULT_BACKEND", "redis://localhost:6379/6"),
        ),
        note="variables",
    ),
    Variant(
        CONFIG_MODULE,
        (
            named("celeryconfig.py", "task_retry_backoff = True"),
            named("celeryconfig.py", "worker_max_task_per_child = 100"),
            named("celeryconfig.py", "worker_perfetch_multiplier = 1"),
            named("celeryconfig.py", "worker_send_task_event = True"),
            named("celeryconfig.py", "task_eager_propagates_exceptions = True"),
            named("celeryconfig.py", "broker_connection_retry_on_start = True"),
            named("celeryconfig.py", "task_queue_ha_policy = 'all'"),
            named("celeryconfig.py", "CELERY_SEND_TASK_ERROR_EMAILS = True"),
            named("celeryconfig.py", "TASK_ACKS_LATE = True"),
        ),
        note="misspelt",
    ),
    Variant(
        CONFIG_MODULE,
        (
            line("RPT204", f"{OPTIONS}.confirm_publish", "celeryconfig.py", f"broker_transport_options = {BAD_AMQP}"),
            also("RPT504", f"{OPTIONS}.visibility_timeout", "celeryconfig.py: broker_transport_options"),
            line("RPT115", "broker_heartbeat", "celeryconfig.py", "broker_heartbeat = 0"),
            line("RPT215", "task_default_delivery_mode", "celeryconfig.py", "task_default_delivery_mode = 'transient'"),
            line("RPT307", "broker_channel_error_retry", "celeryconfig.py", "broker_channel_error_retry = True"),
            change("RPT117", "broker_url", "celeryconfig.py", ":5672//", ":5672//?heartbeat=30"),
        ),
        note="connection",
    ),
    Variant(
        NEXT_STEPS,
        (
            updated("RPT201", "proj.tasks.square", "task_acks_late=True,", at="proj/tasks.py: @app.task"),
            also("RPT202", "proj.tasks.note", "proj/tasks.py: @app.task(ignore_result=True)"),
            also("RPT106", "proj.tasks.total", "proj/tasks.py: @app.task"),
            also("RPT107", "worker_cancel_long_running_tasks_on_connection_loss"),
            updated("RPT502", "task_hard_time_limit", "task_hard_time_limit=60,"),
            updated("RPT502", "task_max_retries", "task_max_retries=5,"),
            updated("RPT316", "", "worker_enable_remote_control=False,", at="Dockerfile: HEALTHCHECK"),
            line("RPT111", "proj.tasks.total", "Procfile", SOLO, at="proj/tasks.py: @app.task"),
        ),
        edits=(Edit("Dockerfile", DOCKER_PING),),
        note="late acks, solo pool, a probe",
    ),
    Variant(
        NEXT_STEPS,
        (
            updated("RPT205", "", 'task_default_queue_type="quorum",', at=""),
            updated("RPT312", "task_queue_max_priority", "task_queue_max_priority=10,"),
            line("RPT310", "", "Procfile", "worker: celery -A proj worker --autoscale=10,3"),
        ),
        note="quorum queues",
    ),
    Variant(
        NAMESPACE,
        (
            named("shop/settings.py", "CELERY_BROKER_TRANSPORT_OPTION = {'visibility_timeout': 7200}"),
            named("shop/settings.py", "CELERY_MAX_TASKS_PER_CHILD = 100"),
            named("shop/settings.py", "CELERY_PREFETCH_MULTIPLIER = 1"),
            named("shop/settings.py", "CELERY_TASK_RETRY_POLICY = {'max_retries': 5}"),
            named("shop/settings.py", "CELERY_TASK_PUBLISHER_CONFIRMS = True"),
            named("shop/settings.py", "CELERY_RESULT_EXPIRE = 3600"),
            line("RPT503", "CELERYD_TASK_SOFT_TIME_LIMIT", "shop/settings.py", "CELERYD_TASK_SOFT_TIME_LIMIT = 60"),
            line(
                "RPT504", f"{OPTIONS}.visibility_timout", "shop/settings.py", f"CELERY_{OPTIONS.upper()} = {MISSPELT}"
            ),
            line(
                "RPT316",
                "",
                "shop/settings.py",
                "CELERY_WORKER_ENABLE_REMOTE_CONTROL = False",
                at="docker-compose.yml: test:",
            ),
        ),
        edits=(Edit("docker-compose.yml", COMPOSE_PING),),
        note="misspelt",
    ),
    Variant(
        NAMESPACE,
        (
            line(
                "RPT320",
                "shop.catalog.tasks.rename_product",
                "shop/settings.py",
                "CELERY_TASK_SOFT_TIME_LIMIT = 30 * 60",
                at="shop/catalog/tasks.py: @shared_task",
            ),
            change(
                "RPT102",
                "shop.orders.tasks.charge_card",
                "shop/orders/tasks.py",
                "countdown=30)",
                "countdown=2 * 60 * 60)",
                at="shop/orders/tasks.py: @shared_task(bind=True",
            ),
            change(
                "RPT102",
                "shop.orders.tasks.confirm_order",
                "shop/orders/tasks.py",
                "confirm_order.delay(order_id)",
                f"confirm_order.apply_async((1,), eta={TOMORROW})",
                at="shop/orders/tasks.py: @shared_task",
            ),
            line(
                "RPT102",
                "shop.catalog.tasks.rename_product",
                "shop/catalog/tasks.py",
                BY_CONSTANT,
                at="shop/catalog/tasks.py: @shared_task",
            ),
            line("RPT102", "", "shop/celery.py", BY_NAME, at="shop/celery.py: app.send_task("),
        ),
        edits=(
            Edit("shop/orders/tasks.py", "from datetime import datetime, timedelta, timezone", after="import random"),
        ),
        note="delays",
    ),
    Variant(
        CLASS,
        (
            in_class("RPT201", "worker.build_report", "task_acks_late = True", at="worker.py: @app.task"),
            in_class("RPT106", "worker.build_report", "worker_prefetch_multiplier = 0", at="worker.py: @app.task"),
            in_class(
                "RPT211",
                f"{OPTIONS}.ack_emulation",
                f"{OPTIONS} = {{'ack_emulation': False, 'retry_on_timeout': True}}",
            ),
            also("RPT119", f"{OPTIONS}.retry_on_timeout", "worker.py: ack_emulation"),
            change("RPT213", "result_expires", "worker.py", "result_expires = 7200", "result_expires = 30"),
            in_class("RPT502", "task_default_max_retries", "task_default_max_retries = 5"),
            in_class("RPT502", "CELERY_BROKER_URL", "CELERY_BROKER_URL = 'redis://elsewhere/0'"),
            change(
                "RPT509",
                "worker.mail_report",
                "worker.py",
                "time_limit=120,",
                "timeout=120, time_limit=120,",
                at="worker.py: @app.task(timeout",
            ),
        ),
        note="early and late",
    ),
    Variant(
        CLASS,
        (
            in_class(
                "RPT120",
                "worker.build_report",
                "task_acks_late = task_reject_on_worker_lost = True",
                at="worker.py: @app.task",
            ),
            in_class(
                "RPT121", "worker.mail_report", "task_acks_on_timeout = False", at="worker.py: @app.task(time_limit"
            ),
            line("RPT122", "worker.mail_report", "supervisord.conf", THREADS, at="worker.py: @app.task(time_limit"),
        ),
        note="without end",
    ),
    Variant(
        FACTORY,
        (
            in_dict(
                "RPT202", "site_app.tasks.wait_a_bit", '"task_acks_late": True,', at="site_app/tasks.py: @shared_task()"
            ),
            in_dict(
                "RPT108",
                "site_app.tasks.wait_a_bit",
                '"worker_deduplicate_successful_tasks": True,',
                at="site_app/tasks.py: @shared_task()",
            ),
            also("RPT201", "site_app.tasks.sum_up", "site_app/tasks.py: @shared_task(ignore_result=False)"),
            in_dict("RPT405", "accept_content", '"accept_content": ["pickle", "json"],'),
            in_dict("RPT502", "task_default_time_limit", '"task_default_time_limit": 60,'),
            change(
                "RPT401",
                "broker_url",
                "site_app/__init__.py",
                '"broker_url": "redis://localhost"',
                '"broker_url": "redis://db.example.org/0"',
            ),
            also("RPT403", "broker_url", "site_app/__init__.py: db.example.org"),
        ),
        note="a server elsewhere",
    ),
    Variant(
        FACTORY,
        (
            change(
                "RPT404",
                "broker_url",
                "site_app/__init__.py",
                '"broker_url": "redis://localhost"',
                '"broker_url": "rediss://:pw@db.example.org/0?socket_timeout=5"',
            ),
            also("RPT506", "broker_url", "site_app/__init__.py: db.example.org"),
            in_dict("RPT507", "broker_use_ssl", '"broker_use_ssl": {"ca_certs": "ca.crt"},'),
        ),
        note="TLS",
    ),
    Variant(
        OLD_NAMES,
        (
            named("celeryconfig.py", "CELERY_TASK_EXPIRES = 3600"),
            named("celeryconfig.py", "CELERY_CONCURRENCY = 4"),
            named("celeryconfig.py", "CELERY_RESULT_EXPIRE = 3600"),
            named("celeryconfig.py", "CELERYD_TASK_ACKS_LATE = True"),
            line("RPT503", "CELERYD_POOL", "celeryconfig.py", "CELERYD_POOL = 'prefork'"),
            line("RPT313", "broker_pool_limit", "celeryconfig.py", "BROKER_POOL_LIMIT = 0"),
            change(
                "RPT101",
                "jobs.crawl",
                "celeryconfig.py",
                '{"visibility_timeout": 3600}',
                "{'visibility_timeout': 300}",
                at="jobs.py: @app.task",
            ),
            change(
                "RPT102",
                "jobs.fetch",
                "jobs.py",
                "fetch.retry(exc=exc)",
                "fetch.retry(exc=exc, countdown=600)",
                at="jobs.py: @app.task(",
            ),
        ),
        note="and misspelt ones",
    ),
    Variant(
        OLD_NAMES,
        (change("RPT102", "jobs.fetch", "jobs.py", "default_retry_delay=5 * 60", "default_retry_delay=5 * 3600"),),
        note="a retry that does not say when",
    ),
    Variant(
        TASK_CLASSES,
        (
            option("max_retry=5", "def post_status", "pipeline.post_status", "@app.task(bind=True)"),
            option("max_retires=5", "def refresh(user)", "pipeline.refresh", "@app.task(autoretry_for=(Busy,))"),
            option("ack_late=True", "def own_result", "pipeline.own_result", "@app.task(bind=True)"),
            option(
                "retry_delay=5",
                "def forget",
                "pipeline.forget",
                '@app.task(ignore_result=True, serializer="json", compression="gzip", track_started=True)',
            ),
            option("retries=5", "def once_more", "pipeline.once_more", "@app.task(bind=True, acks_late=True)"),
            option("auto_retry_for=(Busy,)", "def keep", "pipeline.keep", "@app.task(base=StoreTask, bind=True)"),
            option(
                "timeout=60", "def until_it_works", "pipeline.until_it_works", "@app.task(bind=True, max_retries=None)"
            ),
            change(
                "RPT509",
                "pipeline.archive",
                "pipeline.py",
                "    max_retries = 2\n",
                "    max_retry = 2\n",
                at="pipeline.py: def run(self, path)",
            ),
            change("RPT510", "", "pipeline.py", "self.retry(exc=exc)", "self.retry(exc, countdown=10)"),
            change("RPT510", "", "pipeline.py", "self.retry(exc=exc, countdown=60)", "self.retry(exc=exc, delay=60)"),
        ),
        note="misspelt options",
    ),
    Variant(
        TASK_CLASSES,
        (
            change(
                "RPT320",
                "pipeline.transcode",
                "pipeline.py",
                "soft_time_limit=60",
                "soft_time_limit=90",
                at="pipeline.py: @app.task(",
            ),
            change(
                "RPT113",
                "pipeline.convert",
                "pipeline.py",
                "@app.task(base=RetryingTask, bind=True)",
                "@app.task(base=RetryingTask, bind=True, time_limit=7200)",
            ),
            change(
                "RPT114",
                "pipeline.render",
                "pipeline.py",
                "countdown=10)",
                "countdown=45 * 60)",
                at="pipeline.py: @app.task(bind=True, acks_late=True)",
            ),
            change(
                "RPT114",
                "pipeline.refresh",
                "pipeline.py",
                "@app.task(autoretry_for=(Busy,))",
                "@app.task(autoretry_for=(Busy,), default_retry_delay=3600)",
            ),
            change(
                "RPT114",
                "pipeline.refresh_slower",
                "pipeline.py",
                "retry_backoff=True)",
                "retry_backoff=True, retry_backoff_max=7200, max_retries=20)",
            ),
            change(
                "RPT114",
                "pipeline.refresh_five_times",
                "pipeline.py",
                'retry_kwargs={"max_retries": 5}',
                'retry_backoff=600, retry_backoff_max=86400, retry_kwargs={"max_retries": 5}',
            ),
        ),
        note="too long",
    ),
    Variant(
        TASK_CLASSES,
        (
            change(
                "RPT206",
                "",
                "pipeline.py",
                "amqp://guest:guest@localhost:5672//",
                "redis://localhost:6379/0",
                at="pipeline.py: raise Reject(exc, requeue=False)",
            ),
        ),
        note="on Redis",
    ),
    Variant(
        ROUTING,
        (
            change(
                "RPT312",
                "task_queues",
                "media/celery.py",
                '{"x-max-priority": 10}',
                '{"x-max-priority": 10, "x-queue-type": "quorum"}',
                at="media/celery.py: app.conf.task_queues",
            ),
            change(
                "RPT318",
                "task_queues",
                "media/celery.py",
                'Queue("feeds", routing_key="feed.#")',
                'Queue("feeds", routing_key="feed.#", durable=False, queue_arguments={"x-consumer-timeout": 1})',
                at="media/celery.py: app.conf.task_queues",
            ),
            also("RPT215", "task_queues", "media/celery.py: app.conf.task_queues"),
            also("RPT205", "task_queues", "media/celery.py: app.conf.task_queues"),
            line("RPT310", "", "supervisord.conf", "command=/srv/bin/celery -A media worker --autoscale=10,3"),
            line("RPT603", "", "Procfile", "worker: celery -A media worker -B"),
            line(
                "RPT316",
                "",
                "media/celery.py",
                "app.conf.worker_enable_remote_control = False",
                at="scripts/health.sh: exec celery",
            ),
            also("RPT316", "", "supervisord.conf: inspect ping"),
            line("RPT502", "task_sent_event", "media/celery.py", "app.conf.task_sent_event = True"),
        ),
        edits=(
            Edit("scripts/health.sh", "exec celery -A media inspect ping"),
            Edit("supervisord.conf", "[program:probe]\ncommand=/srv/bin/celery -A media inspect ping"),
        ),
        note="quorum queues and start commands",
    ),
    Variant(
        ROUTING,
        (
            also("RPT601", "task_default_priority", "media/celery.py: app.conf.task_default_priority = 5"),
            also("RPT601", "media.tasks.resize", "media/tasks.py: @app.task(priority=9)"),
            also("RPT601", "", "media/tasks.py: resize.apply_async((path, width), priority=2)"),
            also("RPT505", "task_queues", "media/celery.py: app.conf.task_queues"),
        ),
        options=("--target", "redis://localhost:6379/0"),
        note="moved to Redis",
    ),
    Variant(
        BEAT,
        (
            line("RPT603", "", "Procfile", "worker: celery -A clock worker -B"),
            line("RPT505", "task_queue_max_priority", "clock/celery.py", "app.conf.task_queue_max_priority = 10"),
            line("RPT502", "celery_enable_utc", "clock/celery.py", "app.conf.celery_enable_utc = False"),
            change(
                "RPT102",
                "clock.tasks.sweep",
                "clock/tasks.py",
                "return 0",
                "return sweep.apply_async(countdown=4000)",
                at="clock/tasks.py: @app.task",
            ),
        ),
        note="embedded",
    ),
    Variant(
        BEAT,
        (
            also("RPT603", "beat_schedule", "clock/celery.py: app.conf.beat_schedule"),
            also("RPT204", f"{OPTIONS}.confirm_publish"),
            also("RPT306", "control_queue_exclusive"),
        ),
        options=("--target", "amqp://clock:a-good-password@localhost//"),
        note="moved to RabbitMQ",
    ),
    Variant(
        ATTRIBUTES,
        (
            named("worker.py", "celery.conf.broker_transport_option = {'visibility_timeout': 43200}"),
            line("RPT504", f"{OPTIONS}.visibility_timout", "worker.py", f"celery.conf.{OPTIONS} = {MISSPELT}"),
            line(
                "RPT308",
                "broker_connection_retry_on_startup",
                "worker.py",
                "celery.conf.broker_connection_retry_on_startup = False",
            ),
            named("worker.py", "celery.conf.result_backend_max_connections = 5"),
            line(
                "RPT102",
                "create_job",
                "worker.py",
                "def later():\n    create_job.apply_async((1,), countdown=2 * 3600)",
                at='worker.py: @celery.task(name="create_job")',
            ),
            line("RPT317", "", "docker-compose.yml", EXPORTER, at="docker-compose.yml: command: celery-exporter"),
        ),
        edits=(Edit("Dockerfile", 'CMD ["celery", "-A", "worker.celery", "worker"]'),),
        note="attributes",
    ),
    Variant(
        ATTRIBUTES,
        (
            line(
                "RPT101",
                "create_job",
                "worker.py",
                "celery.conf.task_time_limit = 3600",
                at='worker.py: @celery.task(name="create_job")',
            ),
            line(
                "RPT301",
                f"{OPTIONS}.socket_timeout",
                "worker.py",
                f"celery.conf.{OPTIONS} = {{'socket_timeout': None}}",
            ),
        ),
        edits=(Edit("Procfile", "worker: celery -A worker.celery worker --prefetch-multiplier=1"),),
        note="a limit of an hour",
    ),
    Variant(
        INSTANCE,
        (
            in_instance("RPT502", "CELERY_TASK_ACK_LATE", "CELERY_TASK_ACK_LATE = True"),
            in_instance("RPT502", "CELERY_TASK_DEFAULT_RETRY_DELAY", "CELERY_TASK_DEFAULT_RETRY_DELAY = 5"),
            in_instance("RPT503", "CELERYD_PREFETCH_MULTIPLIER", "CELERYD_PREFETCH_MULTIPLIER = 1"),
            in_instance("RPT405", "accept_content", 'CELERY_ACCEPT_CONTENT = ["json", "pickle"]'),
            change(
                "RPT102",
                "project.users.call_webhook",
                "project/users.py",
                "retry_backoff=True",
                "retry_backoff=600, retry_backoff_max=86400",
            ),
        ),
        note="class attributes",
    ),
    Variant(
        CONF_UPDATE,
        (
            named("webapp.py", "celery.conf.task_retry_kwargs = {'max_retries': 5}"),
            named("webapp.py", "celery.conf.task_result_expires = 60"),
            line("RPT502", "CELERY_RESULT_EXPIRES", "webapp.py", "CELERY_RESULT_EXPIRES=3600,", "DEBUG=True"),
            line("RPT503", "CELERY_ACKS_LATE", "webapp.py", "CELERY_ACKS_LATE=True,", "DEBUG=True"),
            also("RPT201", "webapp.send_mail", "webapp.py: @celery.task"),
        ),
        note="the site's configuration",
    ),
    Variant(
        CONF_UPDATE,
        (
            change(
                "RPT502",
                "CELERY_BROKER_URL",
                "webapp.py",
                'broker=web.config["CELERY_BROKER_URL"],',
                "",
                at="webapp.py: CELERY_BROKER_URL=",
            ),
        ),
        note="a broker without an adapter",
    ),
]


#: What makes an application good on either broker, as source text.
GOOD_TASKS = {
    "task_acks_late": "True",
    "task_retry_on_worker_lost": "True",
    "task_store_errors_even_if_ignored": "True",
    "task_time_limit": "600",
    "task_soft_time_limit": "540",
    "worker_prefetch_multiplier": "1",
    "worker_cancel_long_running_tasks_on_connection_loss": "False",
    "broker_connection_max_retries": "None",
}
GOOD_ON_REDIS = {
    **GOOD_TASKS,
    "worker_soft_shutdown_timeout": "900",
    OPTIONS: """{
        "visibility_timeout": 7200,
        "unacked_restore_throttle": 1,
        "socket_timeout": 15,
        "socket_keepalive": True,
        "socket_keepalive_options": {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3},
    }""",
}
GOOD_ON_RABBITMQ = {
    **GOOD_TASKS,
    "worker_soft_shutdown_timeout": "15",
    OPTIONS: """{
        "confirm_publish": True,
        "read_timeout": 15,
        "write_timeout": 15,
        "socket_settings": {socket.TCP_USER_TIMEOUT: 15000},
    }""",
    "broker_heartbeat": "10",
    "control_queue_exclusive": "False",
    "control_queue_durable": "True",
}
#: On quorum queues, so that RabbitMQ itself delays tasks and counts deliveries.
GOOD_QUEUES = {
    "task_default_queue_type": "'quorum'",
    "task_default_exchange_type": "'topic'",
    "task_queues": """[
        Queue(
            "celery",
            Exchange("celery", type="topic"),
            routing_key="celery",
            queue_arguments={
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "celery.dead",
            },
        )
    ]""",
}


def written(settings: dict[str, str], before: str, between: str = " = ", end: str = "") -> str:
    """Settings in a shape's own way of writing."""
    return "\n".join(f"{before}{name}{between}{value}{end}" for name, value in settings.items())


def under_namespace(settings: dict[str, str]) -> str:
    return written({name.upper(): value for name, value in settings.items()}, "CELERY_")


def sockets(file: str, after: str) -> Edit:
    return Edit(file, "import socket", after=after)


def login(file: str, old: str) -> Edit:
    return Edit(file, "amqp://shop:a-good-password@localhost//", instead_of=old)


#: Each application with good settings, in its own way of writing.
GOOD = [
    Variant(
        FIRST_STEPS,
        edits=(sockets("tasks.py", "import time"), Edit("tasks.py", written(GOOD_ON_REDIS, "app.conf."))),
    ),
    Variant(
        CONFIG_MODULE,
        edits=(
            sockets("celeryconfig.py", "import os"),
            Edit("celeryconfig.py", written(GOOD_ON_RABBITMQ, "")),
            Edit("celeryconfig.py", "redis://localhost:6379/1", instead_of="rpc://"),
            Edit("celeryconfig.py", "pyamqp://shop:a-good-password@", instead_of="pyamqp://guest:guest@"),
        ),
    ),
    Variant(
        NEXT_STEPS,
        edits=(
            sockets("proj/celery.py", "from celery import Celery"),
            Edit("proj/celery.py", written(GOOD_ON_RABBITMQ, "", "=", ","), after="result_expires"),
            login("proj/celery.py", "amqp://"),
            Edit("proj/celery.py", "redis://localhost:6379/1", instead_of="rpc://"),
        ),
    ),
    Variant(
        NAMESPACE,
        edits=(
            sockets("shop/settings.py", "import os"),
            Edit("shop/settings.py", under_namespace(GOOD_ON_REDIS)),
        ),
    ),
    Variant(
        CLASS,
        edits=(
            sockets("worker.py", "import os"),
            Edit("worker.py", written(GOOD_ON_REDIS, ""), after="worker_max_tasks_per_child"),
        ),
    ),
    Variant(
        FACTORY,
        edits=(
            sockets("site_app/__init__.py", "from celery import"),
            Edit("site_app/__init__.py", written(GOOD_ON_REDIS, '"', '": ', ","), after="task_ignore_result"),
        ),
    ),
    Variant(
        OLD_NAMES,
        edits=(
            Edit("oldapp.py", "newconfig", instead_of="celeryconfig"),
            Edit("newconfig.py", "import socket\n\nbroker_url = result_backend = 'redis://localhost:6379/0'"),
            Edit("newconfig.py", "imports = ('jobs',)"),
            Edit("newconfig.py", written(GOOD_ON_REDIS, "")),
        ),
        note="with new names",
    ),
    Variant(
        TASK_CLASSES,
        edits=(
            sockets("pipeline.py", "import random"),
            Edit("pipeline.py", "from kombu import Exchange, Queue", after="import random"),
            # before a task is registered by hand, which makes all tasks with the settings of that moment
            Edit("pipeline.py", written(GOOD_ON_RABBITMQ | GOOD_QUEUES, "app.conf."), after="app = Celery("),
            login("pipeline.py", "amqp://guest:guest@localhost:5672//"),
        ),
    ),
    Variant(
        ROUTING,
        edits=(
            sockets("media/celery.py", "import re"),
            Edit("media/celery.py", written(GOOD_ON_RABBITMQ, "app.conf.")),
            login("media/celery.py", "amqp://guest@localhost//"),
            Edit("media/celery.py", 'Queue("feeds", max_priority=10,', instead_of='Queue("feeds",'),
            Edit("media/celery.py", "app.conf.result_backend = 'redis://localhost:6379/1'"),
            # classic queues, as priorities need them, leave delays to the worker
            Edit("media/api.py", "args=[url], expires=120", instead_of="args=[url], countdown=10, expires=120"),
            Edit("media/api.py", "(post_id,), expires=", instead_of="(post_id,), eta=tomorrow, expires="),
            Edit(
                "media/tasks.py",
                "group(resize.s(path, width) for path in paths).apply_async(priority=2)",
                instead_of="for path in paths:\n        resize.apply_async((path, width), priority=2)",
            ),
            Edit("media/tasks.py", "from celery import group\n\nfrom .celery", instead_of="from .celery"),
        ),
    ),
    Variant(
        BEAT,
        edits=(
            sockets("clock/celery.py", "from datetime"),
            Edit("clock/celery.py", written(GOOD_ON_REDIS, "app.conf.")),
            Edit("clock/celery.py", "app.conf.result_backend = 'redis://localhost:6379/1'"),
            Edit(
                "Procfile", "worker: celery -A clock worker -E\nbeat: celery -A clock beat\nweb: celery -A clock flower"
            ),
        ),
    ),
    Variant(
        ATTRIBUTES,
        edits=(sockets("worker.py", "import os"), Edit("worker.py", written(GOOD_ON_REDIS, "celery.conf."))),
    ),
    Variant(
        INSTANCE,
        edits=(
            sockets("project/config.py", "import os"),
            Edit("project/config.py", under_namespace(GOOD_ON_REDIS), after="DEBUG = True"),
        ),
    ),
    Variant(
        CONF_UPDATE,
        edits=(
            sockets("webapp.py", "from contextlib"),
            Edit(
                "webapp.py",
                '    celery.conf.update(web.config["CELERY"])',
                instead_of="    celery.conf.update(web.config)",
            ),
            Edit("webapp.py", "CELERY={\n" + written(GOOD_ON_REDIS, '"', '": ', ",") + "\n},", after="DEBUG=True"),
        ),
    ),
]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Judge]:
    """Judges variants; those of the tests that were chosen are begun at once."""
    with Judge(tmp_path_factory.mktemp("apps")) as judge:
        for item in request.session.items:
            selected = (
                item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
            )
            for variant in (one for one in selected if isinstance(one, Variant)):
                judge.begin(variant)
        yield judge


@pytest.mark.parametrize(
    ("variant", "expected"),
    [(Variant(shape), rules) for shape, rules in AS_WRITTEN],
    ids=[shape.directory for shape, _ in AS_WRITTEN],
)
def test_an_application_as_the_tutorial_writes_it(judged: Judge, variant: Variant, expected: set[str]) -> None:
    found = judged(variant)
    assert expected == found.rules, found.findings
    worst = {one["severity"] for one in found.findings}
    assert (4 if "error" in worst else 0) == found.exit_code


@pytest.mark.parametrize("variant", MISTAKES, ids=str)
def test_planted_mistakes_are_found(judged: Judge, variant: Variant) -> None:
    """Each with its task or setting and its line; and none of them where nothing is planted."""
    found = judged(variant)
    plain = judged(Variant(variant.shape))
    expected = [plant.expected for plant in variant.plants]
    shown = [(one["rule"], one["task"] or one["setting"], one["file"], found.line(one)) for one in found.findings]
    assert [one for one in expected if not found.says(one)] == [], shown
    assert [one for one in expected if plain.says(one)] == []
    assert found.exit_code == 4 or "error" not in {one["severity"] for one in found.findings}


def test_enough_mistakes_are_planted() -> None:
    assert len([plant for variant in MISTAKES for plant in variant.plants]) >= 100


@pytest.mark.parametrize("variant", GOOD, ids=str)
def test_a_good_configuration_is_silent(judged: Judge, variant: Variant) -> None:
    found = judged(variant)
    assert found.exit_code == 0, found.stderr
    # what only a worker that repot configures can change
    assert [one for one in found.findings if one["rule"] != "RPT219"] == []
    assert [
        one for one in found.report["not_judged"] if one["remedy"] != "Add --live." and "worker" not in one["reason"]
    ] == []


def test_every_shape_is_judged_as_written_with_mistakes_and_good() -> None:
    shapes = {one for one in globals().values() if isinstance(one, Shape)}
    assert (
        shapes == {shape for shape, _ in AS_WRITTEN} == {one.shape for one in MISTAKES} == {one.shape for one in GOOD}
    )


#: In the project's file: one with a reason, one without.
IN_FILE = """\
[tool.repot.doctor.waive]
RPT308 = "the supervisor starts it again"
RPT302 = ""
RPT112 = "" """
WAIVED = [
    (
        Variant(
            FIRST_STEPS,
            edits=(
                Edit("pyproject.toml", IN_FILE),
                Edit("tasks.py", "# repot: ignore[RPT203] made again by hand", after="text if len(text)"),
                Edit(
                    "tasks.py", "@app.task  # repot: ignore[RPT203]\ndef multiply", instead_of="@app.task\ndef multiply"
                ),
            ),
            note="above a decorator",
        ),
        {("RPT203", "make_thumbnail", "made again by hand")},
        {("RPT203", "tasks.multiply"), ("RPT302", f"{OPTIONS}.socket_keepalive")},
        {"tasks.py", "pyproject.toml"},
    ),
    (
        Variant(
            NAMESPACE,
            edits=(
                Edit("pyproject.toml", IN_FILE),
                Edit("pyproject.toml", '"RPT110:shop.orders.*" = "orders are short"'),
                Edit(
                    "shop/catalog/tasks.py",
                    "@shared_task(ignore_result=True)  # repot: ignore[RPT203, RPT101] built every night",
                    instead_of="@shared_task(ignore_result=True)",
                ),
                Edit("shop/celery.py", "# repot: ignore[RPT203]", after="app.autodiscover_tasks"),
            ),
            note="beside a decorator",
        ),
        {
            ("RPT203", "shop.catalog.tasks.rebuild_search_index", "built every night"),
            ("RPT101", "shop.catalog.tasks.rebuild_search_index", "built every night"),
            ("RPT110", "shop.orders.tasks.charge_card", "orders are short"),
            ("RPT110", "shop.orders.tasks.confirm_order", "orders are short"),
        },
        {("RPT203", "shop.celery.debug_request"), ("RPT110", "shop.celery.debug_request")},
        {"shop/celery.py", "pyproject.toml"},
    ),
    (
        Variant(
            TASK_CLASSES,
            edits=(
                Edit("pyproject.toml", IN_FILE),
                Edit("pipeline.py", "# repot: ignore[RPT201] archived again in an hour", after="max_retries = 2"),
                Edit(
                    "pipeline.py",
                    "@app.task(bind=True)  # repot: ignore[RPT203]\ndef own_result",
                    instead_of="@app.task(bind=True)\ndef own_result",
                ),
            ),
            note="in a class",
        ),
        {("RPT201", "pipeline.archive", "archived again in an hour")},
        {("RPT203", "pipeline.own_result"), ("RPT112", f"{OPTIONS}.socket_settings")},
        {"pipeline.py", "pyproject.toml"},
    ),
]


@pytest.mark.parametrize(("variant", "waived", "kept", "files"), WAIVED, ids=[str(one[0]) for one in WAIVED])
def test_a_waiver_with_a_reason_is_honoured(
    judged: Judge, variant: Variant, waived: set[object], kept: set[object], files: set[str]
) -> None:
    """One without is a finding itself, and waives nothing."""
    found = judged(variant)
    honoured = {(one["rule"], one["task"] or one["setting"], one["waiver"]["reason"]) for one in found.report["waived"]}
    connection = ("RPT308", "broker_connection_max_retries", "the supervisor starts it again")
    assert waived | {connection} == honoured
    assert kept <= {(one["rule"], one["task"] or one["setting"]) for one in found.findings}
    assert files == {one["file"] for one in found.findings if one["rule"] == "RPT001"}


APPLICATION = "from celery import Celery\napp = Celery('shop', broker='redis://localhost/0')\n"
ADDRESS = f"amqp://shop:{PLANTED}@db.example.org//"
#: What `-A` says, what stands in shop.py, the exit code and the words of the error.
UNUSABLE: dict[str, tuple[str, str, int, str]] = {
    "no such module": ("shops", "", 6, "no module named 'shops'"),
    "no such name": ("shop:application", APPLICATION, 6, "'shop' has no 'application'"),
    "no such attribute": ("shop.application", APPLICATION, 6, "was not found"),
    "no application in it": ("shop", "", 6, "was not found"),
    "another thing": ("shop:app", "app = {}", 2, "is a dict, not a Celery application"),
    "raises": ("shop", f"raise OSError('no answer from {ADDRESS}')", 7, "OSError: no answer from amqp://shop:**@"),
    "exits": (
        "shop",
        f"import sys\nsys.exit('no answer from {ADDRESS}')",
        7,
        "SystemExit: no answer from amqp://shop:**@",
    ),
    "syntax": ("shop", f"app = '{ADDRESS}'\ndef x(:", 7, "SyntaxError: invalid syntax"),
    "misses a module": ("shop", "import nowhere_to_be_found", 7, "No module named 'nowhere_to_be_found'"),
    "misses its configuration": (
        "shop",
        f"{APPLICATION}app.config_from_object('settings')",
        7,
        "No module named 'settings'",
    ),
    "misses its tasks": ("shop", f"{APPLICATION}app.conf.include = ['shop_tasks']", 7, "No module named 'shop_tasks'"),
    "mixes names": (
        "shop",
        f"{APPLICATION}app.config_from_object({{'task_acks_late': 1, 'imports': (), 'CELERYD_POOL': 'solo'}})",
        7,
        "Cannot mix new and old setting keys",
    ),
    "another broker": (
        "shop",
        f"{APPLICATION}app.conf.broker_url = 'sqs://key:{PLANTED}@'",
        2,
        "repot supports Redis and RabbitMQ",
    ),
}


@pytest.mark.parametrize(("app", "text", "exit_code", "says"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_application_that_cannot_be_used_is_one_error(
    tmp_path: Path, app: str, text: str, exit_code: int, says: str
) -> None:
    """With a hint, its exit code, and no secret; a traceback only where one is asked for."""
    (tmp_path / "shop.py").write_text(text)
    found = run([sys.executable, "-m", "repot", "doctor", "-A", app, "--format", "json"], tmp_path)
    assert exit_code == found.returncode
    assert says in found.stderr
    starts = [line.partition(":")[0] for line in found.stderr.splitlines()]
    assert (starts.count("error"), starts.count("hint")) == (1, 1), found.stderr
    assert "Traceback" not in found.stderr
    assert PLANTED not in found.stderr
    assert not found.stdout


@pytest.mark.parametrize("case", ["raises", "misses its configuration"])
def test_a_traceback_is_shown_on_request(tmp_path: Path, case: str) -> None:
    """Without the password that the exception tells."""
    app, text, exit_code, says = UNUSABLE[case]
    (tmp_path / "shop.py").write_text(text)
    found = run([sys.executable, "-m", "repot", "--traceback", "doctor", "-A", app], tmp_path)
    assert exit_code == found.returncode
    assert "Traceback (most recent call last)" in found.stderr
    assert says in found.stderr
    assert PLANTED not in found.stdout + found.stderr


@pytest.mark.parametrize("shape", [shape for shape, _ in AS_WRITTEN], ids=lambda shape: shape.directory)
def test_with_another_interpreter_it_finds_the_same(judged: Judge, shape: Shape) -> None:
    alone = judged(Variant(shape))
    other = judged(Variant(shape, options=("--python", sys.executable), note="by another interpreter"))
    assert alone.report == {**other.report, "read_with": None}
    assert alone.exit_code == other.exit_code
    assert sys.executable == other.report["read_with"]


@pytest.mark.parametrize("shape", [NAMESPACE, TASK_CLASSES], ids=lambda shape: shape.directory)
def test_mounted_under_celery_it_finds_the_same(judged: Judge, shape: Shape) -> None:
    alone, mounted = judged(Variant(shape)), judged(Variant(shape, mounted=True))
    assert alone.report == mounted.report
    assert alone.exit_code == mounted.exit_code
