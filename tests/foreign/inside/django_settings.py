"""Settings of Django's own tests: two databases of one server, of which the first is attached.

`FOREIGN_BINDING=server`: statements have parameters, by the extended protocol.
"""

import os
from urllib.parse import urlsplit

_SERVER = urlsplit(os.environ["FOREIGN_DSN"])
_DATABASE = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": _SERVER.hostname,
    "PORT": _SERVER.port,
    "USER": _SERVER.username,
    "OPTIONS": {"server_side_binding": os.environ.get("FOREIGN_BINDING") == "server"},
}
DATABASES = {
    "default": {**_DATABASE, "NAME": "first"},
    "other": {**_DATABASE, "NAME": "second"},
}
SECRET_KEY = "of tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "django_runner.Runner"
