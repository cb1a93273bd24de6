"""Columns of every type, and the values at which they are most likely to be read wrongly.

A sample has a type, values as SQL literals, and the expression by which the server shows a value.
"""

from typing import NamedTuple


class Sample(NamedTuple):
    """A column's type, its values, and what is asked of the server to see one."""

    type: str
    values: tuple[str, ...]
    asked: str = "v"


def _integers(name: str, bits: int) -> dict[str, Sample]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return {
        f"{name}_signed": Sample(name, (str(low), str(high), "0", "-1", "NULL")),
        f"{name}_unsigned": Sample(
            f"{name} UNSIGNED", (str((1 << bits) - 1), "0", str(high + 1), "NULL")
        ),
    }


def _fractions(name: str, values: tuple[str, ...]) -> dict[str, Sample]:
    # No digits, no point.
    ends = [len("000000.") if not digits else 6 - digits for digits in range(7)]
    return {
        f"{name}_{digits}": Sample(
            f"{name}({digits}) NULL", (*(f"'{each[: len(each) - end]}'" for each in values), "NULL")
        )
        for digits, end in enumerate(ends)
    }


def _texts(type_of: str, values: dict[str, tuple[str, ...]]) -> dict[str, Sample]:
    return {
        f"{type_of.partition('(')[0]}_{charset}": Sample(
            f"{type_of} CHARACTER SET {charset}", (*(f"'{each}'" for each in texts), "''", "NULL")
        )
        for charset, texts in values.items()
    }


_WORDS = {
    "utf8mb4": ("Größe 🐬", "  both  ", "\\0\\n\\t"),
    "utf8mb3": ("Größe €",),
    "latin1": ("Größe € œ Ÿ", "\x81\x8d\x8f\x90\x9d"),
    "latin2": ("Łódź",),
    "latin5": ("İstanbul ş",),
    "latin7": ("Žemaitė",),
    "ascii": ("plain ~",),
    "ucs2": ("Größe €",),
    "utf16": ("Größe 🐬",),
    "utf16le": ("Größe 🐬",),
    "utf32": ("Größe 🐬",),
    "gbk": ("汉字 €",),
    "gb2312": ("汉字",),
    "big5": ("漢字",),
    "sjis": ("日本語 ｱ",),
    "cp932": ("日本語 ① ｱ",),
    "ujis": ("日本語 ｱ",),
    "eucjpms": ("日本語 ① ｱ",),
    "euckr": ("한국어",),
    "cp1250": ("Łódź €",),
    "cp1251": ("Привет ё €",),
    "cp1256": ("مرحبا",),
    "cp1257": ("Žemaitė",),
    "cp850": ("Größe",),
    "cp852": ("Łódź",),
    "cp866": ("Привет",),
    "koi8r": ("Привет",),
    "koi8u": ("Привіт ї",),
    "greek": ("Γειά",),
    "hebrew": ("שלום",),
    "hp8": ("Größe",),
    "macce": ("Łódź",),
    "macroman": ("Größe",),
    "tis620": ("สวัสดี",),
}
_LABELS = r"'a','B b','it''s','x;y','back\\slash','Größe','line\nend'"
_MANY = ",".join(f"'label{number}'" for number in range(300))
_BITS = ",".join(f"'{number}'" for number in range(64))

SHARED: dict[str, Sample] = {
    **_integers("tinyint", 8),
    **_integers("smallint", 16),
    **_integers("mediumint", 24),
    **_integers("int", 32),
    **_integers("bigint", 64),
    "int_zerofill": Sample("INT(5) ZEROFILL", ("42", "4000000000"), "v + 0"),
    "boolean_": Sample("BOOLEAN", ("TRUE", "FALSE", "NULL")),
    "float_": Sample(
        "FLOAT",
        ("0.1", "-3.40282e38", "1.17549e-38", "16777217", "0", "1e-44", "3.1415926", "NULL"),
        "CAST(v AS DOUBLE)",
    ),
    "float_7_3": Sample("FLOAT(7,3)", ("1234.567", "-9999.999"), "CAST(v AS DOUBLE)"),
    "double_": Sample(
        "DOUBLE",
        ("0.1", "-1.7976931348623157e308", "2.2250738585072014e-308", "0", "1e15", "1e16", "NULL"),
    ),
    "decimal_65_30": Sample(
        "DECIMAL(65,30)", (f"{'9' * 35}.{'9' * 30}", f"-{'9' * 35}.{'9' * 30}", "0", "1.5", "NULL")
    ),
    "decimal_10_3": Sample("DECIMAL(10,3)", ("-1234567.125", "1234567.125", "-0.001", "0")),
    "decimal_9_9": Sample("DECIMAL(9,9)", ("0.000000001", "-0.999999999")),
    "decimal_18_9": Sample("DECIMAL(18,9)", ("123456789.987654321", "-100000000.000000001")),
    "decimal_4_0": Sample("DECIMAL(4,0)", ("9999", "-9999", "0")),
    "decimal_unsigned": Sample("DECIMAL(20,2) UNSIGNED", ("999999999999999999.99",)),
    "bit_1": Sample("BIT(1)", ("b'1'", "b'0'", "NULL"), "v + 0"),
    "bit_10": Sample("BIT(10)", ("b'1000000011'", "0"), "v + 0"),
    "bit_8": Sample("BIT(8)", ("255", "128"), "v + 0"),
    "bit_64": Sample("BIT(64)", ("18446744073709551615", "1"), "v + 0"),
    "year_": Sample("YEAR", ("1901", "2155", "0", "NULL"), "v + 0"),
    "date_": Sample(
        "DATE", ("'0000-00-00'", "'9999-12-31'", "'1000-01-01'", "'2024-02-00'", "NULL")
    ),
    **_fractions(
        "datetime",
        ("1000-01-01 00:00:00.000000", "9999-12-31 23:59:58.123456", "0000-00-00 00:00:00.000000"),
    ),
    **_fractions(
        "timestamp",
        ("1970-01-01 00:00:01.000001", "2038-01-19 03:14:07.654321", "0000-00-00 00:00:00.000000"),
    ),
    **_fractions(
        "time",
        ("-838:59:58.900000", "838:59:58.123456", "-00:00:00.100000", "00:00:00.000001"),
    ),
    **_texts("varchar(40)", _WORDS),
    **_texts("char(20)", _WORDS),
    **_texts("text", _WORDS),
    "char_255": Sample(
        "CHAR(255) CHARACTER SET utf8mb4", ("REPEAT('🐬', 255)", "'a  '", "''", "NULL")
    ),
    "varchar_300": Sample(
        "VARCHAR(300) CHARACTER SET utf8mb4", ("REPEAT('x', 300)", "'a  '", "REPEAT('🐬', 70)")
    ),
    "char_0": Sample("CHAR(0)", ("''", "NULL")),
    "binary_4": Sample("BINARY(4)", ("X'00000000'", "X'01020000'", "X'ff'", "NULL")),
    "binary_255": Sample("BINARY(255)", ("REPEAT(X'ff', 255)", "''", "X'20'")),
    "varbinary_300": Sample("VARBINARY(300)", ("X'00ff2000'", "''", "REPEAT(X'fe', 300)", "NULL")),
    "tinyblob_": Sample("TINYBLOB", ("X'00ff'", "REPEAT('x', 255)", "NULL")),
    "blob_": Sample("BLOB", ("X'00ff'", "REPEAT('x', 65535)", "NULL")),
    "mediumblob_": Sample("MEDIUMBLOB", ("X'00ff'", "REPEAT('x', 70000)", "''", "NULL")),
    "longblob_": Sample("LONGBLOB", ("X'00ff'", "REPEAT('x', 70000)", "NULL")),
    "mediumtext_": Sample(
        "MEDIUMTEXT CHARACTER SET utf8mb4", ("'Größe'", "REPEAT('🐬', 20000)", "NULL")
    ),
    "enum_": Sample(
        f"ENUM({_LABELS}) CHARACTER SET utf8mb4", ("'a'", r"'back\\slash'", "6", "7", "0", "NULL")
    ),
    "enum_300": Sample(f"ENUM({_MANY})", ("1", "300", "NULL")),
    "enum_latin1": Sample("ENUM('a','Größe') CHARACTER SET latin1", ("1", "2")),
    "enum_ucs2": Sample("ENUM('a','Größe') CHARACTER SET ucs2", ("1", "2")),
    "enum_binary": Sample(
        "ENUM('a','B') CHARACTER SET binary", ("1", "2"), "CONVERT(v USING utf8mb4)"
    ),
    "enum_swe7": Sample("ENUM('a','Ö') CHARACTER SET swe7", ("1", "2")),
    "set_": Sample(
        "SET('a','B b','it''s','Größe') CHARACTER SET utf8mb4",
        ("1", "15", "0", "'a,Größe'", "NULL"),
    ),
    "set_9": Sample("SET('0','1','2','3','4','5','6','7','8')", ("511", "256", "NULL")),
    "set_64": Sample(f"SET({_BITS})", ("18446744073709551615", "9223372036854775808", "1")),
    "geometry_": Sample(
        "GEOMETRY", ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0,1 1)')")
    ),
    "geometry_point": Sample("POINT", ("ST_GeomFromText('POINT(1 2)', 4326)", "NULL")),
}
"""Samples of types that both servers have."""

MARIADB: dict[str, Sample] = {
    "json_": Sample("JSON", ("""'{"a": [1, 2.50, null]}'""", "'[]'", "NULL")),
    "uuid_": Sample(
        "UUID",
        (
            "'123e4567-e89b-12d3-a456-426655440000'",
            "'f47ac10b-58cc-4372-a567-0e02b2c3d479'",
            "'00000000-0000-0000-0000-000000000000'",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
            "'00112233-4455-6677-8899-aabbccddeeff'",
            "'01890a5d-ac96-774b-bcce-b302099a8057'",
            "NULL",
        ),
    ),
    "inet4_": Sample("INET4", ("'0.0.0.0'", "'255.255.255.255'", "'10.0.0.0'", "NULL")),
    "inet6_": Sample(
        "INET6",
        (
            "'::'",
            "'::1'",
            "'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'",
            "'2001:db8::'",
            "'1:0:2:3:4:5:6:7'",
            "'1:0:0:2:0:0:0:3'",
            "'::ffff:1.2.3.4'",
            "'::1.2.3.4'",
            "'::0.1.2.3'",
            "'0:1::'",
            "NULL",
        ),
    ),
    "varchar_compressed": Sample(
        "VARCHAR(2000) COMPRESSED CHARACTER SET utf8mb4",
        ("REPEAT('Größe ', 200)", "'short'", "''", "REPEAT('x', 2000)", "NULL"),
    ),
    "varbinary_compressed": Sample("VARBINARY(2000) COMPRESSED", ("REPEAT(X'ff00', 500)", "X'00'")),
    "text_compressed": Sample(
        "TEXT COMPRESSED CHARACTER SET latin1", ("REPEAT('Größe ', 2000)", "'€'", "''", "NULL")
    ),
    "mediumblob_compressed": Sample(
        "MEDIUMBLOB COMPRESSED", ("REPEAT(X'ff00', 50000)", "X'00'", "NULL")
    ),
}
"""Samples of types that MariaDB 10.11 has."""

_DOUBLES = "0.1 1.0 1e14 1e15 1e16 123456789012345.6 1e-5 1e-14 1e-15 1e-16 1.5e300 -2.5 5e-324"
_DOCUMENTS = (
    """'{"a": 1, "bb": [1, 2, {"c": null}], "A": true, "": false}'""",
    "'[]'",
    "'{}'",
    "'null'",
    r"""'"Größe \\"q\\" \\\\ \\/ \\u0001 \\n \\u007f 🐬"'""",
    "'[0, -1, 32767, 32768, 65535, 65536, -32769, -2147483648, 4294967295, 4294967296]'",
    "'[9223372036854775807, -9223372036854775808, 18446744073709551615, 18446744073709551616]'",
    f"'[{', '.join(_DOUBLES.split())}, 1.7976931348623157e308, -0.0]'",
    "JSON_ARRAY(CAST(1.50 AS DECIMAL(10,2)), CAST(-12345678901234567890.123 AS DECIMAL(65,3)))",
    "JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('23:59:58.123456' AS TIME(6)))",
    "JSON_ARRAY(CAST('-112:00:01' AS TIME), CAST('2024-02-29 23:59:58.5' AS DATETIME(6)))",
    "JSON_ARRAY(TIMESTAMP'2024-02-29 23:59:58', X'00ff', b'101', REPEAT(X'ff', 100))",
    "JSON_ARRAY(ST_GeomFromText('POINT(1 2)'), CAST(TRUE AS JSON), CAST(1e20 AS DOUBLE))",
    "JSON_ARRAY(REPEAT('x', 127), REPEAT('y', 128), REPEAT('z', 16384), 'end')",
    "JSON_ARRAY(REPEAT('x', 70000), 1, 70000, -70000, 5000000000, NULL, 'end')",
    "JSON_OBJECT('k', REPEAT('y', 70000), 'i', 100000, 'u', 3000000000, 'o', JSON_OBJECT())",
    f"'{'[' * 99}{']' * 99}'",
    "NULL",
)
MYSQL: dict[str, Sample] = {
    "json_": Sample("JSON", _DOCUMENTS),
    "vector_": Sample(
        "VECTOR(3)", ("TO_VECTOR('[1,2.5,-3]')", "TO_VECTOR('[0]')", "NULL"), "CAST(v AS BINARY)"
    ),
    "geometry_4326": Sample("POINT SRID 4326", ("ST_GeomFromText('POINT(1 2)', 4326)", "NULL")),
}
"""Samples of types that MySQL 9 has."""
