"""Where transactions begin and end in a log: the events with a GTID and stamps, and the statements.

A value that a GTID event does not have is the one that allows no parallelism: stamps 0 and 0,
commit id 0, domain 0, no time. A statement that is not known to change nothing may have changed any
row.

Source: WL#7165 (stamps), MDEV-4506 (commit id, domain), MySQL 8.4 source documentation of
Gtid_event and of Query_event (status variables, exec_time), MariaDB Knowledge Base "GTID_EVENT";
WL#5569 for the names of the databases that a statement updates, which MySQL writes with it.
"""

import re
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import BinaryIO, NamedTuple
from uuid import UUID

from ...certifier.gtid import NUMBER_MAX
from .compression import inflated
from .cursor import Cursor
from .events import HEADER_BYTES, Event, EventType

GTIDS = {
    EventType.GTID,
    EventType.ANONYMOUS_GTID,
    EventType.GTID_TAGGED,
    EventType.MARIADB_GTID,
}
"""Types of the events with which transactions begin."""
_FORMAT_DESCRIPTION = EventType.FORMAT_DESCRIPTION.value
_TYPE_AND_SIZE = Struct("<4xB4xI")
_BLOCK_BYTES = 1 << 14
_LOGICAL_CLOCK = 2
_TIMESTAMP_FLAG = 1 << 55
_FL_STANDALONE = 0x01
_FL_GROUP_COMMIT_ID = 0x02
_FL_DDL = 0x20
_UNTAGGED, _STAMPS, _MARIADB = Struct("<x16sQ"), Struct("<BQQ"), Struct("<QIB")
_TAGGED_VERSION = 1
_TAGGED_FIELDS = 12
_NUMBERS = (
    "last_committed",
    "sequence_number",
    "commit_id",
    "committed_us",
    "original_committed_us",
)
_DML = {
    "INSERT",
    "UPDATE",
    "DELETE",
    "REPLACE",
    "LOAD",
    "CALL",
    "DO",
    "SELECT",
    "WITH",
    "MERGE",
    "VALUES",
    "EXECUTE",
}
# Not of the comments that begin with /*! or /*M: servers execute their content.
_LEADING = re.compile(r"(?:\s+|/\*[^!M].*?\*/|--\s[^\n]*\n|#[^\n]*\n)*", re.S)
_WORDS = re.compile(r"[A-Za-z_]+")
_HEAD_CHARACTERS = 4_096
_SET_FOR = re.compile(
    r"""SET\s+STATEMENT\s(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"])*?\sFOR\s""", re.I | re.S
)
"""MariaDB's variables that are set for one statement."""
_ONE_PHASE = re.compile(r"^XA\s+COMMIT\s.*\sONE\s+PHASE\s*$", re.I | re.S)
_DATABASES_OVER_MAX = 254
_MICROSECONDS = 13
_UPDATED_DATABASES = 12
_STATUS_BYTES = {
    **dict.fromkeys((16, 19, 20), 1),
    **dict.fromkeys((7, 8, 18), 2),
    **dict.fromkeys((_MICROSECONDS, 128), 3),
    **dict.fromkeys((0, 3, 10), 4),
    4: 6,
    **dict.fromkeys((1, 9, 17, 129), 8),
}
_STATUS_TEXTS = {2: (1, 1), 5: (1, 0), 6: (1, 0), 11: (2, 0)}


class GroupStart(NamedTuple):
    """The content of a transaction's first event; `gtid` is None for an anonymous one.

    `is_open`: the transaction has begun, for MariaDB writes no BEGIN; it ends with its XID or
    COMMIT. `committed_us`, `original_committed_us`: the commit at the server that wrote the log,
    and where the transaction came from, in microseconds since 1970; 0 if not said.
    """

    gtid: str | None = None
    last_committed: int = 0
    sequence_number: int = 0
    commit_id: int = 0
    domain_id: int = 0
    committed_us: int = 0
    original_committed_us: int = 0
    is_open: bool = False
    is_ddl: bool = False

    @property
    def numbers(self) -> tuple[int, ...]:
        """Those that have a limit; `_NUMBERS` are their names."""
        _, last, sequence, commit_id, _, committed_us, original_us, *_ = self
        return last, sequence, commit_id, committed_us, original_us


def group_start(event: Event) -> GroupStart:
    """Returns the content of an event of one of the four GTID types.

    Raises:
        InvalidBinaryLog: it is too short, has no GTID, or a number that no server gives.
    """
    if event.type == EventType.MARIADB_GTID:
        start = _mariadb(event)
    elif event.type == EventType.GTID_TAGGED:
        start = _tagged(event)
    else:
        start = _untagged(event)
    numbers = start.numbers
    if min(numbers) < 0 or max(numbers) > NUMBER_MAX:
        for name, number in zip(_NUMBERS, numbers, strict=True):
            if not 0 <= number <= NUMBER_MAX:
                raise event.invalid(f"{name} {number}", f"0 to {NUMBER_MAX}")
    return start


def passed_transactions(
    file: BinaryIO, offset: int, until: int, size_bytes: int
) -> tuple[int, int]:
    """Returns the number of transactions that begin from `offset` on and before `until`, and the
    offset behind them: of the first GTID event at `until` or later, or of an event before it that
    has to be read.

    These are a format description, an event that the file does not have whole, and where no GTID
    event comes first, any. Of all others only type and size are looked at. `file` is moved.

    Args:
        offset: where an event begins that is not within a transaction.
        size_bytes: of the file.

    Cost: O(events), and reads the blocks that have the head of one.
    """
    passed, head = 0, _TYPE_AND_SIZE.unpack_from
    while True:
        file.seek(offset)
        block = file.read(_BLOCK_BYTES)
        start, last, stop = 0, len(block) - HEADER_BYTES, size_bytes - offset
        if last < 0:
            return passed, offset
        while start <= last:
            kind, event_bytes = head(block, start)
            end = start + event_bytes
            if kind in GTIDS:
                if offset + start >= until:
                    return passed, offset + start
                passed += 1
            elif not passed or kind == _FORMAT_DESCRIPTION:
                return passed, offset + start
            if event_bytes < HEADER_BYTES or end > stop:
                return passed, offset + start
            start = end
        offset += start


def _untagged(event: Event) -> GroupStart:
    cursor = Cursor(event)
    source, number = cursor.unpack(_UNTAGGED)
    gtid = None
    if event.type == EventType.GTID:
        gtid = f"{_uuid(source)}:{_checked(event, number)}"
    # Servers before MySQL 5.7 write no stamps.
    if cursor.remaining < _STAMPS.size:
        return GroupStart(gtid)
    kind, last_committed, sequence_number = cursor.unpack(_STAMPS)
    if kind != _LOGICAL_CLOCK:
        return GroupStart(gtid)
    committed = original = 0
    if cursor.remaining >= 7:
        committed = original = cursor.uint(7)
        if committed & _TIMESTAMP_FLAG:
            committed, original = committed ^ _TIMESTAMP_FLAG, cursor.uint(7)
    return GroupStart(gtid, last_committed, sequence_number, 0, 0, committed, original)


@lru_cache
def _uuid(content: bytes) -> str:
    return str(UUID(bytes=content))


def _tagged(event: Event) -> GroupStart:
    """Returns the content of MySQL 8.4's event: numbered fields, of which some may be left out."""
    cursor = Cursor(event)
    version = cursor.varint()
    cursor.varint()  # The message's size: it fills the event.
    required = cursor.varint()  # The last field that a reader must know.
    if version != _TAGGED_VERSION or required >= _TAGGED_FIELDS:
        raise event.invalid(
            f"a tagged GTID of version {version} with field {required}",
            f"version {_TAGGED_VERSION} with fields up to {_TAGGED_FIELDS - 1}",
        )
    values: dict[int, int] = {}
    uuid, tag = bytes(16), ""
    while cursor.remaining and (field := cursor.varint()) < _TAGGED_FIELDS:
        if field == 1:
            octets = [cursor.varint() for _ in range(16)]
            if max(octets) > 255:
                raise event.invalid(f"{max(octets)} in a UUID", "bytes")
            uuid = bytes(octets)
        elif field == 3:
            tag = cursor.text(cursor.varint())
        else:
            values[field] = cursor.signed_varint() if field in (2, 4, 5) else cursor.varint()
    number = _checked(event, values.get(2, 0))
    committed = values.get(6, 0)
    return GroupStart(
        gtid=f"{UUID(bytes=uuid)}:{tag}:{number}" if tag else f"{UUID(bytes=uuid)}:{number}",
        last_committed=values.get(4, 0),
        sequence_number=values.get(5, 0),
        committed_us=committed,
        original_committed_us=values.get(7, committed),
    )


def _mariadb(event: Event) -> GroupStart:
    cursor = Cursor(event)
    number, domain_id, flags = cursor.unpack(_MARIADB)
    gtid = f"{domain_id}-{event.server_id}-{_checked(event, number)}"
    commit_id = cursor.uint(8) if flags & _FL_GROUP_COMMIT_ID else 0
    is_open, is_ddl = not flags & _FL_STANDALONE, bool(flags & _FL_DDL)
    return GroupStart(gtid, 0, 0, commit_id, domain_id, 0, 0, is_open, is_ddl)


def _checked(event: Event, number: int) -> int:
    if not 1 <= number <= NUMBER_MAX:
        raise event.invalid(f"a GTID with number {number}", f"1 to {NUMBER_MAX}")
    return number


class StatementKind(Enum):
    """The meaning of a statement for its transaction."""

    BEGIN = "begin"
    END = "end"
    XA_END = "xa end"
    NOTHING = "nothing"
    CHANGE = "change"


class Statement(NamedTuple):
    """A statement as logged; `databases`: those that it updates, None if they are not known;
    `database`: the default one of its session.
    """

    kind: StatementKind
    is_ddl: bool
    databases: tuple[str, ...] | None
    began_us: int
    duration_us: int
    database: str
    text: str

    @property
    def has_effect(self) -> bool:
        """True if rows alone do not say what it does: all but the frame of a transaction."""
        if self.kind in (StatementKind.CHANGE, StatementKind.XA_END):
            return not _ONE_PHASE.search(self.text)
        return self.text[:8].upper() == "ROLLBACK"


def read_statement(event: Event) -> Statement:
    """Returns the statement of a query event.

    Raises:
        InvalidBinaryLog: it is no query event.
    """
    cursor = Cursor(event)
    cursor.take(4)
    seconds, database_bytes = cursor.uint(4), cursor.uint(1)
    cursor.take(2)
    status_bytes = cursor.uint(2)
    if event.type == EventType.EXECUTE_LOAD_QUERY:
        cursor.take(13)
    microseconds, databases = _status(Cursor(event, cursor.take(status_bytes)))
    database = cursor.text(database_bytes)
    cursor.take(1)
    content = cursor.rest()
    if event.type == EventType.MARIADB_QUERY_COMPRESSED:
        content = inflated(event, content)
    text = content.decode("utf-8", "replace")
    kind, is_ddl = classify(text)
    began_us = event.timestamp * 1_000_000 + microseconds
    return Statement(kind, is_ddl, databases, began_us, seconds * 1_000_000, database, text)


def prepared_branch(event: Event) -> Statement:
    """Returns the statement that an event of its type stands for: XA PREPARE, or the XA COMMIT of
    a branch that commits in one phase, as any transaction does.

    Raises:
        InvalidBinaryLog: it is too short.
    """
    cursor = Cursor(event)
    one_phase, format_id = cursor.uint(1), cursor.uint(4)
    global_bytes, branch_bytes = cursor.uint(4), cursor.uint(4)
    branch = (
        f"X'{cursor.take(global_bytes).hex()}',X'{cursor.take(branch_bytes).hex()}',{format_id}"
    )
    text = f"XA COMMIT {branch} ONE PHASE" if one_phase else f"XA PREPARE {branch}"
    began_us = event.timestamp * 1_000_000
    return Statement(StatementKind.XA_END, False, None, began_us, 0, "", text)


def classify(text: str) -> tuple[StatementKind, bool]:
    """Returns the kind of a statement, and whether it is data definition or administration.

    >>> classify("BEGIN")[0].value, classify("XA COMMIT X'61',X'',1")[0].value
    ('begin', 'xa end')
    >>> classify("/* app */ create table t (a int)")[1], classify("insert into t values (1)")[1]
    (True, False)
    """
    words = first_words(text)
    first, second = (*words, "", "")[:2]
    alone = len(words) == 1
    if (first == "BEGIN" and alone) or (first, second) in {("XA", "START"), ("XA", "BEGIN")}:
        return StatementKind.BEGIN, False
    if first in ("COMMIT", "ROLLBACK") and alone:
        return StatementKind.END, False
    if first == "XA" and second in ("COMMIT", "ROLLBACK"):
        return StatementKind.XA_END, False
    if first in ("SAVEPOINT", "RELEASE") or (first, second) in {("ROLLBACK", "TO"), ("XA", "END")}:
        return StatementKind.NOTHING, False
    return StatementKind.CHANGE, first not in _DML


def first_words(text: str, count: int = 40) -> list[str]:
    """Returns the first words of a statement in upper case, without the comments before it, and
    without the variables that are set for it.

    >>> first_words("SET STATEMENT sql_mode='a FOR b' FOR /* c */ drop table t", 2)
    ['DROP', 'TABLE']
    """
    start = _LEADING.match(text)
    begin = text[start.end() if start else 0 :][:_HEAD_CHARACTERS]
    if found := _SET_FOR.match(begin):
        return first_words(begin[found.end() :], count)
    return [word.upper() for word in _WORDS.findall(begin[:512])[:count]]


def _status(cursor: Cursor) -> tuple[int, tuple[str, ...] | None]:
    """Returns the microseconds of the begin and the databases, from the status variables.

    An unknown variable has an unknown length: those after it are not read.
    """
    microseconds, databases = 0, None
    while cursor.remaining:
        code = cursor.uint(1)
        if code == _MICROSECONDS:
            microseconds = cursor.uint(3)
        elif code == _UPDATED_DATABASES:
            count = cursor.uint(1)
            if count < _DATABASES_OVER_MAX:
                databases = tuple(sorted({_zero_ended(cursor) for _ in range(count)}))
        elif code in _STATUS_TEXTS:
            texts, zeros = _STATUS_TEXTS[code]
            for _ in range(texts):
                cursor.take(cursor.uint(1) + zeros)
        elif code in _STATUS_BYTES:
            cursor.take(_STATUS_BYTES[code])
        else:
            break
    return microseconds, databases


def _zero_ended(cursor: Cursor) -> str:
    name = bytearray()
    while byte := cursor.uint(1):
        name.append(byte)
    return name.decode("utf-8", "replace")
