"""The certification log: the columns of its records, and the chain that ties them together.

Every decision of a member can be derived again from these columns. They contain nothing else:
values of rows are not in them. The writers of the log and its audit share this file and nothing
more.

A log is rows of one shape in Parquet files. A row is one record of the total order as one observer
saw it, or one step that a record caused. Rows are in the order of `place`, and numbered. The chain
ties each row to the one before it: a record that was edited, left out or moved does not fit.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

from ..position import POSITION_INDEX_BITS

FORMAT_VERSION: Final = 3
"""Of the rows that this release writes and reads. An audit of a release that knows other columns
would take the chain of a row for broken; so it refuses a file of another format.
"""
STEP_BITS: Final = 4
"""Bits of a place for the step, which is the kind of the row; the position is above them."""
LOG_SEQUENCE_SHIFT: Final = POSITION_INDEX_BITS + STEP_BITS
"""Bits of a place below the log's sequence."""
CHAIN_BYTES: Final = 8
INTEGER_MAX: Final = 2**63 - 1
"""The largest number that a column of integers takes."""
CHAIN_START: Final = b""
"""The chain before the first row of a history."""

Value: TypeAlias = int | str | bool | bytes | list[int] | list[str] | None
Row: TypeAlias = dict[str, Value]
"""One record, by column; columns that have no value may be left out."""


class RecordKind(StrEnum):
    """The kind of a row."""

    START = "start"
    """A history begins here: the state that it begins with."""
    SETTINGS = "settings"
    """The settings that all members agree on, from here on."""
    EXECUTED_ELSEWHERE = "executed_elsewhere"
    """Transactions executed before this history, or beside it; they share one version."""
    TRANSACTION = "transaction"
    """A transaction was decided."""
    REPETITION = "repetition"
    """A transaction came again, under an id that was decided before; nothing was decided."""
    REPORT = "report"
    """A member reported how far it is, and the digests of its state and of its history."""
    VIEW_CHANGE = "view_change"
    """Members came or went."""
    STABLE_SET = "stable_set"
    """The transactions that every member has executed, from here on."""
    COLLECTION = "collection"
    """Items of stable transactions were purged."""


_KINDS: Final = tuple(RecordKind)
_STEPS: Final = {kind: step for step, kind in enumerate(_KINDS)}


class Verdict(StrEnum):
    """The decision about a transaction."""

    CERTIFIED = "certified"
    CONFLICT = "conflict"
    TOO_OLD = "too_old"
    REFUSED = "refused"


class Source(StrEnum):
    """The origin of a history; its settings have it as `source`."""

    MEMBER = "member"
    """A member, as it decided."""
    TOTAL_ORDER = "total_order"
    """The group's log, certified anew by `groupcert export`."""
    TRACE = "trace"
    """A trace, certified by `groupcert export`."""
    BINARY_LOG = "binary_log"
    """A binary log of MySQL or MariaDB: nothing was decided here, and the stamps are its own."""


class Cursor(NamedTuple):
    """The end of a written history: the last row's number, its place, and the chain there."""

    number: int = 0
    place: int = 0
    chain: bytes = CHAIN_START


class Column(NamedTuple):
    """A column: `kind` is `int64`, `bool`, `string`, `binary`, `list<int64>` or `list<string>`."""

    name: str
    kind: str
    meaning: str


COLUMNS: Final = (
    Column("format_version", "int64", "of this schema, `FORMAT_VERSION`"),
    Column("observer", "string", "the member whose history this is"),
    Column("history", "string", "which of its histories: one begins where its state is replaced"),
    Column("number", "int64", "of the row in its history, from 1 on, without gaps"),
    Column("place", "int64", "position in the total order, and the step at it: see `place_of`"),
    Column("kind", "string", "see `RecordKind`"),
    Column("version", "int64", "certified transactions so far, this record included"),
    # Columns of a transaction; origin and session also of a report.
    Column("origin", "string", "the member that sent it"),
    Column("session", "string", "the run of that member, or the trace's session"),
    Column("transaction_id", "string", "its client's id, in hexadecimal digits"),
    Column("gtid_source", "string", "of a certified transaction: the UUID of its GTID"),
    Column("gtid_number", "int64", "and the number"),
    Column("gtid_brought", "bool", "whether the transaction came with its own GTID"),
    Column("snapshot_version", "int64", "what it had read: everything up to this version"),
    Column("snapshot_set", "string", "a snapshot that is a GTID set; also, executed elsewhere"),
    Column("write_set", "list<int64>", "items it wrote, 64-bit hashes read as signed; each once"),
    Column("read_set", "list<int64>", "items it read, if it sent them; each once"),
    Column("write_keys", "list<string>", "the keys of write_set in words, where allowed"),
    Column("read_keys", "list<string>", "the keys of read_set in words, where allowed"),
    Column("verdict", "string", "see `Verdict`"),
    Column("reason", "string", "why it was refused or too old, in words"),
    Column("winner_item", "int64", "of a conflict: the item"),
    Column("winner_version", "int64", "the version that wrote it first"),
    Column("winner_origin", "string", "and the member that sent that one"),
    Column("is_local", "bool", "executed at the observer itself: it has no stamps"),
    Column("is_large", "bool", "its changes went ahead of it in fragments"),
    Column("last_committed", "int64", "WL#8440 trx.LC; of a view change 0"),
    Column(
        "sequence_number", "int64", "WL#8440 trx.SN; of a view change 0; else the last assigned"
    ),
    # Columns for the schemes of the other seeds, where they are known.
    Column("domain_id", "int64", "MDEV-4506"),
    Column("commit_id", "int64", "MDEV-4506: group commit; 0 for a group of one"),
    Column("commit_parent", "int64", "WL#6314"),
    Column("databases", "list<string>", "WL#5569: those it updates"),
    Column("tables", "list<string>", "WL#4648: those it updates, as database.table"),
    # Times: microseconds since 1970, and ticks of the applier's own clock.
    Column("decided_us", "int64", "when the observer decided"),
    Column("started_us", "int64", "when a worker began to execute it"),
    Column("committed_us", "int64", "when it was visible"),
    Column("started_tick", "int64", "in the applier's ticks; 0: its client had executed it"),
    Column("committed_tick", "int64", "ran in [started_tick, committed_tick)"),
    Column("worker", "int64", "who executed it; absent: nobody but its client"),
    # Windows, views, settings.
    Column("last_committed_global", "int64", "the window's lower edge after this record"),
    Column("stable_version", "int64", "everything up to it is executed by all members"),
    Column("stable_set", "string", "the same as a GTID set, in traces"),
    Column("collected_version", "int64", "items last written up to it are purged"),
    Column("purged_items", "int64", "items that this collection purged"),
    Column("view_id", "string", "of the new view"),
    Column("members", "list<string>", "of the new view"),
    Column("resets_clock", "bool", "whether the observer is the one that joined"),
    Column("settings", "string", "JSON: source, group_source, gtid_assignment_block_size, ..."),
    # The report of a member about itself.
    Column("reported_sequence", "int64", "the message of the log that the digest is as of"),
    Column("reported_digest", "int64", "of its certification state, read as signed"),
    Column("reported_place", "int64", "the row of its history that the chain is as of"),
    Column("reported_chain", "binary", "the chain there"),
    # A later column comes last, because the chain has the numbers of columns.
    Column("executed_us", "int64", "when its execution ended, before it waited for its turn"),
    Column("chain", "binary", "see `link`"),
)

CHAINED: Final = tuple(column for column in COLUMNS if column.name != "chain")
FIELD_SEPARATOR: Final = "\x1f"
LIST_SEPARATOR: Final = ","


def place_of(position: int, kind: RecordKind) -> int:
    """Returns the key of a row, which orders a history: the steps that a record causes sort after
    it.

    >>> place_of(7, RecordKind.COLLECTION) < place_of(8, RecordKind.START)
    True
    """
    return position << STEP_BITS | _STEPS[kind]


def position_at(place: int) -> int:
    """Returns the position (`certifier.position.position_of`) of a place."""
    return place >> STEP_BITS


def kind_at(place: int) -> RecordKind | None:
    """Returns the kind of the row at a place; None for a place that no writer assigns.

    >>> kind_at(place_of(7, RecordKind.COLLECTION)).value
    'collection'
    """
    step = place & (1 << STEP_BITS) - 1
    return _KINDS[step] if step < len(_KINDS) else None


def signed(item: int) -> int:
    """Returns a 64-bit item as Parquet and Spark have it: read as signed.

    >>> signed(2**64 - 1)
    -1
    """
    return item - (1 << 64) if item >> 63 else item


def bounded(number: int) -> int:
    """Returns an unsigned 64-bit number as a column takes it: `INTEGER_MAX` stands for all larger
    numbers. No member decides by the difference.

    >>> bounded(2**63) == bounded(2**64 - 1) == INTEGER_MAX
    True
    """
    return min(number, INTEGER_MAX)


def text_of(row: Mapping[str, Value]) -> str:
    """Returns the text of a row that is chained: the columns that have a value, without `chain`, in
    order, each as number=value. Strings have their length in characters before them and lists are
    in brackets, so that no two rows have the same text.

    >>> text_of({"place": 160, "kind": "start", "write_set": [1, -2], "write_keys": ["a,b", ""]})
    '4=160\\x1f5=5:start\\x1f15=[1,-2]\\x1f17=[3:a,b,0:]'
    """
    return FIELD_SEPARATOR.join(
        [
            f"{number}={value!s}" if is_number else f"{number}={_word(value)}"
            for number, name, is_number in _text_columns(tuple(row))
            if (value := row[name]) is not None
        ]
    )


def link(before: bytes, text: str) -> bytes:
    """Returns the chain of a row: the first bytes of SHA-256 of the chain before it, followed by
    SHA-256 of its text.
    """
    return sha256(before + sha256(text.encode()).digest()).digest()[:CHAIN_BYTES]


@lru_cache(maxsize=256)
def _text_columns(names: tuple[str, ...]) -> list[tuple[int, str, bool]]:
    """Returns the columns that a row with these `names` chains, in order: number, name, and whether
    the values are integers. Cached, as a log has millions of rows and few such sets of columns.
    """
    return [
        (number, column.name, column.kind == "int64")
        for number, column in enumerate(CHAINED)
        if column.name in names
    ]


def _word(value: Value) -> str:
    if isinstance(value, str):
        return f"{len(value)}:{value}"
    if isinstance(value, list):
        return (
            f"[{LIST_SEPARATOR.join([str(e) if isinstance(e, int) else _word(e) for e in value])}]"
        )
    return value.hex().upper() if isinstance(value, bytes) else str(value).lower()
