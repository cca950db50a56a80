# Shaped after Celery's documentation: First Steps with Celery, section Configuration.
from celery import Celery

app = Celery("tasks")
app.config_from_object("celeryconfig")


@app.task
def index_page(url):
    return {"url": url, "words": len(url.split("/"))}


@app.task
def count_words(text):
    return len(text.split())
