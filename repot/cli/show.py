"""How things look on a terminal. Tables are data, on standard output; progress is talk, on standard error."""

from __future__ import annotations

from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repot.chaos.matrix import counts, matrix, tone
from repot.cli import matrix_table
from repot.cli.printable import printable
from repot.config.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.brokers.local import Server
    from repot.chaos.case import Case
    from repot.chaos.matrix import Matrix
    from repot.chaos.result import Campaign, Cell, Finding, Result, Unmeasured


class Titled(Protocol):
    """A scenario or a profile, whether it can be run or is told of."""

    @property
    def name(self) -> str:
        """How it is chosen."""

    @property
    def title(self) -> str:
        """What it is, in some words."""


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


def scenarios(known: Iterable[Titled]) -> None:
    """A line for each scenario."""
    _titles("scenario", known)


def profiles(known: Iterable[Titled]) -> None:
    """A line for each profile."""
    _titles("profile", known)


def expectations(expected: Mapping[Cell, tuple[Finding, ...]]) -> None:
    """What is expected of the cells of a scenario, a line each."""
    lines = ((cell, tone(findings[0]), " or ".join(map(str, findings))) for cell, findings in expected.items())
    _data().print(matrix_table.lines(lines))


def results(campaign: Campaign) -> None:
    """The matrix where it fits, a line for each cell elsewhere; whatever needs a look comes last."""
    console, laid_out = _data(), matrix(campaign)
    table = matrix_table.side_by_side(laid_out)
    if matrix_table.width(table) <= console.width:
        console.print(table)
    else:
        for part in matrix_table.cell_by_cell(laid_out):
            console.print(part)
    console.print(matrix_table.legend(laid_out), style="dim")
    for text in _summary(campaign, laid_out):
        console.print(text)
    for one in campaign.unmeasured:
        if one.failed:
            console.print(Text.assemble(("FAILED ", "bold red"), f"{one.cell.name}: {printable(one.why)}"))
    for result in campaign.unexpected:
        _unexpected(console, result)


def repetitions(campaign: Campaign) -> None:
    """Whether the runs of each repeated cell found the same; those that did not come last."""
    console = _data()
    repeated = [square for square in matrix(campaign).known if len(square.results) + len(square.unmeasured) > 1]
    if not repeated:
        return
    equal = sum(not square.differs for square in repeated)
    console.print(f"{equal} of {len(repeated)} repeated cells came out the same in every run")
    for square in repeated:
        if square.differs:
            failed = f"; {len(square.unmeasured)} without a verdict" if square.unmeasured else ""
            console.print(Text.assemble(("DIFFERS ", "bold red"), f"{square.cell.name}: {square.words}{failed}"))


class CampaignProgress:
    """Shows each case's step: a live table on a terminal, a line a step elsewhere."""

    def __init__(self, total: int, *, variable: str = "", quiet_steps: bool = False) -> None:
        """Expect `total` cases.

        With `variable`, tell of each server as the value of that setting, and otherwise of
        none; with `quiet_steps`, of a case's steps on a terminal only.
        """
        self._console = Console(stderr=True)
        self._begun = monotonic()
        self._running: dict[str, str] = {}
        self._done = 0
        self._total = total
        self._variable = f"{variable}=" if variable else ""
        self._quiet_servers = not variable
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

    def serves(self, product: str, version: str, url: str) -> None:
        """A private server serves."""
        self._line(f"{product} {version} serves: {self._variable}{masked(url)}", aside=True)

    def step(self, case: Case, text: str) -> None:
        """A case goes on."""
        with self._lock:
            self._running[case.name] = text
        if not (self._console.is_terminal or self._quiet_steps):
            self._line(f"{case.name}: {text}")

    def result(self, result: Result | Unmeasured) -> None:
        """A case has its verdict, or none."""
        with self._lock:
            self._running.pop(f"{result.cell.name.replace('/', '-')}-{result.number}", None)
            self._done += 1
        self._line(f"{result.cell.name}: {_in_brief(result)}")

    def _line(self, text: str, *, aside: bool = False) -> None:
        if aside and self._quiet_servers:
            return
        self._console.print(
            f"{monotonic() - self._begun:6.1f} s  {masked(text)}", highlight=False, markup=False, soft_wrap=True
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


def _titles(kind: str, known: Iterable[Titled]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(kind, no_wrap=True)
    table.add_column("what it is")
    for one in known:
        table.add_row(printable(one.name), printable(one.title))
    _data().print(table)


def _summary(campaign: Campaign, laid_out: Matrix) -> Iterable[str]:
    total = counts(laid_out)
    yield ""
    yield (
        f"{total.cells} cells, {total.runs} runs: {total.unexpected} not as expected, {total.lost} with lost tasks, "
        f"{total.duplicated} with duplicated tasks, {total.hung} with a hung worker"
    )
    if total.differing:
        yield f"{total.differing} cells differ from run to run"
    if campaign.interrupted:
        yield "It was stopped before its end."


def _unexpected(console: Console, result: Result) -> None:
    number = f" #{result.number}" if result.number > 1 else ""
    head = Text.assemble(("NOT AS EXPECTED ", "bold red"), (f"{result.cell.name}{number}", "bold"))
    found = f"found {result.finding}, expected {result.expected or 'nothing bad'}"
    console.print(head)
    console.print(Padding(Text(found), (0, 0, 0, 2), expand=False))
    console.print(Padding(Text(printable(result.command), style="dim"), (0, 0, 0, 2), expand=False))


def _table(*heads: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(head)
    return table


def _data() -> Console:
    console = Console()
    # whoever reads a pipe or a file wants whole lines
    return console if console.is_terminal else Console(width=200)


def _in_brief(result: Result | Unmeasured) -> str:
    from repot.chaos.result import Unmeasured

    if isinstance(result, Unmeasured):
        return f"no verdict: {result.why}" if result.failed else f"not applicable: {result.why}"
    after = result.times.redelivered
    again = f", again after {after:.2f} s" if after is not None else ""
    return f"{result.finding}{again}{'' if result.as_expected else '  NOT AS EXPECTED'}"
