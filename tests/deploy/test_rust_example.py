"""The example in Rust is compiled from the contract, and does at a real group what it promises.

It needs cargo, and crates from wherever cargo is set up to get them: skipped where there are none,
unless `REQUIRE_RUST=1`. `make nightly` runs it: its crates compile for too long for every run.
"""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from groupcert import Client
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from groupcert.v1.admin_pb2 import SwitchModeRequest
from groupcert.v1.admin_pb2_grpc import AdminServiceStub
from tests.integration.waiting import wait_for
from tests.sources import ROOT

pytestmark = [
    pytest.mark.nats,
    pytest.mark.cluster,
    pytest.mark.nightly,
    pytest.mark.timeout(1_500),  # It compiles 140 crates.
]

EXAMPLE = ROOT / "deploy/examples/rust"
TARGET = ROOT / ".build/examples/rust"
RUN_SECONDS = 120


@pytest.fixture(scope="module")
def transfer() -> Path:
    """The compiled example."""
    cargo = shutil.which("cargo") or missing("cargo is not installed")
    needed = tomllib.loads((EXAMPLE / "Cargo.toml").read_text())["package"]["rust-version"]
    found = subprocess.run([cargo, "--version"], capture_output=True, text=True)
    numbers = re.match(r"cargo (\d+)\.(\d+)", found.stdout)
    if numbers is None or [*map(int, numbers.groups())] < [*map(int, needed.split("."))]:
        missing(f"cargo {needed} is needed, found {found.stdout or found.stderr}")
    manifest = f"--manifest-path={EXAMPLE / 'Cargo.toml'}"
    fetched = subprocess.run([cargo, "fetch", manifest], capture_output=True, text=True)
    if fetched.returncode:
        missing(f"cargo gets no crates: {fetched.stderr}")
    command = [cargo, "build", "--quiet", "--offline", manifest, f"--target-dir={TARGET}"]
    subprocess.run(command, check=True)
    return TARGET / "debug" / "transfer"


def missing(reason: str) -> str:
    """Skips, or fails where the example must be tried."""
    assert os.environ.get("REQUIRE_RUST") != "1", reason
    pytest.skip(reason)


@pytest.fixture(scope="module")
def group(transfer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Two members, once the example is there."""
    with LocalGroup(tmp_path_factory.mktemp("group"), members=2) as group:
        yield group


def printed_by(transfer: Path, *addresses: str) -> list[str]:
    """Returns the lines that a run prints."""
    command = [str(transfer), *addresses]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_conflict(line: str, next_line: str, winner: str) -> None:
    """Checks what a run prints of the transaction that it had lose."""
    assert line == "REASON_CERTIFICATION_CONFLICT RETRY_ADVICE_BEGIN_AGAIN"
    assert re.fullmatch(rf"account/1 lost to [0-9a-f-]{{36}}:\d+ of ({winner})", next_line)


def test_clients_transfer_at_all_members_and_lose_nothing(
    transfer: Path, group: LocalGroup
) -> None:
    nobody = f"{HOST}:{free_port()}"
    first, second, *advised, one, two = printed_by(transfer, nobody, *group.addresses.values())
    check_conflict(first, second, "m1|m2")
    assert {line.split()[0] for line in advised} >= {
        "RETRY_ADVICE_BEGIN_AGAIN",
        "RETRY_ADVICE_OTHER_MEMBER",  # Nobody answers at the first address.
    }
    assert (one, two) == ("account/1 100", "account/2 100")


def test_a_member_that_is_not_the_primary_sends_clients_there(
    transfer: Path, group: LocalGroup
) -> None:
    with grpc.insecure_channel(group.addresses["m1"]) as channel:
        request = SwitchModeRequest(single_primary=True, primary="m2")
        assert AdminServiceStub(channel).SwitchMode(request, timeout=60).primary == "m2"
    with Client(group.addresses["m1"]) as client:
        wait_for("m1 to know the primary", lambda: client.status().primary == "m2")
        # All that it is given is the member that takes no transactions.
        first, second, *advised, one, two = printed_by(transfer, group.addresses["m1"])
        check_conflict(first, second, "m2")
        assert "RETRY_ADVICE_OTHER_MEMBER" in {line.split()[0] for line in advised}
        assert (one, two) == ("account/1 100", "account/2 100")
