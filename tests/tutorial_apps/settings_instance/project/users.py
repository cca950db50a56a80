from celery import shared_task


@shared_task
def greet(name):
    return "hello " + name


@shared_task(bind=True, autoretry_for=(OSError,), retry_backoff=True, retry_kwargs={"max_retries": 5})
def call_webhook(self, url):
    return url
