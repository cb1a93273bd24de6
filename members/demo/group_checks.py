"""Checks of the demo once its clients have stopped: members against each other, and clients.

Each check reads the members through the same calls that any client has.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from groupcert.v1.group_pb2 import MemberStatus

from ...certifier.errors import NotServing
from ..client.client import Client
from .load import BankWorkload, LoadCounts

SHOWN_MAX = 5
"""Findings of one kind that are described."""
SETTLE_SECONDS = 120.0
POLL_SECONDS = 0.05


@dataclass(slots=True)
class Findings:
    """The problems found, by kind and in words."""

    lost: int = 0
    converged: bool = True
    invariant_ok: bool = True
    exactly_once: bool = True
    stamps_valid: bool = True
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A certified transaction as one member's history has it.

    `clock_run` counts the resets of the logical clock: stamps of different runs do not compare.
    """

    transaction_id: bytes
    gtid: str
    version: int
    clock_run: int
    last_committed: int
    sequence_number: int
    started_tick: int
    committed_tick: int
    items: Sequence[int]

    @property
    def is_local(self) -> bool:
        """True if the member's own client had executed it: the applier did not."""
        return not self.started_tick


def settle(observers: Sequence[Client]) -> list[MemberStatus]:
    """Returns the members' statuses once all have committed all that any has certified, and have
    digests after one message of the log, at which any had been at the first look or later.

    Raises:
        NotServing: One does not get there in time.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    position = 0
    while True:
        statuses = [client.status().observer for client in observers]
        position = max(position, *(status.log_sequence for status in statuses))
        newest = max(status.certified_version for status in statuses)
        late = [
            status.name
            for status in statuses
            # A message that is still being certified, in steps, has no digest yet.
            if status.committed_version != newest
            or status.log_sequence != position
            or not status.digest
        ]
        if not late:
            return statuses
        if time.monotonic() > deadline:
            raise NotServing(member=late[0], state=f"behind version {newest}")
        time.sleep(POLL_SECONDS)


def check_group(
    workload: BankWorkload,
    observers: Sequence[Client],
    statuses: Sequence[MemberStatus],
    counts: LoadCounts,
) -> Findings:
    """Runs all checks on members that have committed the same version."""
    findings = Findings()
    versions = check_members(observers, statuses, findings)
    acknowledged = set(counts.committed_ids)
    for client, status in zip(observers, statuses, strict=True):
        check_total(workload.total(client), workload.expected_total, status.name, findings)
        check_ledger(workload.ledger(client), acknowledged, status.name, findings)
    certified = {each: len(versions.get(each, ())) for each in acknowledged}
    wrong = {each: times for each, times in certified.items() if times != 1}
    findings.exactly_once &= not wrong
    for transaction_id in sorted(wrong)[:SHOWN_MAX]:
        times = wrong[transaction_id]
        findings.texts.append(f"acknowledged {transaction_id.hex()} was certified {times} times")
    return findings


def check_members(
    observers: Sequence[Client], statuses: Sequence[MemberStatus], findings: Findings
) -> dict[bytes, set[int]]:
    """Checks what holds whoever the clients were. Returns the versions of each transaction in all
    histories.
    """
    check_convergence(observers, statuses, findings)
    versions: dict[bytes, set[int]] = {}
    for client, status in zip(observers, statuses, strict=True):
        _check_history(client, status.name, versions, findings)
    return versions


def check_total(total: int, expected: int, name: str, findings: Findings) -> None:
    """Checks the sum of all accounts at a member or server."""
    if total != expected:
        findings.invariant_ok = False
        findings.texts.append(f"{name}: all accounts hold {total}, expected {expected}")


def check_ledger(
    ledger: Set[bytes], acknowledged: Set[bytes], name: str, findings: Findings
) -> None:
    """Checks that every acknowledged transfer left its row at a member or server."""
    lost = acknowledged - ledger
    findings.lost = max(findings.lost, len(lost))
    for transaction_id in sorted(lost)[:SHOWN_MAX]:
        findings.texts.append(f"{name}: acknowledged transfer {transaction_id.hex()} is lost")


def check_equal(who: str, what: str, found: Mapping[str, object], findings: Findings) -> None:
    """Checks that all members or servers (`who`) have the same; `found` is by their names."""
    if len(set(found.values())) > 1:
        findings.converged = False
        findings.texts.append(f"{who} differ in their {what}: {found}")


def check_convergence(
    observers: Sequence[Client], statuses: Sequence[MemberStatus], findings: Findings
) -> None:
    """Checks that all members have the same rows, the same digest, and the same GTIDs executed."""
    rows = {
        status.name: _rows_digest(client)
        for status, client in zip(statuses, observers, strict=True)
    }
    check_equal("members", "rows", rows, findings)
    check_decisions(statuses, findings)


def check_decisions(statuses: Sequence[MemberStatus], findings: Findings) -> None:
    """Checks that all members have the same digest, and the same GTIDs executed."""
    digests = {status.name: status.digest for status in statuses}
    check_equal("members", "digest of decisions", digests, findings)
    executed = {status.name: status.gtid_executed for status in statuses}
    check_equal("members", "executed GTIDs", executed, findings)


def _rows_digest(client: Client) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with client.transaction() as transaction:
        for key, value in transaction.scan(b"", b""):
            digest.update(len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value)
    return digest.hexdigest()


def _check_history(
    client: Client, name: str, versions: dict[bytes, set[int]], findings: Findings
) -> None:
    """Checks that each GTID is there once, and that dependent transactions ran one by one.

    Args:
        versions: Of each transaction in all histories, as that of a member that copied another's
            state begins there; updated.
    """
    gtids: set[str] = set()
    newest_writer: dict[int, Applied] = {}
    problems: list[str] = []
    for applied in applied_history(client):
        versions.setdefault(applied.transaction_id, set()).add(applied.version)
        if applied.gtid in gtids:
            findings.exactly_once = False
            problems.append(f"GTID {applied.gtid} was used twice")
        gtids.add(applied.gtid)
        overlaps = overlap_problems(applied, newest_writer)
        findings.stamps_valid &= not overlaps
        problems += overlaps
    findings.texts += [f"{name}: {problem}" for problem in problems[:SHOWN_MAX]]


def applied_history(client: Client) -> Iterator[Applied]:
    """Yields a member's history, in order. A sequence number that does not ascend shows a reset."""
    clock_run = newest_sequence_number = 0
    for page in client.history():
        first_item = 0
        for index, sequence_number in enumerate(page.sequence_numbers):
            end_item = first_item + page.write_set_sizes[index]
            if sequence_number:
                clock_run += sequence_number <= newest_sequence_number
                newest_sequence_number = sequence_number
            yield Applied(
                transaction_id=page.transaction_ids[index],
                gtid=page.gtids[index],
                version=page.versions[index],
                clock_run=clock_run,
                last_committed=page.last_committed[index],
                sequence_number=sequence_number,
                started_tick=page.started_ticks[index],
                committed_tick=page.committed_ticks[index],
                items=page.write_set_items[first_item:end_item],
            )
            first_item = end_item


def overlap_problems(applied: Applied, newest_writer: dict[int, Applied]) -> list[str]:
    """Returns where a transaction ran beside one that it overlaps, or was stamped as if it could.

    Args:
        newest_writer: The last transaction before it that wrote an item, by item; updated.
    """
    problems = []
    if not applied.committed_tick:
        problems.append(f"version {applied.version} was never committed")
    for item in applied.items:
        before = newest_writer.get(item)
        newest_writer[item] = applied
        if before is None:
            continue
        both_stamped = applied.sequence_number and before.sequence_number
        if both_stamped and applied.clock_run == before.clock_run:
            if applied.last_committed < before.sequence_number:
                problems.append(
                    f"version {applied.version} is stamped {applied.last_committed}, below "
                    f"{before.sequence_number} of version {before.version}, which wrote the same "
                    "row"
                )
        if before.is_local or applied.is_local:
            continue
        if applied.started_tick < before.committed_tick:
            problems.append(
                f"version {applied.version} began at tick {applied.started_tick}, before version "
                f"{before.version}, which wrote the same row, committed at {before.committed_tick}"
            )
    return problems
