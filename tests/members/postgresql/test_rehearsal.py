"""Which tables `attach` takes, and what it says of those that it keeps out.

Aim: types come from the server's own catalogue, and tables from PostgreSQL's corners; each is taken
with rows at limits, or kept out with a reason. What is taken has gone to the group and back before.
"""

import psycopg
import pytest

from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.tables import UNFIT_TYPES

pytestmark = pytest.mark.database

TYPES = """
SELECT format_type(oid, NULL) FROM pg_type t WHERE typnamespace = 'pg_catalog'::regnamespace
AND typtype IN ('b', 'r', 'm') AND typarray <> 0
AND typname !~ '^(pg_(node|dep|ndis|mcv|ddl|brin)|gtsvector|aclitem)' ORDER BY oid"""
KEPT_OUT = {
    "CREATE FUNCTION holds(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
    "CREATE FUNCTION has(v text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN holds(v); END';"
    "CREATE TABLE things (id int PRIMARY KEY, note text CHECK (has(note)))": (
        "a row of it cannot be executed as its owner postgres: function holds"
    ),
    "CREATE FUNCTION holds(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
    "CREATE FUNCTION has(v text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN holds(v); END';"
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0);"
    "CREATE TABLE things (id positive PRIMARY KEY, note text, CHECK (has(note)),"
    " CHECK (note <> ''))": "cannot be executed as its owner postgres: function holds",
    "CREATE TABLE things (id int PRIMARY KEY, r regclass[])": "column r has a regclass, whose",
    "CREATE TYPE two AS (a int, b money); CREATE DOMAIN pair AS two;"
    "CREATE TABLE things (id int PRIMARY KEY, pair pair)": "column pair has a money, whose",
    "CREATE TABLE things (id float8 PRIMARY KEY)": "id of index things_pkey is of type double",
    "CREATE TABLE things (id int PRIMARY KEY, p point);"
    "CREATE UNIQUE INDEX here ON things ((p[0]))": "(p[0])) of index here is of type double",
    "CREATE TABLE things (id int PRIMARY KEY, EXCLUDE (id WITH =))": "exclusion constraint",
    "CREATE TABLE things (id int PRIMARY KEY); ALTER TABLE things FORCE ROW LEVEL SECURITY;"
    "CREATE ROLE rehearsed; ALTER TABLE things OWNER TO rehearsed": "forces row security",
    "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    "CREATE TABLE things (id int PRIMARY KEY); CREATE TRIGGER t AFTER INSERT ON things"
    " EXECUTE FUNCTION f(); ALTER TABLE things ENABLE ALWAYS TRIGGER t": "enabled for replicas",
    "CREATE UNLOGGED TABLE things (id int PRIMARY KEY)": "not logged",
    "CREATE TABLE things (note text UNIQUE)": "it has no primary key",
    "CREATE TABLE base (id int); CREATE TABLE things (PRIMARY KEY (id)) INHERITS (base)": (
        "it is inherited or foreign"
    ),
    "CREATE FOREIGN DATA WRAPPER away; CREATE SERVER away FOREIGN DATA WRAPPER away;"
    "CREATE FOREIGN TABLE things (id int) SERVER away": "it is inherited or foreign",
    "CREATE TABLE things (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE part PARTITION"
    " OF things FOR VALUES FROM (1) TO (9); CREATE UNIQUE INDEX alone ON part ((id + 1))": (
        "a partition of it alone has the index or foreign key public.alone"
    ),
    "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    "CREATE TABLE things (id int PRIMARY KEY); CREATE CONSTRAINT TRIGGER t AFTER INSERT ON things"
    " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f()": "it has a deferred trigger",
    "CREATE TABLE things (id int PRIMARY KEY); CREATE RULE none AS ON DELETE TO things DO INSTEAD"
    " NOTHING; ALTER TABLE things ENABLE REPLICA RULE none": "enabled for replicas",
    "CREATE COLLATION alike (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
    "CREATE TABLE things (id text COLLATE alike PRIMARY KEY)": "a collation that holds texts equal",
    "CREATE TABLE things (id int PRIMARY KEY, took interval UNIQUE)": "is of type interval, whose",
    "CREATE ROLE rehearsed; CREATE TABLE things (id int PRIMARY KEY); ALTER TABLE things OWNER TO"
    " rehearsed; REVOKE DELETE ON things FROM rehearsed": "its owner rehearsed has no DELETE",
    'CREATE SCHEMA "a.b"; CREATE TABLE "a.b".things (id int PRIMARY KEY)': "name has a dot",
}
TAKEN = [
    "CREATE DOMAIN code AS text CHECK (VALUE ~ '^[a-z]+$');"
    "CREATE TABLE things (id code PRIMARY KEY)",
    "CREATE TYPE two AS (a int, b text[]); CREATE DOMAIN pairs AS two[];"
    "CREATE TABLE things (id int PRIMARY KEY, pairs pairs); INSERT INTO things VALUES"
    ' (1, \'[5:6]={"(1,\\"{a,b}\\")",NULL}\')',
    'CREATE TABLE things ("a""b%s{}" int PRIMARY KEY, "new" int, "old" text, r int, t int)',
    "CREATE TABLE things (t int, r int, noted int, keys int, found text, written text, notes text,"
    " PRIMARY KEY (t, r, noted, keys), UNIQUE (notes, found));"
    "INSERT INTO things VALUES (1, 2, 3, 4, 'a', 'b', 'c')",
    "CREATE TABLE things (a int GENERATED ALWAYS AS IDENTITY, id int PRIMARY KEY, b text UNIQUE)",
    "CREATE TABLE things (id int, k int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY)",
    "CREATE TABLE things (x int, id int, PRIMARY KEY (id) DEFERRABLE, UNIQUE (x) DEFERRABLE);"
    "ALTER TABLE things DROP x; ALTER TABLE things RENAME id TO number",
    "CREATE TABLE things (id int PRIMARY KEY, body json, doc jsonb);"
    "CREATE UNIQUE INDEX ON things ((doc ->> 'a'), (body ->> 'b')) WHERE doc IS NOT NULL;"
    "INSERT INTO things VALUES (1, '\"a\"', '{\"a\": 1}'), (2, 'null', 'null')",
    "CREATE TABLE things (id name PRIMARY KEY, v bpchar); INSERT INTO things VALUES ('a', 'a  ')",
    "CREATE TABLE parents (id int PRIMARY KEY); CREATE TABLE things (id int PRIMARY KEY, "
    + ", ".join(f"c{number} int REFERENCES parents" for number in range(60))
    + "); INSERT INTO things VALUES (1)",
    'CREATE TABLE things (id bpchar(4) PRIMARY KEY, b bit(3)[], v varchar(2)[], c "char");'
    "INSERT INTO things VALUES ('a', '{101}', '{ab}', 'x')",
]

KNOWN = (
    "CREATE FUNCTION known(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
    "CREATE FUNCTION shown(v text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS 'BEGIN"
    " IF v = ''rare'' THEN PERFORM known(v); END IF; RETURN current_setting(''timezone''); END';"
)
"""It needs the search path of a session for a value that no trial has, and the zone for all."""
REFUSED = {
    "a CHECK": "note text, CHECK (shown(note) <> '')",
    "a CHECK of a row": "note text, CHECK (shown((things.*)::text) <> 'UTC' OR note <> 'rare')",
    "a time zone": "note timestamptz, CHECK (extract(hour FROM note) < 22)",
    "a domain": "note noted",
    "a generated column": "note text, zone text GENERATED ALWAYS AS (shown(note)) STORED",
    "an index": "note text); CREATE INDEX ON things (shown(note)",
    "a partial index": "note text); CREATE INDEX ON things (id) WHERE (shown(note) <> ''",
}


@pytest.mark.parametrize(("schema", "problem"), KEPT_OUT.items(), ids=range(len(KEPT_OUT)))
def test_a_table_that_cannot_be_executed_elsewhere_is_kept_out(
    postgresql_dsn: str, schema: str, problem: str
) -> None:
    with psycopg.connect(postgresql_dsn) as session:
        session.execute(schema.encode())
    kept_out = attach(postgresql_dsn, ["*things"]).kept_out
    assert [problem in why for why in kept_out.values()] == [True]
    with psycopg.connect(postgresql_dsn) as session:
        query = "SELECT FROM pg_proc WHERE proname LIKE '%things'"
        assert session.execute(query).fetchall() == []
        if "OWNER" in schema:
            session.execute("DROP OWNED BY rehearsed; DROP ROLE rehearsed")


@pytest.mark.parametrize("schema", TAKEN, ids=range(len(TAKEN)))
def test_a_table_is_taken_and_its_rows_stay(postgresql_dsn: str, schema: str) -> None:
    with psycopg.connect(postgresql_dsn) as session:
        session.execute(schema.encode())
        before = session.execute("SELECT things::text FROM things").fetchall()
    assert attach(postgresql_dsn, ["public.*"]).kept_out == {}
    with psycopg.connect(postgresql_dsn) as session:
        assert session.execute("SELECT things::text FROM things").fetchall() == before


def test_a_column_of_each_type_is_taken_but_those_whose_text_is_the_servers(
    postgresql_dsn: str,
) -> None:
    with psycopg.connect(postgresql_dsn) as session:
        types = [name for (name,) in session.execute(TYPES.encode()).fetchall()]
        assert len(types) > 60
        for number, name in enumerate(types):
            columns = f"id int PRIMARY KEY, value {name}, values {name}[]"
            session.execute(f"CREATE TABLE of_{number} ({columns})".encode())
    kept_out = attach(postgresql_dsn, ["public.*"]).kept_out
    unfit = {types[int(name.rpartition("_")[2])] for name in kept_out}
    assert unfit == {*UNFIT_TYPES} & {*types}


@pytest.mark.parametrize("columns", REFUSED.values(), ids=REFUSED)
def test_a_row_that_settings_of_its_session_let_pass_is_refused_at_its_commit(
    postgresql_dsn: str, columns: str
) -> None:
    """It would stop the other servers."""
    with psycopg.connect(postgresql_dsn, autocommit=True) as session:
        session.execute(KNOWN.encode())
        session.execute("CREATE DOMAIN noted AS text CHECK (shown(VALUE) <> '')")
        session.execute(f"CREATE TABLE things (id int PRIMARY KEY, {columns})".encode())
        assert attach(postgresql_dsn, ["public.*"]).kept_out == {}
        session.execute("SET session_replication_role TO replica; SET timezone TO 'Asia/Tokyo'")
        note = "2026-01-02 07:00" if "timestamptz" in columns else "rare"
        session.execute("INSERT INTO things (id, note) VALUES (1, %s)", (note,))
        at_commit = """SELECT groupcert."changes public.things"(NULL, '[{"id": 1}]')"""
        with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.UndefinedFunction)):
            session.execute(at_commit)
        session.execute("UPDATE things SET note = '2026-01-02 00:00'; SET timezone TO 'UTC'")
        session.execute("UPDATE things SET note = '2026-01-02 00:00'")
        assert len(session.execute(at_commit).fetchall()) == 1
