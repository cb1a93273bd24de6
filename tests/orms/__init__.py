"""A small shop, written with SQLAlchemy and with Django, on two servers of a group."""
