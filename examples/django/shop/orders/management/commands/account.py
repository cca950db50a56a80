import time

from django.core.management.base import BaseCommand
from django.db.models import Count

from shop.orders.models import Order


class Command(BaseCommand):
    help = "Compare the payments with the orders."

    def handle(self, **_):
        orders = Order.objects.annotate(payments=Count("payment"))
        for _ in range(300):  # the last tasks may still run
            if not orders.filter(payments=0).exists():
                break
            time.sleep(0.1)
        missing, doubled = orders.filter(payments=0).count(), orders.filter(payments__gt=1).count()
        self.stdout.write(f"orders {orders.count()}, not paid {missing}, paid twice {doubled}")
