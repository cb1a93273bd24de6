"""Certification info: what it remembers, what a purge takes away."""

from certifier.certification_info import SHARDS, CertificationInfo

LARGEST = 2**64 - 1


def info_of(*writes: tuple[list[int], int]) -> CertificationInfo:
    """Returns an info that has recorded these items and versions."""
    info = CertificationInfo()
    for items, version in writes:
        info.record(items, version)
        info.check_invariants()
    return info


def test_the_newest_writer_is_the_largest_version_among_the_items() -> None:
    info = info_of(([0, 1], 1), ([LARGEST], 2), ([1], 3))
    assert info.newest_writer([0, LARGEST]) == 2
    assert info.newest_writer([1, 0]) == 3
    assert info.newest_writer([5]) == info.newest_writer([]) == 0


def test_writers_come_in_the_items_order_without_unknown_ones() -> None:
    info = info_of(([0, 1], 1), ([LARGEST], 2))
    assert list(info.writers([LARGEST, 7, 0])) == [(LARGEST, 2), (0, 1)]


def test_a_purge_takes_what_nobody_wrote_later_and_names_the_writers() -> None:
    info = info_of(([10, 11], 1), ([11, 12], 2), ([12], 3))
    assert info.purge([10, 11, 11, 12, 99], last=2) == [1, 2]
    info.check_invariants()
    assert sorted(info.entries()) == [(12, 3)]
    assert len(info) == 1


def test_items_that_share_a_shard_are_told_apart() -> None:
    info = info_of(([1], 1), ([1 + SHARDS], 2))
    assert dict(info.entries()) == {1: 1, 1 + SHARDS: 2}
    assert len(info) == 2
