"""`groupcert postgresql attach` and `detach` at a real server: what they print, how they end."""

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.datadriven import Command, run_script
from tests.transcripts import FOLDER, Terminal

SCRIPTS = sorted((FOLDER / "postgresql").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_server_is_attached_as_the_transcript_says(
    path: Path,
    postgresql_dsn: str,
    rewrite: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server has a table that fits, and one that does not."""
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("CREATE TABLE things (id serial PRIMARY KEY); CREATE TABLE keyless (n int)")
    names = {"dsn": postgresql_dsn, "database": str(conninfo_to_dict(postgresql_dsn)["dbname"])}
    terminal = Terminal(tmp_path, monkeypatch, capsys, names)

    def is_attached(_: Command) -> str:
        """is_attached: whether anything of it is there."""
        with psycopg.connect(postgresql_dsn) as session:
            found = session.execute("SELECT to_regnamespace('groupcert')").fetchone()
        return "no" if found == (None,) else "yes"

    run_script(path, {**terminal.handlers, "is_attached": is_attached}, rewrite=rewrite)
