"""Django's settings: its defaults, but for the isolation level."""

import os

import psycopg
from django.db.backends.postgresql.psycopg_any import IsolationLevel

_DSN = psycopg.conninfo.conninfo_to_dict(os.environ["SHOP_DSN"])
SECRET_KEY = "of a test"
INSTALLED_APPS = ["tests.orms.django_shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _DSN["dbname"],
        "USER": _DSN["user"],
        "HOST": _DSN["host"],
        "PORT": _DSN["port"],
        "OPTIONS": {"isolation_level": IsolationLevel.REPEATABLE_READ},
    }
}
