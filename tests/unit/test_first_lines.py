"""The lines of a worker that is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery

import repot
from repot.worker.configure import configured_with
from repot.worker.first_lines import first_lines

if TYPE_CHECKING:
    from repot.config import WorkerSettings

PLANTED = "hunter2-s3cret"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {},
            [
                "reads redis://:**@own/0, stated in application; leases are in redis://:**@own/1",
                "a task is acknowledged when it has ended, 1 reserved for each process; dead letters go to celery.dead",
                " settings are repot's, 0 of variables",
            ],
        ),
        (
            {
                "WORKER_BROKER_URL": f"amqp://u:{PLANTED}@new//",
                "WORKER_RESULT_BACKEND": "rpc://",
                "WORKER_TASK_ACKS_LATE": "false",
                "WORKER_PREFETCH_MULTIPLIER": "4",
                "WORKER_QUEUE_NAMES": "a,b",
            },
            [
                "reads amqp://u:**@new//, stated in WORKER_BROKER_URL; there is no lease store",
                "a task is acknowledged before it starts, 4 reserved for each process; dead letters go to a.dead, b",
                " of variables: `repot config show` lists them (docs/settings.md)",
            ],
        ),
        (
            {"CELERY_BROKER_URL": "redis://stated/0", "WORKER_DEAD_LETTER_QUEUE": ""},
            [
                "reads redis://stated/0, stated in CELERY_BROKER_URL;",
                "dead letters are deleted",
                "settings are repot's",
            ],
        ),
    ],
)
def test_they_say_what_is_in_effect_and_where_it_is_from(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: list[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    app = Celery("shop", set_as_current=False)
    if not variables:
        app.conf.update(broker_url=f"redis://:{PLANTED}@own/0", result_backend=f"redis://:{PLANTED}@own/1")
    repot.configure(app)
    settings: WorkerSettings | None = configured_with(app)
    assert settings is not None
    lines = first_lines(app, settings, app.conf.worker_prefetch_multiplier, settings.queue_names)
    assert [text in line for text, line in zip(said, lines, strict=True)] == [True] * 3, lines
    assert PLANTED not in "".join(lines)


def test_options_of_the_command_line_replace_the_settings() -> None:
    app = Celery("shop", set_as_current=False)
    settings = repot.configure(app)
    _, handling, _ = first_lines(app, settings, 7, ["orders"])
    assert "7 reserved for each process; dead letters go to orders.dead" in handling
