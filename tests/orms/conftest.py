"""Django's modules are imported by its own process, after its settings."""

collect_ignore = ["django_shop"]
