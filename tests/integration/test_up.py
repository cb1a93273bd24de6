"""`groupcert up`: what ends by itself starts again, and what is killed leaves nothing behind.

The groups are real ones, in folders of their own; `tests/test_readmes.py` runs the quick start.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from groupcert import Client
from groupcert.certifier.storage.store import Store, StoreIdentity
from groupcert.members.commands.cli_up import Ready
from tests import servers
from tests.commands import groupcert
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster]
GROUPCERT = (sys.executable, "-m", "groupcert.members")


def run(folder: Path, verb: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a verb for a folder."""
    return groupcert(verb, *flags, "--data-folder", str(folder))


def up(folder: Path, *flags: str) -> Ready:
    """Starts a group in the background."""
    done = run(folder, "up", "--detach", "--json", *flags)
    assert done.returncode == 0, done.stderr
    ready: Ready = json.loads(done.stdout)
    return ready


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose group is down in the end."""
    yield tmp_path / "group"
    assert run(tmp_path / "group", "down").returncode in (0, 1)


def put(ready: Ready, name: str, key: bytes) -> None:
    with Client(ready["members"][name], timeout_ms=120_000) as client:
        client.run(lambda transaction: transaction.put(key, b"here"))


def has(ready: Ready, name: str, key: bytes) -> bool:
    with (
        Client(ready["members"][name], timeout_ms=120_000) as client,
        client.transaction() as transaction,
    ):
        return transaction.get(key) == b"here"


def is_online(ready: Ready, name: str) -> bool:
    return groupcert("health", ready["members"][name]).returncode == 0


def test_what_ends_by_itself_starts_again(folder: Path) -> None:
    ready = up(folder, "--members", "2")
    for name, pid in ready["processes"].items():
        shown = psutil.Process(pid)
        title = f"groupcert member {name} (log: {folder / name}.log)"
        assert (" ".join(shown.cmdline()), shown.name()) == (title, f"groupcert:{name}")
    os.kill(ready["processes"]["m2"], signal.SIGKILL)
    (server,) = (each for each in psutil.process_iter() if is_log_server(each, folder))
    server.kill()
    put(ready, "m1", b"meanwhile")
    wait_for("the member is back", lambda: is_online(ready, "m2"))
    assert has(ready, "m2", b"meanwhile")
    said = (folder / "up.log").read_text()
    assert "m2 ended by signal 9" in said and "the log server was started again: it ended" in said


def is_log_server(process: psutil.Process, folder: Path) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "nats-server" in " ".join(words[:1]) and str(folder) in words[-1]


def test_a_killed_command_leaves_no_member_and_no_log_server(folder: Path) -> None:
    ready = up(folder, "--members", "1")
    put(ready, "m1", b"before")
    second = run(folder, "up")
    assert second.returncode == 2 and "whose group is down" in second.stderr
    os.kill(int((folder / "up.lock").read_text()), signal.SIGKILL)
    wait_for("its member ended", lambda: not psutil.pid_exists(ready["processes"]["m1"]))
    nothing = run(folder, "down")
    assert (nothing.stdout, nothing.returncode) == (f"nothing was up in {folder}\n", 1)
    again = up(folder)
    assert list(again["members"]) == ["m1"]  # Somebody else may have taken its port meanwhile.
    assert has(again, "m1", b"before")


def test_ctrl_c_stops_it_in_order(folder: Path) -> None:
    command = [*GROUPCERT, "up", "--members", "1", "--data-folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    shown = [next(lines)]
    while not shown[-1].startswith("Ctrl-C"):
        shown.append(next(lines))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "groupcert: stopping" in said
    assert shown[0] == f"group local is up, its data in {folder}\n"
    state = [json.loads(line).get("state") for line in (folder / "m1.log").read_text().splitlines()]
    assert state[-1] == "LEFT"


def test_a_verb_without_an_address_changes_the_group_of_its_folder(tmp_path: Path) -> None:
    first = up(tmp_path / "first", "--members", "1", "--group", "first")
    second = up(tmp_path / ".groupcert", "--members", "1", "--group", "second")

    def group(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*GROUPCERT, "group", verb, *words, "--json"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    def lag_max(ready: Ready) -> str:
        shown = group("settings", ready["members"]["m1"])
        return str(json.loads(shown.stdout)["settings"]["flow_control_lag_max"])

    try:
        before = lag_max(first)
        refused = group("set", "flow_control_lag_max=20000", "--group", "first")
        assert refused.returncode == 2
        assert "--group is 'first': expected second, which is the group at" in refused.stderr
        assert lag_max(second) == before
        changed = group("set", "flow_control_lag_max=20000", "--group", "second")
        assert changed.returncode == 0 and json.loads(changed.stdout)["changed"]
        assert changed.stderr == f"groupcert: group second: m1 {second['members']['m1']}\n"
        assert (lag_max(first), lag_max(second)) == (before, "20000")
    finally:
        for each in ("first", ".groupcert"):
            assert run(tmp_path / each, "down").returncode == 0


def test_a_member_that_ends_at_once_is_named_with_its_last_line(folder: Path) -> None:
    up(folder)
    run(folder, "down")
    with Store(folder / "m2", StoreIdentity(group="local", member="m2")):
        done = run(folder, "up")
    assert done.returncode == 3
    said = done.stderr.splitlines()[-1]
    assert said.startswith("groupcert: member m2 ended with exit status 1, and said last: groupce")
    assert "belongs to a process that has it open" in said
    assert str(folder / "m2.log") in said


def test_a_group_that_cannot_start_says_why(folder: Path) -> None:
    folder.mkdir()
    (folder / "something").touch()
    done = run(folder, "up", "--detach")
    assert done.returncode == 2
    assert "a folder of `groupcert up`, an empty one, or none yet" in done.stderr


def up_with_servers(folder: Path) -> Ready:
    """Starts a group with PostgreSQL servers; skips the test where the machine lacks them."""
    with servers.where_installed():
        servers.postgresql_program("postgres")
    done = run(folder, "up", "--postgresql", "--detach", "--json")
    if "sudo apt-get install" in done.stderr and os.environ.get("REQUIRE_DATABASES") != "1":
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    ready: Ready = json.loads(done.stdout)
    return ready


def psql(ready: Ready, name: str, statement: str) -> subprocess.CompletedProcess[str]:
    """Runs a statement at the server of a member."""
    command = ["psql", "-X", "-A", "-t", "-q", ready["postgresql"][name], "-c", statement]
    return subprocess.run(command, capture_output=True, text=True)


def greetings(ready: Ready, name: str) -> list[str]:
    return psql(ready, name, "SELECT words FROM greetings ORDER BY id").stdout.split()


def postmaster(folder: Path, name: str) -> int:
    """The process of a server that runs."""
    text = (folder / f"postgresql-{name}" / "postgresql" / "postmaster.pid").read_text()
    return int(text.split()[0])


@pytest.mark.database
def test_a_table_that_one_server_refuses_is_made_at_all_by_the_command_that_it_says(
    folder: Path,
) -> None:
    ready = up_with_servers(folder)
    table = "CREATE TABLE greetings (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, words text)"
    refused = psql(ready, "m1", table)
    assert "CREATE TABLE of public.greetings is refused" in refused.stderr
    hint = refused.stderr.partition("HINT:  ")[2].partition(" runs it at all servers")[0]
    words = ["-" if word == "FILE" else word for word in shlex.split(hint)]
    assert words[0] == "groupcert"
    made = subprocess.run([*GROUPCERT, *words[1:]], input=table, capture_output=True, text=True)
    assert (made.returncode, "executed by 3 servers" in made.stdout) == (0, True), made.stderr
    insert = "INSERT INTO greetings (words) VALUES (%s) RETURNING id"
    ids = [psql(ready, name, insert % f"'{name}'").stdout for name in ("m1", "m2", "m3")]
    assert ids == ["1\n", "2\n", "3\n"]
    for name in ready["members"]:
        wait_for("all rows", lambda: greetings(ready, name) == ["m1", "m2", "m3"])  # noqa: B023
    for verb in (["status"], ["verify"]):
        assert groupcert(*verb, "--data-folder", str(folder)).returncode == 0

    pids = [postmaster(folder, name) for name in ready["members"]]
    assert run(folder, "down").returncode == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)
    log = (folder / "postgresql-m1" / "postgresql.log").read_text()
    assert log.splitlines()[-1].endswith("database system is shut down")
    again = up(folder)
    for name in again["members"]:
        assert greetings(again, name) == ["m1", "m2", "m3"]
    assert psql(again, "m3", insert % "'again'").stdout == "12\n"
    assert run(folder, "verify").returncode == 0


@pytest.mark.database
def test_servers_that_were_killed_come_back_with_all_rows(folder: Path) -> None:
    ready = up_with_servers(folder)
    made = subprocess.run(
        [*GROUPCERT, "postgresql", "ddl", "-", "--attach", "--data-folder", str(folder)],
        input="CREATE TABLE greetings (id int PRIMARY KEY, words text)",
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert not psql(ready, "m2", "INSERT INTO greetings VALUES (1, 'before')").stderr
    os.kill(postmaster(folder, "m2"), signal.SIGKILL)
    assert not psql(ready, "m1", "INSERT INTO greetings VALUES (2, 'meanwhile')").stderr
    wait_for("it is back", lambda: greetings(ready, "m2") == ["before", "meanwhile"])
    insert = "INSERT INTO greetings VALUES (3, 'after')"
    wait_for("it takes writes", lambda: not psql(ready, "m2", insert).stderr)
    assert "PostgreSQL m2 ended by signal 9" in (folder / "up.log").read_text()

    # A client that stays would keep a server from ending in its own time.
    with psycopg.connect(ready["postgresql"]["m3"]):
        os.kill(int((folder / "up.lock").read_text()), signal.SIGKILL)
        again = up(folder)
    for name in again["members"]:
        wait_for("all rows", lambda: len(greetings(again, name)) == 3)  # noqa: B023
    assert groupcert("verify", "--data-folder", str(folder)).returncode == 0
