"""A short run of the fuzzer: it finds nothing in this tree, and finds members that are broken.

`python -m tests.fuzz` runs as its own process, as a developer starts it. Each commit has a seed of
its own, which is printed.
"""

from pathlib import Path

import pytest

from tests import turns
from tests.laboratory.mutants import environment_of, run_program

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

HELD_MS_MAX = 1_000
"""Other tests run beside: with what they take, a wait of 250 ms is nothing that the member does."""
SECONDS = 12
"""On each order, which has one of the transports; `make nightly` has an hour of both on each."""


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
    limit = ("--held-ms", str(HELD_MS_MAX))
    code, text = run_program(tmp_path, "tests.fuzz", *arguments, *limit)
    wrong = [line for line in text.splitlines() if line.startswith(("WRONG", "again"))]
    assert code == 0, "\n".join(wrong) or text
    assert f"seed {seed}, {order}, {transport}" in text


@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        pytest.param("hold", "its event loop was", marks=pytest.mark.in_turns),
        pytest.param("end", "ended with 70", marks=pytest.mark.nightly),
        pytest.param("keep", "grew from", marks=pytest.mark.nightly),
        pytest.param("raise", "ZeroDivisionError: on purpose", marks=pytest.mark.nightly),
    ],
)
def test_a_member_that_does_what_none_may_is_found(tmp_path: Path, mutant: str, words: str) -> None:
    seconds = "60" if mutant == "keep" else "12"  # It grows for as long as it is asked.
    arguments = ("--seconds", seconds, "--seed", "1", "--transport", "plain")
    environment = environment_of("tests.fuzz.mutants", mutant)
    code, text = run_program(tmp_path, "tests.fuzz", *arguments, environment=environment)
    assert code == 1, text
    assert words in text, text
    assert (
        f"again: python -m tests.fuzz --seed 1 --seconds {seconds} --order nats --transport plain"
        in text
    )
