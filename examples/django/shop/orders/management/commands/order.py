import signal
from threading import Event

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
        ended = Event()  # not in the middle of an order, which would be stored and not sent
        signal.signal(signal.SIGINT, lambda *_: ended.set())
        placed = 0
        while placed < number and not ended.wait(pause):
            self.place()
            placed += 1
        self.stdout.write(f"{placed} orders placed")

    @transaction.atomic
    def place(self):
        order = Order.objects.create()
        charge.delay(order.pk)
