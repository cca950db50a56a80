"""Print the plan of a move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from repot.brokers.facts import Unknown
from repot.cli.columns import print_table
from repot.cli.output import echo, echo_json, echo_line
from repot.migrate.risks import size
from repot.sanitize import readable

if TYPE_CHECKING:
    from repot.config import WorkerSettings
    from repot.migrate.move import Move, Order
    from repot.migrate.plan import GoalPlan, Plan, QueuePlan
    from repot.migrate.risks import Remarks

_HEADS = ("task", "count", "largest", "compressed", "earliest eta", "latest eta", "priorities", "quarantined")
#: Consumers in the text; JSON has all of them.
_LISTED = 5


def show_plan(order: Order, settings: WorkerSettings, sample: int, *, as_json: bool) -> None:
    """Print what a move would do.

    Raises:
        MoveRefused: it would lose or strand something.
    """
    from repot.migrate.move import open_move
    from repot.migrate.plan import remark_revoked

    with open_move(order, settings) as opened:
        plan = _plan_of(opened, sample)
        remark_revoked(opened, plan)
        brokers = [f"{one.product} {one.version}" for one in (opened.source, opened.target)]
    problems = plan.all_problems
    if as_json:
        addresses = {
            "source": order.addresses.source.url.masked(),
            "target": order.addresses.target.url.masked(),
            "brokers": brokers,
        }
        echo_json(addresses | plain(plan) | {"problems": problems})
    else:
        echo(f"from {brokers[0]} ({order.addresses.source.url}) to {brokers[1]} ({order.addresses.target.url})")
        _print(plan)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    _refuse(problems, f"{count}; the plan lists them all.")


def note_choice(order: Order, *, as_json: bool) -> None:
    """Print the queues that were found, and what stays, to standard error; as one line of JSON, or one for each."""
    if order.choice is None:
        return
    if as_json:
        found = {"queues": order.choice.read, "notes": order.choice.notes, "unknown": order.choice.unknown}
        echo_json(found, indent=None, err=True)
        return
    for kind, texts in (("queue", order.choice.read), ("note", order.choice.notes), ("unknown", order.choice.unknown)):
        for text in texts:
            echo_line(f"{kind}: {text}", err=True)


def refuse_losses(order: Order, settings: WorkerSettings, sample: int) -> None:
    """Refuse a new move if it would lose or strand something; one that goes on was judged when it began.

    Raises:
        MoveRefused: it would.
    """
    from repot.migrate.move import open_move

    with open_move(order, settings) as found:
        problems = [] if found.journal.read().get("name") else _plan_of(found, sample).all_problems
    _refuse(problems, f"{len(problems)} problems: `repot move plan` lists them all. --force moves anyway.")


def _plan_of(move: Move, sample: int) -> Plan:
    from repot.migrate.control import Until
    from repot.migrate.plan import plan_of

    return plan_of(move, sample, follows=move.order.limits.until is Until.FOLLOW)


def _refuse(problems: list[str], hint: str) -> None:
    from repot.errors import MoveRefused

    if problems:
        message = f"the move would lose or strand something: {problems[0]}"
        raise MoveRefused(message, hint=hint)


def plain(value: Any) -> Any:  # noqa: ANN401 - any part of a plan
    """Return a part of a plan as JSON has it; a fact that is unknown is a text that says why."""
    if isinstance(value, Unknown):
        return f"unknown: {value.reason}"
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value) if not one.metadata}
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def _print(plan: Plan) -> None:
    for text in plan.read:
        _line("queue", text)
    _line("target", _text(plain(plan.room)))
    _line("time", f"at least {plan.seconds:.0f} s" if isinstance(plan.seconds, float) else plan.seconds)
    _print_remarks(plan)
    for queue in plan.queues:
        _print_queue(queue)
    for goal in plan.goals:
        _print_goal(goal)


def _print_queue(plan: QueuePlan) -> None:
    echo(f"\n{readable(plan.queue)} -> {readable(plan.to)}")
    _line("source", _text(plan.source))
    _line("by priority", _text(plain(plan.by_priority)))
    _print_traffic(plan)
    _line("target", _text(plan.target))
    _line("looked at", str(plan.looked_at))
    rows = [
        (
            task,
            str(one.count),
            str(one.largest_bytes),
            str(one.compressed),
            one.earliest_eta or "",
            one.latest_eta or "",
            ", ".join(f"{name} ({count})" for name, count in one.priorities.items()),
            ", ".join(f"{name} ({count})" for name, count in one.quarantined.items()),
        )
        for task, one in plan.tasks.items()
    ]
    if rows:
        print_table(rows, _HEADS, indent="  ")
    _print_remarks(plan)


def _print_goal(plan: GoalPlan) -> None:
    echo(f"\ntarget queue {readable(plan.queue)}")
    _line("would come", _text(plain(plan.coming)))
    _line("limits", _text(plain(plan.limits)))
    _print_traffic(plan)
    _print_remarks(plan)


def _print_traffic(plan: QueuePlan | GoalPlan) -> None:
    traffic = plain(plan.traffic)
    if isinstance(traffic, str):
        _line("traffic", traffic)
        return
    consumers = traffic["consumers"]
    if not isinstance(consumers, str):
        where = " (of any queue of this database; busy workers are not counted)" if traffic["of_any_queue"] else ""
        named = [*consumers[:_LISTED], *(["..."] if len(consumers) > _LISTED else [])]
        consumers = f"{len(consumers)}{where}{': ' if named else ''}{', '.join(named)}"
    _line("consumers", consumers)
    _line("sent", _rate(traffic["sent_per_s"]))
    _line("growth", _rate(traffic["growth_per_s"]))


def _rate(found: float | str) -> str:
    return found if isinstance(found, str) else f"{found:.1f} messages a second"


def _print_remarks(plan: Remarks) -> None:
    for kind, texts in (("note", plan.notes), ("unknown", plan.unknown), ("problem", plan.problems)):
        for text in texts:
            _line(kind, text)


def _line(name: str, text: str) -> None:
    echo_line(f"  {name}: {text}")


def _text(found: dict[str, Any] | str) -> str:
    """Return fields as one line; without those that have no limit."""
    if isinstance(found, str):
        return found
    shown = (_field(name, value) for name, value in found.items() if value not in (None, "", []))
    return ", ".join(shown) or "no limits"


def _field(name: str, value: Any) -> str:  # noqa: ANN401 - JSON
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    words, _, unit = name.rpartition("_")
    if unit == "bytes":
        return f"{words.replace('_', ' ')} {size(value) if isinstance(value, int) else text}"
    if unit == "s":
        return f"{words.replace('_', ' ')} {text}{' s' if isinstance(value, int | float) else ''}"
    return f"{name.replace('_', ' ')} {text}"
