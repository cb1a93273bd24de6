"""Checks the lists: their order, the cycles among those who read and wrote them, and the versions.

The rule it keeps: first what clients saw is checked against itself. Then the versions that the
group claims are held against it.
"""

from collections.abc import Iterator
from itertools import islice

from tests.laboratory.append_orders import Append, ListOrders, last_element, order_findings
from tests.laboratory.dependencies import cycle_findings, dependencies_of
from tests.laboratory.findings import Finding
from tests.laboratory.history import History, Operation, Workload


def check_append(history: History, workload: Workload) -> Iterator[Finding]:
    """Snapshot isolation, or serializability where the workload asks for it; and nothing lost.

    Cost: O(bytes read), and one search over the dependencies.
    """
    orders = ListOrders(history, workload)
    yield from order_findings(orders)
    yield from cycle_findings(dependencies_of(orders), serializable=workload.serializable)
    yield from _claimed_order(orders)
    yield from _claimed_snapshots(orders)
    yield from _sessions(orders)


def has_write_skew(history: History, workload: Workload) -> bool:
    """Whether some cycle is one that only serializability forbids."""
    dependencies = dependencies_of(ListOrders(history, workload))
    return any(each.code == "G2" for each in cycle_findings(dependencies, serializable=True))


def _claimed_order(orders: ListOrders) -> Iterator[Finding]:
    """Versions ascend along each list."""
    for key, elements in orders.elements.items():
        newest: Operation | None = None
        for element in elements:
            append = orders.appended(key, element)
            operation = append.operation if append else None
            if operation is None or not operation.is_committed or not operation.transaction_id:
                continue
            if newest is not None and newest is not operation:
                if operation.version <= newest.version:
                    yield Finding(
                        code="version-order",
                        summary=f"{key.decode()} has {newest.name} before {operation.name}, whose "
                        f"version {operation.version} is not above {newest.version}",
                        witness=[str(newest), str(operation)],
                    )
            newest = operation


def _claimed_snapshots(orders: ListOrders) -> Iterator[Finding]:
    """A snapshot has what was committed up to its version, and nothing else."""
    for operation, reads in zip(orders.operations, orders.reads, strict=True):
        snapshot = operation.snapshot_version
        if not operation.transaction_id:
            continue
        for key, value in reads.items():
            element = last_element(value)
            newest = orders.appended(key, element)
            if newest is not None and newest.operation.version > snapshot:
                yield Finding(
                    code="snapshot-version",
                    summary=f"{operation.name} has version {snapshot} and read a later one",
                    witness=[f"{newest.operation} appended {element.decode()} to {key.decode()}"],
                )
            places = orders.places.get(key, {})
            if element and element not in places:
                continue
            place = places[element] + 1 if element else 0
            missing = _next_committed(orders, key, place)
            if missing is None or missing.operation is operation:
                continue
            if missing.operation.version <= snapshot:
                yield Finding(
                    code="snapshot-version",
                    summary=f"{operation.name} has version {snapshot} and lacks an earlier one",
                    witness=[
                        f"{missing.operation} appended to {key.decode()}",
                        f"{operation.name} read it up to {element.decode() or 'nothing'}",
                    ],
                )


def _next_committed(orders: ListOrders, key: bytes, place: int) -> Append | None:
    """The next append of a list, from a place on, whose version is known."""
    for element in islice(orders.elements.get(key, []), place, None):
        append = orders.appended(key, element)
        if append is not None and append.operation.is_committed:
            return append
    return None


def _sessions(orders: ListOrders) -> Iterator[Finding]:
    """Whoever asks for what it has seen gets lists that are no shorter, with its own appends."""
    reached: dict[tuple[int, bytes], tuple[int, Operation]] = {}
    ordered = zip(orders.operations, orders.reads, strict=True)
    for operation, reads in sorted(ordered, key=lambda each: each[0].index):
        for key, value in reads.items():
            element = last_element(value)
            place = orders.places.get(key, {}).get(element, -1)
            if element and place < 0:
                continue
            needed, earlier = reached.get((operation.process, key), (-1, operation))
            if operation.version_min and place < needed:
                yield Finding(
                    code="session",
                    summary=f"{operation.name} sees less of {key.decode()} than {earlier.name} did",
                    witness=[
                        f"{earlier} knew {orders.elements[key][needed].decode()}",
                        f"{operation} read it up to {element.decode() or 'nothing'}",
                    ],
                )
            reached[operation.process, key] = max((needed, earlier), (place, operation), key=_place)
        if operation.is_committed:
            for is_write, key, value in operation.steps:
                place = orders.places.get(key, {}).get(last_element(value), -1)
                needed, _ = reached.get((operation.process, key), (-1, operation))
                if is_write and place > needed:
                    reached[operation.process, key] = (place, operation)


def _place(known: tuple[int, Operation]) -> int:
    return known[0]
