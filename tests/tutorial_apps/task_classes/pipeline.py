# Shaped after Celery's documentation: User Guide, Tasks.
"""Task options, task classes and the exceptions that steer a task."""

import errno
import random

from celery import Celery, Task, states
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

app = Celery("pipeline", broker="amqp://guest:guest@localhost:5672//", backend="redis://localhost:6379/0")


class Busy(Exception):
    pass


class Denied(Exception):
    pass


def remote(value):
    if random.random() < 0.2:
        raise Busy(value)
    return value


# -- retries by hand ----------------------------------------------------------
@app.task(bind=True)
def post_status(self, text):
    try:
        return remote(text)
    except Busy as exc:
        raise self.retry(exc=exc)


@app.task(bind=True, default_retry_delay=30 * 60)
def post_later(self, text):
    try:
        return remote(text)
    except Exception as exc:
        raise self.retry(exc=exc, countdown=60)


@app.task(bind=True, max_retries=None)
def until_it_works(self, text):
    try:
        return remote(text)
    except Busy as exc:
        raise self.retry(exc=exc, countdown=2**self.request.retries)


# -- retries by declaration ---------------------------------------------------
@app.task(autoretry_for=(Busy,))
def refresh(user):
    return remote(user)


@app.task(autoretry_for=(Busy,), retry_kwargs={"max_retries": 5})
def refresh_five_times(user):
    return remote(user)


@app.task(autoretry_for=(Exception,), retry_backoff=True)
def refresh_slower(user):
    return remote(user)


@app.task(
    autoretry_for=(Exception,),
    dont_autoretry_for=(Denied,),
    retry_backoff=5,
    retry_backoff_max=700,
    retry_jitter=False,
    max_retries=8,
)
def refresh_tuned(user):
    return remote(user)


class RetryingTask(Task):
    abstract = True
    autoretry_for = (Busy, TypeError)
    max_retries = 5
    retry_backoff = True
    retry_backoff_max = 700
    retry_jitter = False


@app.task(base=RetryingTask, bind=True)
def convert(self, value):
    return int(remote(value))


# -- rejecting and ignoring ---------------------------------------------------
@app.task(bind=True, acks_late=True)
def render(self, path):
    try:
        return remote(path)
    except MemoryError as exc:
        raise Reject(exc, requeue=False)
    except OSError as exc:
        if exc.errno == errno.ENOMEM:
            raise Reject(exc, requeue=False)
        raise
    except Exception as exc:
        raise self.retry(exc=exc, countdown=10)


@app.task(bind=True, acks_late=True)
def once_more(self):
    if not self.request.delivery_info["redelivered"]:
        raise Reject("not yet", requeue=True)


@app.task(bind=True)
def own_result(self, user):
    self.update_state(state=states.SUCCESS, meta={"user": user})
    raise Ignore()


# -- limits and results -------------------------------------------------------
@app.task(
    acks_late=True,
    reject_on_worker_lost=True,
    time_limit=90,
    soft_time_limit=60,
    rate_limit="100/m",
    throws=(KeyError,),
)
def transcode(path):
    try:
        return remote(path)
    except SoftTimeLimitExceeded:
        return None


@app.task(ignore_result=True, serializer="json", compression="gzip", track_started=True)
def forget(value):
    remote(value)


# -- classes ------------------------------------------------------------------
class StoreTask(Task):
    abstract = True
    _store = None

    @property
    def store(self):
        if self._store is None:
            self._store = {}
        return self._store

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        self.store[task_id] = repr(exc)


@app.task(base=StoreTask, bind=True)
def keep(self, key, value):
    self.store[key] = value


class Archive(Task):
    name = "pipeline.archive"
    acks_late = True
    max_retries = 2

    def run(self, path):
        try:
            return remote(path)
        except Busy as exc:
            raise self.retry(exc=exc, countdown=5)


archive = app.register_task(Archive())
