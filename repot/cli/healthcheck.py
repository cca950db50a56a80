"""`repot healthcheck`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from repot.cli.output import echo, echo_json

if TYPE_CHECKING:
    from repot.healthcheck.probe_result import ProbeResult


@click.group()
def healthcheck() -> None:
    """Check whether a worker is alive and takes tasks: run a sidecar, or probe once.

    Both read the status file that the worker writes once a second to WORKER_STATUS_DIR.
    HEALTHCHECK_* variables configure them; `repot config variables` lists these.
    """


_HINTS = {
    "no_worker": "Has the worker started, with repot.configure(app)? It and the probe need the same user, and the same "
    "WORKER_APP and WORKER_BROKER_URL or WORKER_STATUS_DIR; a systemd unit with PrivateTmp=yes always needs "
    "WORKER_STATUS_DIR (RuntimeDirectory=).",
    "misconfigured": "`repot config show` prints the address in use here.",
}

_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@healthcheck.command()
def serve() -> None:
    """Serve /live, /ready, /startup, /health and /metrics for one worker, until SIGTERM.

    Needs the WORKER_* variables of its worker. Listens on HEALTHCHECK_HOST and
    HEALTHCHECK_PORT: 127.0.0.1, port 9000.
    """
    from repot.config import load, load_healthcheck
    from repot.healthcheck.liveness import full_node_name
    from repot.healthcheck.serve import serve as run

    worker = load()
    health = load_healthcheck(worker)

    def announce() -> None:
        node = full_node_name(health.node) if health.node else "the only worker here"
        echo(f"serving http://{health.host}:{health.port} for {node}", err=True)

    run(worker, health, announce)


@healthcheck.command()
@click.option("--live/--ready", default=True, help="Check that the worker is alive [default], or that it takes tasks.")
@_JSON
def probe(*, live: bool, as_json: bool) -> None:
    """Probe once, without a sidecar; exit code 0 for yes, 4 for no.

    --live reads the worker's status file and asks no broker. --ready pings the worker
    over its broker, with a new connection each time: the sidecar's /ready costs less.
    """
    if live:
        _probe_live(as_json=as_json)
        return
    from repot.config import load, load_healthcheck
    from repot.healthcheck.worker_probe import WorkerProbe, check_readiness_once

    worker = load()
    health = load_healthcheck(worker)
    _report("ready", check_readiness_once(WorkerProbe(worker, health), health.deadline_s), as_json=as_json)


@healthcheck.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
def metrics(*, names: tuple[str, ...]) -> None:
    """Print once what Prometheus scrapes from a sidecar: the numbers that an alert saw.

    Needs no sidecar: it reads the worker's status file, pings the worker and counts its
    queues. With names, only samples that start with one of them; exit code 4 if there are
    none. A value that is unknown has no sample.
    """
    from repot.config import load, load_healthcheck
    from repot.errors import CheckFailed
    from repot.healthcheck.sidecar import scrape_once

    worker = load()
    lines = scrape_once(worker, load_healthcheck(worker)).splitlines()
    shown = [line for line in lines if line.startswith(names)] if names else lines
    for line in shown:
        echo(line)
    if not shown:
        message = f"no sample of {', '.join(names)}: its value is unknown here, or there is no such metric"
        raise CheckFailed(message, hint="docs/healthcheck.md lists the metrics.")


@healthcheck.command()
@_JSON
def live(*, as_json: bool) -> None:
    """Check that the worker is alive; the same as `probe --live`."""
    _probe_live(as_json=as_json)


def _probe_live(*, as_json: bool) -> None:
    from repot.config.probe import probe_settings
    from repot.healthcheck.liveness import find_status, liveness

    settings = probe_settings()
    found = find_status(settings.status_dir, settings.node)
    _report("live", liveness(found, settings.status_timeout_s), as_json=as_json)


def _report(question: str, result: ProbeResult, *, as_json: bool) -> None:
    from repot.errors import CheckFailed

    if as_json:
        echo_json({question: result.ok, "state": result.state, "reason": result.reason}, indent=None)
    elif result.ok:
        echo(f"{question}: {result.reason}")
    if not result.ok:
        message = f"not {question}: {result.reason}"
        raise CheckFailed(message, hint=_HINTS.get(result.state, ""))
