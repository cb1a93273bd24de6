"""The order of versions of each list, as the lists themselves tell it, and what is wrong with them.

The rule it keeps: nothing is believed that the group says of its order. A list that was read tells
in which order its elements came to be; who appended them is known, for no two are the same.

Source: Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations",
VLDB 2020; Adya, "Weak Consistency", 1999, for the names G0 to G2.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.laboratory.findings import Finding
from tests.laboratory.history import FinalState, History, Operation, Workload

SPACE = ord(" ")


class Append(NamedTuple):
    """Who appended an element; `is_last`: and nothing more to the same list."""

    operation: Operation
    is_last: bool


class Reading(NamedTuple):
    """A list as somebody found it; `reader` in words."""

    reader: str
    value: bytes


class ListOrders:
    """The lists of one workload: who appended what, who read what, and the longest reading of each.

    `reads` has each operation's external reads, `readings` all of them and those in the end;
    `elements` is the order of each list, and `places` where in it each element is.
    """

    def __init__(self, history: History, workload: Workload) -> None:
        self.operations = history.of(workload)
        self.finals: Sequence[FinalState] = history.finals
        self.prefix = workload.prefix
        self.reads = [operation.external_reads() for operation in self.operations]
        self.appends: dict[bytes, dict[bytes, Append]] = {}
        for operation in self.operations:
            self._note_appends(operation)
        self.readings = list(self._all_readings())
        longest: dict[bytes, Reading] = {}
        for key, reading in self.readings:
            known = longest.get(key)
            if known is None or len(reading.value) > len(known.value):
                longest[key] = reading
        self.longest: Mapping[bytes, Reading] = longest
        self.elements = {key: reading.value.split() for key, reading in longest.items()}
        self.places = {
            key: {element: place for place, element in enumerate(elements)}
            for key, elements in self.elements.items()
        }
        self.seen = frozenset(
            append.operation.name
            for key, reading in self.distinct_readings()
            for element in reading.value.split()
            if (append := self.appended(key, element))
        )

    def _all_readings(self) -> Iterator[tuple[bytes, Reading]]:
        """Everything that anybody read of a list, in the end, too."""
        for operation, reads in zip(self.operations, self.reads, strict=True):
            name = operation.name
            for key, value in reads.items():
                yield key, Reading(name, value or b"")
        for final in self.finals:
            for key, value in final.rows.items():
                if key.startswith(self.prefix):
                    yield key, Reading(f"the final read at {final.member}", value)

    def distinct_readings(self) -> Iterator[tuple[bytes, Reading]]:
        """The longest reading of each list, and those that do not fit it."""
        yield from self.longest.items()
        for key, reading in self.readings:
            if not is_prefix(reading.value, self.longest[key].value):
                yield key, reading

    def appended(self, key: bytes, element: bytes) -> Append | None:
        """Who appended an element, or None if nobody has."""
        return self.appends.get(key, {}).get(element)

    def took_effect(self, operation: Operation) -> bool:
        """Whether it committed: its client was told so, or somebody saw what it wrote."""
        return operation.is_committed or (
            not operation.outcome.is_aborted and operation.name in self.seen
        )

    def _note_appends(self, operation: Operation) -> None:
        newest: dict[bytes, bytes] = {}
        for is_write, key, value in operation.steps:
            if not is_write:
                continue
            element = last_element(value)
            appends = self.appends.setdefault(key, {})
            if element in appends:
                raise ValueError(f"{operation.name} and another append both wrote {element!r}")
            if key in newest:
                appends[newest[key]] = Append(operation, False)
            newest[key] = element
            appends[element] = Append(operation, True)


def last_element(value: bytes | None) -> bytes:
    """The newest element of a list; empty for an empty list.

    >>> last_element(b"1 22"), last_element(None)
    (b'22', b'')
    """
    return value.rpartition(b" ")[2] if value else b""


def is_prefix(value: bytes, longer: bytes) -> bool:
    """Whether a list is the beginning of another one.

    >>> is_prefix(b"1 2", b"1 2 3"), is_prefix(b"1 2", b"1 22"), is_prefix(b"", b"1")
    (True, False, True)
    """
    return longer.startswith(value) and (
        not value or len(value) == len(longer) or longer[len(value)] == SPACE
    )


def order_findings(orders: ListOrders) -> Iterator[Finding]:
    """What the lists alone show to be wrong."""
    yield from _incompatible(orders)
    yield from _elements(orders)
    yield from _intermediate(orders)
    yield from _lost_updates(orders)
    yield from _lost(orders)


def _incompatible(orders: ListOrders) -> Iterator[Finding]:
    """Two readings of a list of which neither is the beginning of the other one."""
    found = set()
    for key, reading in orders.readings:
        longest = orders.longest[key]
        if key not in found and not is_prefix(reading.value, longest.value):
            found.add(key)
            yield Finding(
                code="incompatible-order",
                summary=f"{_text(key)} was read in two orders that do not fit together",
                witness=[
                    f"{longest.reader} read [{_text(longest.value)}]",
                    f"{reading.reader} read [{_text(reading.value)}]",
                ],
            )


def _elements(orders: ListOrders) -> Iterator[Finding]:
    """Elements that are in a list twice, or must not be in it."""
    for key, longest in orders.longest.items():
        elements = orders.elements[key]
        if len(elements) != len(orders.places[key]):
            for element, times in Counter(elements).items():
                if times > 1:
                    yield Finding(
                        code="duplicate-append",
                        summary=f"{_text(element)} is {times} times in {_text(key)}",
                        witness=[f"{longest.reader} read [{_text(longest.value)}]"],
                    )
    told = set()
    for key, reading in orders.distinct_readings():
        for element in reading.value.split():
            if (key, element) in told:
                continue
            told.add((key, element))
            append = orders.appended(key, element)
            read = f"{reading.reader} read it in [{_text(reading.value)}]"
            if append is None:
                yield Finding(
                    code="phantom",
                    summary=f"nobody appended {_text(element)} to {_text(key)}",
                    witness=[read],
                )
            elif append.operation.outcome.is_aborted:
                yield Finding(
                    code="G1a",
                    summary=f"{_text(element)} in {_text(key)} is of a transaction that aborted",
                    witness=[f"{append.operation} appended it", read],
                )


def _intermediate(orders: ListOrders) -> Iterator[Finding]:
    """Readings that end between two appends of one transaction."""
    for key, reading in orders.readings:
        append = orders.appended(key, last_element(reading.value))
        if append is not None and not append.is_last and append.operation.name != reading.reader:
            yield Finding(
                code="G1b",
                summary=f"{reading.reader} read {_text(key)} in the midst of a transaction",
                witness=[
                    f"{reading.reader} read [{_text(reading.value)}]",
                    f"{append.operation} appended its last element, and then more",
                ],
            )


def _lost_updates(orders: ListOrders) -> Iterator[Finding]:
    """Transactions that read the same version of a list, and both appended to it."""
    updates: dict[tuple[bytes, bytes], list[Operation]] = {}
    for operation, reads in zip(orders.operations, orders.reads, strict=True):
        if not operation.has_writes or not orders.took_effect(operation):
            continue
        for key in {step.key for step in operation.steps if step.is_write}:
            if key in reads:
                updates.setdefault((key, reads[key] or b""), []).append(operation)
    for (key, value), operations in updates.items():
        if len(operations) > 1:
            yield Finding(
                code="lost-update",
                summary=f"{len(operations)} transactions changed the same version of {_text(key)}",
                witness=[f"{each} read [{_text(value)}] and appended" for each in operations],
            )


def _lost(orders: ListOrders) -> Iterator[Finding]:
    """Elements that a member has not got in the end, of transactions that took effect."""
    for final in orders.finals:
        present = {key: frozenset((final.rows.get(key) or b"").split()) for key in orders.appends}
        for key, appends in orders.appends.items():
            for element, (operation, _) in appends.items():
                if orders.took_effect(operation) and element not in present[key]:
                    yield Finding(
                        code="lost-append",
                        summary=f"{final.member} lacks {_text(element)} in {_text(key)}",
                        witness=[
                            f"{operation} appended it",
                            f"the final read is [{_text(final.rows.get(key) or b'')}]",
                        ],
                        lost=frozenset([operation.name] if operation.is_committed else ()),
                    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
