"""Binary logs as work: stamps, lock intervals and names of what a log says."""

from groupcert.applier.mysql_logs.binary_log_reader import BinaryLogTransaction
from groupcert.applier.whatif.binary_log_work import BinaryLogWork
from groupcert.applier.whatif.workload import Work
from tests.applier.mysql_logs.transactions import NOTHING, UUID, writes


def read(*files: list[BinaryLogTransaction]) -> list[Work]:
    """The work of a log's files."""
    reader = BinaryLogWork()
    return [work for log in files for work in reader.read("log.1", log)]


def test_stamps_by_write_sets_are_those_of_complete_snapshots() -> None:
    found = read([writes(1), writes(2), writes(1, 2), NOTHING, writes(3)])
    stamps = [(one.last_committed, one.sequence_number) for one in found]
    assert stamps == [(1, 2), (1, 3), (3, 4), (4, 5), (5, 6)]
    assert [one.rows for one in found] == [1, 1, 2, 0, 1]


def test_the_lock_interval_is_the_sources_own_where_it_has_stamps() -> None:
    found = read(
        [
            writes(1, last_committed=0, sequence_number=1),
            writes(2, last_committed=0, sequence_number=2),
            writes(3, last_committed=2, sequence_number=3),
            writes(4, last_committed=3, sequence_number=3),
        ]
    )
    assert [one.lock_interval for one in found] == [1, 2, 1, 1]
    assert [one.header.commit_parent for one in found] == [1, 1, 3, 4]


def test_a_lock_interval_counts_what_the_log_has() -> None:
    """A relay log lacks what its replica had already, here 9 to 11."""
    log = [
        writes(number, last_committed=last, sequence_number=number)
        for last, number in ((5, 7), (5, 8), (8, 12), (7, 13), (0, 1), (0, 2))
    ]
    found = read(log)
    assert [one.lock_interval for one in found] == [1, 2, 1, 3, 1, 2]
    assert [one.header.commit_parent for one in found] == [1, 1, 3, 2, 5, 5]


def test_group_commits_are_lock_intervals_where_there_are_no_stamps() -> None:
    group = [writes(item, commit_id=7, domain_id=1) for item in (1, 2, 3)]
    other = [writes(4, commit_id=7, domain_id=2), writes(5), writes(6)]
    found = read([*group, *other])
    assert [one.lock_interval for one in found] == [1, 2, 3, 1, 1, 1]
    assert [one.header.commit_parent for one in found] == [1, 1, 1, 4, 5, 6]
    assert [one.header.commit_id for one in found] == [7, 7, 7, 7, 0, 0]


def test_a_new_file_is_a_rotation_and_ends_group_commits() -> None:
    found = read([writes(1, commit_id=7)], [writes(2, commit_id=7), writes(1)])
    assert found[1] == Work(None)
    assert [one.lock_interval for one in found if one.gtid] == [1, 1, 1]
    assert found[3].last_committed == 2


def test_names_are_gtids_or_else_places_in_the_file() -> None:
    found = read([writes(1, gtid=f"{UUID}:5"), writes(2, gtid="0-1-42"), writes(3, offset=904)])
    assert [(one.gtid.source, one.gtid.number) for one in found if one.gtid] == [
        (UUID, 5),
        ("0-1", 42),
        ("log.1", 904),
    ]
