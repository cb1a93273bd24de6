"""A real applier over a store, for tests of what is said of one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from groupcert.applier.engine.applier import Applier, ApplierOptions
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes import Scheme
from groupcert.applier.schemes.jobs import Conflicts, Jobs, JobsOptions
from groupcert.applier.source.header import SourceHeader
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowChanges
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.storage.store import Store, StoreIdentity

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def transaction(number: int, row: str = "shop.orders/1", *, committed_us: int = 0) -> RelayEntry:
    """A transaction of one row."""
    return RelayEntry(
        position=number,
        version=number,
        gtid=Gtid(GROUP, number),
        last_committed=number - 1,
        sequence_number=number,
        local=False,
        payload=json.dumps({row: str(number)}).encode(),
        header=SourceHeader(file=1, committed_us=committed_us),
    )


@contextmanager
def running_applier(
    folder: Path, *, workers: int = 2, scheme: Scheme | None = None
) -> Iterator[Applier[RowChanges]]:
    """An applier that executes JSON objects of rows; `fail` for a row's value makes it fail."""
    with Store(folder, StoreIdentity(group="test", member="m1")) as store:
        target = RocksDbTarget(store, _decode)
        applier = Applier(
            target,
            scheme or Jobs(JobsOptions(conflicts=Conflicts.BARRIER)),
            workers,
            on_committed=lambda version, position: None,
            on_error=lambda error: None,
            options=ApplierOptions(),
        )
        try:
            yield applier
        finally:
            applier.stop(10)


def _decode(payload: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    rows = json.loads(payload)
    if "fail" in rows:
        raise ValueError("a row that cannot be read")
    return [key.encode() for key in rows], [value.encode() for value in rows.values()], []
