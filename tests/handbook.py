"""The operator's handbook, `deploy/README.md`: its commands by heading, those of other READMEs by
label, and a shell that runs them.

The rule it keeps: what is run is what is written, but for the names of this machine (addresses,
ports, projects), which a test puts in their place.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.sources import ROOT

HANDBOOK = ROOT / "deploy" / "README.md"
SECONDS_MAX = 300


def commands_under(heading: str) -> str:
    """Returns the one block of commands under a heading, at whatever level it stands.

    Raises:
        ValueError: There is not one block.
    """
    (text,) = blocks_by_heading()[heading]
    return text


def blocks_by_heading() -> dict[str, list[str]]:
    """Returns the blocks of commands, by the heading that they stand under."""
    parts = re.split(r"^#+ (.+)$", HANDBOOK.read_text(), flags=re.MULTILINE)[1:]
    return {
        heading: re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }


def labelled_block(readme: str, label: str) -> str:
    """Returns the block of commands of a README that has a label behind its fence."""
    text = (ROOT / readme).read_text()
    (block,) = re.findall(rf"^```sh {label}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert isinstance(block, str)
    return block


def put(text: str, put_in: Mapping[str, str]) -> str:
    """Returns commands with what is of this machine in the place of what is written, all of it."""
    for written, here in put_in.items():
        assert written in text, f"{written} is not in {text}"
        text = text.replace(written, here)
    return text


def run_commands(
    text: str,
    folder: Path,
    *,
    put_in: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Runs commands in a folder as a shell does, up to the first that fails; returns what they
    print.

    Args:
        put_in: Texts of the handbook, and what is to be there instead; each is there.
    """
    text = put(text, put_in or {})
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", text],
        cwd=folder,
        env={**os.environ, **(environment or {}), "PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout
