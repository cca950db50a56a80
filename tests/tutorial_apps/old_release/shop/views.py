"""No worker imports it."""

from django.db import transaction

from shop.tasks import charge, remind


def order(request):
    with transaction.atomic():
        charge.delay(request.POST["order"])
    remind.apply_async(("you",), countdown=2 * 60 * 60)
