"""The order of repot's steps that wrap the worker's handler of messages: Celery keeps steps in a set."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from celery import Celery
from celery.worker.consumer import Consumer

from repot.config import ExplicitSettings
from repot.worker.configure import configure
from repot.worker.dead_lettering import DeadLetterStep
from repot.worker.delivery_context import DeliveryContextStep
from repot.worker.expiry_watch import ExpiryStep
from repot.worker.long_delays import LongDelayStep
from repot.worker.moved_messages import MovedMessagesStep

#: The last one wraps all others, and sees a message first.
WRAPPING = [DeadLetterStep, ExpiryStep, MovedMessagesStep, DeliveryContextStep, LongDelayStep]


def test_the_steps_that_wrap_are_created_in_one_order() -> None:
    """A message that is not due goes into its delay again unseen; one that became due meanwhile passes all others."""
    app = Celery("shop", set_as_current=False)
    configure(app, ExplicitSettings())
    blueprint: Any = Consumer.Blueprint(steps=app.steps["consumer"])
    steps = blueprint.claim_steps()
    others = {name: step for name, step in steps.items() if step not in WRAPPING}
    orders = set()
    for some in permutations(WRAPPING):
        for claimed in ({**{one.name: one for one in some}, **others}, {**others, **{one.name: one for one in some}}):
            order = blueprint._finalize_steps(claimed)
            orders.add(tuple(one.__name__ for one in order if one in WRAPPING))
    assert orders == {tuple(one.__name__ for one in WRAPPING)}
