"""The durations of tests that are in the tree are those of its tests."""

import json

from tests.durations import RESULTS, is_there


def test_the_slowest_tests_are_there() -> None:
    names = [name for each in json.loads(RESULTS.read_text()).values() for name in each["slowest"]]
    assert [name for name in names if not is_there(name)] == [], "make durations, or drop them"
