"""Samples of columns written to a server: what it logs of them, beside what it shows of them.

Each type has a table with its values. All are inserted, then each row gets the value of the next
one, then all are deleted; the server is asked in between what the tables have.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from groupcert.applier.mysql_logs.row_payload import RowKind, TableRows
from tests.applier.mysql_logs.column_samples import Sample
from tests.applier.mysql_logs.logged_rows import Session, execute, shown

State: TypeAlias = dict[str, object]
"""A sample's values by id, as the server shows them."""


def create_tables(session: Session, samples: Mapping[str, Sample]) -> None:
    """Creates a table for each sample."""
    for name, sample in samples.items():
        execute(session, f"CREATE TABLE {name} (id INT PRIMARY KEY, v {sample.type})")


def write_all(session: Session, samples: Mapping[str, Sample]) -> dict[str, list[State]]:
    """Writes all samples; returns the states of each in between."""
    return {name: write_and_ask(session, name, sample) for name, sample in samples.items()}


def assert_all_same(
    samples: Mapping[str, Sample],
    rows: Iterable[TableRows],
    states: Mapping[str, list[State]],
    image: str,
) -> None:
    """Asserts that a log's rows are the states of the server, and the changes between them."""
    found: dict[str, list[TableRows]] = {}
    for each in rows:
        found.setdefault(each.table.name, []).append(each)
    assert list(found) == list(samples)
    for name, sample in samples.items():
        compare(sample, found[name], states[name], image)


def write_and_ask(session: Session, name: str, sample: Sample) -> list[State]:
    """Inserts, updates and deletes rows; returns the values by id after the first two."""
    values = ", ".join(f"({number}, {value})" for number, value in enumerate(sample.values, 1))
    execute(session, f"INSERT INTO {name} VALUES {values}")
    states = [state_of(session, name, sample)]
    for number, value in enumerate((*sample.values[1:], sample.values[0]), 1):
        execute(session, f"UPDATE {name} SET v = {value} WHERE id = {number}")
    states.append(state_of(session, name, sample))
    execute(session, f"DELETE FROM {name}")
    return states


def state_of(session: Session, name: str, sample: Sample) -> State:
    """What the server says of a sample's values, by id."""
    return {
        str(key): value for key, value in execute(session, f"SELECT id, {sample.asked} FROM {name}")
    }


def compare(sample: Sample, found: list[TableRows], states: list[State], image: str) -> None:
    """Asserts that the rows are the states of the server, and the changes between them."""
    inserted, updated = states
    assert_same(sample, values_of(found, RowKind.INSERT, after=True), inserted)
    changes = changed(inserted, updated)
    assert_same(sample, values_of(found, RowKind.UPDATE, after=True), changes)
    before_columns = {rows.before for rows in found if rows.kind != RowKind.INSERT}
    if image == "MINIMAL" or (image == "NOBLOB" and is_left_out(sample)):
        assert before_columns == {(0,)}, sample
    # MariaDB's JSON is a BLOB, MySQL's is not.
    elif before_columns != {(0,)} or sample.type != "JSON":
        before = {key: inserted[key] for key in changes}
        assert_same(sample, values_of(found, RowKind.UPDATE, after=False), before)
        assert_same(sample, values_of(found, RowKind.DELETE, after=False), updated)


def values_of(found: list[TableRows], kind: RowKind, *, after: bool) -> State:
    """The values by id of all rows of a kind, of their images before or after."""
    values: State = {}
    for rows in found:
        if rows.kind != kind:
            continue
        for before, now in rows.rows:
            images = [(rows.after, now), (rows.before, before)]
            images = images if after else images[::-1]
            named = [
                dict(zip(columns, image, strict=True))
                for columns, image in images
                if columns is not None and image is not None
            ]
            key = next(row[0] for row in named if 0 in row)
            if 1 in named[0]:
                values[str(key)] = named[0][1]
    return values


def changed(before: State, after: State) -> State:
    """The values after, of ids whose value changed."""
    return {key: value for key, value in after.items() if value != before[key]}


def is_left_out(sample: Sample) -> bool:
    """Whether NOBLOB leaves the column out."""
    return any(word in sample.type for word in ("BLOB", "TEXT", "text"))


def assert_same(sample: Sample, rows: State, expected: State) -> None:
    """Asserts that rows have the values that the server shows, floats to their last bit."""
    code = {"FLOAT": "<f", "DOUBLE": "<d"}.get(sample.type.partition("(")[0])
    read = {key: packed_float(code, value) if code else shown(value) for key, value in rows.items()}
    if code:
        expected = {key: packed_float(code, value) for key, value in expected.items()}
    assert read == expected, sample


def packed_float(code: str, value: object) -> object:
    """A number as its bytes, so that it is compared as it is stored."""
    return None if value is None else struct.pack(code, float(str(value)))
