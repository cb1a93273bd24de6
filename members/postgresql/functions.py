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
from collections.abc import Iterator, Sequence

from .tables import JSON_TYPES, KEY_TYPES, Column, KeyPart, Table, literal, quoted

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
_CHANGE = '"groupcert change"'
"""1: a row that a statement has left, -1: one that it found."""
_ROW = '"groupcert row"'
"""No column has this name, by which a whole row is meant."""
_CHANGED = """
DECLARE noted record; written text; keys json := CASE
    WHEN $1 IS NULL OR $1::text = $2::text THEN $2 WHEN $2 IS NULL THEN $1
    ELSE (left($1::text, -1) || ',' || substr($2::text, 2))::json END;"""
"""What `changes T` declares: `keys` is one array of the rows before and after, which `decide` gives
without blanks at their ends.
"""
_PATH = "SET search_path = pg_catalog, pg_temp"
_FEW_SETTINGS = f"{_PATH} SET row_security = off"
_SETTINGS = (
    f"{_FEW_SETTINGS} SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres'"
    " SET timezone = 'UTC' SET bytea_output = 'hex' SET extra_float_digits = 1"
    " SET xmloption = 'content'"
)
_BY_KEY = (
    f"{_SETTINGS} SET plan_cache_mode = force_custom_plan SET enable_seqscan = off"
    " SET enable_sort = off SET enable_bitmapscan = off"
)
"""A page is read by the primary key, whatever the planner believes of the table's size."""


def function_of(operation: str, table: str) -> str:
    """Returns a table's function as SQL has it; a name that would be too long ends with a digest.

    >>> function_of("put", "public.accounts")
    '"groupcert"."put public.accounts"'
    """
    return quoted("groupcert", _function_name(operation, table))


def _function_name(operation: str, table: str) -> str:
    name = f"{operation} {table}"
    if len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name.encode()[:40].decode(errors='ignore')} {digest}"


def statements_for(table: Table) -> list[str]:
    """Returns the SQL statements that attach a table, or renew what an earlier call has made."""
    function = function_of("changes", table.full_name)
    return [*_statements(table), f"COMMENT ON FUNCTION {function} IS '{digest_of(table)}'"]


def digest_of(table: Table) -> str:
    """Returns a digest, in hexadecimal, of the functions that an attached table needs now. It
    changes where a table that is attached later refers to this one.
    """
    return hashlib.sha256("\n".join(_statements(table)).encode()).hexdigest()


def _statements(table: Table) -> Iterator[str]:
    yield from _note(table)
    settings = _FEW_SETTINGS if _is_plain(table) else _SETTINGS
    noted = "old json, new json"
    yield from _owned(table, "changes", noted, "SETOF text", _changes(table), settings)
    yield from _owned(table, "put", "rows json, deleted json", "void", _put(table), _SETTINGS)
    pages = "TABLE (compared_key text, compared_value text)"
    yield from _owned(table, "rows", "after json", pages, _rows(table), _BY_KEY)
    for operation in ("put", "rows"):
        function = function_of(operation, table.full_name)
        yield f"GRANT EXECUTE ON FUNCTION {function} TO {APPLIER_ROLE}"


def _note(table: Table) -> Iterator[str]:
    """Yields the triggers that note rows: they only read columns, and run nothing of the owner's.

    They are not deferrable, so that no SET CONSTRAINTS reaches them, and what they write lives and
    dies with the savepoint.
    """
    exact = all(column.is_enum or column.base_type in KEY_TYPES for column in table.noted_columns)
    # Only texts of other types depend on settings such as DateStyle.
    settings = _PATH if exact else _SETTINGS
    if table.is_partitioned:
        yield from _row_note(table, settings)
    for operation, rows in TRIGGERS.items() if not table.is_partitioned else ():
        before = "NULL" if operation == "INSERT" else _noted_rows(table, "old_rows")
        after = "NULL" if operation == "DELETE" else _noted_rows(table, "new_rows")
        body = _added_note(table, before, after)
        body += f" WHERE EXISTS (SELECT FROM {'old' if operation == 'DELETE' else 'new'}_rows);"
        event = f"AFTER {operation} ON {table.quoted} REFERENCING {rows} FOR EACH STATEMENT"
        yield from _trigger(table.full_name, operation, event, settings, body)
    for relation in table.relations:
        name = quoted(*relation)
        body = _added_note(table, _noted_rows(table, name), "NULL")
        body += (
            f" WHERE EXISTS (SELECT FROM {name});"
            " INSERT INTO groupcert.notes (relation)"
            f" VALUES ({literal(f'{TRUNCATED}{table.full_name}')});"
        )
        event = f"BEFORE TRUNCATE ON {name} FOR EACH STATEMENT"
        yield from _trigger(".".join(relation), TRUNCATE, event, settings, body)


def _row_note(table: Table, settings: str) -> Iterator[str]:
    """Yields the trigger that notes rows of a partitioned table, one by one: PostgreSQL shows a
    statement's trigger no row that MERGE moves to another partition.
    """
    before, after = (_noted_rows(table, f"(SELECT {side}.*) {side}") for side in ("old", "new"))
    body = _added_note(
        table,
        f"CASE WHEN TG_OP <> 'INSERT' THEN {before} END",
        f"CASE WHEN TG_OP <> 'DELETE' THEN {after} END",
    )
    event = f"AFTER INSERT OR UPDATE OR DELETE ON {table.quoted} FOR EACH ROW"
    yield from _trigger(table.full_name, "UPDATE", event, settings, f"{body};")


def _trigger(relation: str, operation: str, event: str, settings: str, body: str) -> Iterator[str]:
    function = function_of(f"note {operation.lower()}", relation)
    yield (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
        f" {settings} AS {_body(f'BEGIN {body} RETURN NULL; END')}"
    )
    yield (
        f"CREATE OR REPLACE TRIGGER groupcert_{operation.lower()} {event}"
        f" EXECUTE FUNCTION {function}()"
    )


def _added_note(table: Table, before: str, after: str) -> str:
    """Returns the INSERT that notes rows before and after, which a condition may follow."""
    name = literal(_function_name("changes", table.full_name))
    return f"INSERT INTO groupcert.notes (relation, before, after) SELECT {name}, {before}, {after}"


def _noted_rows(table: Table, source: str) -> str:
    """Returns the noted columns of all rows of a source as JSON takes them: a value where JSON has
    it exactly, else its text.
    """
    columns = (
        column.quoted
        if column.is_built_in and column.base_type in KEY_TYPES
        else f"{_text(column.quoted)} AS {column.quoted}"
        for column in table.noted_columns
    )
    return f"(SELECT json_agg({_ROW}) FROM (SELECT {', '.join(columns)} FROM {source}) {_ROW})"


def _is_plain(table: Table) -> bool:
    """Returns whether the texts of a table's values depend on no setting, and `changes` runs
    nothing of its owner's.
    """
    parts = [part.expression for unique in table.unique_keys for part in unique.parts]
    # A quoted name counts as any other expression.
    are_columns = all(part.isidentifier() for part in parts)
    if table.refusals or not are_columns or any(each.predicate for each in table.unique_keys):
        return False
    return all(
        # The type of a domain has another name.
        column.base_type in _PLAIN_TYPES and column.type.startswith(column.base_type)
        for column in table.columns
    )


def _owned(
    table: Table, operation: str, parameters: str, returns: str, body: str, settings: str
) -> Iterator[str]:
    """Yields the statements that make a function which runs as the table's owner, and which nobody
    else may call.
    """
    function = function_of(operation, table.full_name)
    yield (
        f"CREATE OR REPLACE FUNCTION {function}({parameters}) RETURNS {returns} LANGUAGE plpgsql"
        f" SECURITY DEFINER {settings} AS {_body(body)}"
    )
    yield f"ALTER FUNCTION {function} OWNER TO {quoted(table.owner)}"
    yield f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC"


def _changes(table: Table) -> str:
    """Returns the body that answers with lines. A line's first letter tells what it is: "+" a row
    that is there now, its key as JSON and, behind a line break, its value; "-" the key of a row
    that is not; "!" an item.
    """
    path = f"to_json({_path(table, 'noted')})::text"
    # A loop: for the few rows of most transactions, it takes half as long as a join does.
    rows = f"""
    FOR noted IN SELECT DISTINCT {_listed(table.key)} FROM {records(table.key_columns, "keys")} LOOP
        SELECT {_value(table, table.columns)} INTO written FROM {table.quoted} t
        WHERE {same(table, "noted")};
        IF FOUND THEN
            RETURN NEXT '+' || {path} || E'\n' || written;
        ELSE
            RETURN NEXT '-' || {path};
        END IF;
    END LOOP;"""
    entries = [
        f"SELECT {_CHANGE}, {sign}, {item} FROM notes r {where}"
        for item, sign, where in _entries(table)
    ]
    # Most statements change no key: then there is no entry to look for.
    # A value that a transaction both takes and gives up again makes no item.
    items = f"""
    IF $1::text IS DISTINCT FROM $2::text THEN
        RETURN QUERY WITH notes AS MATERIALIZED (
            SELECT 1 AS {_CHANGE}, r.* FROM {records(table.noted_columns, "$2")}
            UNION ALL SELECT -1, r.* FROM {records(table.noted_columns, "$1")})
        SELECT '!' || item FROM ({" UNION ALL ".join(entries)}) entry (change, sign, item)
        GROUP BY item, sign
        HAVING CASE sign WHEN 0 THEN sum(change) <> 0 ELSE sum(change) * sign > 0 END;
    END IF;"""
    refusal = _refusal(table) if table.refusals else ""
    return f"{_CHANGED} BEGIN {refusal} {rows} {items if entries else ''} END"


def _refusal(table: Table) -> str:
    """Returns the statement that raises where a row would be refused elsewhere. Here a session's
    settings have decided, such as its search path; there those of `put` do, which are this
    function's.
    """
    own = quoted(table.name)
    has_key = " AND ".join(f"{own}.{name} = {_ROW}.{name}" for name in map(quoted, table.key))
    has_value = " OR ".join(table.refusals)
    message = literal(f"a row of {table.full_name} would be refused at other servers")
    return f"""
    IF EXISTS (SELECT FROM {records(table.key_columns, "$2", _ROW)}, LATERAL (
        SELECT FROM {table.quoted} WHERE {has_key} AND ({has_value}) OFFSET 0) refused
    ) THEN
        RAISE check_violation USING MESSAGE = {message}, HINT =
            'A CHECK, a generated column or an index has another value by search_path ='
            ' pg_catalog, timezone = UTC and datestyle = ISO.';
    END IF;"""


def _entries(table: Table) -> Iterator[tuple[str, int, str]]:
    """Yields the texts of items, by rows `r`; the sign of the change that makes one (0: either);
    and which rows have one.
    """
    for unique in table.unique_keys:
        conditions = [f"({unique.predicate})"] if unique.predicate else []
        if unique.nulls_differ:
            conditions += [f"({part.expression}) IS NOT NULL" for part in unique.parts]
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        yield _item(f"{table.full_name}/{unique.name}", unique.parts), 0, where
    for of in table.parents:
        yield _referred(table, of.parent, of.parent_columns, of.child_columns, 1)
    for of in table.children:
        yield _referred(table, table.full_name, of.parent_columns, of.parent_columns, -1)


def _referred(
    table: Table, parent: str, parent_columns: Sequence[str], columns: Sequence[str], sign: int
) -> tuple[str, int, str]:
    pairs = sorted(zip(parent_columns, columns, strict=True))
    names = ",".join(name for name, _ in pairs)
    parts = [KeyPart(quoted(name), table.column(name).base_type) for _, name in pairs]
    filled = " AND ".join(f"{part.expression} IS NOT NULL" for part in parts)
    return _item(f"{parent}/referenced ({names})", parts), sign, f"WHERE {filled}"


def _item(name: str, parts: Sequence[KeyPart]) -> str:
    """Returns the text of an item; values that differ give texts that differ."""
    texts = ", ".join(f"quote_nullable({_key_text(part)})" for part in parts)
    return f"{literal(f'{name}/')} || concat_ws(',', {texts})"


def _key_text(part: KeyPart) -> str:
    """Returns the text of a key's value: equal if and only if PostgreSQL holds the values equal."""
    value = f"({part.expression})"
    if part.base_type == "numeric":
        return f"trim_scale({value})::text"
    return f"{value}::text" if part.base_type in KEY_TYPES else _text(value)


def _text(value: str) -> str:
    """Returns the text of a value of a type that is not PostgreSQL's: `::text` might be a cast of a
    user's, which `format` does not ask.
    """
    return f"CASE WHEN {value} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {value}) END"


def _path(table: Table, row: str) -> str:
    """Returns the key of a row: `schema.table/value`, "/" and "%" in values of several escaped."""
    texts = [
        _key_text(KeyPart(f"{row}.{column.quoted}", column.base_type))
        for column in table.key_columns
    ]
    if len(texts) > 1:
        texts = [f"replace(replace({text}, '%', '%25'), '/', '%2F')" for text in texts]
    return " || '/' || ".join([f"{literal(f'{table.full_name}/')} || {texts[0]}", *texts[1:]])


def _value(table: Table, columns: Sequence[Column]) -> str:
    """Returns a row's value: the text of a JSON object of columns of `t` (see `rows.py`)."""
    values = ", ".join(f"{_carried(column)} AS {column.quoted}" for column in columns)
    return f"(SELECT row_to_json({_ROW})::text FROM (SELECT {values}) {_ROW})"


def _carried(column: Column) -> str:
    """Returns a column of `t` as JSON has it: integers as numbers, others as PostgreSQL's texts."""
    value = f"t.{column.quoted}"
    if column.base_type in _INTEGERS:
        return f"{value}::{column.base_type}"
    is_exact = column.is_built_in and column.base_type != "character"  # Its cast drops blanks.
    return f"{value}::text" if is_exact else _text(value)


def _put(table: Table) -> str:
    """Returns the body that deletes rows by their keys, and puts rows, new or not.

    Of a table with other unique indexes a row that is there is updated where it is, so that a child
    that refers to it keeps its lock. Values may have moved between rows of a transaction, in an
    order that nobody knows any more: then all rows are deleted before they are put.
    """
    delete = f"DELETE FROM {table.quoted} t WHERE {same(table, 'r')};"
    insert = f"INSERT INTO {table.quoted} ({_listed(table.written)}) OVERRIDING SYSTEM VALUE"
    insert += f" SELECT {', '.join(f'r.{quoted(name)}' for name in table.written)}"
    rows = records(table.columns, "$1")
    move = f"{_for_each(table.columns, '$1', delete)} {insert} FROM {rows};"
    others = [name for name in table.written if name not in table.key]
    if any(each.is_always_identity and each.name not in table.key for each in table.columns):
        put = move  # UPDATE takes no value of such a column.
    elif table.unique_keys or not table.has_immediate_key:
        # The UPDATE of a table with nothing but a key finds whether the row is there.
        updates = ", ".join(f"{name} = r.{name}" for name in map(quoted, others or table.key))
        update = f"UPDATE {table.quoted} t SET {updates} WHERE {same(table, 'r')};"
        body = f"{update} IF NOT FOUND THEN {insert}; END IF;"
        loop = _for_each(table.columns, "$1", body)
        put = f"BEGIN {loop} EXCEPTION WHEN unique_violation THEN {move} END;"
    else:
        updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in map(quoted, others))
        action = f"UPDATE SET {updates}" if updates else "NOTHING"
        put = f"{insert} FROM {rows} ON CONFLICT ({_listed(table.key)}) DO {action};"
    return f"""
    DECLARE r record;
    BEGIN
        IF $2 IS NOT NULL THEN {_for_each(table.key_columns, "$2", delete)} END IF;
        IF $1 IS NOT NULL THEN {put} END IF;
        SET CONSTRAINTS ALL IMMEDIATE;
    END"""


def _rows(table: Table) -> str:
    """Returns the body that answers with a page of rows behind a key, NULL: the first ones. Servers
    may have columns in other orders: here they are in that of their names.

    A session whose snapshot is older than a TRUNCATE would find the table empty, or what writes it
    anew, as VACUUM FULL does: then it raises.
    """
    own, behind = (", ".join(f"{row}.{quoted(name)}" for name in table.key) for row in ("t", "r"))
    relations = ", ".join(literal(quoted(*relation)) for relation in sorted(table.relations))
    message = literal(f"{table.full_name} was truncated or written anew meanwhile")
    return f"""
    DECLARE r record; compared_bytes bigint := 0;
    BEGIN
        SELECT * INTO r FROM {records(table.key_columns, "$1")};
        FOR compared_key, compared_value IN
            SELECT {_path(table, "t")}, {_value(table, sorted(table.columns))}
            FROM {table.quoted} t WHERE $1 IS NULL OR ({own}) > ({behind})
            ORDER BY {own} LIMIT {PAGE_ROWS}
        LOOP
            RETURN NEXT;
            compared_bytes := compared_bytes + octet_length(compared_value);
            EXIT WHEN compared_bytes > {PAGE_BYTES};
        END LOOP;
        IF EXISTS (SELECT FROM pg_class WHERE oid = ANY(ARRAY[{relations}]::regclass[])
                   AND pg_relation_filenode(oid) <> relfilenode) THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = {message};
        END IF;
    END"""


def _for_each(columns: Sequence[Column], source: str, body: str) -> str:
    """Returns a loop over rows: one statement a row finds it by its key, whatever the planner
    believes of the number of rows.
    """
    return f"FOR r IN SELECT * FROM {records(columns, source)} LOOP {body} END LOOP;"


def same(table: Table, row: str) -> str:
    """Returns the condition that a row of the table `t` has the key of another row."""
    return " AND ".join(f"t.{name} = {row}.{name}" for name in map(quoted, table.key))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def records(columns: Sequence[Column], source: str, alias: str = "r") -> str:
    """Returns rows of a JSON array of objects, their columns typed.

    JSON is loaded as its text first: a string would be taken for a JSON string.
    """
    described = ", ".join(f"{column.quoted} {_loaded_type(column)}" for column in columns)
    loaded = f"json_to_recordset({source}) AS {alias}({described})"
    if not any(column.base_type in JSON_TYPES for column in columns):
        return loaded
    values = ", ".join(f"{column.quoted}::{column.type} AS {column.quoted}" for column in columns)
    return f"(SELECT {values} FROM {loaded}) {alias}"


def _loaded_type(column: Column) -> str:
    return "text" if column.base_type in JSON_TYPES else column.type


def _body(body: str) -> str:
    """Returns a function's body; columns of tables come before parameters of the same name."""
    return literal(f"#variable_conflict use_column\n{body}")
