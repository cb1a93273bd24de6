"""From an empty folder to a group that has lost a member and says so, as somebody new does it.

What the steps take together is for the benchmark to judge.
"""

import sys
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.bench.first_hour import SEEN_SECONDS_MAX, measure
from tests.wheels import make_wheels

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.in_turns]


def test_a_new_user_sees_a_killed_member_on_the_console(browser: Chrome, tmp_path: Path) -> None:
    make_wheels(tmp_path / "wheels")
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    (tmp_path / "empty").mkdir()
    seconds = measure(tmp_path / "empty", wheel, browser)
    sys.stderr.write(f"{seconds}\n")
    assert seconds["killed member seen"] <= SEEN_SECONDS_MAX
