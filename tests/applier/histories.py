"""Histories for the applier's tests: write sets, stamped by a naive WL#8440, and their rows.

The stamper shares nothing with `certifier`: it walks over everything that came before. A history's
rows follow from versions, so that executing a prefix one by one says what any applier must show.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from applier.relay_queue import RelayEntry
from certifier.gtid import Gtid
from certifier.records import position_of

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
