"""`groupcert demo --replicas` as its users run it: the whole of it, with a row that somebody else
has written, and ended in the middle.
"""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from tests.integration.demo_process import Demo
from tests.integration.waiting import SECONDS_MAX, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.database]

FINE, FINDING, INTERRUPTED = 0, 1, 130
LACKING = ("no MariaDB server here", "no PostgreSQL server here")
ROWS = ("logical-clock", "jobs graph", "database", "logical-clock", "MariaDB's own")
TARGETS = ["MariaDB", "MariaDB", "MariaDB", "PostgreSQL", "MariaDB"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts a demo, and kills what is left of it."""
    started: list[Demo] = []

    def start(*flags: str) -> Demo:
        started.append(Demo(tmp_path, "--replicas", *flags, lacking=LACKING))
        return started[0]

    yield start
    for demo in started:
        demo.end()


def test_the_document_has_speed_lag_and_rows_of_each_replica(start: Callable[..., Demo]) -> None:
    demo = start("--seconds", "4", "--clients", "4", "--json")
    output, _ = demo.process.communicate()
    demo.has_said("comparing rows")
    document = json.loads(output)
    assert demo.process.returncode == FINE, demo.words()
    replicas = document["replicas"]
    assert [each["scheme"] for each in replicas] == list(ROWS)
    assert [each["target"] for each in replicas] == TARGETS
    assert all(each["rows_equal"] and each["transactions_per_second"] > 0 for each in replicas)
    executed = {each["executed"] for each in replicas}
    assert executed == {int(document["gtid_executed"].removeprefix("0-1:1-"))}
    assert document["transactions"] > document["backlog"] > 0
    assert document["killed"] == ROWS[1]
    longest = [each["longest_lag_s"] for each in replicas]
    assert max(longest) == longest[1], "while it is down, its source goes on"
    assert document["findings"] == []
    assert list(demo.folder.iterdir()) == [], "its folder is removed"
    assert demo.processes() == []


def test_a_row_that_somebody_else_has_written_is_found(start: Callable[..., Demo]) -> None:
    demo = start("--seconds", "4", "--clients", "2")
    wait_for("replicas that follow", lambda: demo.has_said("all replicas follow"))
    [folder] = demo.folder.glob("groupcert-demo-*")
    target = folder / "target"
    password = (target / "passwords.sql").read_text().split("'")[3]
    socket = str(target / "mariadb" / "mariadb.sock")
    session = pymysql.connect(unix_socket=socket, user="root", password=password)
    with closing(session), session.cursor() as cursor:
        cursor.execute("INSERT INTO replica3.customers (id, email) VALUES (1000000, 'nobody')")
        session.commit()
    output, _ = demo.process.communicate()
    assert demo.process.returncode == FINDING, demo.words()
    assert output.count("yes") == len(ROWS) - 1
    told = " ".join(demo.words().split())
    assert "database on MariaDB: customers has the row (1000000, 'nobody'," in told
    assert f"folder is kept: {folder}" in told


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "executes the backlog"), (signal.SIGTERM, "replicas copy")],
    ids=["Ctrl-C while replicas execute", "SIGTERM while they copy"],
)
def test_one_that_is_ended_leaves_nothing(
    start: Callable[..., Demo], number: signal.Signals, moment: str
) -> None:
    demo = start("--seconds", "60")
    wait_for(moment, lambda: demo.has_said(moment))
    demo.process.send_signal(number)
    assert demo.process.wait(SECONDS_MAX) == INTERRUPTED, demo.words()
    assert list(demo.folder.iterdir()) == []
    wait_for("the end of all processes", lambda: not demo.processes())
    assert "Traceback" not in demo.words()
