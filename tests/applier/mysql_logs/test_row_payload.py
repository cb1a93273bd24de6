"""Rows of a log have the values that their server shows: all types at their extremes, by the
server's own file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from groupcert.applier.mysql_logs.source_catalogue import SourceTable
from tests import servers
from tests.applier.mysql_logs.column_samples import MARIADB, SHARED
from tests.applier.mysql_logs.logged_rows import (
    Session,
    catalogue_of,
    execute,
    logged,
    plain_session,
    rows_of,
)
from tests.applier.mysql_logs.written_samples import (
    State,
    assert_all_same,
    create_tables,
    write_all,
)

pytestmark = pytest.mark.database
SAMPLES = SHARED | MARIADB


class Source(NamedTuple):
    """A server with a table for each sample: its session, its folder of logs, its catalogue."""

    session: Session
    folder: Path
    catalogue: dict[str, SourceTable]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """A MariaDB with the tables, empty."""
    folder = tmp_path_factory.mktemp("values")
    options = ("--log-bin=binlog", "--server-id=3", "--binlog-format=ROW")
    with servers.where_installed(), servers.MariaDbServer(folder, *options) as running:
        with plain_session(running.port, "shop") as session:
            create_tables(session, SAMPLES)
            yield Source(session, running.data, catalogue_of(session, "shop"))


@pytest.mark.parametrize("image", ["FULL", "MINIMAL", "NOBLOB"])
@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL", "NO_LOG"])
def test_values_are_those_that_the_server_shows(source: Source, metadata: str, image: str) -> None:
    session = source.session
    execute(
        session,
        f"SET GLOBAL binlog_row_metadata = {metadata}",
        f"SET binlog_row_image = {image}",
        f"SET GLOBAL log_bin_compress = {'ON' if image == 'FULL' else 'OFF'}",
        f"SET column_compression_zlib_wrap = {'ON' if image == 'NOBLOB' else 'OFF'}",
    )
    states: dict[str, list[State]] = {}
    path = logged(session, source.folder, lambda: states.update(write_all(session, SAMPLES)))
    assert_all_same(SAMPLES, rows_of(path, source.catalogue), states, image)
