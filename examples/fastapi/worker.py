import os
import time

from celery import Celery

app = Celery("shop")
app.conf.broker_url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
app.conf.result_backend = os.environ.get("REDIS_RESULTS_URL", "redis://localhost:6379/1")
app.conf.task_time_limit = 600


def note(line):
    with open("ledger.txt", "a") as ledger:
        ledger.write(line + "\n")
    print(line)


@app.task
def charge(order):
    time.sleep(0.02)
    note(f"charged {order}")


@app.task
def render(project, pages):
    for page in range(1, pages + 1):
        print(f"page {page} of project {project}")
        time.sleep(2)
    note(f"rendered {project}")
