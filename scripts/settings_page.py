"""Print docs/settings.md from the settings themselves: `make docs`."""

from repot.config import HealthcheckSettings, WorkerSettings
from repot.config.settings import EnvironmentSettings, describe

HEAD = """# Settings

Every setting is an environment variable. `repot config variables` prints this list; `repot config show` prints the
resulting Celery configuration with the origin of each value. Durations are seconds. An invalid value is an error, as
is a misspelt name; the message names the variable and never shows the value. Other variables that start with
`WORKER_` or `HEALTHCHECK_` belong to other programs: they cause no error, and `repot config show` lists them.

The scheme of `WORKER_BROKER_URL` selects the broker: `redis`, `rediss`, `sentinel` and `redis+socket`, or `amqp`,
`amqps` and `pyamqp`. `valkey` and `valkeys` are read as `redis` and `rediss`, because Celery does not know them. A
URL without a host (`amqp://`) means this machine. Settings for the other broker do not enter Celery's configuration,
so one set of variables serves both. `memory` and `filesystem` are for an application's own tests: they have no
server, and the application's broker settings stay unchanged; a warning reports that.

`WORKER_RESULT_BACKEND` accepts Celery's backends: `redis`, `rpc://`, `db+sqlite:///results.db`, `django-db`,
`shop.results:Store`. A name that the installed Celery does not know is an error when the settings are read.

Two variables of Celery deployments are read as well: `CELERY_QUEUE_NAMES`, the list behind `celery worker -Q`, if
`WORKER_QUEUE_NAMES` is not set; and `CELERY_WORKER_AUTOSCALE`, the pair behind `--autoscale`, which is an error if
RabbitMQ's quorum queues cannot follow it.

An option of `celery worker` takes precedence over a setting, as in Celery: `-c`, `-P`, `-Q`, `-O`,
`--prefetch-multiplier`, the limits. What is an error of a variable is one of its option also, and ends the worker at
its start: `--autoscale` with two different numbers on quorum queues, `-Q` with a queue and its dead-letter queue,
`--soft-time-limit` not below `--time-limit`.

"""

HEALTHCHECK = """
## The health sidecar

For `repot healthcheck`, beside the `WORKER_*` variables of its worker: [health checks](healthcheck.md).

"""


def page() -> str:
    """Return the whole page."""
    return HEAD + _table(WorkerSettings) + HEALTHCHECK + _table(HealthcheckSettings)


def _table(settings: type[EnvironmentSettings]) -> str:
    rows = [
        # a placeholder in angle brackets is no element of HTML
        f"| `{line.name}` | {f'`{line.default}`' if line.default else ''} | {line.meaning.replace('<', '&lt;')} |"
        for line in describe(settings)
    ]
    return "\n".join(["| variable | default | meaning |", "| --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    print(page(), end="")
