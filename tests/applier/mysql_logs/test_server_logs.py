"""Binary logs that real servers wrote are read as the servers' own programs read them.

Source: `tests/data/server-logs/README.md`.
"""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from groupcert.applier.mysql_logs.binary_log_reader import BinaryLogTransaction, read_binary_log

DATA = Path(__file__).parents[2] / "data" / "server-logs"
MYSQL_START = re.compile(
    r"\tlast_committed=(\d+)\tsequence_number=(\d+)\t.*?original_committed_timestamp=(\d+)"
    r"\timmediate_commit_timestamp=(\d+).*?\nSET @@SESSION.GTID_NEXT= '([^']+)'",
    re.DOTALL,
)
MARIADB_START = re.compile(r"\tGTID (\d+-\d+-\d+)(?: cid=(\d+))?")


def transactions_of(name: str, folder: Path) -> tuple[Path, list[BinaryLogTransaction]]:
    """Returns a log, unpacked, and its transactions."""
    path = folder / name
    path.write_bytes(gzip.decompress((DATA / f"{name}.gz").read_bytes()))
    reader = read_binary_log(path)
    found = [*reader]
    assert reader.cut_short is None and not reader.dropped and not reader.skipped
    return path, found


def test_tagged_gtids_stamps_and_times_are_those_that_mysqlbinlog_shows(tmp_path: Path) -> None:
    _, found = transactions_of("mysql-9.7.4-tagged-gtids.binlog", tmp_path)
    text = gzip.decompress((DATA / "mysql-9.7.4-tagged-gtids.mysqlbinlog.txt.gz").read_bytes())
    expected = [
        (gtid, *map(int, numbers))
        for *numbers, gtid in MYSQL_START.findall(text.decode(errors="replace"))
    ]
    assert [
        (
            each.gtid,
            each.last_committed,
            each.sequence_number,
            each.original_committed_us,
            each.committed_us,
        )
        for each in found
    ] == expected
    tagged = [each.gtid for each in found if each.gtid and each.gtid.count(":") == 2]
    assert len(tagged) == 2, "MySQL tagged two of them"


@pytest.mark.database
@pytest.mark.skipif(not shutil.which("mariadb-binlog"), reason="needs mariadb-binlog")
@pytest.mark.parametrize("metadata", ["default", "full"])
def test_gtids_and_commit_ids_are_those_that_mariadb_binlog_shows(
    tmp_path: Path, metadata: str
) -> None:
    path, found = transactions_of(f"mariadb-10.11-{metadata}-metadata.binlog", tmp_path)
    shown = subprocess.run(["mariadb-binlog", str(path)], capture_output=True, check=True)
    expected = MARIADB_START.findall(shown.stdout.decode(errors="replace"))
    assert [(each.gtid, each.commit_id) for each in found] == [
        (gtid, int(commit_id or 0)) for gtid, commit_id in expected
    ]
    assert len(found) == 1_206
