"""What a source's tables are at the place in its log where a replica is.

With its server's defaults a log has columns by number: neither names nor labels, MariaDB's neither
signs nor character sets. The source's catalogue has them as they are now, and a definition that is
still to come in the log may have changed them. So a target keeps what its source's tables are, from
its first start on, until the log defines them anew. Then they are what the source has now, unless
one more definition is to come: what they are between the two nobody can say, and their rows are
refused.

A target that executes definitions is where the log is. Its own tables say what the source's are,
except those that were others from the first start on, on purpose.

Source: MySQL Reference Manual, 19.1.6.4 (binlog_row_metadata); MariaDB Knowledge Base, the same.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, NamedTuple

from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ...certifier.write_set import TableKeys
from ..mysql_logs.source_catalogue import ForeignKey, SourceColumn, SourceTable
from ..mysql_logs.statement_payload import PayloadStatement, is_definition
from ..mysql_logs.table_maps import keys_from

KeptTables = Mapping[str, SourceTable | None]
"""Tables by `database.table` as the log has them where the target is; None: defined since then."""
ReadDefinitions = Callable[[GtidSet], tuple[Iterable[tuple[Gtid, PayloadStatement]], GtidSet]]
"""Returns the definitions in a source's log behind a GTID set, and what it has executed."""
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")


def encode_kept(name: str, table: SourceTable | None) -> bytes:
    """Returns a table of `KeptTables` as JSON."""
    return json.dumps([name, table and asdict(table)]).encode()


def decode_kept(encoded: str | bytes) -> tuple[str, SourceTable | None]:
    """Returns the table that `encode_kept` made the JSON of, with its name."""
    name, fields = json.loads(encoded)
    if fields is None:
        return name, None
    columns = tuple(SourceColumn(**each) for each in fields["columns"])
    foreign_keys = tuple(ForeignKey(**_tuples(each)) for each in fields["foreign_keys"])
    unique_keys = _tuples(fields["unique_keys"])
    fields |= {"columns": columns, "foreign_keys": foreign_keys, "unique_keys": unique_keys}
    return name, SourceTable(**_tuples(fields))


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields with tuples, where JSON has lists."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }


class LoggedTables(NamedTuple):
    """A source's tables: those that a target's `own` definitions tell, those that are `told` by
    what was kept or by the source, and those whose rows cannot be read, with the reason: `unread`.
    """

    own: Mapping[str, SourceTable]
    told: Mapping[str, SourceTable]
    unread: Mapping[str, str]

    @property
    def known(self) -> Mapping[str, SourceTable]:
        """All whose rows can be read."""
        return {**self.own, **self.told}

    @property
    def kept(self) -> KeptTables:
        """What the target is to keep."""
        return {**self.told, **dict.fromkeys(self.unread)}


class Place(NamedTuple):
    """Where a target is in its source's log, and the tables that it has kept; None: nothing yet, as
    this is its first start.
    """

    executed: GtidSet
    kept: KeptTables | None


FIRST_START = Place(GtidSet(), None)


class TableHistory:
    """What is known of a source's tables beside what the source says now. `keys`: of the tables as
    they were asked for last, by name.
    """

    def __init__(self, read: ReadDefinitions) -> None:
        """Reads the source's log where that is needed, once; the rest of it later."""
        self.keys: dict[str, TableKeys] = {}
        self._read = read
        self._found: list[tuple[Gtid, PayloadStatement]] = []
        self._end: GtidSet | None = None
        self._refuted: set[str] = set()

    def tables(
        self,
        now: Mapping[str, SourceTable],
        own: Mapping[str, SourceTable] | None,
        place: Place,
    ) -> LoggedTables:
        """Returns the tables as the log has them at a place; a later call is for a later place.

        Args:
            now: as the source has them.
            own: as a target has them that executes definitions; None: it does not.

        Cost: reads the log from there on, unless all tables are kept.
        """
        if place.kept is None:
            told = dict.fromkeys(unlike(now, own))
        else:
            told = {**dict.fromkeys(now if own is None else ()), **place.kept}
            told |= dict.fromkeys(self._refuted & told.keys())
        self._refuted.clear()
        known = {name: table for name, table in told.items() if table is not None}
        unread: dict[str, str] = {}
        if unsure := told.keys() - known.keys():
            statements = self._after(place.executed)
            for name in unsure:
                next_one = next((each for each in statements if defines(each, name)), None)
                if next_one is not None:
                    unread[name] = (
                        f"the log has rows before {next_one.text[:200]!r}, and nothing says what "
                        "its columns were then: --copy into an empty target"
                    )
                elif name in now:
                    known[name] = now[name]
        alike = {name: table for name, table in (own or {}).items() if name not in told}
        found = LoggedTables(alike, known, unread)
        self.keys.clear()
        self.keys.update(keys_from(found.known))
        return found

    def refute(self, name: str) -> None:
        """Notes that the log has rows of a table that is not what was kept."""
        self._refuted.add(name)

    def _after(self, executed: GtidSet) -> Sequence[PayloadStatement]:
        """Returns the statements that are not in `executed`, up to the log's end."""
        found, self._end = self._read(executed if self._end is None else self._end)
        self._found += found
        return [statement for gtid, statement in self._found if gtid not in executed]


def unlike(
    now: Mapping[str, SourceTable], own: Mapping[str, SourceTable] | None
) -> Collection[str]:
    """Returns the tables whose rows are not read alike by a target's definitions and the source's;
    without such definitions all.
    """
    if own is None:
        return now
    return [
        name for name, table in now.items() if name in own and _reads(own[name]) != _reads(table)
    ]


def _reads(table: SourceTable) -> list[tuple[object, ...]]:
    """Returns all that the reading of a table's rows depends on, spelled alike for MySQL and
    MariaDB: not the width at which an integer is shown, nor how texts are compared.
    """
    return [_read_as(column) for column in table.columns]


def _read_as(column: SourceColumn) -> tuple[object, ...]:
    spelled = column.column_type.replace("geomcollection", "geometrycollection")
    if column.data_type in _INTEGERS:
        spelled = column.data_type + " unsigned" * ("unsigned" in spelled)
    default = (column.default or "NULL").strip("'").removesuffix("()")
    if default.lower().startswith("current_timestamp"):
        default = default.lower()
    charset = column.charset and column.charset.replace("utf8mb3", "utf8")
    return column.name, spelled, charset, column.nullable, default, column.generated


def defined_anew(kept: KeptTables, statements: Sequence[PayloadStatement]) -> Iterable[str]:
    """Returns the tables that are known and may be others after statements: those that they name,
    and those whose foreign keys refer to such ones.
    """
    statements = [each for each in statements if is_definition(each.text)]
    for name, table in kept.items():
        if table is not None:
            about = [name, *(key.parent for key in table.foreign_keys)]
            if any(defines(statement, each) for statement in statements for each in about):
                yield name


def defines(statement: PayloadStatement, name: str) -> bool:
    """Returns whether a definition may be one of a table: whether it has its name, wherever; if it
    defines something else, that of its database.

    >>> alter = PayloadStatement("ALTER TABLE `my things` ADD c INT", "shop", True)
    >>> defines(alter, "shop.my things"), defines(alter, "shop.thing"), defines(alter, "shop.a")
    (True, False, False)
    """
    database, _, table = name.partition(".")
    names = [table] if statement.is_table else [table, database]
    return any(_mention(each).search(statement.text) for each in names)


@cache
def _mention(name: str) -> re.Pattern[str]:
    """Returns the pattern of a name in a statement, in backticks or not."""
    spelled = rf"{re.escape(name)}|{re.escape(name.replace('`', '``'))}"
    return re.compile(rf"(?<![\w$])(?:{spelled})(?![\w$])", re.IGNORECASE)
