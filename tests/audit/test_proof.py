"""The text that is chained, derived by columns: that of its writer, and no other row's."""

from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.proof.proof import row_texts
from groupcert.certifier.audit.rows.certification_log import SCHEMA
from groupcert.certifier.history.schema import Row, text_of

pytestmark = pytest.mark.slow
ROWS: list[Row] = [
    {"kind": "transaction", "place": 160, "is_local": False, "reported_chain": b"\x0a\xff"},
    {"write_set": [1, -(2**63)], "write_keys": ["a,b", "é", "𝄞", ""]},
    {"write_keys": []},
    {"write_keys": [""]},
    {"write_keys": ["a,b"]},
    {"write_keys": ["a", "b"]},
    {"write_keys": ["a,1:b"]},
    {"write_keys": ["null"]},
    {"origin": "m1\x1f9=1:s"},
    {"origin": "m1", "session": "s"},
    {"write_set": []},
]


def test_a_row_has_the_text_that_its_writer_chained_and_no_other_row_has_it(
    spark: SparkSession,
) -> None:
    rows: list[dict[str, Any]] = [*ROWS]
    rows += [{"write_keys": [None]}, {"write_keys": [None, ""]}, {"write_set": [None]}]
    values = [tuple(row.get(name) for name in SCHEMA.names) for row in rows]
    found = list(row_texts(pl.DataFrame(spark.createDataFrame(values, SCHEMA).toArrow())))
    expected = [text_of(row) for row in ROWS]
    assert found[: len(ROWS)] == expected
    assert len(set(found)) == len(found)
