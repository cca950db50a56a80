"""Prints docs/settings.md from the settings themselves: `make docs`."""

from repot.config.settings import describe

HEAD = """# Settings

Every setting is an environment variable. `repot config variables` prints this list, `repot config show` what the
settings make of Celery and where each value comes from. Durations are seconds. A variable that begins with `WORKER_`
and is not in this list is an error, as is a value that cannot be right; the message names the variable and never shows
the value.

The scheme of `WORKER_BROKER_URL` alone decides between the brokers: `redis`, `rediss` and `sentinel`, or `amqp`,
`amqps` and `pyamqp`. What concerns only the other broker is left out of Celery's configuration, so one set of variables
serves both.

| variable | default | meaning |
| --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    rows = (
        f"| `{line.name}` | {f'`{line.default}`' if line.default else ''} | {line.meaning} |" for line in describe()
    )
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(page(), end="")
