"""The shape of what each command prints with `--json`; `repot schema` makes JSON schemas of them.

Where a command prints dataclasses of the code, these are its types. A field may come in without a new version of a
schema; one that goes, or changes its type or meaning, needs one (`VERSIONS`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repot.brokers.in_hand import QueueConsumer
from repot.migrate.in_hand import TaskInHand
from repot.migrate.verify import QueueCheck
from repot.overview.facts import DeploymentStatus
from repot.rollout.synthetic import SideAccount

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Ready, in hand, delayed.
Counts = tuple[int, int, int]


@dataclass
class EffectiveSetting:
    """A value of Celery's configuration, and where it is from."""

    value: Any
    origin: str


@dataclass
class EffectiveConfig:
    """`repot config show`: `off` is what the installed releases cannot do."""

    app: str
    settings: dict[str, EffectiveSetting]
    off: list[str]


@dataclass
class Variable:
    """A variable of `repot config variables`."""

    name: str
    default: str
    meaning: str


@dataclass
class DeadLetterSummary:
    """A dead letter of `repot dlq list`; instants are ISO 8601, None if unknown."""

    id: str
    task: str
    reason: str
    exception: str
    message: str
    attempts: int | None
    deliveries: int | None
    replays: int
    worker: str
    queue: str
    dead_queue: str
    broker: str
    sent_at: str | None
    died_at: str | None
    expires_at: str | None
    content_type: Any
    bytes: int


@dataclass
class DeadLetterDetails(DeadLetterSummary):
    """A dead letter of `repot dlq show`; `payload` is there on request."""

    ttl_ms: int | None
    content_encoding: Any
    properties: dict[str, Any]
    headers: dict[str, Any]
    traceback: str
    payload: Any = None


@dataclass
class DeadLetterCount:
    """A line of `repot dlq stats`."""

    dead_queue: str
    reason: str
    task: str
    count: int
    oldest_s: float | None


@dataclass
class Rule:
    """A rule of the doctor."""

    id: str
    title: str
    severity: str
    brokers: list[str]
    versions: str
    live: bool
    reason: str
    fix: str
    evidence: list[str]


@dataclass
class Waiver:
    """Why a finding counts no more, and where that is written."""

    reason: str
    place: str


@dataclass
class Finding:
    """A finding of the doctor; None for what it does not concern."""

    rule: str
    severity: str
    title: str
    message: str
    setting: str | None
    origin: str | None
    task: str | None
    file: str | None
    line: int | None
    fix: str
    waiver: Waiver | None = None


@dataclass
class NotJudged:
    """A rule without a verdict."""

    rule: str
    title: str
    reason: str
    remedy: str


@dataclass
class DoctorBroker:
    """The broker that an application was judged for; product and version with --live."""

    kind: str
    servers: list[str]
    moved_from: str | None
    product: str | None
    version: str | None


@dataclass
class DoctorReport:
    """The report on one application; `summary` has the numbers of findings by severity."""

    app: str
    broker: DoctorBroker
    versions: dict[str, Any]
    read_with: str | None
    tasks: int
    tasks_of_libraries: list[str]
    rules: int
    findings: list[Finding]
    waived: list[Finding]
    not_judged: list[NotJudged]
    summary: dict[str, int]


@dataclass
class Doctor:
    """`repot doctor --format json`."""

    applications: list[DoctorReport]


@dataclass
class Probe:
    """`repot healthcheck`: the answer is under the name of the question."""

    state: str
    reason: str
    live: bool = False
    ready: bool = False


@dataclass
class InHand:
    """`repot inflight list`; `asked` is None if the broker does not say."""

    workers: dict[str, list[str]]
    asked: int | None
    answered: int
    silent: list[str]
    tasks: list[TaskInHand]
    consumers: list[QueueConsumer]
    counts: dict[str, int]
    notes: list[str]


@dataclass
class Requeued:
    """A message of `repot inflight requeue`."""

    id: str
    task: str
    queues: list[str]
    tag: str
    delivered_at: float | None
    is_orphan: bool
    what: str


@dataclass
class Initialized:
    """`repot init`."""

    written: list[str]
    kept: list[str]
    replaced: list[str]


@dataclass
class LeaseRecord:
    """An idempotency record; instants are ISO 8601."""

    key: str
    state: str
    fencing_token: int
    task: str
    task_id: str
    worker: str
    runs: int
    unknown_outcomes: int
    replay: int
    started_at: str | None
    ended_at: str | None
    remaining_s: float
    parked: bool
    has_result: bool
    error: str


@dataclass
class ExpiredJob:
    """A job whose lease has expired."""

    id: str
    scope: str
    task: str
    created_at: str


@dataclass
class MoveCounts:
    """The account of a move, or of one queue of it."""

    reserved: int
    delivered: int
    returned: int
    quarantined: int
    still_reserved: int
    maybe_twice: int
    recognised: int


@dataclass
class MoveQueue(MoveCounts):
    """The account of one queue."""

    queue: str
    to: str


@dataclass
class MoveAudit:
    """A line of a move's audit."""

    at: str
    user: str
    host: str
    pid: int
    what: str


@dataclass
class Move(MoveCounts):
    """`repot move status`."""

    name: str
    source: str
    target: str
    state: str
    direction: str
    wanted: str
    created_at: str
    in_hand: str | None
    revoked: str | None
    owner: str | None
    is_alive: bool
    fencing_token: int
    given_back: MoveCounts
    closes: bool
    routed: list[str]
    queues: list[MoveQueue]
    audit: list[MoveAudit]


@dataclass
class Remarks:
    """Sentences about a part of a plan."""

    problems: list[str]
    notes: list[str]
    unknown: list[str]


@dataclass
class PlannedQueue(Remarks):
    """A source queue of a plan; a fact that is unknown is a text that says why."""

    queue: str
    to: str
    source: dict[str, Any] | str
    target: dict[str, Any] | str
    by_priority: dict[str, int] | str
    traffic: dict[str, Any] | str
    looked_at: int | str
    tasks: dict[str, dict[str, Any]]


@dataclass
class PlannedGoal(Remarks):
    """A target queue of a plan."""

    queue: str
    coming: dict[str, int | None]
    held_s: float
    limits: dict[str, Any] | str
    traffic: dict[str, Any] | str


@dataclass
class MovePlan:
    """`repot move plan`; its own remarks concern the target as a whole, `problems` are those of all parts."""

    source: str
    target: str
    brokers: list[str]
    read: list[str]
    queues: list[PlannedQueue]
    goals: list[PlannedGoal]
    room: dict[str, Any] | str
    seconds: float | str
    problems: list[str]
    notes: list[str]
    unknown: list[str]


@dataclass
class Reverted:
    """What a revert would give back of one queue."""

    queue: str
    to: str
    delivered: int
    given_back: int
    in_target: int
    gone: int


@dataclass
class OutboxMessage:
    """A message that waits in the outbox; instants are seconds since 1970."""

    id: int
    task_id: str
    root_id: str
    task: str
    queue: str
    side: str
    order_key: str | None
    created_at: float
    due_at: float
    next_at: float
    attempts: int
    state: str
    error: str
    age_s: float


@dataclass
class OutboxBacklog:
    """Numbers of messages; for how long the oldest one that is due has waited."""

    waiting: int
    delayed: int
    parked: int
    oldest_s: float | None


@dataclass
class Outbox:
    """`repot outbox list`."""

    messages: list[OutboxMessage]
    backlog: OutboxBacklog


@dataclass
class RolloutState:
    """A state of a rollout; `weight` is the share of the work that goes to the target."""

    name: str
    source: str
    target: str
    phase: str
    weight: float
    weights_by_queue: dict[str, float]
    weights_by_task: dict[str, float]
    generation: int
    who: str
    why: str
    updated_at: str


@dataclass
class RolloutPlan:
    """`repot rollout plan`: the plan, and what was read; None is unknown."""

    name: str
    source: str
    target: str
    steps: list[float]
    bake_s: float
    patience_s: float
    manual: bool
    queues: list[str]
    synthetic: list[float]
    kills: bool
    lost_after_s: float | None
    moves: bool
    criteria: dict[str, Any]
    queries: list[str]
    whole: bool
    options: dict[str, Any]
    quiet_s: float | None
    obstacles: list[str]
    warnings: list[str]
    depths: dict[str, dict[str, Counts] | None]
    readers: dict[str, dict[str, list[str]] | None]
    found: list[str]
    notes: list[str]


@dataclass
class RolloutWorker:
    """A worker that reports to a rollout."""

    node: str
    side: str
    phase: str
    queues: list[str]
    age_s: float


@dataclass
class Rollout(RolloutState):
    """`repot rollout status`: all that is known at one instant."""

    at: float
    age_s: float
    phase_age_s: float
    is_over: bool
    steps: list[float]
    manual: bool
    bake_s: float | None
    patience_s: float | None
    step: dict[str, Any] | None
    acts: list[str]
    controller: str | None
    beat: str | None
    look: dict[str, Any] | None
    judged: dict[str, Any] | None
    depths: dict[str, dict[str, Counts] | None]
    sides: dict[str, dict[str, float | None]]
    tasks: dict[str, Any]
    moves: list[dict[str, Any]]
    synthetic: dict[str, SideAccount]
    workers: list[RolloutWorker]
    history: list[RolloutState]


@dataclass
class RolloutReport:
    """`repot rollout report`: the last state, and the points of its charts."""

    state: Rollout
    series: list[dict[str, Any]]


@dataclass
class StoreVersion:
    """A version of the tables."""

    version: str
    title: str


@dataclass
class StoreMigration:
    """`repot store migrate`."""

    current: str | None
    pending: list[StoreVersion]
    done: list[str]
    sql: list[str]


@dataclass
class RunningServer:
    """A private server of `repot up`."""

    version: str
    url: str
    management_url: str = field(default="")


#: Command -> the type of what it prints with `--json`; the doctor does so with `--format json`. A text names a type of
#: `repot.cli.chaos_outputs`, which needs `repot.chaos`.
OUTPUTS: Mapping[str, Any] = {
    "chaos list": "ChaosList",
    "chaos load": "Load",
    "chaos report": "Campaign",
    "chaos run": "Campaign",
    "config show": EffectiveConfig,
    "config variables": list[Variable],
    "demo": "Demo",
    "dlq list": list[DeadLetterSummary],
    "dlq show": list[DeadLetterDetails],
    "dlq stats": list[DeadLetterCount],
    "doctor": Doctor,
    "doctor explain": Rule,
    "doctor rules": list[Rule],
    "healthcheck live": Probe,
    "healthcheck probe": Probe,
    "inflight list": InHand,
    "inflight requeue": list[Requeued],
    "init": Initialized,
    "leases jobs": list[ExpiredJob],
    "leases list": list[LeaseRecord],
    "leases reap": list[LeaseRecord],
    "leases show": LeaseRecord,
    "move plan": MovePlan,
    "move resume": MoveCounts,
    "move revert": list[Reverted] | MoveCounts,
    "move start": MovePlan | MoveCounts,
    "move status": Move,
    "move verify": list[QueueCheck],
    "outbox list": Outbox,
    "rollout history": list[RolloutState],
    "rollout plan": RolloutPlan,
    "rollout report": RolloutReport,
    "rollout resume": RolloutState,
    "rollout start": RolloutPlan | RolloutState,
    "rollout status": Rollout,
    "status": DeploymentStatus,
    "store migrate": StoreMigration,
    "up": dict[str, RunningServer],
}
#: The version of a command's schema, where it is not 1.
VERSIONS: Mapping[str, int] = {}


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON schema of a command's output, with its identifier and version.

    Raises:
        KeyError: it has no such output.
    """
    from pydantic import TypeAdapter

    printed = OUTPUTS[command]
    if isinstance(printed, str):
        from repot.cli import chaos_outputs

        printed = getattr(chaos_outputs, printed)
    found = TypeAdapter(printed).json_schema(mode="serialization")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:repot:schema:{command.replace(' ', '-')}:{VERSIONS.get(command, 1)}",
        **found,
        "title": f"repot {command}",
    }
