"""Prints docs/settings.md from the settings themselves: `make docs`."""

from repot.config import HealthcheckSettings, WorkerSettings
from repot.config.settings import EnvironmentSettings, describe

HEAD = """# Settings

Every setting is an environment variable. `repot config variables` prints this list, `repot config show` what the
settings make of Celery and where each value comes from. Durations are seconds. A value that cannot be right is an
error, as is a name with a typing error; the message names the variable and never shows the value. Other variables that
begin with `WORKER_` or `HEALTHCHECK_` belong to other programs: they end nothing, and `repot config show` names them.

The scheme of `WORKER_BROKER_URL` alone decides between the brokers: `redis`, `rediss`, `sentinel` and `redis+socket`,
or `amqp`, `amqps` and `pyamqp`. `valkey` and `valkeys` are read as `redis` and `rediss`: Celery does not know them. An
address without a host (`amqp://`) means this machine. What concerns only the other broker is left out of Celery's
configuration, so one set of variables serves both. `memory` and `filesystem` are for an application's own tests: they
have no server, and everything about a broker is left as the application has it; a warning says so.

`WORKER_RESULT_BACKEND` takes what Celery takes: `redis`, `rpc://`, `db+sqlite:///results.db`, `django-db`,
`shop.results:Store`. A name that no installed Celery knows is refused when the settings are read.

Two variables of Celery deployments are read as well: `CELERY_QUEUE_NAMES`, the list behind `celery worker -Q`, where
`WORKER_QUEUE_NAMES` is not set; and `CELERY_WORKER_AUTOSCALE`, the pair behind `--autoscale`, which is refused where
RabbitMQ's quorum queues could not follow it.

"""

HEALTHCHECK = """
## The health sidecar

For `repot healthcheck`, beside the `WORKER_*` variables of its worker: [health checks](healthcheck.md).

"""


def page() -> str:
    """The whole page."""
    return HEAD + _table(WorkerSettings) + HEALTHCHECK + _table(HealthcheckSettings)


def _table(settings: type[EnvironmentSettings]) -> str:
    rows = [
        f"| `{line.name}` | {f'`{line.default}`' if line.default else ''} | {line.meaning} |"
        for line in describe(settings)
    ]
    return "\n".join(["| variable | default | meaning |", "| --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    print(page(), end="")
