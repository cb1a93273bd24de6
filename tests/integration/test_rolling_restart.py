"""`groupcert group restart` on real processes: three log servers, three members, clients at all."""

import sys
from collections.abc import Iterator

import pytest

from groupcert.members.commands import cli
from tests.laboratory.watched_clients import WatchedClients
from tests.operated_group import Operated, operated_group

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.in_turns]

ANSWERS = 20


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """A group whose processes a command restarts."""
    with operated_group(tmp_path_factory.mktemp("operated")) as operated:
        yield operated


def restart(operated: Operated, *words: str) -> int:
    """The exit code of the verb, run in this process."""
    address = ",".join(operated.group.addresses.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["groupcert", "group", "restart", address, *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    return int(caught.value.code or 0)


def test_the_steps_can_be_seen_before(
    operated: Operated, capfd: pytest.CaptureFixture[str]
) -> None:
    assert restart(operated, "--run", "restart {name}", "--dry-run") == 0
    lines = capfd.readouterr().out.splitlines()
    led = operated.logs.leader()
    followers = [name for name in operated.logs.names if name != led]
    names = [*followers, led, *operated.group.names]
    kinds = ["log server"] * 3 + ["member"] * 3
    steps = [f"{kind} {name}: restart {name}" for kind, name in zip(kinds, names, strict=True)]
    assert lines == [*steps, "nothing was restarted"]
    assert operated.restarted == []


def test_a_command_that_fails_ends_it(
    operated: Operated, capfd: pytest.CaptureFixture[str]
) -> None:
    assert restart(operated, "--run", "false {name}", "--only", "members") == 1
    text = "member m1: the command ended with 1; look at it, nothing more is restarted"
    assert text in capfd.readouterr().err


def test_a_member_that_is_not_back_ends_it(
    operated: Operated, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing has restarted it: the whole group is no proof."""
    assert restart(operated, "--run", "true {name}", "--only", "members") == 1
    assert "member m1 is the run that it was" in capfd.readouterr().err


def test_no_client_gets_an_error_while_every_process_is_restarted(operated: Operated) -> None:
    with WatchedClients(list(operated.group.addresses.values())) as clients:
        clients.wait_for_answers(ANSWERS)
        assert restart(operated, "--run", operated.command) == 0
        clients.wait_for_answers(ANSWERS)
    assert clients.errors == []
    assert sorted(operated.restarted[:3]) == list(operated.logs.names)
    assert operated.restarted[3:] == list(operated.group.names)
