"""A stand-in until rows have a payload of their own: the events, one after the other."""

from .events import Event, FormatDescription


def packed(event: Event, format: FormatDescription) -> bytes:
    """Returns a table map or row event as a replica's target takes it."""
    return len(event.body).to_bytes(4, "little") + bytes([event.type]) + event.body
