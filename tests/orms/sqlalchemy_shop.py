"""The shop in SQLAlchemy; all settings are its defaults but for the isolation level."""

import random
from uuid import UUID

from sqlalchemy import ForeignKey, create_engine, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from tests.orms.shop import CUSTOMERS, PRODUCTS, STOCK

PREFIX = "sqlalchemy_"


class Base(DeclarativeBase):
    """The tables of the shop."""


class Customer(Base):
    """Somebody who orders, known by the address."""

    __tablename__ = f"{PREFIX}customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    orders: Mapped[list["Order"]] = relationship(back_populates="customer")


class Product(Base):
    """What is sold."""

    __tablename__ = f"{PREFIX}product"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    stock: Mapped[int]


class Order(Base):
    """Some lines of one customer; `total` is the sum of their quantities."""

    __tablename__ = f"{PREFIX}order"
    id: Mapped[int] = mapped_column(primary_key=True)
    reference: Mapped[UUID] = mapped_column(unique=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))
    total: Mapped[int]
    customer: Mapped[Customer] = relationship(back_populates="orders")
    lines: Mapped[list["Line"]] = relationship(back_populates="order")


class Line(Base):
    """So many of one product."""

    __tablename__ = f"{PREFIX}line"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    product_id: Mapped[int] = mapped_column(ForeignKey(Product.id))
    quantity: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")
    product: Mapped[Product] = relationship()


def engine_of(dsn: str) -> Engine:
    """Returns an engine on a server."""
    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    return create_engine(url, isolation_level="REPEATABLE READ")


def create(dsn: str) -> None:
    """Makes the tables, and the products."""
    engine = engine_of(dsn)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Product(name=name, stock=STOCK) for name in PRODUCTS)
    engine.dispose()


def place_orders(dsn: str, seed: int, count: int) -> int:
    """Places so many orders at a server; returns how often one was run again."""
    engine = engine_of(dsn)
    chance = random.Random(seed)
    retries = 0
    for _ in range(count):
        reference = UUID(int=chance.getrandbits(128), version=4)
        email = f"{chance.randrange(CUSTOMERS)}@shop"
        wanted = {name: chance.randint(1, 5) for name in chance.sample(PRODUCTS, 2)}
        while True:
            try:
                with Session(engine) as session, session.begin():
                    place_order(session, reference, email, wanted)
                break
            except (OperationalError, IntegrityError):
                retries += 1
    engine.dispose()
    return retries


def place_order(session: Session, reference: UUID, email: str, wanted: dict[str, int]) -> None:
    """Notes an order, unless it is there, and takes it out of the stock."""
    if session.scalar(select(Order).where(Order.reference == reference)):
        return
    customer = session.scalar(select(Customer).where(Customer.email == email))
    if customer is None:
        customer = Customer(email=email)
    lines = []
    for product in session.scalars(select(Product).where(Product.name.in_(wanted))):
        product.stock -= wanted[product.name]
        lines.append(Line(product=product, quantity=wanted[product.name]))
    total = sum(wanted.values())
    session.add(Order(reference=reference, customer=customer, lines=lines, total=total))
