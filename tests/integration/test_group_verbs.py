"""The verbs of `groupcert` at a running group: what is typed, and what is answered."""

import json
import socket
from pathlib import Path

import pytest

from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST
from groupcert.v1 import group_pb2
from tests.datadriven import Command, run_script
from tests.integration.test_interruption import INTERRUPTED, press_ctrl_c, running
from tests.integration.waiting import wait_for
from tests.transcripts import FOLDER, Terminal

SCRIPTS = sorted((FOLDER / "group").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_group_answers_as_the_transcript_says(
    path: Path,
    group: LocalGroup,
    rewrite: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {**group.addresses, "log": group.log_server.address}
    terminal = Terminal(tmp_path, monkeypatch, capsys, names)
    view_id = group.status("m1").view_id

    def changes_of_view(_: Command) -> str:
        """changes_of_view: how many there were since the script began."""
        return str(group.status("m1").view_id - view_id)

    def wait_left(command: Command) -> str:
        """wait_left member=: until it has left, and knows that."""
        member = str(command.take("member")[0])

        def is_out() -> bool:
            view = [each.name for each in group.status("m1").members]
            state = group.status(member).observer.state
            return member not in view and state == group_pb2.MEMBER_STATE_LEFT

        wait_for("a leave", is_out)
        return ""

    def wait_online(_: Command) -> str:
        """wait_online: until all members are."""
        group.wait_online()
        return ""

    more = {each.__name__: each for each in (changes_of_view, wait_left, wait_online)}
    run_script(path, terminal.handlers | more, rewrite=rewrite)


def test_a_status_that_waits_is_interrupted(tmp_path: Path) -> None:
    """Somebody listens, and never says anything."""
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        with running(tmp_path, "status", address, "--json") as status:
            with silent.accept()[0]:
                error = json.loads(press_ctrl_c(status))["error"]
            assert status.returncode == INTERRUPTED
    assert error["reason"] == "INTERRUPTED"
