"""Other people's programs that watch workers: Flower, run for real against one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from repot.config import child_environment
from repot.testbed import ReapedProcess, free_port
from repot.waiting import wait_until
from support.sidecars import patient_worker

if TYPE_CHECKING:
    from pathlib import Path

    from repot.testbed import Server


def test_flower_sees_the_worker_and_its_tasks(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> None:
    """By the events that RabbitMQ does not confirm; and the worker stays ready beside a second one who asks it."""
    with patient_worker(server, redis, toxiproxy, tmp_path, send_task_events=True) as probed:
        port = free_port()
        command = [sys.executable, "-m", "celery", "--app", probed.settings.app, "flower"]
        flower = ReapedProcess(
            [*command, "--address=127.0.0.1", f"--port={port}"],
            log=tmp_path / "flower.log",
            environment=child_environment(probed.settings) | {"FLOWER_UNAUTHENTICATED_API": "true"},
            directory=tmp_path,
        )
        opener = build_opener(ProxyHandler({}))

        def ask(path: str) -> Any:
            try:
                with opener.open(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                    return json.load(answer)
            except (URLError, OSError):
                assert flower.exit_code is None, flower.log_tail(30)
                return {}

        with flower:
            node = probed.status.node
            wait_until(lambda: ask("/api/workers?refresh=1").get(node), within_s=40, what="Flower knows the worker")
            task = probed.send("repot.run", 0)
            wait_until(
                lambda: ask(f"/api/task/info/{task}").get("state") == "SUCCESS",
                within_s=20,
                what="Flower knows the task",
                poll_s=0.3,
            )
        wait_until(
            lambda: probed.metric("repot_tasks_succeeded_total", task="repot.run") == 1,
            within_s=30,
            what="the next status file counts it",
        )
        assert probed.get("/ready").short == (200, "ready")
