"""The application of a worker in a process of its own: as the fixtures of Celery's tests make theirs."""

from __future__ import annotations

import os

from celery.contrib.testing import app as testing

import conformance.recording  # noqa: F401 - configures it where the environment asks for it

# those of `celery_config` in t/integration/conftest.py that a worker reads
app = testing.TestApp(
    config={
        "broker_url": os.environ["TEST_BROKER"],
        "result_backend": os.environ["TEST_BACKEND"],
        "result_extended": True,
        "task_create_missing_queues": False,
    },
    set_as_current=True,
)
app.set_default()
app.loader.import_task_module("celery.contrib.testing.tasks")
app.register_task(app.loader.import_task_module("t.integration.tasks").ClassBasedAutoRetryTask)
