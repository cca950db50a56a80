import time

from django.core.management.base import BaseCommand
from django.db import transaction

from shop.orders.models import Order
from shop.orders.tasks import charge


class Command(BaseCommand):
    help = "Place orders, as the shop's page does. Ctrl-C ends it before the last one."

    def add_arguments(self, parser):
        parser.add_argument("number", type=int)
        parser.add_argument("--pause", type=float, default=0)

    def handle(self, *, number, pause, **_):
        placed = 0
        try:
            for _ in range(number):
                self.place()
                placed += 1
                time.sleep(pause)
        except KeyboardInterrupt:
            pass
        self.stdout.write(f"{placed} orders placed")

    @transaction.atomic
    def place(self):
        order = Order.objects.create()
        charge.delay(order.pk)
