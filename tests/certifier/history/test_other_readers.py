"""The README's reader of a chain in another language: right rows fit, and one that is changed is
named.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.audit.histories import Workload, random_order, rows_of
from tests.certifier.history.chained_json import JsonValue, as_json

README = Path(__file__).parents[3] / "certifier" / "history" / "README.md"
NODE = shutil.which("node")
WORKLOAD = Workload(transactions=200, read_share=0.5)


@pytest.mark.skipif(NODE is None, reason="there is no node")
def test_a_chain_is_read_in_another_language(tmp_path: Path) -> None:
    (tmp_path / "verify.mjs").write_text(block("js chain"))
    shown = [json.loads(line) for line in block("json").splitlines()]
    assert read(tmp_path, shown) == (0, f"{len(shown)} rows fit the chain")
    made = rows_of(random_order(1, WORKLOAD), "m1", WORKLOAD)
    made[5]["write_keys"] = ["\N{GRINNING FACE}", "a,b"]
    rows = list(as_json(made))
    assert read(tmp_path, rows) == (0, f"{len(rows)} rows fit the chain")
    rows[7] |= {"decided_us": f"{rows[7]['decided_us']}0"}
    assert read(tmp_path, rows) == (1, "row 8 does not fit the chain")


def block(kind: str) -> str:
    """The one block of a kind in the README."""
    text = README.read_text()
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found)


def read(folder: Path, rows: list[dict[str, JsonValue]]) -> tuple[int, str]:
    """What the reader says of rows, and its exit code."""
    assert NODE
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    command = [NODE, str(folder / "verify.mjs")]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.strip() or done.stderr
