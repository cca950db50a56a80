import os
import time

from celery import Celery

BROKER_URL = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
RESULT_URL = os.environ.get("RESULT_URL", "redis://localhost:6379/1")

app = Celery("shop", broker=BROKER_URL, backend=RESULT_URL)
app.conf.task_acks_late = True
app.conf.broker_transport_options = {"visibility_timeout": 60}


def note(line):
    with open("ledger.txt", "a") as ledger:
        ledger.write(line + "\n")
    print(line)


@app.task
def charge(order):
    note(f"charged {order}")
    # until the payment gateway has sent its receipt
    time.sleep(float(os.environ.get("SHOP_RECEIPT_S", "0.02")))


@app.task(time_limit=120)
def export(month):
    time.sleep(3)
    note(f"exported {month}")
