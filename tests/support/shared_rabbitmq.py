"""One RabbitMQ for all processes of a run: each costs seconds of a processor to start, and a part of it while it waits.

`python -m campaign` starts it and names it in the environment; without that, each process of pytest starts its own. A
module has a virtual host of its own there. What concerns the whole server, such as an alarm, is for another one.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import requests

from repot.config import inherited_environment
from repot.errors import ProgramMissing
from repot.testbed import executables, rabbitmq_server
from repot.testbed.servers import Server
from support.installed import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed.process import ReapedProcess

_VARIABLE = "REPOT_TESTS_RABBITMQ"
_USER = "guest"


@contextmanager
def shared_by_a_run() -> Iterator[dict[str, str]]:
    """Start the server, if it is installed; yield the variables by which processes of pytest find it."""
    try:
        executables.RABBITMQ.find()
    except ProgramMissing:
        yield {}
        return
    with rabbitmq_server() as server:
        found = asdict(replace(server, process=cast("ReapedProcess", None)))
        yield {_VARIABLE: json.dumps(found | {"directory": str(server.directory), "variables": dict(server.variables)})}


@contextmanager
def whole_rabbitmq() -> Iterator[Server]:
    """Yield the run's server, or one of this process."""
    if named := inherited_environment(without=()).get(_VARIABLE):
        found = json.loads(named)
        yield Server(**found | {"directory": Path(found["directory"])})
        return
    require(executables.RABBITMQ)
    with rabbitmq_server() as server:
        yield server


@contextmanager
def with_virtual_host(server: Server) -> Iterator[Server]:
    """Make a virtual host, and delete it at the end with all queues in it, each of which costs the server time."""
    name = f"t-{uuid4().hex[:8]}"
    ask(server, "PUT", f"vhosts/{name}")
    ask(server, "PUT", f"permissions/{name}/{_USER}", dict.fromkeys(("configure", "write", "read"), ".*"))
    yield replace(server, url=f"amqp://{_USER}:{_USER}@127.0.0.1:{server.port}/{name}")
    ask(server, "DELETE", f"vhosts/{name}")


def vhost_of(server: Server) -> str:
    """Return the virtual host of a server's address, as a path of the management API has it."""
    return server.url.rpartition("/")[2] or "%2F"


def ask(server: Server, method: str, path: str, body: Any = None) -> Any:
    """Ask a server's management API as its administrator; return what the answer has."""
    with requests.Session() as session:
        session.trust_env, session.auth = False, (_USER, _USER)
        answer = session.request(method, f"{server.management_url}/api/{path}", json=body, timeout=60)
    answer.raise_for_status()
    return answer.json() if answer.content else None
