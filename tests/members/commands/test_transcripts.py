"""What the command answers to what is typed where there is no group."""

import gzip
import json
from pathlib import Path

import pytest

from tests.applier.mysql_logs import log_writer
from tests.datadriven import Command, run_script, table
from tests.members.certification_logs import read_log
from tests.transcripts import FOLDER, Terminal

SCRIPTS = sorted(FOLDER.glob("*.txt"))
KEY = [(1, b"\x80"), (4, b"\2id"), (8, b"\0")]
"""The metadata of a table's key: its sign, its name, its place."""


def trace(command: Command) -> str:
    """trace transactions= [members=] [commit_id=]: `trace.jsonl` has so many transactions, of m0,
    m1 and so on in turn, which write one row of 8.
    """
    transactions, members, commit_id = command.take("transactions", "members", "commit_id")
    lines = []
    for number in range(int(str(transactions))):
        line: dict[str, object] = {
            "type": "transaction",
            "member": f"m{number % int(members or 1)}",
            "session": "s",
            "snapshot_version": "",
            "write_set": [f"shop.orders/PRIMARY/{number % 8}"],
        }
        if commit_id:
            line["commit_id"] = int(commit_id)
        lines.append(json.dumps(line))
    Path("trace.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return ""


def compress(command: Command) -> str:
    """compress from=<file> to=<file>: one has the other's content, compressed."""
    source, target = command.take("from", "to")
    Path(str(target)).write_bytes(gzip.compress(Path(str(source)).read_bytes(), mtime=0))
    return ""


def binary_log(command: Command) -> str:
    """binary_log file= [places=] [gtids_from=] [commit_id=] [begin] [cut=] [keyless]: a
    transaction for each place in the file, which inserts a row with the number of its GTID.

    As MySQL's stamps have it all may overlap; with a `commit_id` it is one group commit of MariaDB.
    `begin`: the end of a transaction comes first; `cut`: so many of the last bytes are missing.
    """
    file, places, first, commit_id, begins, cut, keyless = command.take(
        "file", "places", "gtids_from", "commit_id", "begin", "cut", "keyless"
    )
    events = [] if begins is None else [log_writer.xid()]
    for place in filter(None, str(places or "").split(",")):
        number = int(first or 0) + int(place)
        start = [log_writer.gtid(number, 0, int(place)), log_writer.query("BEGIN")]
        if commit_id:
            start = [log_writer.mariadb_gtid(number, commit_id=int(commit_id), standalone=False)]
        key = KEY if keyless is None else KEY[:2]
        table_map = log_writer.table_map("orders", [(log_writer.INT, b"")], key)
        row = log_writer.number_rows(30, [number])
        events += [*start, table_map, row, log_writer.xid()]
    version = "10.11.6-MariaDB" if commit_id else "8.4.3"
    content = log_writer.log(events, version=version)
    Path(str(file)).write_bytes(content[: len(content) - int(cut or 0)])
    return ""


def rows(command: Command) -> str:
    """rows of= in= show=: columns of an observer's certification log, whose numbers and chain are
    whole.
    """
    observer, folder, shown = command.take("of", "in", "show")
    columns = str(shown).split(",")
    found = read_log(Path(str(folder)), str(observer))
    return "\n".join(table(columns, [[drawn(row[name]) for name in columns] for row in found]))


def drawn(value: object) -> object:
    """Returns a value of a row as a transcript has it: bytes as digits."""
    return value.hex() if isinstance(value, bytes) else value


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_command_answers_as_the_transcript_says(
    path: Path,
    rewrite: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    more = {each.__name__: each for each in (trace, compress, binary_log, rows)}
    run_script(path, terminal.handlers | more, rewrite=rewrite)
