# Shaped after Flask's documentation up to 2.2: Celery Background Tasks.
"""The older way with a web framework: all of its configuration goes to Celery."""

from contextlib import contextmanager

from celery import Celery


class Web:
    import_name = "webapp"

    def __init__(self, **config):
        self.config = config

    @contextmanager
    def app_context(self):
        yield


def make_celery(web):
    celery = Celery(
        web.import_name,
        backend=web.config["CELERY_RESULT_BACKEND"],
        broker=web.config["CELERY_BROKER_URL"],
    )
    celery.conf.update(web.config)

    class ContextTask(celery.Task):
        abstract = True

        def __call__(self, *args, **kwargs):
            with web.app_context():
                return self.run(*args, **kwargs)

    celery.Task = ContextTask
    return celery


web = Web(
    SECRET_KEY="top secret",
    DEBUG=True,
    MAIL_SERVER="localhost",
    SQLALCHEMY_DATABASE_URI="sqlite:///web.db",
    CELERY_BROKER_URL="redis://localhost:6379/0",
    CELERY_RESULT_BACKEND="redis://localhost:6379/0",
)
celery = make_celery(web)


@celery.task
def send_mail(subject, recipients):
    return [subject, recipients]


@celery.task(bind=True)
def long_job(self, steps):
    for step in range(steps):
        self.update_state(state="PROGRESS", meta={"current": step, "total": steps})
    return {"current": steps, "total": steps}
