"""An empty store in a folder of its own."""

from tests.stores import store

__all__ = ["store"]
