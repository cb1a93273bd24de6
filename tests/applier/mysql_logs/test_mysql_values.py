"""Values of all types in MySQL 9.7.4's own logs are those that the server showed.

The files are made by `make_server_logs.py`.
"""

import gzip
from pathlib import Path

import pytest

from tests.applier.mysql_logs import make_server_logs
from tests.applier.mysql_logs.logged_rows import rows_of
from tests.applier.mysql_logs.written_samples import compare_all


@pytest.mark.parametrize("image", make_server_logs.RUNS)
def test_values_are_those_that_mysql_shows(tmp_path: Path, image: str) -> None:
    path = tmp_path / "binlog"
    path.write_bytes(gzip.decompress(make_server_logs.log_path(image).read_bytes()))
    catalogue, states = make_server_logs.read()
    rows = rows_of(path, catalogue)
    assert len(rows) > len(make_server_logs.SAMPLES)
    compare_all(make_server_logs.SAMPLES, rows, states, image)
