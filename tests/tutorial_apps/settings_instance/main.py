# Shaped after testdriven.io's course on FastAPI and Celery: an instance of settings with a namespace.
from project import users  # noqa: F401
from project.celery_utils import create_celery

celery = create_celery()
