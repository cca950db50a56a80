"""For Celery 5.4 to 5.7, with repot (SHOP_WITH_REPOT) or without; each run is a line of a file: its label and release."""

import os

from celery import Celery, __version__, chain, chord
from kombu import Exchange, Queue

OLD, NEW = os.environ["SHOP_QUEUES"].split(",")

app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_RESULTS"])
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    result_extended=True,
    task_default_queue=OLD,
    # with arguments of its own a queue is the same with repot and without
    task_queues=[Queue(name, Exchange(name), name, queue_arguments={"x-queue-type": "classic"}) for name in (OLD, NEW)],
)
if os.environ.get("SHOP_WITH_REPOT"):
    import repot

    repot.configure(app)


def note(label):
    with open(os.environ["SHOP_RUNS"], "a") as runs:
        runs.write(f"{label} {__version__}\n")


@app.task
def step(before, label):
    note(label)
    return [*before, label]


@app.task
def body(parts, label):
    note(label)
    return sorted(sum(parts, []))


@app.task(bind=True, max_retries=2)
def again(self, label, elsewhere):
    note(f"{label}-{self.request.retries}")
    if self.request.retries < 2:
        back = self.request.delivery_info["routing_key"]
        raise self.retry(args=(label, back), queue=elsewhere, countdown=0.5)
    return label


def sent_by(who):
    """Send what crosses from one release to the other and back; wait for it, and return the results."""
    number = iter(range(100))

    def on(queue):
        return step.s(f"{who}-{next(number)}-{'old' if queue == OLD else 'new'}").set(queue=queue)

    first = step.s([], f"{who}-first").set(queue=OLD)
    crossed = chain(first, on(NEW), on(OLD), on(NEW)).apply_async()
    heads = [step.s([], f"{who}-head-{side}").set(queue=queue) for side, queue in (("old", OLD), ("new", NEW))]
    chords = [
        chord(heads, body.s(f"{who}-body-{side}").set(queue=queue)).apply_async()
        for side, queue in (("old", OLD), ("new", NEW))
    ]
    retried = [
        again.apply_async((f"{who}-from-{side}", other), queue=queue)
        for side, queue, other in (("old", OLD, NEW), ("new", NEW, OLD))
    ]
    later = [
        step.apply_async(([], f"{who}-eta-{side}"), queue=queue, countdown=1)
        for side, queue in (("old", OLD), ("new", NEW))
    ]
    revoked = []
    for side, queue in (("old", OLD), ("new", NEW)):
        task_id = f"{who}-revoked-{side}-{os.getpid()}"
        answers = app.control.revoke(task_id, reply=True, limit=2, timeout=30)
        assert len(answers) == 2, answers
        revoked.append(step.apply_async(([], f"{who}-revoked-{side}"), queue=queue, task_id=task_id))
    return {
        "chain": crossed.get(timeout=60),
        "chords": [one.get(timeout=60) for one in chords],
        "retries": [one.get(timeout=60) for one in retried],
        "eta": [one.get(timeout=60) for one in later],
        "revoked": [type(one.get(timeout=60, propagate=False)).__name__ for one in revoked],
    }


def events_seen():
    """Wait for an event of a worker; return how many came."""
    seen = []
    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"worker-heartbeat": seen.append})
        receiver.capture(limit=1, timeout=30)
    return len(seen)
