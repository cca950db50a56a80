"""RabbitMQ's own command, for what its APIs do not change."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from repot.brokers.local import programs
from repot.config import inherited_environment
from repot.errors import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

_WITHIN_S = 60


def evaluate(variables: Mapping[str, str], code: str) -> str:
    """What Erlang code gives on the node that `variables` name.

    Raises:
        ServerFailed: the node does not answer, or the code fails.
    """
    return command(variables, "eval", code)


def command(variables: Mapping[str, str], *words: str) -> str:
    """What a command of rabbitmqctl says of the node that `variables` name.

    Raises:
        ServerFailed: the node does not answer, or refuses.
    """
    program = str(Path(programs.RABBITMQ.find()).with_name("rabbitmqctl"))
    environment = inherited_environment(without=("RABBITMQ_", "ERL_")) | dict(variables)
    # its own node would listen on every address
    environment["RABBITMQ_CTL_ERL_ARGS"] = "-kernel inet_dist_use_interface {127,0,0,1}"
    try:
        done = subprocess.run(  # noqa: S603 - RabbitMQ's own command
            [program, "--quiet", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"rabbitmqctl {words[0]}: {error}"
        raise ServerFailed(message) from error
    if done.returncode:
        message = f"rabbitmqctl {words[0]} exited with {done.returncode}"
        raise ServerFailed(message, hint=f"It said:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()
