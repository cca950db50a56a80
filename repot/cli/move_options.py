"""The options of `repot move`: brokers, queues, limits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import click

from repot.cli.dlq_options import refuse_blank
from repot.cli.durations import seconds
from repot.cli.output import echo
from repot.cli.parameters import http_address, stated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from celery import Celery

    from repot.config import WorkerSettings
    from repot.migrate.addresses import Address, Addresses
    from repot.migrate.control import Limits
    from repot.migrate.move import Order
    from repot.migrate.orphans import Selection
    from repot.migrate.queue_choice import QueueChoice
    from repot.migrate.translate import Rules

F = TypeVar("F", bound="Callable[..., Any]")

EXECUTE = click.option("--execute", is_flag=True, help="Move; without it, only show the plan.")
ORPHANS = click.option(
    "--orphans",
    is_flag=True,
    help="Redis: first give back what no living worker holds, as `repot inflight requeue --orphans`.",
)
NOT_WORKERS = click.option(
    "--not-a-worker",
    "not_workers",
    multiple=True,
    callback=refuse_blank,
    metavar="ADDRESS",
    help="A client of the broker, as IP:PORT, that you know to hold no tasks; may be repeated.",
)
WAIT = click.option(
    "--wait",
    "waits",
    is_flag=True,
    help="With --orphans: wait for what a claim or its age still keeps in hand; --deadline ends that earlier.",
)
DLQ = click.option(
    "--dlq", is_flag=True, help="Also move the queues' dead letters, to the dead-letter queues of the target."
)
REVOKED = click.option(
    "--revoked",
    is_flag=True,
    help="First name the tasks that workers of the source know as revoked to the workers of the target.",
)
SAMPLE = click.option(
    "--sample", type=click.IntRange(0, 50_000), default=1000, show_default=True, help="Messages that the plan looks at."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _add(command: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def broker_options(command: F) -> F:
    """Add the options that name the brokers."""
    return _add(
        command,
        click.option(
            "--from",
            "source",
            metavar="URL",
            callback=_unless_blank,
            help="The source broker; @FILE reads it from a file.  [default: WORKER_MOVE_FROM]",
        ),
        click.option(
            "--to",
            "target",
            metavar="URL",
            callback=_unless_blank,
            help="The target broker; @FILE reads it from a file.  [default: WORKER_MOVE_TO]",
        ),
        click.option("--from-options", default="{}", metavar="JSON", help="kombu's transport options of the source."),
        click.option("--to-options", default="{}", metavar="JSON", help="kombu's transport options of the target."),
        _management_option("--from-management", "source"),
        _management_option("--to-management", "target"),
    )


def _management_option(name: str, side: str) -> Callable[[F], F]:
    text = f"RabbitMQ: the {side}'s management API."
    return click.option(name, default="", metavar="URL", callback=http_address, help=text)


def order_options(command: F) -> F:
    """Add the options that say what is moved, and how."""
    return _add(
        command,
        click.option(
            "--queue",
            "queues",
            multiple=True,
            callback=refuse_blank,
            help="Move this queue and no others; may be repeated.  [default: all of the deployment]",
        ),
        click.option(
            "--map", "mapped", multiple=True, metavar="OLD=NEW", help="Send the messages of queue OLD to queue NEW."
        ),
        click.option(
            "--priority",
            type=click.Choice(["invert", "keep", "drop"]),
            default="invert",
            show_default=True,
            help="On Redis 0 comes first, on RabbitMQ last.",
        ),
        click.option(
            "-A",
            "--app",
            metavar="APP",
            callback=_unless_blank,
            help="The Celery application: its queues, transport options, content types, and whether results go by "
            "rpc://. Default: WORKER_APP.",
        ),
        click.option(
            "--reroute",
            is_flag=True,
            help="Send each task to the queue that the application's routing names now, if it names one.",
        ),
        click.option("--allow-rpc", is_flag=True, help="Move tasks also if their rpc:// results are awaited."),
        click.option("--raw", is_flag=True, help="Move bodies of any content type as they are, also pickled ones."),
        click.option(
            "--until",
            type=click.Choice(["empty", "follow"]),
            default="empty",
            show_default=True,
            help="End when the queues are empty, or move what is still sent.",
        ),
        limit_options,
    )


def limit_options(command: F) -> F:
    """Add the options that limit how much is moved, and how fast."""
    return _add(
        command,
        click.option("--window", type=click.IntRange(1, 5000), default=500, show_default=True, help="Batch size."),
        click.option(
            "--jobs",
            type=click.IntRange(1, 64),
            default=1,
            show_default=True,
            help="Move so many queues at the same time, each in a process.",
        ),
        click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number per second."),
        click.option("--limit", type=click.IntRange(1), help="Maximum number of messages."),
        click.option("--deadline", callback=seconds, metavar="TIME", help="End after this time: 30m, 2h."),
        click.option("--max-depth", type=click.IntRange(1), help="Pause while so many wait in the target queue."),
        click.option(
            "--patience", callback=seconds, default="5m", show_default=True, help="End if a broker is away for longer."
        ),
        click.option(
            "--lease", callback=seconds, default="30s", show_default=True, help="Duration of the mover's leases."
        ),
    )


def _unless_blank(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    return given if given is None else refuse_blank(context, parameter, given)


def settings_of() -> WorkerSettings:
    """Return the settings of the environment."""
    from repot.config import load

    return load()


def given_addresses(given: dict[str, Any], settings: WorkerSettings) -> Addresses | None:
    """Return the brokers of the options or the environment; None if neither names both.

    Raises:
        ConfigInvalid: one is not an address.
    """
    from repot.config import app_name
    from repot.migrate.addresses import Addresses, with_management_of, with_options_of
    from repot.worker.app_loader import load_app

    source = _address(given, "source", "from", settings.move_from)
    target = _address(given, "target", "to", settings.move_to)
    if not (source and target):
        return None
    found = with_management_of(Addresses(source, target), settings)
    # commands that only read a journal have no such option
    name = given["app"] or app_name() if "app" in given else ""
    return with_options_of(found, load_app(name)) if name else found


def addresses_of(name: str, given: dict[str, Any], settings: WorkerSettings) -> Addresses:
    """Return the brokers of a move: those of the options or the environment, or those this machine remembers.

    Raises:
        MoveNotFound: neither names them.
    """
    from repot.migrate.addresses import directory_of, recall

    return given_addresses(given, settings) or recall(directory_of(settings), name)


def _address(given: dict[str, Any], side: str, option: str, default: Any) -> Address | None:  # noqa: ANN401 - BrokerUrl
    from repot.migrate.addresses import Address, parse

    text = given.get(side)
    url = parse(text, f"--{option}") if text else default
    if url is None:
        return None
    return Address(url, _options(given[f"{option}_options"], option), given[f"{option}_management"])


def _options(text: str, option: str) -> dict[str, Any]:
    from repot.migrate.addresses import check_options

    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        message = f"--{option}-options is not a JSON object"
        raise click.UsageError(message)
    check_options(found, f"--{option}-options")
    return found


def order_of(name: str, addresses: Addresses, given: dict[str, Any], settings: WorkerSettings) -> Order:
    """Return the order of the options, for the queues that they choose on the source."""
    from repot.migrate.queue_choice import choose

    app, mapping = _app(given), dict(_pair(one) for one in given["mapped"])
    return _order(
        name, addresses, given, settings, app, choose(addresses.source, settings, app, given["queues"], mapping)
    )


def order_again(
    name: str, addresses: Addresses, given: dict[str, Any], settings: WorkerSettings, record: Mapping[str, str]
) -> Order:
    """Return the order of a move's journal, with what the options state: its queues, pace and priorities."""
    from repot.migrate.queue_choice import QueueChoice
    from repot.migrate.status import dead_of, remembered

    options = stated(given)
    kept = {name: value for name, value in remembered(record).items() if name not in options and given[name] != value}
    given |= kept
    if kept:
        pace = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in kept.items())
        echo(f"as the move was started: {pace}", err=True)
    dead = dead_of(record)
    queues = {old: new for old, new in json.loads(record["queues"]).items() if old not in dead}
    mapping = dict(_pair(one) for one in given["mapped"])
    if given["queues"] or mapping:
        queues = {queue: mapping.get(queue, queue) for queue in (given["queues"] or mapping)}
    else:
        given["dlq"] = given["dlq"] or bool(dead)
    return _order(name, addresses, given, settings, _app(given), QueueChoice(queues))


def _order(
    name: str,
    addresses: Addresses,
    given: dict[str, Any],
    settings: WorkerSettings,
    app: Celery | None,
    choice: QueueChoice,
) -> Order:
    from repot.migrate.dead_letters import dead_queues
    from repot.migrate.in_hand import CONTROL_EXCHANGE
    from repot.migrate.move import Order

    _check_wait(given)
    control_exchange = CONTROL_EXCHANGE if app is None else str(app.conf.control_exchange)
    queues = dict(choice.queues)
    rules = _rules(queues, given, settings, app)
    # first: what cannot be delivered is quarantined in the dead-letter queues
    dead = dead_queues(queues, settings.dead_letters_of) if given.get("dlq") else {}
    queues = {**dead, **{queue: goal for queue, goal in queues.items() if queue not in dead}}
    return Order(
        name,
        addresses,
        queues,
        rules,
        _limits(given),
        orphans=_orphans(queues, given, control_exchange) if given.get("orphans") else None,
        waits_for_orphans=given.get("waits", False),
        revoked=given.get("revoked", False),
        uses_rpc=None if app is None else _uses_rpc(app),
        allow_rpc=given["allow_rpc"],
        choice=choice,
        result_backend="" if app is None else str(app.conf.result_backend or ""),
        dead=frozenset(dead),
        control_exchange=control_exchange,
    )


def _check_wait(given: dict[str, Any]) -> None:
    if given.get("waits") and not given.get("orphans"):
        message = "--wait waits for orphans: add --orphans"
        raise click.UsageError(message)
    if given.get("waits") and given.get("until") == "follow":
        message = "--wait begins when the queues are empty, and --until follow goes on then: leave out one of them"
        raise click.UsageError(message)


def _orphans(queues: Iterable[str], given: dict[str, Any], control_exchange: str) -> Selection:
    from repot.migrate.orphans import Selection

    return Selection(tuple(queues), control_exchange=control_exchange, not_workers=given["not_workers"])


def _app(given: dict[str, Any]) -> Celery | None:
    from repot.config import app_name
    from repot.worker.app_loader import load_app

    name = given["app"] or app_name()
    if not name and given["reroute"]:
        message = "--reroute asks the application: name it with -A or WORKER_APP"
        raise click.UsageError(message)
    return load_app(name) if name else None


def _uses_rpc(app: Celery) -> bool:
    return str(app.conf.result_backend or "").partition(":")[0] == "rpc"


def _pair(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not (old and separator and new):
        message = f"--map {text!r} is not OLD=NEW"
        raise click.UsageError(message)
    return old, new


def _rules(queues: dict[str, str], given: dict[str, Any], settings: WorkerSettings, app: Celery | None) -> Rules:
    from repot.migrate.routing import routing_of
    from repot.migrate.translate import PriorityPolicy, Rules, accepted_by

    route = routing_of(app) if app is not None and given["reroute"] else None
    accepted = frozenset[str]() if app is None else accepted_by(app)
    return Rules(PriorityPolicy(given["priority"]), given["raw"], queues, route, settings.dead_letters_of, accepted)


def order_back(name: str, addresses: Addresses, given: dict[str, Any], record: Mapping[str, str]) -> Order:
    """Return the order to give back what a move brought, by its journal."""
    from repot.brokers.journal import Direction
    from repot.migrate.move import Order
    from repot.migrate.status import dead_of, routed_queues
    from repot.migrate.translate import PriorityPolicy, Rules

    queues, routed = json.loads(record["queues"]), tuple(routed_queues(record))
    rules = Rules(
        PriorityPolicy(record.get("priority") or PriorityPolicy.INVERT), dead_letters_of=settings_of().dead_letters_of
    )
    return Order(name, addresses, queues, rules, _limits(given), Direction.BACK, routed=routed, dead=dead_of(record))


def _limits(given: dict[str, Any]) -> Limits:
    from repot.migrate.control import Limits, Until

    return Limits(
        window=given["window"],
        jobs=given["jobs"],
        rate=given["rate"],
        limit=given["limit"],
        deadline_s=given["deadline"],
        patience_s=given["patience"],
        max_depth=given["max_depth"],
        lease_s=given["lease"],
        until=Until(given.get("until", Until.EMPTY)),
    )
