"""The worker's side: the Celery application, its adoption of the settings, synthetic tasks."""
