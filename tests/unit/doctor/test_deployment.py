"""How workers are started and probed is read from the files that do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from repot.doctor.deployment import read_deployment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("Procfile", "worker: celery -A shop worker -B"),
        ("Dockerfile", 'CMD ["celery", "-A", "shop", "worker", "-B"]'),
        ("Dockerfile", 'CMD ["sh", "-c", "celery -A shop worker -B"]'),
        ("docker-compose.yml", "    command: poetry run celery -A shop worker --beat"),
        ("docker-compose.yml", '    command: "celery -A shop worker -B"'),
        ("k8s/worker.yaml", '          command: ["celery", "-A", "shop", "worker", "-B"]'),
        ("systemd/shop.service", "ExecStart=/bin/sh -c '/srv/bin/celery -A shop worker -B'"),
    ],
)
def test_a_worker_with_its_options(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    found = read_deployment(tmp_path, ())
    assert [worker.options.get("beat") for worker in found.workers] == [True]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("Dockerfile", "HEALTHCHECK CMD celery -A shop inspect ping"),
        ("docker-compose.yml", '      test: ["CMD", "celery", "-A", "shop", "inspect", "ping"]'),
        ("docker-compose.yml", '      test: ["CMD-SHELL", "celery -A shop inspect ping || exit 1"]'),
    ],
)
def test_a_probe_that_pings(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    assert [(file, 1)] == [(location.file, location.line) for location in read_deployment(tmp_path, ()).ping_probes]
