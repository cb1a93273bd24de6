"""Waits and epochs of a few rows, by hand."""

import numpy as np

from groupcert.certifier.audit.rows.critical_path import epochs, filled, waits


def test_waits_know_resets_and_those_that_run_alone() -> None:
    numbers, alone = np.array([2, 3, 0, 4, 2, 3]), np.array([0, 0, 1, 0, 0, 0], dtype=bool)
    assert filled(numbers).tolist() == [2, 3, 3, 4, 2, 3]
    waited = waits(filled(numbers), np.array([1, 2, 0, 1, 1, 1]), alone)
    assert waited.tolist() == [0, 1, 2, 3, 4, 4]
    assert epochs(waited, ~alone) == 4
