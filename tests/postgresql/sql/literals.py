"""Types that columns are drawn of, each with a few values.

There are few values of each, so that sessions meet: those that a type's text, its equality or its
limits are hard on, among some that are like each other. `OWN.` stands for the schema of a case
that has the case's own types.
"""

from random import Random
from typing import NamedTuple

DIGITS = "1234567890" * 7


class ColumnType(NamedTuple):
    """A type; with `is_key` it is drawn for keys, too."""

    sql: str
    values: tuple[str, ...]
    is_key: bool = False


TYPES = (
    ColumnType("int", ("1", "2", "3", "-2147483648"), True),
    ColumnType("smallint", ("1", "2", "32767"), True),
    ColumnType("bigint", ("1", "2", "9223372036854775807"), True),
    ColumnType("numeric", ("1", "1.0", "1.50", "NaN", "Infinity", "1e-20"), True),
    ColumnType("numeric(78,0)", (f"{DIGITS}1", f"{DIGITS}2", f"{DIGITS}11", "7"), True),
    ColumnType("text", ("a", "A", "", "a/b", "50%", "naïve", "'\"\\", "it's NULL"), True),
    ColumnType("varchar(20)", ("a", "a ", "x%20y", "{1,2}"), True),
    ColumnType("char(5)", ("a", "ab", "a%"), True),
    ColumnType("bytea", (r"\x", r"\x00ff", r"\x2e"), True),
    ColumnType("boolean", ("true", "false"), True),
    ColumnType("uuid", ("00000000-0000-0000-0000-00000000000a", f"{'f' * 32}"), True),
    ColumnType("date", ("2024-02-29", "infinity", "-infinity", "0044-03-15 BC"), True),
    ColumnType("timestamp", ("2024-06-01 12:00:00.000001", "infinity", "4000-01-01"), True),
    ColumnType("timestamptz", ("2024-10-27 02:30+02", "-infinity", "1900-01-01 00:00+00"), True),
    ColumnType("OWN.mood", ("sad", "so so", "HAPPY, very"), True),
    ColumnType("time", ("00:00", "24:00", "12:34:56.789")),
    ColumnType("timetz", ("12:00+05:30", "12:00-00:00:01")),
    ColumnType("interval", ("1 mon -3 days", "-04:05:06.7", "24:00", "1 day", "1-2"), True),
    ColumnType("float4", ("0.1", "1e-38", "NaN", "-0", "16777217"), True),
    ColumnType("float8", ("0.1", "0.30000000000000004", "-Infinity", "-0"), True),
    ColumnType("money", ("12.34", "-1")),
    ColumnType("json", ('{"b": 1, "a": 1, "a": 2}', "null", "[1e400]", r'"\u0061"')),
    ColumnType("jsonb", ('{"b": 1.0, "a": [1, 2]}', "null", '"1"'), True),
    ColumnType("inet", ("10.0.0.1", "10.0.0.1/8", "::1/64"), True),
    ColumnType("cidr", ("10.0.0.0/8", "2001:db8::/32"), True),
    ColumnType("macaddr", ("08:00:2b:01:02:03",), True),
    ColumnType("macaddr8", ("08:00:2b:01:02:03:04:05",)),
    ColumnType("point", ("(0.1,0.30000000000000004)", "(1e-320,NaN)")),
    ColumnType("box", ("((0.1,0.2),(3.3,4.4))", "((1,1),(0,0.30000000000000004))")),
    ColumnType("box[]", ("{(1,1),(0,0);(2,2),(1,0.1)}", "{}")),
    ColumnType("line", ("{1,-1,0.30000000000000004}",)),
    ColumnType("path", ("[(0,0),(0.1,1)]", "((0,0),(1,1))")),
    ColumnType("polygon", ("((0,0),(0.1,1),(1,0))",)),
    ColumnType("circle", ("<(0.1,0),0.30000000000000004>",)),
    ColumnType("int4range", ("[1,5)", "(1,4]", "empty", "(,)"), True),
    ColumnType("tstzrange", ("[2024-01-01 00:00+01,infinity]", "empty")),
    ColumnType("int4multirange", ("{[1,3),[5,9)}", "{}")),
    ColumnType("bit(3)", ("101", "000"), True),
    ColumnType("bit varying", ("", "1", "10"), True),
    ColumnType("xml", ("<a b='c'/>", "text & more".replace("&", "&amp;"))),
    ColumnType("tsvector", ("'a':1A 'fat cat':2", "")),
    ColumnType("pg_lsn", ("16/B374D848", "0/0"), True),
    ColumnType("oid", ("0", "4294967295"), True),
    ColumnType("regclass", ("pg_catalog.pg_class", "0")),
    ColumnType("regtype", ("pg_catalog.int4", "text[]")),
    ColumnType("name", ("a", "x" * 63), True),
    ColumnType("int[]", ("{1,2}", "[2:4]={7,8,9}", "{}", "{{1,NULL},{3,4}}"), True),
    ColumnType("text[]", ('{a,"b c",NULL,"NULL"}', r'{"\"","{",""}', "[0:0]={a}"), True),
    ColumnType("timestamptz[]", ('{"2024-06-01 12:00+02",infinity}',)),
    ColumnType("float8[]", ("{0.1,0.30000000000000004,NaN}", "[-1:0]={1,2}")),
    ColumnType("jsonb[]", (r'{"{\"a\": 1}",NULL}',)),
    ColumnType("OWN.positive", ("1", "7", "-1"), True),
    ColumnType("OWN.numbers", ("{1,2}", "[3:4]={1,2}", "{1,2,3,4}")),
    ColumnType("OWN.pair", ('(1,"a,b")', "(,)", '(2,"(\\"")')),
    ColumnType("OWN.pair[]", (r'{"(1,\"a b\")","(,)",NULL}', '[5:5]={"(1,a)"}')),
    ColumnType("OWN.checked_pair", ("(1,a)", '(3,"x""y")')),
)
KEY_TYPES = tuple(each for each in TYPES if each.is_key)
USUAL_KEY_TYPES = (*KEY_TYPES[:15], KEY_TYPES[4], KEY_TYPES[4])
"""Those that may be keys in a group, long numbers more often; tables with others are kept out."""
TYPES_OF_SCHEMA = (
    "CREATE TYPE OWN.mood AS ENUM ('sad', 'so so', 'HAPPY, very')",
    "CREATE DOMAIN OWN.positive AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN OWN.numbers AS int[] CHECK (cardinality(VALUE) < 4)",
    'CREATE TYPE OWN.pair AS (number int, "Text" text)',
    "CREATE DOMAIN OWN.checked_pair AS OWN.pair CHECK ((VALUE).number > 0)",
)


def quoted(name: str) -> str:
    """Returns an identifier as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Returns a string as SQL takes it, whatever `standard_conforming_strings` says."""
    body = text.replace("'", "''")
    return "E'" + body.replace("\\", "\\\\") + "'" if "\\" in body else f"'{body}'"


def draw_value(chance: Random, column_type: ColumnType, null_share: float = 0.1) -> str:
    """Returns a value of a type, as SQL takes it."""
    if chance.random() < null_share:
        return "NULL"
    return literal(chance.choice(column_type.values))
