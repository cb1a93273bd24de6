"""The tables of the shop."""

from django.db import models


class Customer(models.Model):
    """Somebody who orders, known by the address."""

    email = models.EmailField(unique=True)


class Product(models.Model):
    """What is sold."""

    name = models.CharField(max_length=40, unique=True)
    stock = models.IntegerField()


class Order(models.Model):
    """Some lines of one customer; `total` is the sum of their quantities."""

    reference = models.UUIDField(unique=True)
    customer = models.ForeignKey(Customer, on_delete=models.PROTECT, related_name="orders")
    total = models.IntegerField()


class Line(models.Model):
    """So many of one product."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    quantity = models.IntegerField()
