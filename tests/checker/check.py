"""Compares what clients were told, and what is there at the end, with the model's reading.

Each problem says who was told what, and what the log says. A correct group has none, whatever was
killed; `test_check.py` feeds wrong histories, each of which one rule must find.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from xxhash import xxh3_64_intdigest

from groupcert.v1.transaction_pb2 import Changes
from tests.checker.decision import Decision
from tests.checker.model import Model
from tests.laboratory.history import Conflict, FinalState, History, Operation, Outcome

PROBLEMS_MAX = 50
Rows = dict[bytes, bytes]


class Reading:
    """The whole log, read by the model: its decisions, and the state at every version."""

    def __init__(self, messages: Iterable[tuple[int, bytes]], observer: str) -> None:
        self.model = Model(observer)
        self.decisions: list[Decision] = []
        self._states: dict[bytes, list[tuple[int, bytes | None]]] = defaultdict(list)
        for sequence, payload in messages:
            for decision in self.model.read(sequence, payload):
                self.decisions.append(decision)
                if decision.version:
                    for key, value in changes_of(decision).items():
                        self._states[key].append((decision.version, value))

    @property
    def newest_version(self) -> int:
        """How many transactions were certified."""
        return len(self.model.certified)

    def value(self, key: bytes, version: int) -> bytes | None:
        """Returns a row as it was at a version."""
        states = self._states.get(key, [])
        place = bisect_right(states, version, key=lambda state: state[0])
        return states[place - 1][1] if place else None

    def rows(self) -> Rows:
        """Returns all rows at the end."""
        newest = {key: states[-1][1] for key, states in self._states.items()}
        return {key: value for key, value in newest.items() if value is not None}


def changes_of(decision: Decision) -> dict[bytes, bytes | None]:
    """Returns the rows that a transaction writes."""
    changes = Changes.FromString(decision.transaction.changes)
    puts: dict[bytes, bytes | None] = dict(zip(changes.put_keys, changes.put_values, strict=True))
    return puts | dict.fromkeys(changes.delete_keys)


def item_of(key: bytes) -> int:
    """Returns the write-set item of a row, as `certifier/write_set.py` documents it."""
    return xxh3_64_intdigest(b"\x03" + key)


def find_problems(history: History, reading: Reading, replicas: Mapping[str, Rows]) -> list[str]:
    """Returns what was wrong, at most `PROBLEMS_MAX` of it; `replicas` have their rows by name."""
    problems: list[str] = []
    operations = [each for each in history.operations if each.transaction_id]
    for found in (
        _once(operations, reading),
        (problem for each in operations for problem in _answer_problems(each, reading)),
        (problem for each in operations for problem in _read_problems(each, reading)),
        _end_problems(reading, history.finals, replicas),
        _stamp_problems(reading, history.finals),
    ):
        for problem in found:
            problems.append(problem)
            if len(problems) == PROBLEMS_MAX:
                return problems
    return problems


def _once(operations: Sequence[Operation], reading: Reading) -> Iterator[str]:
    """Each id is certified at most once, and somebody has asked for it with that content."""
    asked = {each.transaction_id: each for each in operations}
    times = Counter(each.transaction.transaction_id for each in reading.model.certified)
    for transaction_id, count in times.items():
        if count > 1:
            yield f"{transaction_id.hex()} was certified {count} times"
    for decision in reading.model.certified:
        transaction_id = decision.transaction.transaction_id
        operation = asked.get(transaction_id)
        if operation is None:
            yield f"version {decision.version} is {transaction_id.hex()}, which nobody asked for"
        elif changes_of(decision) != operation.writes:
            yield f"{_named(operation)} is in the log with other rows than were sent"
        elif missing := _items_missing(decision, operation):
            yield f"{_named(operation)} lacks the items of {missing}"


def _items_missing(decision: Decision, operation: Operation) -> list[bytes]:
    """Returns the keys whose items are not in a transaction's sets."""
    written, read = set(decision.transaction.write_set), set(decision.transaction.read_set)
    missing = [key for key in operation.writes if item_of(key) not in written]
    if operation.is_serializable:
        reads = operation.external_reads()
        missing += [key for key in reads if item_of(key) not in written | read]
    return missing


def _answer_problems(operation: Operation, reading: Reading) -> Iterator[str]:
    """A client was told what the model decides."""
    decision = reading.model.by_id.get(operation.transaction_id)
    verdict = decision.verdict if decision else "nothing of it"
    if decision and decision.transaction.snapshot_version != operation.snapshot_version:
        yield f"{_named(operation)} is in the log with another snapshot"
    match operation.outcome:
        case Outcome.COMMITTED if operation.has_writes or operation.gtid:
            if decision is None or decision.verdict != "CERTIFIED":
                yield f"{_named(operation)} was acknowledged, the log has {verdict}"
            elif (operation.gtid, operation.version) != (decision.gtid, decision.version):
                yield (
                    f"{_named(operation)} was acknowledged as {operation.gtid}, version "
                    f"{operation.version}: it is {decision.gtid}, version {decision.version}"
                )
        case Outcome.CONFLICT:
            if decision is None or decision.verdict != "CONFLICT":
                yield f"{_named(operation)} lost, it was told; the log has {verdict}"
            else:
                yield from _conflict_problems(operation, decision, reading)
        case Outcome.TOO_OLD:
            if verdict != "TOO_OLD":
                yield f"{_named(operation)} was too old, it was told; the log has {verdict}"
        case Outcome.UNAVAILABLE | Outcome.REFUSED:
            if verdict == "CERTIFIED":
                yield f"{_named(operation)} was refused, it was told; it was certified"
        case _:
            pass


def _conflict_problems(operation: Operation, decision: Decision, reading: Reading) -> Iterator[str]:
    """A conflict names the row and the winner that the model finds."""
    winner = reading.model.certified[decision.winner - 1]
    won = (winner.gtid, winner.version, winner.origin, winner.place[0])
    right = Conflict(decision.item, *won, log_sequence=decision.place[0])
    if operation.conflict != right:
        yield f"{_named(operation)} lost by {operation.conflict}, it was told: it was by {right}"


def _read_problems(operation: Operation, reading: Reading) -> Iterator[str]:
    """A session never goes back, and reads exactly the state of its snapshot."""
    version = operation.snapshot_version
    if version < operation.version_min:
        yield f"{_named(operation)} read version {version}, and had seen {operation.version_min}"
    if version > reading.newest_version:
        yield f"{_named(operation)} read version {version} of {reading.newest_version}"
    for key, value in operation.external_reads().items():
        if (right := reading.value(key, version)) != value:
            yield f"{_named(operation)} read {key!r} = {value!r} at {version}: it was {right!r}"


def _end_problems(
    reading: Reading, finals: Iterable[FinalState], replicas: Mapping[str, Rows]
) -> Iterator[str]:
    """Members and replicas hold the model's rows, and members one digest."""
    right = reading.rows()
    for name, rows in {**{each.member: each.rows for each in finals}, **replicas}.items():
        if rows != right:
            yield f"{name} has other rows than the log: {_difference(rows, right)}"
    digests = {each.member: each.digest for each in finals}
    if len(set(digests.values())) > 1:
        yield f"members' digests differ: {digests}"


def _stamp_problems(reading: Reading, finals: Iterable[FinalState]) -> Iterator[str]:
    """The observer has stamped and named each transaction as the model does."""
    observer = reading.model.observer
    found = {
        each.version: (each.gtid, (each.last_committed, each.sequence_number))
        for final in finals
        if final.member == observer
        for each in final.applied
    }
    for decision in reading.model.certified:
        right = (decision.gtid, decision.stamps)
        if found.get(decision.version) != right:
            yield (
                f"version {decision.version} is {found.get(decision.version)} at {observer}: "
                f"it is {right}"
            )


def _difference(rows: Mapping[bytes, bytes], right: Mapping[bytes, bytes]) -> str:
    keys = [key for key in sorted({*rows, *right}) if rows.get(key) != right.get(key)]
    shown = ", ".join(f"{key!r}: {rows.get(key)!r}, not {right.get(key)!r}" for key in keys[:5])
    return f"{len(keys)} rows, {shown}"


def _named(operation: Operation) -> str:
    return f"{operation.transaction_id.hex()[:12]}, {operation.name}"
