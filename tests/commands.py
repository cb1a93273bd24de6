"""Commands that tests run: `groupcert`, and others that have to end well."""

import os
import subprocess
import sys
from pathlib import Path

from tests.sources import ROOT

SECONDS_MAX = 600
LINES_MAX = 20


class CommandFailed(Exception):
    """A command did not do what it was asked for; the text has it and the last that it said."""


def groupcert(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs the command as its users do."""
    return subprocess.run(
        [sys.executable, "-m", "groupcert.members", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def run(*command: str, folder: Path = ROOT) -> str:
    """Returns what a command in the tree's folder prints on standard output.

    Raises:
        CommandFailed: It is missing, ended with an error, or took too long.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{' '.join(command)}: {error}") from None
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-LINES_MAX:])
        raise CommandFailed(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout
