"""groupcert: transactions on a group of members, any of which takes them.

    import groupcert

    with groupcert.Client(["10.0.0.1:7101", "10.0.0.2:7101"]) as client:
        with client.transaction() as transaction:  # the snapshot is taken here
            balance = int(transaction.get(b"account/1") or b"0")
            transaction.put(b"account/1", str(balance + 10).encode())

What a program needs is a name of this package: the client, what it returns, and every error that it
raises, all of them `groupcert.Error`. `groupcert.certifier` has the pure certifier for builders of
engines. Everything else below this package may change with any release.

The names are loaded at their first use: importing the package takes no time, and its stubs
(`groupcert.v1`) can be used without the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from groupcert.members.client.exports import *  # noqa: F403 - its `NAMES` is the list

    __version__: str
else:

    def __getattr__(name: str) -> object:
        """Loads the public names where one of them is asked for."""
        if name == "__version__":
            return import_module("importlib.metadata").version("groupcert")
        if name.startswith("_") and name != "__all__":  # As Python asks for some.
            raise AttributeError(f"module 'groupcert' has no attribute {name!r}")
        exports = import_module("groupcert.members.client.exports")
        if name not in exports.NAMES and name != "__all__":
            raise AttributeError(f"module 'groupcert' has no attribute {name!r}")
        public = {each: getattr(exports, each) for each in exports.NAMES}
        globals().update(public, __all__=exports.NAMES)
        return globals()[name]

    def __dir__() -> list[str]:
        """Returns the public names, whether or not they are loaded."""
        return [*import_module("groupcert.members.client.exports").NAMES, "__version__"]
