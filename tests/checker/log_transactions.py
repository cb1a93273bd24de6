"""The transactions of a message of the log, in either of the two ways in which it has them."""

import struct

from groupcert.internal.v1.log_pb2 import LogBatch, LoggedTransaction


def transactions_of(batch: LogBatch) -> list[LoggedTransaction]:
    """Returns them as messages; most are columns, as `log.proto` says."""
    if not batch.plain_ids:
        return list(batch.transactions)
    count = len(batch.plain_ids)
    snapshots = struct.unpack(f"<{count}Q", batch.plain_snapshot_versions)
    sizes = struct.unpack(f"<{count}I", batch.plain_write_set_sizes)
    items = struct.unpack(f"<{sum(sizes)}Q", batch.plain_write_sets)
    found = []
    for index, size in enumerate(sizes):
        first = sum(sizes[:index])
        found.append(
            LoggedTransaction(
                transaction_id=batch.plain_ids[index],
                snapshot_version=snapshots[index],
                write_set=items[first : first + size],
                changes=batch.plain_changes[index],
            )
        )
    return found
