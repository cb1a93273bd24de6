"""The functions of an attached table in the schema `groupcert`, written for its columns and keys.

    note T      triggers: note keys, of rows before and after, for each statement that changed some;
                TRUNCATE is noted as the deletion of all rows that the transaction sees
    changes T   at COMMIT: the rows of these keys as they are now, and the items of its other keys;
                raises where `put T` would elsewhere, by the settings that both have
    put T       executes rows of others: deletes some, puts others
    rows T      reads rows to compare them, by their primary key, a page at a time

The last three run what the table's owner may have put into an index, a CHECK, a domain or a
generated column. So they belong to the owner and are SECURITY DEFINER: such a function has the
owner's rights, and neither SET ROLE nor RESET ROLE leads out of one. What it would leave behind for
the end of the transaction, deferred triggers, is run before it returns. Each pins the settings that
the texts of values depend on, because code of another table's owner may have changed them.

Items: the key of each changed row is one by itself (`changed_items` of `members/wire`). A unique
index adds an item for each entry that enters or leaves it, its predicate and expressions evaluated
here: two inserts of one value conflict, so does an undeleted row with a new one. A foreign key adds
an item for the parent's key, at a child that begins to refer to it and at a parent that gives it
up: a child and its parent's deletion conflict. Entries are counted over the whole transaction: one
that was taken and given up again, or that moved from row to row, leaves no trace.

Source: WL#8440, "write set"; MySQL adds the parent's key for each child's row.
Differs: a parent whose key stays, and a child whose reference stays, add nothing, as FOR KEY SHARE
and FOR NO KEY UPDATE do not wait for each other in PostgreSQL. Two new children of one parent
conflict, as in MySQL.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from .tables import (
    JSON_TYPES,
    KEY_TYPES,
    Column,
    KeyPart,
    Table,
)

APPLIER_ROLE = "groupcert_applier"
"""The role whose sessions execute rows of others, and read rows to compare them: it may call the
functions `put T` and `rows T`, no more."""
TRIGGERS = {
    "INSERT": "NEW TABLE AS new_rows",
    "UPDATE": "OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "DELETE": "OLD TABLE AS old_rows",
}
"""The rows that a statement's trigger sees."""
TRUNCATE = "TRUNCATE"
TRUNCATED = "truncated "
"""The word in a note before the name of a table that was truncated; triggers.sql has it, too."""
OPERATIONS = (
    "note insert",
    "note update",
    "note delete",
    "note truncate",
    "changes",
    "put",
    "rows",
)
"""The operations for which a table has functions."""
_PLAIN_TYPES = KEY_TYPES - {
    "bytea",
    "date",
    "timestamp without time zone",
    "timestamp with time zone",
}
"""Types whose texts depend on no setting."""
_INTEGERS = frozenset(("smallint", "integer", "bigint"))
_NAME_BYTES_MAX = 63
PAGE_ROWS, PAGE_BYTES = 1_000, 256 << 10
"""Rows of a page that is compared, and bytes of values after which it ends."""
PAIRS_MAX = 50
"""Columns of an object: PostgreSQL's functions take 100 arguments."""
_CHANGE = Identifier("groupcert change")
"""1: a row that a statement has left, -1: one that it found."""
_CHANGED = SQL(
    "DECLARE noted record; written text; keys json := CASE"
    " WHEN $1 IS NULL OR $1::text = $2::text THEN $2 WHEN $2 IS NULL THEN $1"
    " ELSE (left($1::text, -1) || ',' || substr($2::text, 2))::json END;"
)
"""What `changes T` declares: `keys` is one array of the rows before and after, which `decide` gives
without blanks at their ends.
"""
_PATH = SQL("SET search_path = pg_catalog, pg_temp")
_FEW_SETTINGS = SQL("{} SET row_security = off").format(_PATH)
_SETTINGS = SQL(
    "SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD'"
    " SET intervalstyle = 'postgres' SET timezone = 'UTC' SET bytea_output = 'hex'"
    " SET extra_float_digits = 1 SET xmloption = 'content' SET row_security = off"
)


_BY_KEY = _SETTINGS + SQL(
    " SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_sort = off"
    " SET enable_bitmapscan = off"
)
"""A page is read by the primary key, whatever the planner believes of the table's size."""


def function_name(operation: str, table: str) -> str:
    """Returns the name of a table's function; one that would be too long ends with a digest.

    >>> function_name("put", "public.accounts")
    'put public.accounts'
    """
    name = f"{operation} {table}"
    if len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name.encode()[:40].decode(errors='ignore')} {digest}"


def function_of(operation: str, table: str) -> Identifier:
    """Returns a table's function as SQL has it."""
    return Identifier("groupcert", function_name(operation, table))


def statements_for(table: Table) -> list[Composed]:
    """Returns the SQL statements that attach a table, or renew what an earlier call has made."""
    statements = [*_statements(table)]
    comment = SQL("COMMENT ON FUNCTION {} IS {}").format(
        function_of("changes", table.full_name), Literal(digest_of(table))
    )
    return [*statements, comment]


def digest_of(table: Table) -> str:
    """Returns a digest, in hexadecimal, of the functions that an attached table needs now. It
    changes where a table that is attached later refers to this one.
    """
    text = "\n".join(statement.as_string(None) for statement in _statements(table))
    return hashlib.sha256(text.encode()).hexdigest()


def _statements(table: Table) -> Iterator[Composed]:
    for relation in _relations(table):
        is_root = relation == (table.schema, table.name)
        for operation in (*TRIGGERS, TRUNCATE) if is_root else (TRUNCATE,):
            trigger = Identifier(f"groupcert_{operation.lower()}")
            name = Identifier(*relation)
            yield SQL("DROP TRIGGER IF EXISTS {} ON {}").format(trigger, name)
    yield from _note(table)
    settings = _FEW_SETTINGS if _is_plain(table) else _SETTINGS
    noted = "old json, new json"
    yield from _owned(table, "changes", noted, "SETOF text", _changes(table), settings)
    yield from _owned(table, "put", "rows json, deleted json", "void", _put(table))
    pages = "TABLE (compared_key text, compared_value text)"
    yield from _owned(table, "rows", "after json", pages, _rows(table), _BY_KEY)
    for operation in ("put", "rows"):
        yield SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(
            function_of(operation, table.full_name), Identifier(APPLIER_ROLE)
        )


def _note(table: Table) -> Iterator[Composed]:
    """Yields the triggers that note rows: they only read columns, and run nothing of the owner's.

    They are not deferrable, so that no SET CONSTRAINTS reaches them, and what they write lives and
    dies with the savepoint.
    """
    exact = all(column.is_enum or column.base_type in KEY_TYPES for column in table.noted_columns)
    row = _object((column.name, _noted(column)) for column in table.noted_columns)
    # Only texts of other types depend on settings such as DateStyle.
    settings = _PATH if exact else _SETTINGS
    if table.is_partitioned:
        yield from _row_note(table, settings)
    for operation, rows in TRIGGERS.items() if not table.is_partitioned else ():
        before = SQL("NULL") if operation == "INSERT" else _noted_rows(row, SQL("old_rows"))
        after = SQL("NULL") if operation == "DELETE" else _noted_rows(row, SQL("new_rows"))
        source = SQL("old_rows" if operation == "DELETE" else "new_rows")
        function = function_of(f"note {operation.lower()}", table.full_name)
        yield _noting(function, settings, _added_note(table, before, after, source))
        event = f"AFTER {operation} ON {{}} REFERENCING {rows} FOR EACH STATEMENT"
        yield _trigger((table.schema, table.name), operation, event, function)
    truncated = SQL("INSERT INTO groupcert.notes (relation) VALUES ({});").format(
        Literal(f"{TRUNCATED}{table.full_name}")
    )
    for relation in _relations(table):
        name = Identifier(*relation)
        body = _added_note(table, _noted_rows(row, name), SQL("NULL"), name)
        function = function_of("note truncate", ".".join(relation))
        yield _noting(function, settings, SQL("{} {}").format(body, truncated))
        yield _trigger(relation, TRUNCATE, "BEFORE TRUNCATE ON {} FOR EACH STATEMENT", function)


def _row_note(table: Table, settings: Composable) -> Iterator[Composed]:
    """Yields the trigger that notes rows of a partitioned table, one by one: PostgreSQL shows a
    statement's trigger no row that MERGE moves to another partition.
    """
    sides = (
        _object((column.name, _noted(column, side)) for column in table.noted_columns)
        for side in ("old", "new")
    )
    body = SQL(
        "INSERT INTO groupcert.notes (relation, before, after) VALUES ({},"
        " CASE WHEN TG_OP <> 'INSERT' THEN json_build_array({}) END,"
        " CASE WHEN TG_OP <> 'DELETE' THEN json_build_array({}) END);"
    ).format(Literal(function_name("changes", table.full_name)), *sides)
    function = function_of("note update", table.full_name)
    yield _noting(function, settings, body)
    event = "AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW"
    yield _trigger((table.schema, table.name), "UPDATE", event, function)


def _relations(table: Table) -> list[tuple[str, str]]:
    """Returns the table and its partitions: TRUNCATE may name any of them."""
    return [(table.schema, table.name), *table.partitions]


def _noting(function: Identifier, settings: Composable, body: Composable) -> Composed:
    return SQL(
        "CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER {} AS {}"
    ).format(function, settings, _body(SQL("BEGIN {} RETURN NULL; END").format(body)))


def _trigger(
    relation: tuple[str, str], operation: str, event: str, function: Identifier
) -> Composed:
    return SQL("CREATE TRIGGER {} {} EXECUTE FUNCTION {}()").format(
        Identifier(f"groupcert_{operation.lower()}"),
        SQL(event).format(Identifier(*relation)),
        function,
    )


def _added_note(
    table: Table, before: Composable, after: Composable, source: Composable
) -> Composable:
    """Returns the INSERT that notes the rows of a source, if it has any."""
    return SQL(
        "INSERT INTO groupcert.notes (relation, before, after)"
        " SELECT {}, {}, {} WHERE EXISTS (SELECT FROM {});"
    ).format(Literal(function_name("changes", table.full_name)), before, after, source)


def _noted_rows(row: Composable, source: Composable) -> Composable:
    return SQL("(SELECT json_agg({}) FROM {})").format(row, source)


def _is_plain(table: Table) -> bool:
    """Returns whether the texts of a table's values depend on no setting, and `changes` runs
    nothing of its owner's.
    """
    parts = [part.expression for unique in table.unique_keys for part in unique.parts]
    are_columns = all(
        part.isidentifier() for part in parts
    )  # A quoted one is as good as any other.
    if table.refusals or not are_columns or any(each.predicate for each in table.unique_keys):
        return False
    return all(
        # The type of a domain has another name.
        column.base_type in _PLAIN_TYPES and column.type.startswith(column.base_type)
        for column in table.columns
    )


def _owned(
    table: Table,
    operation: str,
    parameters: str,
    returns: str,
    body: Composable,
    settings: Composable = _SETTINGS,
) -> Iterator[Composed]:
    """Yields the statements that make a function which runs as the table's owner, and which nobody
    else may call.
    """
    function = function_of(operation, table.full_name)
    yield SQL(
        "CREATE OR REPLACE FUNCTION {}({}) RETURNS {} LANGUAGE plpgsql SECURITY DEFINER {} AS {}"
    ).format(function, SQL(parameters), SQL(returns), settings, _body(body))
    yield SQL("ALTER FUNCTION {} OWNER TO {}").format(function, Identifier(table.owner))
    yield SQL("REVOKE ALL ON FUNCTION {} FROM PUBLIC").format(function)


def _changes(table: Table) -> Composable:
    """Returns the body that answers with lines. A line's first letter tells what it is: "+" a row
    that is there now, its key as JSON and, behind a line break, its value; "-" the key of a row
    that is not; "!" an item.
    """
    key = [table.column(name) for name in table.key]
    path = SQL("to_json({})::text").format(_path(table, "noted"))
    # A loop: for the few rows of most transactions, it takes half as long as a join does.
    rows = SQL(
        "FOR noted IN SELECT DISTINCT {names} FROM {source} LOOP"
        " SELECT {value} INTO written FROM {table} t WHERE {same}; IF FOUND THEN"
        " RETURN NEXT '+' || {path} || E'\\n' || written; ELSE RETURN NEXT '-' || {path}; END IF;"
        " END LOOP;"
    ).format(
        names=SQL(", ").join(map(Identifier, table.key)),
        source=_records(key, SQL("keys")),
        value=_value(table, table.columns),
        table=Identifier(table.schema, table.name),
        same=SQL(" AND ").join(SQL("t.{0} = noted.{0}").format(Identifier(n)) for n in table.key),
        path=path,
    )
    refusal = _refusal(table) if table.refusals else SQL("")
    entries = [
        SQL("SELECT {}, {}, {} FROM notes r {}").format(_CHANGE, Literal(sign), item, where)
        for item, sign, where in _entries(table)
    ]
    body = SQL("{} BEGIN {} {} {} END")
    if not entries:
        return body.format(_CHANGED, refusal, rows, SQL(""))
    notes = SQL(
        "WITH notes AS MATERIALIZED (SELECT 1 AS {change}, r.* FROM {new}"
        " UNION ALL SELECT -1, r.* FROM {old})"
    ).format(
        change=_CHANGE,
        new=_records(table.noted_columns, SQL("$2")),
        old=_records(table.noted_columns, SQL("$1")),
    )
    # Most statements change no key: then there is no entry to look for.
    # A value that a transaction both takes and gives up again makes no item.
    items = SQL(
        "IF $1::text IS DISTINCT FROM $2::text THEN RETURN QUERY {} SELECT '!' || item FROM ({})"
        " entry (change, sign, item) GROUP BY item, sign HAVING CASE sign WHEN 0 THEN"
        " sum(change) <> 0 ELSE sum(change) * sign > 0 END; END IF;"
    ).format(notes, SQL(" UNION ALL ").join(entries))
    return body.format(_CHANGED, refusal, rows, items)


def _refusal(table: Table) -> Composable:
    """Returns the statement that raises where a row would be refused elsewhere. Here a session's
    settings have decided, such as its search path; there those of `put` do, which are this
    function's.
    """
    noted = Identifier("groupcert noted")
    same = SQL(" AND ").join(
        SQL("{}.{} = {}.{}").format(
            Identifier(table.name), Identifier(name), noted, Identifier(name)
        )
        for name in table.key
    )
    key = SQL(", ").join(
        SQL("{} {}").format(Identifier(name), SQL(table.column(name).type)) for name in table.key
    )
    return SQL(
        "IF EXISTS (SELECT FROM json_to_recordset($2) AS {noted}({key}), LATERAL (SELECT FROM"
        " {table} WHERE {same} AND ({refusals}) OFFSET 0) refused) THEN RAISE check_violation"
        " USING MESSAGE = {message}, HINT = {hint}; END IF;"
    ).format(
        noted=noted,
        key=key,
        table=Identifier(table.schema, table.name),
        same=same,
        refusals=SQL(" OR ").join(SQL(refusal) for refusal in table.refusals),
        message=Literal(f"a row of {table.full_name} would be refused at other servers"),
        hint=Literal(
            "A CHECK, a generated column or an index has another value by search_path = pg_catalog,"
            " timezone = UTC and datestyle = ISO."
        ),
    )


def _entries(table: Table) -> Iterator[tuple[Composable, int, Composable]]:
    """Yields the texts of items, by rows `r`; the sign of the change that makes one (0: either);
    and which rows have one.
    """
    for unique in table.unique_keys:
        parts = [SQL(f"({part.expression})") for part in unique.parts]
        conditions: list[Composable] = [SQL(f"({unique.predicate})")] if unique.predicate else []
        if unique.nulls_differ:
            conditions += [SQL("{} IS NOT NULL").format(part) for part in parts]
        item = _item(f"{table.full_name}/{unique.name}", unique.parts)
        yield item, 0, _where(conditions)
    for reference in table.parents:
        yield _referred(
            table, reference.parent, reference.parent_columns, reference.child_columns, 1
        )
    for reference in table.children:
        columns = reference.parent_columns
        yield _referred(table, table.full_name, columns, columns, -1)


def _referred(
    table: Table, parent: str, parent_columns: Sequence[str], columns: Sequence[str], sign: int
) -> tuple[Composable, int, Composable]:
    pairs = sorted(zip(parent_columns, columns, strict=True))
    names = ",".join(name for name, _ in pairs)
    parts = [
        KeyPart(Identifier(name).as_string(None), table.column(name).base_type) for _, name in pairs
    ]
    filled = [SQL(f"{part.expression} IS NOT NULL") for part in parts]
    return _item(f"{parent}/referenced ({names})", parts), sign, _where(filled)


def _where(conditions: Sequence[Composable]) -> Composable:
    return SQL("WHERE {}").format(SQL(" AND ").join(conditions)) if conditions else SQL("")


def _item(name: str, parts: Sequence[KeyPart]) -> Composable:
    """Returns the text of an item; values that differ give texts that differ."""
    texts = (SQL("quote_nullable({})").format(_key_text(part)) for part in parts)
    return SQL("{} || concat_ws(',', {})").format(Literal(f"{name}/"), SQL(", ").join(texts))


def _key_text(part: KeyPart) -> Composable:
    """Returns the text of a key's value: equal if and only if PostgreSQL holds the values equal."""
    value = SQL(f"({part.expression})")
    if part.base_type == "numeric":
        return SQL("trim_scale({})::text").format(value)
    return SQL("{}::text").format(value) if part.base_type in KEY_TYPES else _text(value)


def _text(value: Composable) -> Composable:
    """Returns the text of a value of a type that is not PostgreSQL's: `::text` might be a cast of a
    user's, which `format` does not ask.
    """
    return SQL(
        "CASE WHEN {0} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {0}) END"
    ).format(value)


def _path(table: Table, row: str) -> Composable:
    """Returns the key of a row: `schema.table/value`, "/" and "%" in values of several escaped."""
    texts: list[Composable] = [
        _key_text(KeyPart(Identifier(row, name).as_string(None), table.column(name).base_type))
        for name in table.key
    ]
    if len(texts) > 1:
        texts = [SQL("replace(replace({}, '%', '%25'), '/', '%2F')").format(text) for text in texts]
    joined = SQL(" || '/' || ").join(texts)
    return SQL("{} || {}").format(Literal(f"{table.full_name}/"), joined)


def _value(table: Table, columns: Sequence[Column]) -> Composable:
    """Returns a row's value: the text of a JSON object of columns of `t` (see `rows.py`)."""
    return SQL("{} || '}}'").format(
        SQL(" || ").join(
            SQL("{} || {}").format(
                Literal(f"{',' if place else '{'}{json.dumps(column.name, ensure_ascii=False)}:"),
                _json(column),
            )
            for place, column in enumerate(columns)
        )
    )


def _json(column: Column) -> Composable:
    """Returns JSON for a column of `t`: integers as numbers, others as PostgreSQL's texts."""
    value = Identifier("t", column.name)
    if column.base_type in _INTEGERS:
        return SQL("coalesce({}::text, 'null')").format(value)
    is_exact = column.is_built_in and column.base_type != "character"  # Its cast drops blanks.
    text = SQL("{}::text").format(value) if is_exact else _text(value)
    return SQL("coalesce(to_json({})::text, 'null')").format(text)


def _put(table: Table) -> Composable:
    """Returns the body that deletes rows by their keys, and puts rows, new or not.

    Of a table with other unique indexes a row that is there is updated where it is, so that a child
    that refers to it keeps its lock. Values may have moved between rows of a transaction, in an
    order that nobody knows any more: then all rows are deleted before they are put.
    """
    key = [table.column(name) for name in table.key]
    delete = _for_each(key, "$2", _delete(table))
    move = SQL("{} {}").format(_for_each(table.columns, "$1", _delete(table)), _insert(table))
    if any(each.is_always_identity and each.name not in table.key for each in table.columns):
        put: Composable = move  # UPDATE takes no value of such a column.
    elif table.unique_keys or not table.has_immediate_key:
        body = SQL("{} IF NOT FOUND THEN {} END IF;").format(_update(table), _insert(table, "r"))
        put = SQL("BEGIN {} EXCEPTION WHEN unique_violation THEN {} END;").format(
            _for_each(table.columns, "$1", body), move
        )
    else:
        put = _upsert(table)
    return SQL(
        "DECLARE r record; BEGIN IF $2 IS NOT NULL THEN {} END IF;"
        " IF $1 IS NOT NULL THEN {} END IF; SET CONSTRAINTS ALL IMMEDIATE; END"
    ).format(delete, put)


def _rows(table: Table) -> Composable:
    """Returns the body that answers with a page of rows behind a key, NULL: the first ones. Servers
    may have columns in other orders: here they are in that of their names.

    A session whose snapshot is older than a TRUNCATE would find the table empty, or what writes it
    anew, as VACUUM FULL does: then it raises.
    """
    key = [table.column(name) for name in table.key]
    names = SQL(", ").join(Identifier("t", name) for name in table.key)
    behind = SQL("WHERE ({}) > ({})").format(
        names, SQL(", ").join(Identifier("r", name) for name in table.key)
    )
    first, following = (
        SQL(
            "FOR compared_key, compared_value IN SELECT {}, {} FROM {} t {} ORDER BY {} LIMIT {}"
            " LOOP RETURN NEXT; compared_bytes := compared_bytes + octet_length(compared_value);"
            " EXIT WHEN compared_bytes > {}; END LOOP;"
        ).format(
            _path(table, "t"),
            _value(table, sorted(table.columns)),
            Identifier(table.schema, table.name),
            where,
            names,
            Literal(PAGE_ROWS),
            Literal(PAGE_BYTES),
        )
        for where in (SQL(""), behind)
    )
    relations = (
        Literal(Identifier(*relation).as_string(None)) for relation in sorted(_relations(table))
    )
    return SQL(
        "DECLARE r record; compared_bytes bigint := 0; BEGIN IF $1 IS NULL THEN {} ELSE"
        " SELECT * INTO r FROM {}; {} END IF;"
        " IF EXISTS (SELECT FROM pg_class WHERE oid = ANY(ARRAY[{}]::regclass[])"
        " AND pg_relation_filenode(oid) <> relfilenode) THEN"
        " RAISE object_not_in_prerequisite_state USING MESSAGE = {}; END IF; END"
    ).format(
        first,
        _records(key, SQL("$1")),
        following,
        SQL(", ").join(relations),
        Literal(f"{table.full_name} was truncated or written anew meanwhile"),
    )


def _for_each(columns: Sequence[Column], source: str, body: Composable) -> Composable:
    """Returns a loop over rows: one statement a row finds it by its key, whatever the planner
    believes of the number of rows.
    """
    return SQL("FOR r IN SELECT * FROM {} LOOP {} END LOOP;").format(
        _records(columns, SQL(source)), body
    )


def _same(table: Table) -> Composable:
    return SQL(" AND ").join(SQL("t.{0} = r.{0}").format(Identifier(name)) for name in table.key)


def _delete(table: Table) -> Composable:
    name = Identifier(table.schema, table.name)
    return SQL("DELETE FROM {} t WHERE {};").format(name, _same(table))


def _insert(table: Table, row: str = "") -> Composable:
    """Returns the INSERT of the row of a variable, or of all rows."""
    names = [Identifier(column) for column in _written(table)]
    values = SQL(", ").join(SQL("r.{}").format(name) for name in names)
    source = SQL("") if row else SQL("FROM {}").format(_records(table.columns, SQL("$1")))
    return SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} {};").format(
        Identifier(table.schema, table.name), SQL(", ").join(names), values, source
    )


def _upsert(table: Table) -> Composable:
    others = [Identifier(name) for name in _written(table) if name not in table.key]
    updates = SQL(", ").join(SQL("{0} = EXCLUDED.{0}").format(name) for name in others)
    insert = _insert(table).as_string(None).removesuffix(";")
    return SQL("{} ON CONFLICT ({}) DO {};").format(
        SQL(insert),
        SQL(", ").join(map(Identifier, table.key)),
        SQL("UPDATE SET {}").format(updates) if others else SQL("NOTHING"),
    )


def _update(table: Table) -> Composable:
    """Returns the UPDATE of the row of `r`. That of a table with nothing but a key changes nothing,
    and finds whether the row is there.
    """
    names = [name for name in _written(table) if name not in table.key] or [*table.key]
    updates = SQL(", ").join(SQL("{0} = r.{0}").format(Identifier(name)) for name in names)
    name = Identifier(table.schema, table.name)
    return SQL("UPDATE {} t SET {} WHERE {};").format(name, updates, _same(table))


def _records(columns: Sequence[Column], source: Composable) -> Composable:
    """Returns rows `r` of a JSON array of objects, their columns typed.

    JSON is loaded as its text first: a string would be taken for a JSON string.
    """
    described = SQL(", ").join(
        SQL("{} {}").format(Identifier(column.name), SQL(_loaded_type(column)))
        for column in columns
    )
    records = SQL("json_to_recordset({}) AS r({})").format(source, described)
    if not any(column.base_type in JSON_TYPES for column in columns):
        return records
    values = SQL(", ").join(
        SQL("r.{0}::{1} AS {0}").format(Identifier(column.name), SQL(column.type))
        if column.base_type in JSON_TYPES
        else Identifier("r", column.name)
        for column in columns
    )
    return SQL("(SELECT {} FROM {}) r").format(values, records)


def _loaded_type(column: Column) -> str:
    return "text" if column.base_type in JSON_TYPES else column.type


def _noted(column: Column, *row: str) -> Composable:
    """Returns a noted column as JSON takes it: its value where JSON has it exactly, else text."""
    name = Identifier(*row, column.name)
    return name if column.is_built_in and column.base_type in KEY_TYPES else _text(name)


def _object(values: Iterator[tuple[str, Composable]]) -> Composable:
    pairs = [SQL("{}, {}").format(Literal(name), value) for name, value in values]
    parts = [
        SQL("json_build_object({})").format(SQL(", ").join(pairs[first : first + PAIRS_MAX]))
        for first in range(0, len(pairs), PAIRS_MAX)
    ]
    if len(parts) == 1:
        return parts[0]
    joined = SQL(" || ").join(SQL("{}::jsonb").format(part) for part in parts)
    return SQL("({})::json").format(joined)


def _written(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.is_written]


def _body(body: Composable) -> Literal:
    """Returns a function's body; columns of tables come before parameters of the same name."""
    return Literal("#variable_conflict use_column\n" + body.as_string(None))
