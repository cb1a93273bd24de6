"""The public names of the package `groupcert`, which loads this module at their first use.

They are the clients, what these take and return, and every error that they raise. Classes of this
project have `__module__ = "groupcert"`, so that tracebacks, `repr` and pickles have the name that a
program uses.
"""

# ruff: noqa: F403

from ...certifier.errors import *
from ...certifier.errors import GroupcertError
from ..errors.calls import *
from ..errors.membership import *
from ..errors.permissions import *
from ..errors.recovery import *
from ..errors.transactions import *
from . import async_client, client, client_options
from .async_client import *
from .client import *
from .client_options import *

Error = GroupcertError
Error.__name__ = Error.__qualname__ = "Error"
_errors = {
    name
    for name, value in globals().items()
    if isinstance(value, type) and issubclass(value, Error) and value.__name__ == name
}
NAMES = sorted({*async_client.__all__, *client.__all__, *client_options.__all__, *_errors})

for _name in NAMES:
    _value = globals()[_name]
    if _value.__module__.startswith(("groupcert.certifier.", "groupcert.members.")):
        _value.__module__ = "groupcert"
