"""What the shop does: customers order products."""

import random

from django.db import IntegrityError, OperationalError, connection, transaction

from tests.orms.django_shop.models import Customer, Line, Order, Product
from tests.orms.retried import CUSTOMERS, PRODUCTS, RETRIED, STOCK


def stock_up() -> None:
    """Makes the products."""
    Product.objects.bulk_create(Product(name=name, stock=STOCK) for name in PRODUCTS)


def place_orders(seed: int, count: int) -> int:
    """Places so many orders; returns how often one was run again."""
    chance = random.Random(seed)
    retries = 0
    for _ in range(count):
        email = f"{chance.randrange(CUSTOMERS)}@shop.example"
        wanted = {name: chance.randint(1, 5) for name in chance.sample(PRODUCTS, 2)}
        while True:
            try:
                with transaction.atomic():
                    place_order(email, wanted)
                break
            except IntegrityError:  # Somebody else has just made that customer.
                retries += 1
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", None) not in RETRIED:
                    raise
                retries += 1
                connection.close_if_unusable_or_obsolete()
    return retries


def place_order(email: str, wanted: dict[str, int]) -> None:
    """Notes an order, and takes it out of the stock."""
    customer = Customer.objects.filter(email=email).first()
    if customer is None:
        customer = Customer.objects.create(email=email)
    order = Order.objects.create(customer=customer, total=sum(wanted.values()))
    for product in Product.objects.filter(name__in=wanted):
        product.stock -= wanted[product.name]
        product.save()
        Line.objects.create(order=order, product=product, quantity=wanted[product.name])
