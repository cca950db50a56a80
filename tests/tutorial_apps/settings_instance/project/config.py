import os
from functools import lru_cache


class BaseSettings:
    BASE_DIR = os.path.dirname(os.path.abspath(__file__))
    DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///db.sqlite3")

    CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "redis://127.0.0.1:6379/0")
    CELERY_RESULT_BACKEND = os.environ.get("CELERY_RESULT_BACKEND", "redis://127.0.0.1:6379/0")
    CELERY_TASK_DEFAULT_QUEUE = "default"
    CELERY_TASK_CREATE_MISSING_QUEUES = True


class DevelopmentSettings(BaseSettings):
    DEBUG = True
    CELERY_TASK_TRACK_STARTED = True


@lru_cache
def get_settings():
    return DevelopmentSettings()
