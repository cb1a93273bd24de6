"""Transactions of binary logs that no file tells: blank but for what a test says."""

from typing import Any

from groupcert.applier.mysql_logs.binary_log_reader import BinaryLogTransaction

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NOTHING = BinaryLogTransaction(
    gtid=None,
    last_committed=0,
    sequence_number=0,
    commit_id=0,
    domain_id=0,
    databases=("a",),
    tables=("a.t",),
    items=(),
    keys=(),
    row_count=0,
    size_bytes=100,
    offset=4,
    began_us=0,
    committed_us=0,
    original_committed_us=0,
    duration_us=None,
    is_ddl=False,
)


def writes(*items: int, **more: Any) -> BinaryLogTransaction:
    """A transaction of these rows."""
    keys = tuple(f"a.t/{item}" for item in items)
    return NOTHING._replace(items=items, keys=keys, row_count=len(items), **more)
