"""Certification info over its shards; what it remembers and purges is in `test_core.py`."""

from groupcert.certifier.certification_info import SHARDS, CertificationInfo


def test_items_that_share_a_shard_are_told_apart() -> None:
    info = CertificationInfo()
    info.record([1], 1)
    info.record([1 + SHARDS], 2)
    info.check_invariants()
    assert dict(info.entries()) == {1: 1, 1 + SHARDS: 2}
    assert len(info) == 2
