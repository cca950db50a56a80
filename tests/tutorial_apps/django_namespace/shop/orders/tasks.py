import random

from celery import shared_task


class GatewayDown(Exception):
    pass


@shared_task
def confirm_order(order_id):
    return {"order": order_id, "state": "confirmed"}


@shared_task(bind=True, max_retries=3)
def charge_card(self, order_id, cents):
    try:
        if random.random() < 0.1:
            raise GatewayDown("no answer")
    except GatewayDown as exc:
        raise self.retry(exc=exc, countdown=60 * 2**self.request.retries)
    return cents


def place_order(order_id, cents):
    """What a view does."""
    confirm_order.delay(order_id)
    charge_card.apply_async(args=[order_id, cents], countdown=30)
