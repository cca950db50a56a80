# Shaped after Celery's documentation: User Guide, Application, a class as configuration.
import os

from celery import Celery


class Config:
    broker_url = os.environ.get("BROKER", "redis://localhost:6379/0")
    result_backend = os.environ.get("BACKEND", "redis://localhost:6379/1")
    enable_utc = True
    timezone = "America/Montevideo"
    task_track_started = True


class ProductionConfig(Config):
    result_expires = 7200
    worker_max_tasks_per_child = 500


configs = {"development": Config, "production": ProductionConfig}

app = Celery("reports")
app.config_from_object(configs[os.environ.get("STAGE", "production")])


@app.task
def build_report(month):
    return "report-%s.pdf" % month


@app.task(time_limit=120, soft_time_limit=100)
def mail_report(path, address):
    return [path, address]
