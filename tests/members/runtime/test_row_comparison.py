"""Comparing rows: digests of a real store's rows as they were, and pages of them."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.targets.rocksdb import CHECKPOINT_KEY, ROW_PREFIX, RowsSnapshot
from groupcert.certifier.storage.store import Family, Store, StoreIdentity
from groupcert.members.core.log_records import RANGES, RowDigests
from groupcert.members.errors.membership import NotComparable
from groupcert.members.runtime.row_comparison import PAGE_ROWS, RowComparison
from tests.stores import put
from tests.waiting import until

ROWS = {b"row/%d" % number: b"value %d" % number for number in range(3 * PAGE_ROWS)}


class Compared:
    """A store with rows, and a comparison of them."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder, StoreIdentity(group="g", member="m1"))
        put(self.store, Family.DATA, (CHECKPOINT_KEY, Checkpoint(version=1).encode()))
        put(self.store, Family.DATA, *((ROW_PREFIX + key, value) for key, value in ROWS.items()))
        self.rate = 0
        self.told: list[Future[RowDigests]] = [Future()]
        self.comparison = RowComparison(self._open, lambda: self.rate, self._tell, self._fail)

    def digests(self, position: int) -> RowDigests:
        """The digests of the rows that there are now."""
        self.told.append(Future())
        self.comparison.expect(position)
        self.comparison.committed(position)
        return self.told[-1].result(60)

    def _open(self) -> RowsSnapshot:
        return RowsSnapshot(self.store.snapshot(Family.DATA))

    def _tell(self, digests: RowDigests) -> None:
        self.told[-1].set_result(digests)

    def _fail(self, error: Exception) -> None:
        self.told[-1].set_exception(error)


@pytest.fixture
def compared(tmp_path: Path) -> Iterator[Compared]:
    """Some rows, and who compares them."""
    made = Compared(tmp_path)
    yield made
    made.comparison.stop()
    made.store.close()


def sums_of(rows: dict[bytes, bytes]) -> bytes:
    """What `log.proto` says of the digests of rows."""
    sums = [0] * 256
    for key, value in rows.items():
        hashed = xxh3_64_intdigest(key)
        sums[hashed // 2**56] += xxh3_64_intdigest(value, hashed)
    return b"".join((each % 2**64).to_bytes(8, "little") for each in sums)


def test_digests_are_those_of_the_contract(compared: Compared) -> None:
    assert compared.digests(7) == RowDigests(7, len(ROWS), sums_of(ROWS))


def test_rows_that_come_after_the_position_are_not_digested(compared: Compared) -> None:
    compared.comparison.expect(7)
    compared.comparison.committed(6)
    compared.rate = 1 << 20
    compared.comparison.committed(7)
    put(compared.store, Family.DATA, (ROW_PREFIX + b"row/0", b"later"))
    assert compared.told[-1].result(60).digests == sums_of(ROWS)


async def test_one_that_another_one_follows_is_given_up(compared: Compared) -> None:
    compared.rate = 1  # It would take days.
    compared.comparison.expect(7)
    compared.comparison.committed(7)
    first = compared.told[-1]
    await until(lambda: compared.comparison._rows)
    compared.rate = 0
    assert compared.digests(8).position == 8
    assert not first.done()


def test_what_is_not_done_ends_with_the_run(compared: Compared) -> None:
    compared.rate = 1
    compared.comparison.expect(7)
    compared.comparison.committed(7)
    compared.comparison.stop()
    assert not compared.told[-1].done()


def test_pages_have_the_rows_of_their_ranges(compared: Compared) -> None:
    compared.digests(7)
    put(compared.store, Family.DATA, (ROW_PREFIX + b"row/0", b"later"))
    for ranges in (range(RANGES), (3, 200)):
        found: dict[bytes, int] = {}
        start: bytes | None = b""
        while start is not None:
            page, start = compared.comparison.read(7, ranges, start).result(60)
            found.update(dict(page))
        expected = {key for key in ROWS if xxh3_64_intdigest(key) >> 56 in ranges}
        assert found.keys() == expected
        assert all(
            digest == xxh3_64_intdigest(ROWS[key], xxh3_64_intdigest(key))
            for key, digest in found.items()
        )


@pytest.mark.parametrize("settled", [False, True])
def test_rows_are_kept_until_all_members_have_equal_ones(compared: Compared, settled: bool) -> None:
    compared.digests(7)
    with pytest.raises(NotComparable):
        compared.comparison.read(6, (1,), b"").result(60)
    compared.comparison.forget(is_settled=settled)
    page = compared.comparison.read(7, (1,), b"")
    if not settled:
        assert page.result(60)
        return
    with pytest.raises(NotComparable, match="compare again"):
        page.result(60)
