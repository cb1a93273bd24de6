"""Textbook anomalies, written by hand: each gives its finding, with a witness in words.

Source: Adya, "Weak Consistency", 1999; Berenson and others, "A Critique of ANSI SQL Isolation
Levels", 1995; Kingsbury and Alvaro, "Elle", 2020.
"""

import re
from pathlib import Path

import pytest

from tests.datadriven import Command, run_script
from tests.laboratory.append import has_write_skew
from tests.laboratory.breakages import MUTANTS
from tests.laboratory.check import check_history
from tests.laboratory.findings import CODES
from tests.laboratory.history import Workload
from tests.laboratory.written_histories import written_history

SCRIPTS = sorted((Path(__file__).parent.parent / "testdata" / "laboratory").glob("*.txt"))
AGREEMENT_TESTS = Path(__file__).with_name("test_agreement.py")


def check(command: Command) -> str:
    """Checks a history: `check kind=append serializable`."""
    serializable, kind = command.take("serializable", "kind")
    workload = Workload(kind or "append", serializable is not None)
    history = written_history(workload, command.body)
    lines = list(map(str, check_history(history)))
    if (
        workload.kind == "append"
        and not workload.serializable
        and has_write_skew(history, workload)
    ):
        lines.append("write skew is there, and allowed")
    return "\n".join(lines) or "nothing"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_gives_its_answers(path: Path, rewrite: bool) -> None:
    run_script(path, {"check": check}, rewrite=rewrite)


def test_every_finding_is_proved_to_be_found() -> None:
    proved = {code for breakage in MUTANTS.values() for code in breakage.found}
    texts = [path.read_text() for path in SCRIPTS]
    proved |= {code for text in texts for code in re.findall(r"^([\w-]+): ", text, re.M)}
    proved |= set(re.findall(r'"([\w-]+)"', AGREEMENT_TESTS.read_text()))
    assert not CODES.keys() - proved
