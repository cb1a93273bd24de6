"""The certification rule: log records in, outcomes out, the same bytes on every member.

For builders of engines: `Certifier` takes `Transaction`, `ViewChange`, `GarbageCollection` and
`ExecutedElsewhere` in the total order, and returns an `Outcome` for each transaction.

    from groupcert.certifier import Certifier, CertifierOptions, Transaction

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
    from groupcert.certifier.core import Certifier as Certifier
    from groupcert.certifier.core import CertifierOptions as CertifierOptions
    from groupcert.certifier.gtid import Gtid as Gtid
    from groupcert.certifier.gtid_set import GtidSet as GtidSet
    from groupcert.certifier.position import position_of as position_of
    from groupcert.certifier.records import Conflict as Conflict
    from groupcert.certifier.records import ExecutedElsewhere as ExecutedElsewhere
    from groupcert.certifier.records import GarbageCollection as GarbageCollection
    from groupcert.certifier.records import Outcome as Outcome
    from groupcert.certifier.records import Transaction as Transaction
    from groupcert.certifier.records import Verdict as Verdict
    from groupcert.certifier.records import ViewChange as ViewChange
    from groupcert.certifier.write_set import item_from_text as item_from_text
    from groupcert.certifier.write_set import store_key_item as store_key_item
else:

    def __getattr__(name: str) -> object:
        """Loads a public name at its first use; raises AttributeError for any other name."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'groupcert.certifier' has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return globals().setdefault(name, value)


__all__ = sorted(_MODULE_OF)
