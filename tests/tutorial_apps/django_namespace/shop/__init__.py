# Imported with the project, so that shared tasks find the application.
from .celery import app as celery_app

__all__ = ("celery_app",)
