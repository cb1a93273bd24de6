"""Histories for the applier's tests: write sets, stamped by a naive WL#8440, and their rows.

The stamper shares nothing with `certifier`: it walks over everything that came before. A history's
rows follow from versions, so that executing a prefix one by one says what any applier must show.
"""

import json
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from hypothesis import strategies as st

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.row_parts import database_of, table_of
from groupcert.applier.source.header import SourceHeader
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.position import position_of

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

Items = frozenset[int]


class Step(NamedTuple):
    """One record of the total order; `items` None: a view change. No items: no write set."""

    items: Items | None
    local: bool = False


class Stamped(NamedTuple):
    """A step and the relay entry that a member makes of it."""

    step: Step
    entry: RelayEntry


VIEW_CHANGE = Step(None)

items = st.frozensets(st.integers(0, 7), min_size=1, max_size=3)
steps = st.one_of(
    st.builds(Step, items),
    st.builds(Step, items),
    st.builds(Step, items, st.just(True)),
    st.just(Step(frozenset())),
    st.just(VIEW_CHANGE),
)
histories = st.lists(steps, max_size=60)


def remote(*items: int) -> Step:
    """A transaction of another member."""
    return Step(frozenset(items))


def stamped(history: Iterable[Step]) -> list[Stamped]:
    """The history with WL#8440's stamps: by its examples, without garbage collection."""
    result: list[Stamped] = []
    version = 0
    sequence_number = 2
    window = 1
    for step in history:
        last_committed = own = 0
        if step.items is not None:
            version += 1
            if not step.local:
                own = sequence_number
                sequence_number += 1
                last_committed = max([window, *_dependencies(result, step.items)])
            if not step.items and not step.local:
                last_committed, window = own - 1, own
        entry = RelayEntry(
            position=position_of(len(result) + 1, 0),
            version=version,
            gtid=None if step.items is None else Gtid(GROUP, version),
            last_committed=last_committed,
            sequence_number=own,
            local=step.local,
            payload=b"" if step.items is None else payload(version, step.items),
        )
        result.append(Stamped(step, entry))
    return result


def _dependencies(earlier: Sequence[Stamped], items: Items) -> list[int]:
    """The sequence numbers of the last writers of the items; a local one has none."""
    found = []
    for item in items:
        writers = [one.entry for one in earlier if item in (one.step.items or ())]
        found += [writers[-1].sequence_number] if writers else []
    return found


def entries_of(history: Iterable[Step]) -> list[RelayEntry]:
    """The relay entries of a history."""
    return [one.entry for one in stamped(history)]


def must_not_overlap(earlier: Stamped, later: Stamped, between: Sequence[Stamped]) -> bool:
    """Whether two records may not run at once: both remote, and one of them runs alone or they
    share an item.

    A local transaction that wrote the item between them had read the earlier one, which was
    committed by then: the stamps need not say it again.
    """
    if earlier.step.local or later.step.local:
        return False
    if not earlier.step.items or not later.step.items:
        return True
    hidden = {
        item for one in between if one.step.local and one.step.items for item in one.step.items
    }
    return bool((earlier.step.items & later.step.items) - hidden)


def payload(version: int, items: Iterable[int]) -> bytes:
    """Puts a row for each item; every seventh version deletes its smallest one instead."""
    rows: list[tuple[str, str | None]] = [(f"row/{item}", f"{version}") for item in sorted(items)]
    if version % 7 == 0 and rows:
        rows[0] = (rows[0][0], None)
    return json.dumps(rows).encode() if rows else b""


def decode(encoded: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The row changes of a payload, as a target asks for them."""
    rows: list[tuple[str, str | None]] = json.loads(encoded)
    kept = [(key.encode(), value.encode()) for key, value in rows if value is not None]
    deleted = [key.encode() for key, value in rows if value is None]
    return [key for key, _ in kept], [value for _, value in kept], deleted


def serial_rows(entries: Iterable[RelayEntry]) -> dict[bytes, bytes]:
    """The rows after executing the entries one by one."""
    rows: dict[bytes, bytes] = {}
    for entry in entries:
        if entry.payload:
            put_keys, put_values, delete_keys = decode(entry.payload)
            rows.update(zip(put_keys, put_values, strict=True))
            for key in delete_keys:
                rows.pop(key, None)
    return rows


TABLES = ("bank.account", "bank.transfer", "shop.item", "shop.order", "log.entry")
"""What the sources of `source_history` write; the databases `bank` and `shop` are of domain 0."""
KEYS_A_TABLE = 4
LOG_DOMAIN = 1
"""The domain of the database `log`: its transactions depend on no other's."""

Row = tuple[str, str | None]


def source_history(seed: int, transactions: int) -> list[RelayEntry]:
    """What a source's binary log says of random transactions, as every scheme asks for it.

    Groups of transactions without a row in common are committed together: they have one commit
    parent and, of each domain, one commit id. Now and then comes a view change, and a transaction
    of which only the stamps are known.
    """
    chance = random.Random(seed)
    entries: list[RelayEntry] = []
    writers: dict[str, int] = {}
    group_rows: set[str] = set()
    group_left, group, barrier, version = 0, 0, 0, 0
    for position in range(1, transactions + 1):
        if chance.random() < 0.03:
            entries.append(RelayEntry(position, version, None, 0, 0, False, b""))
            group_left, barrier = 0, version
            continue
        rows = _source_rows(chance, version + 1)
        is_known = chance.random() > 0.04
        if not (is_known and group_left and group_rows.isdisjoint(name for name, _ in rows)):
            group_left, group = chance.randint(1, 6), version + 1
            group_rows = set()
        version += 1
        group_left -= 1 if is_known else group_left
        group_rows |= {name for name, _ in rows}
        last_committed = max([barrier, *(writers.get(name, 0) for name, _ in rows)])
        if not is_known:
            last_committed, barrier = version - 1, version
        writers.update((name, version) for name, _ in rows)
        entry = RelayEntry(
            position=position,
            version=version,
            gtid=Gtid(GROUP, version),
            last_committed=last_committed,
            sequence_number=version,
            local=False,
            payload=json.dumps(rows).encode(),
            header=_source_header(rows, group if is_known else 0),
        )
        entries.append(entry)
    return entries


def _source_rows(chance: random.Random, version: int) -> list[Row]:
    tables = ["log.entry"] if chance.random() < 0.2 else chance.choices(TABLES[:-1], k=2)
    names = {f"{table}/{chance.randrange(KEYS_A_TABLE)}" for table in tables}
    return [(name, f"{version}" if chance.random() > 0.1 else None) for name in sorted(names)]


def _source_header(rows: Sequence[Row], group: int) -> SourceHeader:
    """`group` 0: rows, tables and sessions are not known."""
    tables = sorted({table_of(name.encode()) for name, _ in rows})
    domain = LOG_DOMAIN if tables == ["log.entry"] else 0
    if not group:
        return SourceHeader(domain_id=domain)
    return SourceHeader(
        commit_parent=group,
        commit_id=group,
        domain_id=domain,
        databases=(*sorted(set(map(database_of, tables))),),
        tables=(*tables,),
        items=[crc32(name.encode()) for name, _ in rows],
    )
