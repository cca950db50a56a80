from celery import Celery, Task

from miniweb import Web


def create_app():
    app = Web(__name__)
    app.config.update(
        SECRET_KEY="dev",
        DEBUG=True,
        CELERY={
            "broker_url": "redis://localhost",
            "result_backend": "redis://localhost",
            "task_ignore_result": True,
        },
    )
    celery_init_app(app)

    from . import tasks  # noqa: F401  the views import it in a real site

    return app


def celery_init_app(app):
    class ContextTask(Task):
        def __call__(self, *args, **kwargs):
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=ContextTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app
