"""Run `rabbitmqctl`, for changes that RabbitMQ's APIs do not offer."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from repot.config import inherited_environment
from repot.errors import ServerFailed
from repot.testbed import executables

if TYPE_CHECKING:
    from collections.abc import Mapping

_WITHIN_S = 60


def evaluate(variables: Mapping[str, str], code: str) -> str:
    """Evaluate Erlang code on the node that `variables` name; return the result.

    Raises:
        ServerFailed: the node does not answer, or the code fails.
    """
    return command(variables, "eval", code)


def command(variables: Mapping[str, str], *words: str) -> str:
    """Run a command of rabbitmqctl for the node that `variables` name; return its output.

    Raises:
        ServerFailed: the node does not answer, or refuses.
    """
    program = str(Path(executables.RABBITMQ.find()).with_name("rabbitmqctl"))
    environment = inherited_environment(without=("RABBITMQ_", "ERL_")) | dict(variables)
    # the command's own Erlang node would listen on every address
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
