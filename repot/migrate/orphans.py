"""Find and give back messages that no living worker holds.

A claim (`brokers/redis/claims.py`) is left while its worker renews it. Beside that, kombu's Redis transport does not
write down who holds a delivery, so it has to be proved that no living worker does:

1. The deliveries are read first. What a worker takes up later is not among them.
2. All workers are asked what they hold. Redis says how many clients received the question, and each has to answer: one
   that is frozen, or busy in its main process, still listens, and is counted by that.
3. A worker that does not listen for commands consumes all the same. So there may not be more clients that consume than
   workers that answered and consume: a worker that shuts down and still runs a task is found by this.
4. All of it is done twice, some seconds apart, so a worker that is just connecting again is seen.
5. A message is given back by one script, and only if its delivery is still the same one.

If 2 or 3 fails, nothing is given back. A worker without any connection to this Redis cannot be seen: it may run a task
behind a cut link. A delivery therefore has to have a certain age.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from threading import Event
from time import time
from typing import TYPE_CHECKING, Any

from repot.brokers.in_hand import AsksWorkers, GiveBack, KeepsDeliveries, ListsConsumers
from repot.errors import ConfigInvalid, HoldersUnknown
from repot.migrate.in_hand import ANSWER_WITHIN_S, CONTROL_EXCHANGE, holders

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from repot.brokers import Broker
    from repot.brokers.in_hand import Answers, BrokerClient, Delivery

#: Between the two looks: a worker connects again about two seconds after it has lost its connection.
_LOOKS_APART_S = 3.0
#: A delivery that is younger is left alone, in seconds.
OLDER_THAN_S = 60.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which deliveries are looked at, and how.

    Attributes:
        queues: only of these queues; of all if empty.
        older_than_s: since the delivery, by the clock of the worker that received it.
        within_s: how long workers may take to answer.
        not_workers: addresses of clients that the operator knows to be no workers.
    """

    queues: tuple[str, ...] = ()
    older_than_s: float = OLDER_THAN_S
    control_exchange: str = CONTROL_EXCHANGE
    within_s: float = ANSWER_WITHIN_S
    not_workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A delivery, and why it is left; an empty reason means that no living worker holds it."""

    delivery: Delivery
    reason: str = ""

    @property
    def is_orphan(self) -> bool:
        """Return whether it can be given back."""
        return not self.reason


def returns_by_itself(broker: Broker) -> bool:
    """Return whether the broker delivers a message again as soon as its worker's connection has ended."""
    return isinstance(broker, ListsConsumers)


def find_orphans(broker: Broker, selection: Selection) -> list[Finding]:
    """Return what is in hand, the oldest delivery first, each orphan without a reason to leave it.

    Takes some seconds if there may be one. Nothing is changed.

    Raises:
        ConfigInvalid: the adapter cannot say.
        HoldersUnknown: a worker may be alive that did not say what it holds.
        BrokerUnreachable: the broker did not answer.
    """
    source: Any = broker
    if not isinstance(source, KeepsDeliveries) or not isinstance(source, AsksWorkers):
        message = f"the adapter for {broker.product} cannot give back what workers hold"
        raise ConfigInvalid(message)
    findings = selected(source, selection)
    for pause_s in (0.0, _LOOKS_APART_S):
        if any(one.is_orphan for one in findings):
            Event().wait(pause_s)
            findings = _look(source, findings, selection)
    return findings


def selected(broker: Any, selection: Selection) -> list[Finding]:  # noqa: ANN401 - KeepsDeliveries
    """Return what is in hand, the oldest delivery first, with the reason that it states itself; workers are not asked.

    Raises:
        BrokerUnreachable: the broker did not answer.
    """
    now = time()
    deliveries = sorted(broker.deliveries(), key=lambda one: one.delivered_at or 0)
    return [Finding(one, _own_reason(one, selection, now)) for one in deliveries if _is_selected(one, selection)]


def ready_at(finding: Finding, selection: Selection) -> float | None:
    """Return when a delivery can be given back, or could since, by this machine's clock; None if no time is known.

    A worker that is alive may hold it even then.
    """
    delivery = finding.delivery
    if delivery.delivered_at is None or finding.reason not in ("", GiveBack.LIVES.value, _young(selection)):
        return None
    old_at = delivery.delivered_at + selection.older_than_s
    return (max(old_at, delivery.again_at or 0) if delivery.worker else old_at) + delivery.ahead_s


def give_back(broker: Broker, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Give back each orphan; yield every finding, with the reason if it was not given back after all.

    Raises:
        BrokerUnreachable: the broker did not answer.
    """
    keeper: Any = broker
    assert isinstance(keeper, KeepsDeliveries)
    for finding in findings:
        done = keeper.give_back(finding.delivery) if finding.is_orphan else GiveBack.DONE
        yield finding if done is GiveBack.DONE else Finding(finding.delivery, done.value)


def take_back(broker: Broker, selection: Selection) -> str:
    """Give back the orphans of a move's queues; return a text that says how many, and what is left and why.

    Raises:
        HoldersUnknown: a worker may be alive that did not say what it holds.
        BrokerUnreachable: the broker did not answer.
    """
    return _by_itself(broker) or summary(give_back(broker, find_orphans(broker, selection)), "given back")


def look_ahead(broker: Broker, selection: Selection) -> str:
    """Return what `take_back` would do; nothing is changed.

    Raises:
        HoldersUnknown, BrokerUnreachable: as `take_back`.
    """
    return _by_itself(broker) or summary(find_orphans(broker, selection), "would be given back")


def _by_itself(broker: Broker) -> str:
    return f"{broker.product} gives back by itself what it delivered" if returns_by_itself(broker) else ""


def summary(findings: Iterable[Finding], done: str) -> str:
    """Return how many messages are `done`, and how many are left in workers' hands for which reason."""
    counts = Counter(one.reason or done for one in findings)
    orphans = counts.pop(done, 0)
    left = "".join(f"; {count} left: {reason}" for reason, count in counts.most_common())
    return f"{orphans} orphans {done}{left}"


def _is_selected(delivery: Delivery, selection: Selection) -> bool:
    """Return whether a delivery may be of a selected queue; what cannot be read may be of any."""
    return not (selection.queues and delivery.queues) or bool(set(delivery.queues) & set(selection.queues))


def _own_reason(delivery: Delivery, selection: Selection, now: float) -> str:
    """Return why a delivery stays where it is, whether it is held or not."""
    reasons = (
        (bool(delivery.problem), delivery.problem),
        (not delivery.task_id, "it has no task id"),
        (delivery.lives, GiveBack.LIVES.value),
        (delivery.delivered_at is None, "the broker does not know when it was delivered"),
        (not delivery.queues, "no queue is bound to its key"),
        (len(delivery.queues) > 1, f"it may belong to several queues: {', '.join(delivery.queues)}"),
        (
            now - delivery.ahead_s - (delivery.delivered_at or 0) < selection.older_than_s,
            _young(selection),
        ),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _young(selection: Selection) -> str:
    return f"it was delivered less than {selection.older_than_s:g} s ago"


def _look(broker: Any, findings: Collection[Finding], selection: Selection) -> list[Finding]:  # noqa: ANN401 - both protocols
    """Ask the workers, and check that all are accounted for; return what is still an orphan.

    Raises:
        HoldersUnknown: they are not, and there is one.
    """
    answers: Answers = broker.ask_workers(selection.control_exchange, selection.within_s)
    clients: tuple[BrokerClient, ...] = broker.consuming_clients()
    held = {id_: f"{by[0].worker} holds it ({by[0].state})" for id_, by in holders(answers).items()}
    looked = [one if one.reason else Finding(one.delivery, _held_reason(one, held, answers)) for one in findings]
    if any(one.is_orphan for one in looked):
        _check(answers, [one for one in clients if one.address not in selection.not_workers])
    return looked


def _held_reason(finding: Finding, held: dict[str, str], answers: Answers) -> str:
    delivery = finding.delivery
    if delivery.task in answers.limited:
        return "a worker limits the rate of this task, and may hold it unseen"
    return held.get(delivery.task_id, "")


def _check(answers: Answers, clients: Collection[BrokerClient]) -> None:
    """Check that every client that may be a worker has answered.

    Raises:
        HoldersUnknown: one has not.
    """
    listening = answers.asked or 0
    if listening <= answers.answered and len(clients) <= answers.consuming:
        return
    # a worker that is stopped or busy has been idle for the longest time
    listed = "; ".join(map(_described, sorted(clients, key=lambda one: -one.idle_s)))
    silent = f"; no answer from {', '.join(answers.silent)}" if answers.silent else ""
    message = (
        "nothing is given back, since a worker may be alive that did not say what it holds: "
        f"{answers.answered} of {listening} workers that listen answered, {answers.consuming} of them consume, and "
        f"{len(clients)} clients of the broker do: {listed or 'none'}{silent}"
    )
    hint = (
        "A worker may be frozen, busy, shutting down, or not listen for commands. End it, or wait until it answers. "
        "--not-a-worker ADDRESS leaves out a client that you know to hold no tasks."
    )
    raise HoldersUnknown(message, hint=hint)


def _described(client: BrokerClient) -> str:
    name = f" {client.name!r}" if client.name else ""
    return f"{client.address}{name} (connected for {client.age_s:.0f} s, idle for {client.idle_s:.0f} s)"
