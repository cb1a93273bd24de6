"""Logs made by hand for tests of the checker: a group of two, its messages one after the other."""

import struct

from groupcert.internal.v1.log_pb2 import (
    ControlRecord,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    Member,
    MemberReport,
)
from groupcert.internal.v1.log_pb2 import ViewProposal as Change
from groupcert.v1.transaction_pb2 import Changes
from tests.checker.check import item_of

UUID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
RUNS = {"m1": 1, "m2": 2}
Rows = dict[bytes, bytes | None]


def transaction(
    transaction_id: bytes, snapshot: int, writes: Rows, reads: tuple[bytes, ...] = ()
) -> LoggedTransaction:
    """A transaction of the embedded store, as a member puts it into the log."""
    puts = {key: value for key, value in writes.items() if value is not None}
    changes = Changes(
        put_keys=list(puts),
        put_values=list(puts.values()),
        delete_keys=[key for key, value in writes.items() if value is None],
    )
    return LoggedTransaction(
        transaction_id=transaction_id,
        snapshot_version=snapshot,
        write_set=list(map(item_of, writes)),
        read_set=list(map(item_of, reads)),
        changes=changes.SerializeToString(),
    )


class LogWriter:
    """A log with a view of two members, m1 and m2, and GTIDs in blocks of 100."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes]] = []
        self._numbers = {"m1": 0, "m2": 10}
        # A run that joins has the number of the batch that made its view: what m2 writes is later.
        settings = GroupSettings(
            settings_version=1, group="g", group_uuid=UUID, gtid_assignment_block_size=100
        )
        self.control("m1", ControlRecord(group_settings=settings))
        self.change_view(0, "m1", "m2")

    def write(self, member: str, *transactions: LoggedTransaction) -> int:
        """Adds a batch; returns its sequence."""
        return self._add(member, LogBatch(transactions=transactions))

    def write_columns(self, member: str, *transactions: LoggedTransaction) -> int:
        """Adds a batch whose transactions are columns."""
        sizes = [len(each.write_set) for each in transactions]
        items = [item for each in transactions for item in each.write_set]
        snapshots = [each.snapshot_version for each in transactions]
        columns = LogBatch(
            plain_ids=[each.transaction_id for each in transactions],
            plain_snapshot_versions=struct.pack(f"<{len(snapshots)}Q", *snapshots),
            plain_write_set_sizes=struct.pack(f"<{len(sizes)}I", *sizes),
            plain_write_sets=struct.pack(f"<{len(items)}Q", *items),
            plain_changes=[each.changes for each in transactions],
        )
        return self._add(member, columns)

    def control(self, member: str, *controls: ControlRecord) -> int:
        """Adds a batch of control records."""
        return self._add(member, LogBatch(controls=controls))

    def change_view(self, previous: int, *members: str) -> int:
        """Proposes a view."""
        runs = [Member(name=name, incarnation=RUNS[name]) for name in members]
        change = Change(previous_view_id=previous, members=runs)
        return self.control(members[0], ControlRecord(view_proposal=change))

    def report(self, stable_version: int) -> None:
        """Has both members say how far they are."""
        stable = MemberReport(applied_version=stable_version, stable_version=stable_version)
        for member in RUNS:
            self.control(member, ControlRecord(report=stable))

    def repeat(self, sequence: int) -> int:
        """Adds a message again, as a publisher does that got no answer."""
        payload = self.messages[sequence - 1][1]
        self.messages.append((len(self.messages) + 1, payload))
        return len(self.messages)

    def _add(self, member: str, batch: LogBatch) -> int:
        self._numbers[member] += 1
        batch.format_version = 2
        batch.member, batch.incarnation = member, RUNS[member]
        batch.batch_number = self._numbers[member]
        self.messages.append((len(self.messages) + 1, batch.SerializeToString()))
        return len(self.messages)
