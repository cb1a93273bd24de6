"""Why a transaction lost, in words."""

from groupcert.certifier.core import Certifier, in_words
from groupcert.certifier.position import position_of
from groupcert.certifier.records import Conflict, Transaction
from tests.certifier.histories import GROUP, options


def conflict() -> Conflict:
    """Returns the conflict of a transaction that came second."""
    certifier = Certifier(options())
    certifier.certify(Transaction(position_of(7, 2), "m2", 0, [0xAB]))
    lost = certifier.certify(Transaction(position_of(9, 0), "m1", 0, [0xAB])).conflict
    assert lost is not None
    return lost


def test_a_conflict_names_the_item_the_winner_and_both_places() -> None:
    assert conflict() == Conflict(
        item=0xAB,
        winner_version=1,
        winner_gtid=conflict().winner_gtid,
        winner_origin="m2",
        winner_position=position_of(7, 2),
        snapshot_version=0,
        position=position_of(9, 0),
    )


def test_the_sentence_has_the_row_where_its_key_is_known() -> None:
    assert in_words(conflict(), "shop.orders/PRIMARY/42") == (
        f"shop.orders/PRIMARY/42 was written first by {GROUP}:1 from m2 (version 1, log 7); this "
        "transaction read version 0 and would have passed from version 1 on"
    )


def test_the_sentence_has_the_hash_where_the_key_is_not_known() -> None:
    assert in_words(conflict()).startswith("item 00000000000000ab was written first by ")
