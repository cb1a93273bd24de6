"""`groupcert whatif` on a group's certification log, a live MariaDB, and with a server's keys."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from groupcert.members.commands.cli import app
from tests.servers import MariaDbServer, connect_mariadb, where_installed

TABLE = "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(20))"
BINARY_LOG = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW")


def document(*words: str) -> Any:
    """What the verb prints as JSON, for 8 workers."""
    done = CliRunner().invoke(app, ["whatif", *words, "--workers", "8", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def speedups(report: Any) -> dict[str, float]:
    """The speed-up of each line."""
    return {each["label"]: each["runs"][0]["speedup"] for each in report["schemes"]}


def test_a_certification_log_gives_what_its_trace_gives(tmp_path: Path) -> None:
    """Eight rows, one after the other: each follows the eighth before it, and one conflicts."""
    group = UUID(int=7)
    lines = [
        {
            "type": "transaction",
            "member": "m1",
            "snapshot_version": f"{group}:1-{number - 3}" if number > 3 else "",
            "write_set": [f"shop.orders/{number % 8}"],
            "commit_id": number // 4 + 1,
        }
        for number in range(40)
    ]
    lines += [{"type": "view_change", "view_id": "1:2", "members": ["m1"]}]
    lines += [{**lines[0], "snapshot_version": ""}]
    trace, log = tmp_path / "trace.jsonl", tmp_path / "log"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ("--group-uuid", str(group))
    words = ["export", "--trace", str(trace), "--out", str(log), "--keys", *flags]
    assert CliRunner().invoke(app, words).exit_code == 0
    of_trace, of_log = document(str(trace), *flags), document("--certification-log", str(log))
    assert of_log["source"]["conflicts"] == of_trace["source"]["conflicts"] == 1
    assert of_log["workload"] == of_trace["workload"]
    assert of_log["critical_path"] == of_trace["critical_path"]
    assert speedups(of_log) == speedups(of_trace)


def test_what_is_no_stream_or_two_is_refused(tmp_path: Path) -> None:
    for words, problem in (
        ([], "--source URL"),
        (["--certification-log", str(tmp_path)], "a folder with Parquet files"),
        (["--source", "mysql://u@h/", "--certification-log", "x"], "none beside"),
        (["--keys", "mysql://u@h/", "trace.jsonl"], "--binlog beside it"),
    ):
        done = CliRunner().invoke(app, ["whatif", *words])
        assert done.exit_code == 1 and problem in str(done.exception), (words, done.exception)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """A MariaDB whose binary log names no keys, which is its default."""
    with where_installed(), MariaDbServer(tmp_path_factory.mktemp("source"), *BINARY_LOG) as server:
        with closing(connect_mariadb(server.url)) as session, session.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute(TABLE)
        yield server


def write(server: MariaDbServer, first: int, count: int) -> None:
    """Commits one transaction a row."""
    with closing(connect_mariadb(server.url)) as session, session.cursor() as cursor:
        for number in range(first, first + count):
            cursor.execute(f"INSERT INTO shop.orders VALUES ({number}, 'n')")


@pytest.mark.database
def test_keys_of_a_server_name_the_rows_of_its_log(server: MariaDbServer) -> None:
    write(server, 0, 60)
    path = str(next(path for path in server.data.iterdir() if path.name == "binlog.000001"))
    unnamed = document("--binlog", path)
    assert unnamed["source"]["tables_without_keys"] == ["shop.orders"]
    assert "--keys mysql://" in unnamed["source"]["notes"][-2]
    named = document("--binlog", path, "--keys", server.url)
    assert named["source"]["tables_without_keys"] == []
    assert named["critical_path"]["is_known"] and not unnamed["critical_path"]["is_known"]
    assert named["workload"]["transactions"] == unnamed["workload"]["transactions"] >= 60
    assert speedups(named)["jobs graph"] > 3 > speedups(unnamed)["jobs graph"]


@pytest.mark.database
def test_a_live_server_is_read_from_now_on(server: MariaDbServer) -> None:
    ended = threading.Event()

    def load() -> None:
        first = 1_000
        while not ended.is_set():
            write(server, first, 10)
            first += 10

    clients = threading.Thread(target=load)
    clients.start()
    try:
        report = document("--source", server.url, "--transactions", "30", "--seconds", "60")
    finally:
        ended.set()
        clients.join()
    assert report["workload"]["transactions"] == 30
    assert report["source"]["tables_without_keys"] == []
    assert report["source"]["files"] == [re.sub(r".*@|/$", "", server.url)]
    assert speedups(report)["jobs graph"] > 3


@pytest.mark.database
def test_a_server_that_commits_nothing_is_told(server: MariaDbServer) -> None:
    words = ["whatif", "--source", server.url, "--seconds", "0.1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "commits within 0.1 seconds" in str(done.exception)
