"""`repot healthcheck`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from repot.healthcheck.answer import Answer


@click.group()
def healthcheck() -> None:
    """Tell whether a worker lives and takes tasks: the sidecar, and the probes without it.

    Both read what the worker says of itself once a second in WORKER_PULSE_FOLDER.
    HEALTHCHECK_* variables set them up; `repot config variables` lists them.
    """


_HINTS = {
    "no_worker": "Has it started, with repot.configure(app)? Both need the same user, WORKER_APP and WORKER_BROKER_URL"
    ", or WORKER_PULSE_FOLDER; a systemd unit with PrivateTmp=yes needs WORKER_PULSE_FOLDER, too (RuntimeDirectory=).",
    "misconfigured": "`repot config show` shows the address in use here.",
}

_JSON = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


@healthcheck.command()
def serve() -> None:
    """Serve /live, /ready, /startup, /health and /metrics for one worker, until SIGTERM.

    It needs the WORKER_* variables of its worker, and listens on HEALTHCHECK_HOST and
    HEALTHCHECK_PORT: 127.0.0.1, port 9000.
    """
    from repot.config import load, load_healthcheck
    from repot.healthcheck.liveness import expanded
    from repot.healthcheck.serve import serve as run

    worker = load()
    health = load_healthcheck(worker)

    def announce() -> None:
        node = expanded(health.node) if health.node else "the only worker here"
        click.echo(f"serving http://{health.host}:{health.port} for {node}", err=True)

    run(worker, health, announce)


@healthcheck.command()
@click.option("--live/--ready", default=True, help="Is the worker alive?  [default]  Does it take tasks?")
@_JSON
def probe(*, live: bool, as_json: bool) -> None:
    """Look once, without the sidecar; exit code 0 for yes, 4 for no.

    --live reads the worker's pulse and asks no broker. --ready asks the worker over
    its broker, which takes a connection each time: the sidecar's /ready costs less.
    """
    if live:
        _probe_live(as_json=as_json)
        return
    from repot.config import load, load_healthcheck
    from repot.healthcheck.watch import Watch, ask_once

    worker = load()
    health = load_healthcheck(worker)
    _say("ready", ask_once(Watch(worker, health), health.deadline_s), as_json=as_json)


@healthcheck.command()
@_JSON
def live(*, as_json: bool) -> None:
    """Is the worker alive? The same as `probe --live`."""
    _probe_live(as_json=as_json)


def _probe_live(*, as_json: bool) -> None:
    from repot.config.probe import probe_settings
    from repot.healthcheck.liveness import find_pulse, liveness

    settings = probe_settings()
    found = find_pulse(settings.folder, settings.node)
    _say("live", liveness(found, settings.pulse_timeout_s), as_json=as_json)


def _say(question: str, answer: Answer, *, as_json: bool) -> None:
    from repot.errors import WorkerUnhealthy

    if as_json:
        click.echo(json.dumps({question: answer.ok, "state": answer.state, "reason": answer.reason}))
    elif answer.ok:
        click.echo(f"{question}: {answer.reason}")
    if not answer.ok:
        message = f"not {question}: {answer.reason}"
        raise WorkerUnhealthy(message, hint=_HINTS.get(answer.state, ""))
