"""When a side is empty: every queue, every kind of message, for longer than counts lag; and unknown is not empty."""

from __future__ import annotations

import pytest

from repot.brokers.port import Depth
from repot.config import ExplicitSettings
from repot.errors import BrokerUnreachable, DepthUnknown
from repot.rollout import side_watch as side_watch_module
from repot.rollout.side_watch import SideWatch
from repot.routing.side import Side

LAG_S = 6.0


class Counts:
    """What a broker says of its queues; a test sets it."""

    depth_lag_s = LAG_S

    def __init__(self) -> None:
        self.depths = {"orders": Depth(0, 0), "mails": Depth(0, 0)}
        self.error: Exception | None = None
        self.is_closed = False

    def depth(self, queue: str) -> Depth:
        if self.error:
            raise self.error
        return self.depths[queue]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test moves."""
    found = [1000.0]
    monkeypatch.setattr(side_watch_module, "monotonic", lambda: found[0])
    return found


@pytest.fixture
def side(counts: Counts) -> SideWatch:
    return SideWatch(Side.SOURCE, lambda: counts, ("orders", "mails"))  # type: ignore[arg-type, return-value]


def test_a_side_is_empty_when_it_was_so_for_longer_than_counts_lag(side: SideWatch, now: list[float]) -> None:
    answers = []
    for _ in range(4):
        answers.append(side.is_empty())
        now[0] += 2.5
    # at 0, 2.5, 5 and 7.5 seconds
    assert answers == [False, False, False, True]
    assert side.left == ()


def test_the_time_begins_again_with_each_message(side: SideWatch, counts: Counts, now: list[float]) -> None:
    assert not side.is_empty()
    now[0] += LAG_S + 1
    counts.depths["mails"] = Depth(0, 1)
    assert side.is_empty() is False
    counts.depths["mails"] = Depth(0, 0)
    assert side.is_empty() is False
    now[0] += LAG_S + 1
    assert side.is_empty()


@pytest.mark.parametrize("queue", ["orders", "mails"])
@pytest.mark.parametrize(
    ("depth", "text", "waits"),
    [
        (Depth(1, 0), "waiting", True),
        (Depth(0, 1), "in hand", False),
        (Depth(0, 0, delayed=1), "delayed", True),
    ],
)
def test_each_kind_of_message_in_each_queue_counts(
    side: SideWatch, counts: Counts, now: list[float], queue: str, depth: Depth, text: str, *, waits: bool
) -> None:
    side.is_empty()
    now[0] += LAG_S + 1
    counts.depths[queue] = depth
    assert side.is_empty() is False
    assert (f"the source has messages of {queue!r}: {text}",) == side.left
    # what a mover can carry: no worker has it
    assert waits == side.has_waiting


@pytest.mark.parametrize("error", [BrokerUnreachable("gone", hint=""), DepthUnknown("no count", hint="")])
def test_what_a_broker_does_not_say_is_unknown_and_not_empty(
    side: SideWatch, counts: Counts, now: list[float], error: Exception
) -> None:
    side.is_empty()
    now[0] += LAG_S + 1
    counts.error = error
    assert side.is_empty() is None
    assert "whether the source is empty is unknown" in side.left[0]
    assert not side.has_waiting
    # it may have changed meanwhile
    counts.error = None
    assert side.is_empty() is False


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("of", list(Side))
def test_a_broker_that_goes_while_other_queues_are_looked_for_is_not_empty(
    counts: Counts, now: list[float], of: Side, *, whole: bool
) -> None:
    gone = BrokerUnreachable("gone", hint="")

    def held() -> None:
        raise gone

    counts.held = held  # type: ignore[attr-defined]
    side = SideWatch(of, lambda: counts, ("orders", "mails"), ExplicitSettings(), whole)  # type: ignore[arg-type, return-value]
    side.is_empty()
    now[0] += LAG_S + 1
    assert side.is_empty() is False
    assert side.left == (f"whether other queues of the {of} are empty is unknown: gone",)
