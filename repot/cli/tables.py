"""Tables on standard output, progress on standard error."""

from __future__ import annotations

from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repot.chaos.report.matrix import counts, matrix, status
from repot.cli import matrix_table
from repot.cli.output import terminal_width, wants_color
from repot.sanitize import fitted, readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.chaos.report.matrix import Matrix
    from repot.chaos.report.result import Campaign, Cell, CellVerdict, Result, Unmeasured
    from repot.chaos.runner.case import Case
    from repot.testbed import Server


#: The width of tables in a pipe or a file: wide enough that no line of theirs is broken.
_PIPE_WIDTH = 200


class Titled(Protocol):
    """A scenario or a profile, or the description of one."""

    @property
    def name(self) -> str:
        """The name that options and arguments take."""

    @property
    def title(self) -> str:
        """A short description."""


def addresses(servers: Iterable[Server]) -> dict[str, dict[str, str]]:
    """Return the addresses of running servers as data."""
    return {
        server.name.lower(): {"version": server.version, "url": server.url, "management_url": server.management_url}
        for server in servers
    }


def servers(running: Iterable[Server]) -> None:
    """Print the running servers and their addresses."""
    table = matrix_table.table_of("server", "version", "address", "management", "started in")
    for server in running:
        started = f"{server.started_in_s:.1f} s"
        table.add_row(server.name, server.version, server.url, server.management_url, started)
    _data().print(table)


def scenarios(known: Iterable[Titled]) -> None:
    """Print a line for each scenario."""
    _titles("scenario", known)


def profiles(known: Iterable[Titled]) -> None:
    """Print a line for each profile."""
    _titles("profile", known)


def expectations(expected: Mapping[Cell, tuple[CellVerdict, ...]]) -> None:
    """Print the expected verdicts of a scenario, a line for each cell."""
    lines = ((cell, status(verdicts[0]), " or ".join(map(str, verdicts))) for cell, verdicts in expected.items())
    _data().print(matrix_table.lines(lines))


def results(campaign: Campaign) -> None:
    """Print the matrix if it fits the terminal, else a line for each cell; what needs attention comes last."""
    console, laid_out = _data(), matrix(campaign)
    if campaign.measure:
        console.print(Text(readable(campaign.measure)))
    _matrix(console, laid_out)
    for text in _summary(campaign, laid_out):
        console.print(text)
    for one in campaign.unmeasured:
        if one.failed:
            console.print(Text.assemble(("FAILED ", "bold red"), f"{one.cell.name}: {readable(one.why)}"))
    for result in campaign.unexpected:
        _unexpected(console, result)


def repetitions(campaign: Campaign) -> None:
    """Print how many repeated cells are stable, then the spread of each, those that are not stable last."""
    console = _data()
    repeated = [summary for summary in matrix(campaign).known if len(summary.results) + len(summary.unmeasured) > 1]
    if not repeated:
        return
    equal = sum(not summary.differs for summary in repeated)
    console.print(f"{equal} of {len(repeated)} repeated cells had the same verdict in every run")
    for summary in sorted(repeated, key=lambda one: one.differs):
        mark = ("NOT STABLE ", "bold red") if summary.differs else ""
        console.print(Text.assemble(mark, f"{summary.cell.name}: {summary.spread}"))


class CampaignProgress:
    """Show the current step of each case: a live table on a terminal that moves its cursor, else a line for each step.

    Colours are another question: the table of a terminal without them moves as well.
    """

    def __init__(self, total: int, *, addresses: bool = False, quiet_steps: bool = False) -> None:
        """Expect `total` cases.

        With `addresses`, print each server's address as the value of a variable. With `quiet_steps`, show the steps
        of cases in a live table only.
        """
        self._console = _console(err=True)
        self._is_live = terminal_width(err=True) is not None and not self._console.is_dumb_terminal
        self._begun = monotonic()
        self._running: dict[str, str] = {}
        self._done = 0
        self._total = total
        self._quiet_servers = not addresses
        self._quiet_steps = quiet_steps
        self._lock = Lock()
        self._live = Live(console=self._console, get_renderable=self._picture, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Start the live table on a terminal."""
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the live table."""
        if self._is_live:
            self._live.stop()

    def serves(self, product: str, version: str, variable: str, url: str) -> None:
        """Print the address of a private server, and the variable that names such an address."""
        self._line(f"{product} {version}: {variable}={url}", aside=True)

    def step(self, case: Case, text: str) -> None:
        """Show the step of a case."""
        with self._lock:
            self._running[case.name] = text
        if not (self._is_live or self._quiet_steps):
            self._line(f"{case.name}: {text}")

    def result(self, result: Result | Unmeasured) -> None:
        """Print the verdict of a case, or why it has none."""
        with self._lock:
            self._running.pop(result.cell.run(result.number), None)
            self._done += 1
        self._line(f"{result.cell.name}: {_in_brief(result)}")

    def _line(self, text: str, *, aside: bool = False) -> None:
        if aside and self._quiet_servers:
            return
        line = fitted(f"{monotonic() - self._begun:6.1f} s  {readable(text)}", terminal_width(err=True))
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _picture(self) -> Table:
        table = Table.grid(padding=(0, 2))
        # a case has one line, whose step is cut: the count comes last, and a terminal has few lines
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="ellipsis")
        with self._lock:
            for name, text in self._running.items():
                table.add_row(
                    Text("   ...  ", style="dim"), readable(name), Text(readable(text), style="dim", no_wrap=True)
                )
            table.add_row(
                "", Text(f"{self._done} of {self._total} done, {monotonic() - self._begun:.0f} s", style="bold"), ""
            )
        return table


def _titles(kind: str, known: Iterable[Titled]) -> None:
    table = matrix_table.table_of(kind, "description")
    for one in known:
        table.add_row(readable(one.name), readable(one.title))
    _data().print(table)


def _matrix(console: Console, laid_out: Matrix) -> None:
    table = matrix_table.side_by_side(laid_out)
    if matrix_table.width(table) <= console.width:
        console.print(table)
    else:
        for part in matrix_table.cell_by_cell(laid_out):
            console.print(part)
    console.print(matrix_table.legend(laid_out), style="dim")


def _summary(campaign: Campaign, laid_out: Matrix) -> Iterable[str]:
    total = counts(laid_out)
    yield ""
    yield (
        f"{total.cells} cells, {total.runs} runs: {total.unexpected} not as expected, {total.lost} with lost tasks, "
        f"{total.duplicated} with duplicated tasks, {total.hung} with a hung worker"
    )
    if total.differing:
        yield f"{total.differing} cells are not stable: their runs differ"
    for text in campaign.untested:
        yield f"not tested on your settings: {readable(text)}"
    if campaign.interrupted:
        yield "The run was interrupted."


def _unexpected(console: Console, result: Result) -> None:
    number = f" #{result.number}" if result.number > 1 else ""
    head = Text.assemble(("NOT AS EXPECTED ", "bold red"), (f"{result.cell.name}{number}", "bold"))
    console.print(head)
    lines = [f"found {result.verdict}, {result.expected_text}"]
    if result.task_under_test.counted:
        lines.append(f"effects: {result.task_under_test.effects_text}")
    for line in lines:
        console.print(Padding(Text(readable(line)), (0, 0, 0, 2), expand=False))
    for task_result in result.task_results:
        if task_result.verdict.is_bad and (task_result.reason or task_result.role == "child"):
            reason = f": {task_result.reason}" if task_result.reason else ""
            text = readable(f"{task_result.name or task_result.role} {task_result.verdict.value}{reason}")
            console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
    # one line, to be copied
    console.print(Text(f"  {readable(result.command)}", style="dim"), soft_wrap=True)


def _data() -> Console:
    return _console(err=False)


def _console(*, err: bool) -> Console:
    """Return a console with the colours of `--color`; what is in a pipe or a file has none unless told."""
    width, color = terminal_width(err=err), wants_color()
    if color is None:
        color = width is not None
    system: Any = None
    if color:
        # what a pipe leads to is unknown
        system = "standard" if width is None else "auto"
    # rich follows a terminal's width by itself
    return Console(
        stderr=err,
        force_terminal=width is not None or color,
        color_system=system,
        no_color=not color,
        highlight=False,
        width=_PIPE_WIDTH if width is None else None,
    )


def _in_brief(result: Result | Unmeasured) -> str:
    from repot.chaos.report.result import Unmeasured

    if isinstance(result, Unmeasured):
        why = result.why.partition("\n")[0]
        return f"no verdict: {why}" if result.failed else f"not applicable: {why}"
    after = result.times.redelivered
    again = f", again after {after:.2f} s" if after is not None else ""
    return f"{result.verdict}{again}{'' if result.as_expected else '  NOT AS EXPECTED'}"
