"""The next sensible command of a deployment, by what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.overview.facts import NextStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.overview.facts import BrokerStatus, LeasesStatus, MoveStatus, RolloutStatus, Unread


def next_step(
    *,
    app: str | None,
    brokers: list[BrokerStatus],
    leases: LeasesStatus | None,
    moves: list[MoveStatus],
    rollout: RolloutStatus | None,
    unread: list[Unread],
    **_: Any,  # noqa: ANN401 - what decides nothing
) -> NextStep:
    """Return the command for what is most urgent; the doctor's if nothing is."""
    named = f" -A {app}" if app else ""
    # it has no application to look at without one
    doctor = f"repot doctor -A {app or 'APP'} --live"
    found = (
        *_unreached(brokers, doctor),
        *_of_rollout(rollout),
        *_of_moves(moves),
        *_of_leases(leases, named),
        *_of_queues(brokers, app),
        *_of_dead_letters(brokers, named),
        NextStep(doctor, _no_need(unread)),
    )
    return found[0]


def _no_need(unread: list[Unread]) -> str:
    if unread:
        return "nothing that was read needs a person, and some of it is unknown"
    return "nothing here needs a person: look for what could go wrong"


def _unreached(brokers: list[BrokerStatus], doctor: str) -> Iterator[NextStep]:
    if brokers[0].queues is None:
        yield NextStep(doctor, f"{brokers[0].url} could not be read")


def _of_rollout(rollout: RolloutStatus | None) -> Iterator[NextStep]:
    if rollout is None or rollout.is_over:
        return
    if rollout.controller is None:
        yield NextStep(
            f"repot rollout resume {rollout.name} --execute", f"in phase {rollout.phase} without a controller"
        )
    yield NextStep(f"repot rollout status {rollout.name}", f"the rollout is in phase {rollout.phase}")


def _of_moves(moves: list[MoveStatus]) -> Iterator[NextStep]:
    for one in moves:
        if one.is_alive:
            yield NextStep(f"repot move status {one.name}", "the move is at work")
        else:
            # to resume a revert would turn it round
            verb = "revert" if one.direction == "back" else "resume"
            yield NextStep(f"repot move {verb} {one.name} --execute", f"the move is {one.state}, and no process moves")


def _of_leases(leases: LeasesStatus | None, named: str) -> Iterator[NextStep]:
    if leases and leases.unknown_outcomes:
        count = leases.unknown_outcomes
        why = f"{count} guarded run{'s' * (count > 1)} ended without a known outcome"
        yield NextStep(f"repot leases list{named} --unknown-outcome", why)


def _of_queues(brokers: list[BrokerStatus], app: str | None) -> Iterator[NextStep]:
    for broker in brokers:
        dead = {one.queue for one in broker.dead_letters or ()}
        queues = [one for one in broker.queues or () if one.name not in dead]
        waiting = [one.name for one in queues if one.ready and one.named_by and one.read_by == []]
        silent = [one.name for one in broker.workers or () if not one.answers]
        if waiting and silent:
            named = f" -A {app}" if app else ""
            yield NextStep(f"repot inflight list{named}", f"workers do not answer: {', '.join(silent)}")
        elif waiting:
            yield NextStep(
                f"celery -A {app or 'APP'} worker -Q {','.join(waiting)}", f"no worker reads what waits on {broker.url}"
            )


def _of_dead_letters(brokers: list[BrokerStatus], named: str) -> Iterator[NextStep]:
    for broker in brokers:
        full = [one.queue for one in broker.dead_letters or () if one.count]
        if full:
            # the first broker is the command's default, and so is the other one of a bridge
            sides = () if broker is brokers[0] else ("target", "source")
            other = next((f" --broker {side}" for side in sides if _is(broker, side)), "")
            yield NextStep(f"repot dlq stats{named}{other}", f"dead letters are in {', '.join(full)}")


def _is(broker: BrokerStatus, side: str) -> bool:
    return any(role.startswith(side) for role in broker.roles)
