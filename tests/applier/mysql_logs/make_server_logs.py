"""Makes the files `mysql-9-values*` of tests/data/server-logs: what a MySQL server logs of all
types, and what it shows of them.

    mysqld --initialize-insecure --datadir=DATA
    mysqld --datadir=DATA --port=PORT --log-bin=binlog --server-id=1 --mysqlx=OFF &
    python -m tests.applier.mysql_logs.make_server_logs --port PORT --data DATA

The other logs there were made alike, by a load of clients; they stay as they are, for their GTIDs
and stamps are those of threads that ran at once.
"""

import argparse
import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from groupcert.applier.mysql_logs.source_catalogue import SourceColumn, SourceTable
from tests.applier.mysql_logs.column_samples import MYSQL, SHARED, Sample
from tests.applier.mysql_logs.logged_rows import catalogue_of, execute, logged, plain_session
from tests.applier.mysql_logs.written_samples import State, create_tables, write_all

SAMPLES: dict[str, Sample] = SHARED | MYSQL
FOLDER = Path(__file__).parents[2] / "data" / "server-logs"
RUNS = {
    "FULL": ("SET GLOBAL binlog_row_metadata = MINIMAL", "SET binlog_transaction_compression = ON"),
    "MINIMAL": ("SET GLOBAL binlog_row_metadata = FULL", "SET binlog_row_image = MINIMAL"),
    "NOBLOB": ("SET GLOBAL binlog_row_metadata = MINIMAL", "SET binlog_row_image = NOBLOB"),
}
"""The image of rows in each file, and what is set for it."""


def log_path(image: str) -> Path:
    """Where the log with this image of rows is."""
    return FOLDER / f"mysql-9-values-{image.lower()}-image.binlog.gz"


def shown_path() -> Path:
    """Where the catalogue is, and what the server showed."""
    return FOLDER / "mysql-9-values.json.gz"


def make(port: int, data: Path) -> None:
    """Writes the files."""
    with plain_session(port, "shop") as session:
        execute(session, "DROP DATABASE shop", "CREATE DATABASE shop", "USE shop")
        create_tables(session, SAMPLES)
        states: dict[str, list[State]] = {}
        for image, settings in RUNS.items():
            execute(
                session,
                "SET SESSION binlog_row_image = FULL, binlog_transaction_compression = OFF",
                *settings,
            )
            path = logged(session, data, lambda: states.update(write_all(session, SAMPLES)))
            log_path(image).write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        catalogue = {name: asdict(table) for name, table in catalogue_of(session, "shop").items()}
        version = str(execute(session, "SELECT version()")[0][0])
    content = json.dumps(
        {"server": version, "catalogue": catalogue, "states": states},
        default=lambda value: {"hex": value.hex()},
        indent=0,
        ensure_ascii=False,
    )
    shown_path().write_bytes(gzip.compress(content.encode(), mtime=0))


def read() -> tuple[dict[str, SourceTable], dict[str, list[State]]]:
    """The catalogue and the states of the files that were made."""
    content = json.loads(gzip.decompress(shown_path().read_bytes()), object_hook=_bytes)
    catalogue = {
        name: SourceTable(
            **{
                **table,
                "columns": tuple(SourceColumn(**column) for column in table["columns"]),
                "primary_key": tuple(table["primary_key"]),
            }
        )
        for name, table in content["catalogue"].items()
    }
    return catalogue, content["states"]


def _bytes(value: dict[str, Any]) -> object:
    return bytes.fromhex(value["hex"]) if list(value) == ["hex"] else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    make(given.port, given.data)
