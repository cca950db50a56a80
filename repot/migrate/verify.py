"""Compare the account of a move with its brokers.

Messages in the target queue state in `repot_move` that this move sent them, and with which number. Workers of the
target take messages meanwhile: one that was delivered and is not there was run, or is in a worker's hands, or is lost;
nothing tells which, unless the target has counted none that a consumer took (`consumption.py`): then it has dropped
them, or forgotten what a consumer took that was connected for seconds.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

from repot.brokers.conditions import HasConditions, Overflow, QueueLimits
from repot.brokers.headers import MAYBE_TWICE_HEADER, MovedBy, MoveStamp, origin
from repot.brokers.journal import Direction
from repot.brokers.moving import HoldsDelayed
from repot.migrate.account import Account, account_of, digests
from repot.migrate.consumption import use_since
from repot.migrate.identity import digest_of, identity_of, sums_of, task_id
from repot.migrate.status import routed_queues

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.brokers.message import Message
    from repot.migrate.move import Move

#: Delayed messages that are received together, and for how long they may be held, in seconds.
_TOGETHER, _LEASE_S = 500, 120
#: Counts of a broker that have to agree.
_COUNTS = 2
#: Ids in a report.
_LISTED = 100


@dataclass(slots=True)
class QueueCheck:
    """What was found about one queue.

    Attributes:
        present: messages of the move in the target queue, or held for it until they are due, each number once.
        given_back: taken out of the target queue again by `revert`.
        gone: delivered and not in the target queue any more: consumed, or lost; or not given back because the source
            still had it.
        is_dropped: whether what is gone was dropped by the target, as far as it has counted what consumers took.
        copies: further messages with the same number; `unmarked_copies` of them lack the mark.
        source_digest: of what left the source, by the journal; `target_digest` of what is in the target queue.
        differing: ids whose message differs from the one with the same number, or that appear twice unmarked.
        problems: what does not fit; none if the account closes.
    """

    queue: str
    to: str
    account: Account
    given_back: Account
    present: int = 0
    gone: int = 0
    is_dropped: bool = False
    copies: int = 0
    unmarked_copies: int = 0
    source_digest: str = ""
    moved_digest: str = ""
    target_digest: str = ""
    differing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def verify(move: Move, record: Mapping[str, str], queues: Mapping[str, str]) -> list[QueueCheck]:
    """Compare each queue's account with the brokers.

    The messages of the target queues are read and stay where they are. While the move runs, what is in flight counts
    as reserved.

    Raises:
        BrokerUnreachable: a broker did not answer.
    """
    checks = [_check(move, record, queue, goal) for queue, goal in queues.items()]
    suspects = [check for check in checks if _may_be_dropped(move, record, check, is_settled=False)]
    if not suspects:
        return checks
    for _ in range(_COUNTS):
        if not suspects:
            break
        # what consumers hold and what they have taken are counted at two moments, some seconds later. By then the
        # counts are without what this has held itself, and what has become due has arrived
        target: Any = move.target
        Event().wait(target.depth_lag_s)
        suspects = [check for check in suspects if _may_be_dropped(move, record, check, is_settled=True)]
    gone = {check.queue: check.gone for check in suspects}
    checks = [_check(move, record, queue, goal) for queue, goal in queues.items()]
    for check in checks:
        # consumers may have begun meanwhile
        dropped = min(check.gone, gone.get(check.queue, 0))
        if dropped > 0:
            check.is_dropped = True
            check.problems.append(
                f"{dropped} messages that were delivered are not in the target any more, and it has counted none that "
                f"a consumer took since the move began: it dropped them{_limits(move, check.to)}, or has forgotten the "
                "counts of a consumer that was connected for seconds"
            )
    return checks


def _may_be_dropped(move: Move, record: Mapping[str, str], check: QueueCheck, *, is_settled: bool) -> bool:
    """Return whether messages are gone, and none is counted as taken; what was given back, the mover itself has taken.

    In settled counts consumers hold none, and each message that was delivered is among the arrivals.
    """
    if check.gone <= 0 or _taken_out(check.given_back):
        return False
    use = use_since(move.target, record, dict.fromkeys((check.to, *routed_queues(record))))
    if use is None or use.taken:
        return False
    return not is_settled or (not use.held and use.arrived >= check.account.delivered)


def _limits(move: Move, queue: str) -> str:
    """Return for which reason a target queue drops messages, if it still has one."""
    stated_limits = move.target.conditions().limits(queue) if isinstance(move.target, HasConditions) else None
    if not isinstance(stated_limits, QueueLimits) or stated_limits.overflow is not Overflow.DROP_HEAD:
        return ""
    limits = (
        ("max-length", stated_limits.max_messages),
        ("max-length-bytes", stated_limits.max_bytes),
        ("message-ttl", stated_limits.ttl_s),
    )
    stated = [f"{name} {value:g}" for name, value in limits if value is not None]
    return f" ({', '.join(stated)}, drop-head)" if stated else ""


def _check(move: Move, record: Mapping[str, str], queue: str, goal: str) -> QueueCheck:
    check = QueueCheck(queue, goal, account_of(record, queue), account_of(record, queue, Direction.BACK))
    check.source_digest, check.moved_digest = digests(record, queue)
    numbers: Counter[int] = Counter()
    identities: dict[int, str] = {}
    marked: Counter[int] = Counter()
    for message in _present(move, record, queue, goal):
        stamp = MoveStamp.of(message.headers)
        assert stamp is not None
        number = stamp.number
        identity = identity_of(message)
        if identities.setdefault(number, identity) != identity:
            check.differing.append(task_id(message))
        numbers[number] += 1
        marked[number] += bool(message.headers.get(MAYBE_TWICE_HEADER))
        if numbers[number] - marked[number] > 1:
            check.unmarked_copies += 1
            check.differing.append(task_id(message))
    check.present = len(numbers)
    check.copies = numbers.total() - len(numbers)
    check.gone = check.account.delivered - _taken_out(check.given_back) - check.present
    check.target_digest = digest_of(sums_of(identities.values()))
    check.differing = check.differing[:_LISTED]
    check.problems = _problems(check)
    back = digests(record, queue, Direction.BACK)
    if not check.given_back.open and back[0] != back[1]:
        check.problems.append("what left the target is not what was given back and quarantined: the digests differ")
    return check


def _present(move: Move, record: Mapping[str, str], queue: str, goal: str) -> Iterator[Message]:
    """Yield what the move brought from a queue and is in the target, or is held there until it is due."""
    for one in dict.fromkeys((goal, *routed_queues(record))):
        moved = MovedBy(move.order.name, origin(queue, one))
        with ExitStack() as stack:
            # held to the end, so none of them becomes due and is met in the queue as well
            yield from _delayed(move, one, moved, stack)
            yield from (message for message in move.target.scan(one) if moved.has(message.headers))


def _delayed(move: Move, queue: str, moved: MovedBy, stack: ExitStack) -> Iterator[Message]:
    if not isinstance(move.target, HoldsDelayed):
        return
    found = move.target.delayed_reader(queue, lease_s=_LEASE_S, moved=moved, stages=False)
    reader = stack.enter_context(closing(found))
    while (taken := reader.take(_TOGETHER, "verify")).messages:
        yield from (one.message for one in taken.messages)


def _taken_out(back: Account) -> int:
    return back.delivered + back.quarantined + back.open


def _problems(check: QueueCheck) -> list[str]:
    account = check.account
    problems = [
        f"{one.reserved} were reserved, and {one.delivered} delivered + {one.returned} returned + "
        f"{one.quarantined} quarantined + {one.open} still reserved are accounted for"
        for one in (account, check.given_back)
        if not one.closes
    ]
    if not account.open and check.source_digest != check.moved_digest:
        problems.append("what left the source is not what was delivered and quarantined: the digests differ")
    if check.unmarked_copies:
        problems.append(f"{check.unmarked_copies} messages are twice in the target without a mark")
    # of messages that were sent twice, both may have been taken out
    if check.gone < 0 and not (account.maybe_twice and _taken_out(check.given_back)):
        problems.append(f"the target has {-check.gone} messages of this move more than were delivered")
    everything_is_there = (
        check.gone == 0 and not account.quarantined and not account.open and not _taken_out(check.given_back)
    )
    if everything_is_there and check.target_digest != check.moved_digest:
        problems.append("the messages in the target differ from what was moved: the digests differ")
    return problems
