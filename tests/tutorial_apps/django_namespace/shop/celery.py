# Shaped after Celery's documentation: First steps with Django.
from celery import Celery

from . import settings

app = Celery("shop")

# Every setting of Celery's begins with CELERY_ in the settings module.
app.config_from_object("shop.settings", namespace="CELERY")

# Django's own helper lists the installed applications; here they are named.
app.autodiscover_tasks(lambda: settings.INSTALLED_APPS)


@app.task(bind=True, ignore_result=True)
def debug_request(self):
    print(repr(self.request))
