"""Compare the account of a move with its brokers.

Messages in the target queue state in `repot_move` that this move sent them, and with which number. Workers of the
target take messages meanwhile: one that was delivered and is not there was run, or is in a worker's hands, or is lost;
nothing tells which.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.migrate.account import Account, account_of, digests
from repot.migrate.identity import MAYBE_TWICE_HEADER, digest_of, identity_of, number_in, sums_of, task_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.migrate.move import Move

#: Ids in a report.
_LISTED = 100


@dataclass(slots=True)
class QueueCheck:
    """What was found about one queue.

    Attributes:
        present: messages of the move in the target queue, each number once.
        gone: delivered and not in the target queue any more: consumed, or lost.
        copies: further messages with the same number; `unmarked_copies` of them lack the mark.
        source_digest: of what left the source, by the journal; `target_digest` of what is in the target queue.
        differing: ids whose message differs from the one with the same number, or that appear twice unmarked.
        problems: what does not fit; none if the account closes.
    """

    queue: str
    to: str
    account: Account
    present: int = 0
    gone: int = 0
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
    return [_check(move, record, queue, goal) for queue, goal in queues.items()]


def _check(move: Move, record: Mapping[str, str], queue: str, goal: str) -> QueueCheck:
    found = QueueCheck(queue, goal, account_of(record, queue))
    found.source_digest, found.moved_digest = digests(record, queue)
    numbers: Counter[int] = Counter()
    identities: dict[int, str] = {}
    marked: Counter[int] = Counter()
    for message in move.target.scan(goal):
        number = number_in(message.headers, move.order.name)
        if number is None:
            continue
        identity = identity_of(message)
        if identities.setdefault(number, identity) != identity:
            found.differing.append(task_id(message))
        numbers[number] += 1
        marked[number] += bool(message.headers.get(MAYBE_TWICE_HEADER))
        if numbers[number] - marked[number] > 1:
            found.unmarked_copies += 1
            found.differing.append(task_id(message))
    found.present = len(numbers)
    found.copies = numbers.total() - len(numbers)
    found.gone = found.account.delivered - found.present
    found.target_digest = digest_of(sums_of(identities.values()))
    found.differing = found.differing[:_LISTED]
    found.problems = _problems(found)
    return found


def _problems(found: QueueCheck) -> list[str]:
    account, problems = found.account, []
    if not account.closes:
        problems.append(
            f"{account.reserved} were reserved, and {account.delivered} delivered + {account.returned} returned + "
            f"{account.quarantined} quarantined + {account.open} still reserved are accounted for"
        )
    if not account.open and found.source_digest != found.moved_digest:
        problems.append("what left the source is not what was delivered and quarantined: the digests differ")
    if found.unmarked_copies:
        problems.append(f"{found.unmarked_copies} messages are twice in the target without a mark")
    if found.gone < 0:
        problems.append(f"the target has {-found.gone} messages of this move more than were delivered")
    everything_is_there = found.gone == 0 and not account.quarantined and not account.open
    if everything_is_there and found.target_digest != found.moved_digest:
        problems.append("the messages in the target differ from what was moved: the digests differ")
    return problems
