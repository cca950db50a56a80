"""Names as they were before Celery 4."""

from datetime import timedelta

BROKER_URL = "redis://localhost:6379/0"
BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3600}
CELERY_RESULT_BACKEND = "redis://localhost:6379/0"
CELERY_TASK_RESULT_EXPIRES = 18000
CELERY_TASK_SERIALIZER = "pickle"
CELERY_RESULT_SERIALIZER = "pickle"
CELERY_ACCEPT_CONTENT = ["pickle", "json"]
CELERY_TIMEZONE = "Europe/Oslo"
CELERY_IMPORTS = ("jobs",)
CELERY_ACKS_LATE = True
CELERYD_PREFETCH_MULTIPLIER = 1
CELERYD_CONCURRENCY = 4
CELERYD_MAX_TASKS_PER_CHILD = 100
CELERYD_TASK_TIME_LIMIT = 600
CELERY_DEFAULT_QUEUE = "default"
CELERY_ROUTES = {"jobs.crawl": {"queue": "crawl"}}
CELERY_ANNOTATIONS = {"jobs.crawl": {"rate_limit": "5/s"}}
CELERYBEAT_SCHEDULE = {
    "crawl-now-and-then": {
        "task": "jobs.crawl",
        "schedule": timedelta(minutes=10),
        "args": ("http://localhost/",),
    },
}
