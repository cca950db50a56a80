from django.db import models


class Order(models.Model):
    placed_at = models.DateTimeField(auto_now_add=True)


class Payment(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    paid_at = models.DateTimeField(auto_now_add=True)
