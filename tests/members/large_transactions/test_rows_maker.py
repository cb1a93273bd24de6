"""Files made ahead: who executes a transaction gets all of its rows, whatever was made by then."""

import threading
from collections.abc import Iterator

import pytest

from groupcert.certifier.errors import CorruptStore
from groupcert.certifier.storage.store import Family, RowsFile, Store
from groupcert.members.core.effects import Delivered
from groupcert.members.core.log_records import Fragment
from groupcert.members.large_transactions.fragment_store import Digest, FragmentStore, compress
from groupcert.members.large_transactions.rows_maker import RowsMaker
from groupcert.members.wire.pieces import split
from tests.integration.waiting import wait_for

RUN = 7
PUTS = [(b"k%03d" % number, b"%d" % number) for number in range(50)]


@pytest.fixture
def maker(store: Store) -> Iterator[RowsMaker]:
    """One with its thread."""
    maker = RowsMaker(store, FragmentStore(store))
    maker.start()
    yield maker
    maker.stop()


def fragments(number: int = 1) -> tuple[list[tuple[int, Fragment]], bytes]:
    """The rows in fragments, and what refers to them."""
    digest = Digest(RUN, number)
    found = []
    for place, piece in enumerate(split(PUTS, (), 100)):
        digest.add(piece)
        found.append((RUN, Fragment(number, place, compress(piece))))
    return found, digest.reference()


def rows_of(store: Store, files: list[RowsFile] | None) -> dict[bytes, bytes]:
    """What files put into the store, without the byte before each key."""
    assert files
    for file in files:
        store.ingest(Family.DATA, file)
    return {key[1:]: value for key, value in store.scan(Family.DATA)}


@pytest.mark.parametrize("ahead", [0, 1, 5, 100])
def test_all_rows_are_there_however_many_were_made_ahead(
    store: Store, maker: RowsMaker, ahead: int
) -> None:
    found, reference = fragments()
    maker.take_in(Delivered(fragments=found[:ahead]), -1)
    FragmentStore(store).write(found[ahead:])
    assert rows_of(store, maker.make(reference)) == dict(PUTS)


def test_fragments_are_taken_in_any_order(store: Store, maker: RowsMaker) -> None:
    found, reference = fragments()
    for each in reversed(found):
        maker.take_in(Delivered(fragments=[each]), -1)
    assert rows_of(store, maker.make(reference)) == dict(PUTS)


def test_files_that_are_being_taken_in_stay_when_fragments_come_again(
    store: Store, maker: RowsMaker
) -> None:
    """Who impersonates a member can send them again: the same file was begun anew."""
    found, reference = fragments()
    maker.take_in(Delivered(fragments=found), -1)
    files = maker.make(reference)
    maker.take_in(Delivered(fragments=found), -1)
    wait_for("files", lambda: len(list((store.path / "rows-files").glob("*"))) == 2)
    assert rows_of(store, files) == dict(PUTS)


def test_without_its_thread_it_makes_all_when_asked(store: Store) -> None:
    maker = RowsMaker(store, FragmentStore(store))
    found, reference = fragments()
    maker.take_in(Delivered(fragments=found), -1)
    assert not (store.path / "rows-files").exists()
    assert rows_of(store, maker.make(reference)) == dict(PUTS)
    maker.stop()


def test_files_of_a_set_that_is_dropped_are_deleted_on_the_thread(
    store: Store, maker: RowsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop drops them: a slow disk held it, and all that a member serves."""
    found, _ = fragments()
    maker.take_in(Delivered(fragments=found), -1)
    wait_for("a file", lambda: list((store.path / "rows-files").glob("*")))
    deleting: list[str] = []
    monkeypatch.setattr(
        RowsFile, "remove", lambda _: deleting.append(threading.current_thread().name)
    )
    maker.take_in(Delivered(dropped=[(RUN, 1)]), -1)
    wait_for("its deletion", lambda: deleting)
    assert set(deleting) == {"rows-maker"}


def test_what_nobody_will_ask_for_goes(store: Store, maker: RowsMaker) -> None:
    found, reference = fragments()
    maker.take_in(Delivered(fragments=found), -1)
    folder = store.path / "rows-files"
    wait_for("a file", lambda: list(folder.glob("*")))
    maker.take_in(Delivered(dropped=[(RUN, 1)]), -1)
    wait_for("its end", lambda: not list(folder.glob("*")))
    assert rows_of(store, maker.make(reference)) == dict(PUTS), "asked for all the same"


def test_a_start_removes_what_an_earlier_process_made(store: Store) -> None:
    FragmentStore(store).write(fragments()[0])
    RowsMaker(store, FragmentStore(store)).make(fragments()[1])
    assert list((store.path / "rows-files").glob("*"))
    maker = RowsMaker(store, FragmentStore(store))
    maker.start()
    maker.stop()
    assert not (store.path / "rows-files").exists()


@pytest.mark.parametrize("piece", [b"\xff", b"", None])
def test_what_is_not_what_was_sent_makes_no_files(
    store: Store, maker: RowsMaker, piece: bytes | None
) -> None:
    found, reference = fragments()
    found[2] = (RUN, Fragment(1, 2, compress(piece or b"")))
    if piece is None:
        del found[2]
    maker.take_in(Delivered(fragments=found), -1)
    with pytest.raises(CorruptStore, match="large transaction 0000000000000007/1"):
        maker.make(reference)
