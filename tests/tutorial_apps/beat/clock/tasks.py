from celery.schedules import crontab

from .celery import app


@app.on_after_finalize.connect
def add_more(sender, **kwargs):
    sender.add_periodic_task(10.0, say.s("tick"), name="tick every 10")
    sender.add_periodic_task(30.0, say.s("tock"), expires=10)
    sender.add_periodic_task(crontab(minute=0, hour="*/3"), sweep.s(), name="sweep on the hour")


@app.task
def ping(host):
    return host


@app.task
def digest(kind="daily"):
    return kind


@app.task
def sweep():
    return 0


@app.task
def say(word):
    print(word)
