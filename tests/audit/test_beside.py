"""What members have recorded at the place of a finding, side by side.

Method: the log of a member is wrong in known columns at one place, and lacks another.
"""

from pathlib import Path

from pyspark.sql import SparkSession

from groupcert.certifier.audit.agree.beside import NO_ROW, beside
from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.rows.checks import hexadecimal
from groupcert.certifier.history.schema import Row
from tests.audit.histories import Workload, random_order, rows_of, write

WORKLOAD = Workload(transactions=60)


def _at(row: Row, observer: str = "m2") -> Finding:
    place = row["place"]
    assert isinstance(place, int)
    return Finding(Code.MEMBERS_DISAGREE, observer, "1", place, "", "", "")


def test_rows_of_members_stand_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    order = random_order(5, WORKLOAD)
    one, two, late = (rows_of(order, name, WORKLOAD) for name in ("m1", "m2", "m3"))
    certified = [number for number, row in enumerate(one) if row.get("gtid_number")]
    first, wrong, lost = certified[3], certified[9], certified[12]
    two[wrong] |= {"origin": "m9", "write_set": [-1, 7]}
    late = late[wrong:]
    alike, other, absent = one[first], one[wrong], one[lost]
    del two[lost]
    log = Log(spark, write(tmp_path, one, two, late))
    same, differs, missing, nowhere = beside(
        log, [_at(alike), _at(other), _at(absent), _at({"place": 1})]
    )
    assert same["gtid"] == f"{alike['gtid_source']!s}:{alike['gtid_number']!s}"
    assert same["members"] == [{"observer": name, "history": "1"} for name in ("m1", "m2")]
    assert same["differing"] == {}, "stamps are each member's own"
    written = other["write_set"]
    assert isinstance(written, list)
    items = ", ".join(hexadecimal(int(item)) for item in written)
    told = [f"{len(written)} items: {items}", "2 items: ffffffffffffffff, 0000000000000007"]
    assert differs["differing"] == {
        "origin": [other["origin"], "m9", other["origin"]],
        "write_set": [told[0], told[1], told[0]],
    }
    assert missing["gtid"] is None
    assert missing["differing"] == {"kind": ["transaction", NO_ROW, "transaction"]}
    assert nowhere == {"gtid": None, "members": [], "differing": {}}
    assert beside(log, []) == []
