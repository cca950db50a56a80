"""A settings module as a web framework has it: most of it is not Celery's."""

import os

DEBUG = True
SECRET_KEY = "change-me"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["shop.orders", "shop.catalog"]
DATABASES = {"default": {"ENGINE": "sqlite3", "NAME": "shop.db"}}
CACHES = {"default": {"BACKEND": "locmem"}}
TIME_ZONE = "UTC"
USE_TZ = True
EMAIL_HOST = "localhost"
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")

CELERY_BROKER_URL = REDIS_URL
CELERY_RESULT_BACKEND = REDIS_URL
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_TIMEZONE = TIME_ZONE
CELERY_TASK_TRACK_STARTED = True
CELERY_TASK_TIME_LIMIT = 30 * 60
