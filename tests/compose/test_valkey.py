"""The lease store on a Valkey from its image, where the distribution has none."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from repot.errors import StoreUnreachable
from repot.testbed import free_port
from repot.waiting import wait_until
from support.docker import docker
from support.leases import TimedRedis, drive

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def valkey() -> Iterator[str]:
    """The address of a Valkey in a container."""
    name, port = f"repot-test-valkey-{uuid4().hex[:8]}", free_port()
    docker("run", "--detach", "--rm", "--name", name, "--publish", f"127.0.0.1:{port}:6379", "valkey/valkey:8")
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        docker("rm", "--force", name)


def test_store_and_double_agree_on_valkey(valkey: str) -> None:
    wait_until(lambda: _answers(valkey), within_s=60, what="Valkey answers")
    assert "valkey_version" in TimedRedis(valkey).store.client.info("server")
    drive(lambda: TimedRedis(valkey))


def _answers(url: str) -> bool:
    try:
        TimedRedis(url).store.now()
    except StoreUnreachable:
        return False
    return True
