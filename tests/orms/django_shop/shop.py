"""What the shop does: customers order products."""

import random
from uuid import UUID

from django.db import IntegrityError, OperationalError, connection, transaction

from tests.orms.django_shop.models import Customer, Line, Order, Product
from tests.orms.shop import CUSTOMERS, PRODUCTS, STOCK


def stock_up() -> None:
    """Makes the products."""
    Product.objects.bulk_create(Product(name=name, stock=STOCK) for name in PRODUCTS)


def place_orders(seed: int, count: int) -> int:
    """Places so many orders; returns how often one was run again."""
    chance = random.Random(seed)
    retries = 0
    for _ in range(count):
        reference = UUID(int=chance.getrandbits(128), version=4)
        email = f"{chance.randrange(CUSTOMERS)}@shop.example"
        wanted = {name: chance.randint(1, 5) for name in chance.sample(PRODUCTS, 2)}
        while True:
            try:
                with transaction.atomic():
                    place_order(reference, email, wanted)
                break
            except (OperationalError, IntegrityError):
                retries += 1
                connection.close_if_unusable_or_obsolete()
    return retries


def place_order(reference: UUID, email: str, wanted: dict[str, int]) -> None:
    """Notes an order, unless it is there, and takes it out of the stock."""
    if Order.objects.filter(reference=reference).exists():
        return
    customer = Customer.objects.filter(email=email).first()
    if customer is None:
        customer = Customer.objects.create(email=email)
    order = Order.objects.create(reference=reference, customer=customer, total=sum(wanted.values()))
    for product in Product.objects.filter(name__in=wanted):
        product.stock -= wanted[product.name]
        product.save()
        Line.objects.create(order=order, product=product, quantity=wanted[product.name])
