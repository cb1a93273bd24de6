"""The container engine and the machine's network, as commands."""

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from shutil import which

COMMAND_SECONDS_MAX = 300
BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
TOOLS = ("docker", "iptables", "mount", "umount")


class EngineFailed(Exception):
    """A command did not do what it was asked for; the text has it and the last that it said."""


def run(*command: str, seconds_max: float = COMMAND_SECONDS_MAX, cwd: Path | None = None) -> str:
    """What a command prints on standard output.

    Raises:
        EngineFailed: It is missing, ended with an error, or took too long.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds_max, check=False, cwd=cwd
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineFailed(f"{' '.join(command)}: {error}") from None
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise EngineFailed(f"{' '.join(command)} ended with {done.returncode}: {said}")
    return done.stdout


def try_run(*command: str) -> None:
    """Runs a command that may as well have nothing to do."""
    subprocess.run(command, capture_output=True, check=False, timeout=COMMAND_SECONDS_MAX)


def docker(*arguments: str) -> str:
    """What `docker` answers."""
    return run("docker", *arguments)


def iptables(*arguments: str) -> str:
    """What `iptables` answers, once nobody else changes its tables."""
    return run("iptables", "--wait", *arguments)


@cache
def compose_command() -> tuple[str, ...]:
    """Compose, the plug-in or the program."""
    try:
        docker("compose", "version")
    except EngineFailed:
        return ("docker-compose",)
    return ("docker", "compose")


def missing() -> str:
    """What this machine lacks to run containers and to break their network; empty: nothing."""
    lacking = [tool for tool in TOOLS if which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    try:
        docker("info", "--format", "{{.ServerVersion}}")
        run(*compose_command(), "version")
        iptables("--list-rules", "DOCKER-USER")
    except EngineFailed as error:
        return str(error)
    return ""


def containers(*filters: str) -> Sequence[str]:
    """Names of the containers, running or not, that match all filters of `docker ps`."""
    options = [f"--filter={each}" for each in filters]
    return docker("ps", "--all", "--format={{.Names}}", *options).split()
