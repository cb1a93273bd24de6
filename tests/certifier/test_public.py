"""What the certifier offers to builders of engines."""

import pytest

import groupcert.certifier
from groupcert.certifier import Certifier, CertifierOptions, Transaction, Verdict, store_key_item

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_an_engine_certifies_with_public_names_alone() -> None:
    certifier = Certifier(CertifierOptions(group_source=GROUP))
    row = [store_key_item(b"account/1")]
    first = certifier.certify(Transaction(1, "m1", 0, row))
    second = certifier.certify(Transaction(2, "m2", 0, row))
    assert (first.verdict, str(first.gtid)) == (Verdict.CERTIFIED, f"{GROUP}:1")
    assert second.verdict is Verdict.CONFLICT
    assert second.conflict is not None
    assert second.conflict.winner_gtid == first.gtid


def test_every_name_is_there_and_no_other() -> None:
    for name in groupcert.certifier.__all__:
        assert getattr(groupcert.certifier, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Store'"):
        groupcert.certifier.Store  # type: ignore[attr-defined]  # noqa: B018
