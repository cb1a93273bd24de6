"""The shop in Django, an application of its own process; see `__main__`."""
