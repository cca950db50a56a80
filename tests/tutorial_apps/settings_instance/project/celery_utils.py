from celery import current_app

from .config import get_settings


def create_celery():
    celery_app = current_app
    celery_app.config_from_object(get_settings(), namespace="CELERY")
    return celery_app
