"""A member that leaves tells the group how far its certification log goes, and the chain there."""

from pathlib import Path

import pytest

from groupcert.certifier.history.schema import RecordKind, Row
from groupcert.members.demo.local_group import LocalGroup
from tests.laboratory.bank_load import BankLoad
from tests.members.certification_logs import read_log

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow]
COMMITS = 50


def told_of(rows: list[Row], member: str) -> Row:
    """The last report of a member about its own log, in another one's."""
    return next(
        row
        for row in reversed(rows)
        if row["kind"] == RecordKind.REPORT and row["origin"] == member and row["reported_chain"]
    )


def test_a_member_that_stops_vouches_for_all_that_it_has_decided(tmp_path: Path) -> None:
    """Its log is far too short to be in a file yet; only what its leaving causes is behind."""
    settings = {"certification_log_file_seconds": 3_600}
    with LocalGroup(tmp_path, settings=settings, certification_logs=tmp_path / "logs") as group:
        load = BankLoad()
        with load.running(list(group.addresses.values()), seed=1):
            load.wait_for_commits(COMMITS)
        *leaving, last = group.names
        for name in (*leaving, last):
            assert group.stop_member(name) == 0
        logs = {name: read_log(tmp_path / "logs" / name, name) for name in group.names}
    for name in leaving:
        told = told_of(logs[last], name)
        (row,) = [row for row in logs[name] if row["place"] == told["reported_place"]]
        assert row["chain"] == told["reported_chain"]
        behind = logs[name][logs[name].index(row) + 1 :]
        assert RecordKind.TRANSACTION not in {each["kind"] for each in behind}
