import os
import time

from celery import shared_task

from .models import Payment


@shared_task
def charge(order):
    Payment.objects.create(order_id=order)
    print(f"charged order {order}")
    # until the payment gateway has sent its receipt
    time.sleep(float(os.environ.get("SHOP_RECEIPT_S", "0.02")))
