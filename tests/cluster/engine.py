"""The container engine and the machine's network, as commands."""

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from shutil import which

from tests.commands import SECONDS_MAX, CommandFailed, run

BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
TOOLS = ("docker", "iptables", "mount", "umount")


def try_run(*command: str) -> None:
    """Runs a command that may as well have nothing to do."""
    subprocess.run(command, capture_output=True, check=False, timeout=SECONDS_MAX)


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
    except CommandFailed:
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
    except CommandFailed as error:
        return str(error)
    return ""


def containers(*filters: str) -> Sequence[str]:
    """Names of the containers, running or not, that match all filters of `docker ps`."""
    options = [f"--filter={each}" for each in filters]
    return docker("ps", "--all", "--format={{.Names}}", *options).split()
