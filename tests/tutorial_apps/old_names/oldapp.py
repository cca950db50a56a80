# Shaped after Celery's documentation of 3.1: Configuration and defaults.
from celery import Celery

app = Celery("oldapp")
app.config_from_object("celeryconfig")
