"""Classes of transactions: bounds, and what is not known."""

import polars as pl
import pytest

from groupcert.certifier.audit.profile import classes


def test_classes_that_are_too_many_are_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "CLASSES_MAX", 1)
    numbers = {name: [3, 5, 4] for name in ("aborted", "timed", "work_us")}
    counts = pl.DataFrame({"name": ["a", "b", None], "count": [3, 5, 4], **numbers})
    assert classes.most_used(counts).rows() == [("b", 5, 5, 5, 5), (classes.OTHERS, 7, 7, 7, 7)]


def test_time_that_a_class_wasted_is_not_known_without_times() -> None:
    unknown = classes.Class(None, 9, 2, 0, 0)
    assert unknown.wasted_us is None
    assert classes.ranked([unknown], 5)["wasted_us"] is None
    assert classes.Class("t", 9, 0, 0, 0).wasted_us == 0
