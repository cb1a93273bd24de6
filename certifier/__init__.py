"""The certification rule: log records in, outcomes out, the same bytes on every member.

For builders of engines: `Certifier` takes `Transaction`, `ViewChange`, `GarbageCollection` and
`ExecutedElsewhere` in the total order, and returns an `Outcome` for each transaction.

    from . import Certifier, CertifierOptions, Transaction

The names are loaded at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_MODULE_OF = {
    "Certifier": "core",
    "CertifierOptions": "core",
    "Conflict": "records",
    "ExecutedElsewhere": "records",
    "GarbageCollection": "records",
    "Gtid": "gtid",
    "GtidSet": "gtid_set",
    "Outcome": "records",
    "Transaction": "records",
    "Verdict": "records",
    "ViewChange": "records",
    "item_from_text": "write_set",
    "position_of": "position",
    "store_key_item": "write_set",
}

if TYPE_CHECKING:
    from .core import Certifier as Certifier
    from .core import CertifierOptions as CertifierOptions
    from .gtid import Gtid as Gtid
    from .gtid_set import GtidSet as GtidSet
    from .position import position_of as position_of
    from .records import Conflict as Conflict
    from .records import ExecutedElsewhere as ExecutedElsewhere
    from .records import GarbageCollection as GarbageCollection
    from .records import Outcome as Outcome
    from .records import Transaction as Transaction
    from .records import Verdict as Verdict
    from .records import ViewChange as ViewChange
    from .write_set import item_from_text as item_from_text
    from .write_set import store_key_item as store_key_item
else:

    def __getattr__(name: str) -> object:
        """Loads a public name at its first use; raises AttributeError for any other name."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'groupcert.certifier' has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return globals().setdefault(name, value)


__all__ = sorted(_MODULE_OF)
