"""Checkpoints: small, plain, and refused where transactions are missing. That a restored certifier
goes on as the dumped one is in `test_core.py`.
"""

import json

import pytest

from groupcert.certifier.certifier_state import dump, restore
from groupcert.certifier.core import Certifier
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.records import GarbageCollection, Transaction
from tests.certifier.histories import GROUP, options


def certifier_of(count: int) -> Certifier:
    """Returns a certifier that has certified `count` transactions."""
    certifier = Certifier(options(block_size=10))
    for number in range(count):
        certifier.certify(Transaction(number, f"m{number % 2}", number, [number, number + 1]))
    return certifier


def test_a_checkpoint_is_plain_and_does_not_grow_with_the_items() -> None:
    sizes = [len(json.dumps(dump(certifier_of(count)))) for count in (100, 110)]
    assert max(sizes) - min(sizes) < 40


def test_an_empty_window_needs_no_pieces() -> None:
    certifier = certifier_of(5)
    certifier.deliver(GarbageCollection(6, 5))
    restored = Certifier(certifier.options)
    restore(restored, dump(certifier), [])
    restored.check_invariants()
    following = Transaction(7, "m1", 5, [1])
    assert restored.certify(following) == certifier.certify(following)
    assert dump(restored) == dump(certifier)


@pytest.mark.parametrize(
    ("kept", "problem"),
    [((0, 2), "version 5 next after 2"), ((0, 1), "version 7 next after 4")],
)
def test_missing_transactions_are_found(kept: tuple[int, int], problem: str) -> None:
    pieces = []
    for count in (2, 4, 6):
        certifier = certifier_of(count)
        [(first_version, rows)] = certifier.window.dump(count - 1)
        pieces.append((first_version, rows, dict[str, dict[str, str]]()))
    restore(Certifier(certifier.options), dump(certifier), pieces)
    with pytest.raises(ValueError, match=problem):
        restore(Certifier(certifier.options), dump(certifier), [pieces[i] for i in kept])


def test_collections_beyond_a_version_are_not_stored() -> None:
    certifier = certifier_of(3)
    certifier.deliver(GarbageCollection(4, GtidSet.parse(f"{GROUP}:2")))
    with pytest.raises(AssertionError, match="not stored"):
        dump(certifier)
