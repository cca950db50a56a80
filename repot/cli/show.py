"""How things look on a terminal. Tables are data, on standard output; progress is talk, on standard error."""

from __future__ import annotations

from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from repot.config.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from repot.brokers.local import Server
    from repot.chaos.campaign import Summary
    from repot.chaos.experiment import Case, Result
    from repot.chaos.scenarios import Scenario

_BROKERS = {"redis": "Redis", "amqp": "RabbitMQ"}


def addresses(servers: Iterable[Server]) -> dict[str, dict[str, str]]:
    """The addresses of running servers, as data."""
    return {
        server.name.lower(): {"version": server.version, "url": server.url, "management_url": server.management_url}
        for server in servers
    }


def servers(running: Iterable[Server]) -> None:
    """A table of running servers and where to find them."""
    table = _table("server", "version", "address", "management", "started in")
    for server in running:
        started = f"{server.started_in_s:.1f} s"
        table.add_row(server.name, server.version, server.url, server.management_url, started)
    _data().print(table)


def scenarios(known: Iterable[Scenario]) -> None:
    """A table of the scenarios and what each expects."""
    table = _table("scenario", "what happens", "broker", "deduplication off", "deduplication on")
    for scenario in known:
        for number, broker in enumerate(dict.fromkeys(broker for broker, _ in scenario.expected)):
            expected = [_expected(scenario, broker, deduplicate=setting) for setting in (False, True)]
            name, title = ("", "") if number else (scenario.name, scenario.title)
            table.add_row(name, title, _BROKERS[broker], *expected)
        table.add_section()
    _data().print(table)


def results(found: Sequence[Result]) -> None:
    """A table with a line for each run."""
    table = _table(
        "scenario",
        "broker",
        "dedup",
        "verdict",
        "effects",
        "again after",
        "marked",
        "lost",
        "consumes again",
        "expected",
    )
    for result in found:
        verdict, case, after = result.verdict, result.case, result.consumed_again_after_s
        number = f" #{case.number}" if case.number > 1 else ""
        table.add_row(
            case.scenario.name + number,
            f"{result.product} {result.version}",
            _yes(case.deduplicate, "on", "off"),
            Text(verdict.summary, style="green" if verdict.effects == 1 and not verdict.lost else "red"),
            str(verdict.effects),
            "" if result.redelivered_after_s is None else f"{result.redelivered_after_s:.2f} s",
            "" if verdict.marked is None else _yes(verdict.marked),
            Text("yes", style="red") if verdict.lost or result.others_lost else "no",
            Text("no", style="red") if after is None else f"after {after:.3f} s",
            Text("yes", style="green") if result.as_expected else Text("NO", style="bold red"),
        )
    _data().print(table)


def summary(lines: Iterable[Summary]) -> None:
    """A table with a line for each group of repetitions."""
    table = _table("scenario", "broker", "dedup", "runs", "equal verdicts", "as expected")
    for line in lines:
        table.add_row(
            line.scenario,
            _BROKERS[line.broker],
            _yes(line.deduplicate, "on", "off"),
            str(line.runs),
            _yes(line.equal),
            _yes(line.as_expected),
        )
    _data().print(table)


class CampaignProgress:
    """Shows each case's step: a live table on a terminal, a line a step elsewhere."""

    def __init__(self, total: int, *, variable: str = "", quiet_steps: bool = False) -> None:
        """Expect `total` cases.

        With `variable`, tell of a server as the value of that setting; with
        `quiet_steps`, of a case's steps on a terminal only.
        """
        self._console = Console(stderr=True)
        self._begun = monotonic()
        self._running: dict[str, str] = {}
        self._done = 0
        self._total = total
        self._variable = variable
        self._quiet_steps = quiet_steps
        self._lock = Lock()
        self._live = Live(console=self._console, get_renderable=self._picture, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        if self._console.is_terminal:
            self._live.stop()

    def server(self, server: Server) -> None:
        """A private server serves."""
        url = masked(server.url)
        address = f"{self._variable}={url}" if self._variable else url
        self._line(f"{server.name} {server.version} serves after {server.started_in_s:.1f} s: {address}")

    def step(self, case: Case, text: str) -> None:
        """A case goes on."""
        with self._lock:
            self._running[case.name] = text
        if not (self._console.is_terminal or self._quiet_steps):
            self._line(f"{case.name}: {text}")

    def result(self, result: Result) -> None:
        """A case has its verdict."""
        with self._lock:
            self._running.pop(result.case.name, None)
            self._done += 1
        after = result.redelivered_after_s
        again = f", again after {after:.2f} s" if after is not None else ""
        verdict = f"{result.verdict.summary}, effects {result.verdict.effects}{again}"
        expected = "" if result.as_expected else "  NOT AS EXPECTED"
        self._line(f"{result.case.name}: {verdict}{expected}")

    def _line(self, text: str) -> None:
        self._console.print(
            f"{monotonic() - self._begun:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True
        )

    def _picture(self) -> Table:
        table = Table.grid(padding=(0, 2))
        with self._lock:
            for name, text in self._running.items():
                table.add_row(Text("   ...  ", style="dim"), name, Text(text, style="dim"))
            table.add_row(
                "", Text(f"{self._done} of {self._total} done, {monotonic() - self._begun:.0f} s", style="bold"), ""
            )
        return table


def _expected(scenario: Scenario, broker: str, *, deduplicate: bool) -> str:
    expected = scenario.expected[broker, deduplicate]
    runs = {1: "runs once", 2: "runs twice"}[expected.executed]
    overlapping = ", overlapping" if expected.overlapped else ""
    skipped = ", delivered twice" if expected.redelivered and expected.executed == 1 else ""
    return runs + overlapping + skipped


def _yes(truth: object, yes: str = "yes", no: str = "no") -> str:
    return yes if truth else no


def _table(*heads: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(head)
    return table


def _data() -> Console:
    console = Console()
    # whoever reads a pipe or a file wants whole lines
    return console if console.is_terminal else Console(width=200)
