"""A short run of the fuzzer: it finds nothing in this tree, and finds members that are broken.

`python -m tests.fuzz` runs as its own process, as a developer starts it. Each commit has a seed of
its own, which is printed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import turns
from tests.fuzz.breakages import BREAKAGE_VARIABLE

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

HELD_MS_MAX = 1_000
"""Other tests run beside: with what they take, a wait of 250 ms is nothing that the member does."""
SECONDS = 12
"""On each order, which has one of the transports; `make nightly` has an hour of both on each."""


def fuzz(folder: Path, *arguments: str, breakage: str = "") -> tuple[int, str]:
    """Runs the command with its files in a folder; returns its exit code, and what it printed."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    if breakage:
        environment[BREAKAGE_VARIABLE] = breakage
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("order", "transport"),
    [
        ("nats", "plain"),
        pytest.param("etcd", "tls", marks=[pytest.mark.etcd, pytest.mark.in_turns]),
    ],
)
def test_a_short_run_finds_nothing(tmp_path: Path, order: str, transport: str) -> None:
    seed = turns.drawn()
    drawn = ("--seconds", str(SECONDS), "--seed", str(seed))
    arguments = (*drawn, "--order", order, "--transport", transport)
    code, text = fuzz(tmp_path, *arguments, "--held-ms", str(HELD_MS_MAX))
    wrong = [line for line in text.splitlines() if line.startswith(("WRONG", "again"))]
    assert code == 0, "\n".join(wrong) or text
    assert f"seed {seed}, {order}, {transport}" in text


@pytest.mark.parametrize(
    ("breakage", "words"),
    [
        pytest.param("hold", "its event loop was", marks=pytest.mark.in_turns),
        pytest.param("end", "ended with 70", marks=pytest.mark.nightly),
        pytest.param("keep", "grew from", marks=pytest.mark.nightly),
        pytest.param("raise", "ZeroDivisionError: on purpose", marks=pytest.mark.nightly),
    ],
)
def test_a_member_that_does_what_none_may_is_found(
    tmp_path: Path, breakage: str, words: str
) -> None:
    seconds = "60" if breakage == "keep" else "12"  # It grows for as long as it is asked.
    arguments = ("--seconds", seconds, "--seed", "1", "--transport", "plain")
    code, text = fuzz(tmp_path, *arguments, breakage=breakage)
    assert code == 1, text
    assert words in text, text
    assert (
        f"again: python -m tests.fuzz --seed 1 --seconds {seconds} --order nats --transport plain"
        in text
    )
