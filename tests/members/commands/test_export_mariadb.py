"""`groupcert export` of what a real MariaDB server logs: each of its transactions, as its own
`mariadb-binlog` prints them.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert.members.commands.export import ExportOptions, export_binary_log
from tests import servers
from tests.members.certification_logs import read_log
from tests.members.mariadb_binary_logs import (
    ROWS_A_SESSION,
    SESSIONS,
    logging_server,
    make_logs,
)

pytestmark = pytest.mark.database

GTID_LINE = re.compile(r"\tGTID (\d+)-(\d+)-(\d+)(?: cid=(\d+))?")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """See `make_logs`."""
    try:
        with logging_server(tmp_path_factory.mktemp("export")) as server:
            yield make_logs(server)
    except servers.ServerMissing as error:
        pytest.skip(str(error))


def test_every_transaction_is_in_the_log_as_the_server_prints_it(
    logs: list[Path], tmp_path: Path
) -> None:
    export_binary_log(
        logs, "server-3", ExportOptions(out=tmp_path / "out", file_rows=50, keys=True)
    )
    assert len(list((tmp_path / "out").iterdir())) > 2
    rows = [row for row in read_log(tmp_path / "out", "server-3") if row["kind"] == "transaction"]
    assert [
        (row["gtid_source"], row["gtid_number"], row["domain_id"], row["commit_id"]) for row in rows
    ] == [
        (f"{domain}-{server}", int(number), int(domain), int(commit_id or 0))
        for path in logs
        for domain, server, number, commit_id in GTID_LINE.findall(_printed(path))
    ]
    inserts = [row for row in rows if row["write_set"]]
    assert len(inserts) == 2 * SESSIONS * ROWS_A_SESSION
    assert {row["verdict"] for row in rows} == {"certified"}
    assert {row["last_committed"] for row in rows} == {None}
    for row in inserts:
        assert (row["databases"], row["tables"]) == (["shop"], ["shop.orders"])
    keys = [row["write_keys"] for row in inserts]
    assert sorted(map(str, keys)) == sorted(
        f"['shop.orders/PRIMARY/{part * 100_000 + number * 100 + row}']"
        for part in range(2)
        for number in range(SESSIONS)
        for row in range(ROWS_A_SESSION)
    )
    grouped = [row for row in inserts if row["commit_id"]]
    assert any(row["commit_parent"] != row["version"] for row in grouped)
    assert all(int(str(row["commit_parent"])) <= int(str(row["version"])) for row in rows)


def test_the_second_file_begins_with_a_break(logs: list[Path], tmp_path: Path) -> None:
    export_binary_log(logs, None, ExportOptions(out=tmp_path))
    rows = read_log(tmp_path, "binary-log")
    (place,) = [place for place, row in enumerate(rows) if row["kind"] == "view_change"]
    first_file = GTID_LINE.findall(_printed(logs[0]))
    assert place == 1 + len(first_file)
    assert rows[place]["resets_clock"] is True
    assert rows[place + 1]["commit_parent"] == len(first_file) + 1


def _printed(path: Path) -> str:
    """A log as the server's own program prints it."""
    program = shutil.which("mariadb-binlog")
    assert program is not None, "a server without its programs"
    output = subprocess.run([program, str(path)], check=True, capture_output=True).stdout
    return output.decode(errors="replace")
