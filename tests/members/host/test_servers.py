"""Servers as processes: how they are waited for, what an error says of them, how they end."""

import signal
import sys
from pathlib import Path

import pytest

from groupcert.members.host.servers import (
    NotReady,
    Server,
    ServerMissing,
    program,
    stop_all,
    wait_all_ready,
)

SERVES = "import sys, time; print('serves', *sys.argv[1:], flush=True); time.sleep(600)"
HEEDLESS = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVES}"


def server(folder: Path, text: str = SERVES, *, name: str = "log", seconds: float = 60.0) -> Server:
    """A program that is ready once it has printed so."""

    def serves() -> bool:
        return "serves" in described.said()

    described = Server(
        (sys.executable, "-c", text), folder / name, is_ready=serves, stop_seconds=seconds
    )
    return described


def test_a_block_has_a_server_that_is_ready_and_leaves_none(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        assert running.is_running
        assert running.said() == "serves\n"
        assert running.how_it_ended() == ""
    assert not running.is_running
    assert running.how_it_ended() == "by signal 15"
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_one_that_is_started_again_goes_on_with_its_log_and_is_heard_from_there(
    tmp_path: Path,
) -> None:
    again = server(tmp_path)
    for run in ("first", "second"):
        again.start(run)
        again.wait_ready()
        again.kill()
        assert again.said() == f"serves {run}\n"
    assert (tmp_path / "log").read_text() == "serves first\nserves second\n"
    assert again.how_it_ended() == "by signal 9"


def test_one_that_ends_in_place_of_serving_is_told_with_its_last_words(tmp_path: Path) -> None:
    ends = server(tmp_path, "import sys; print('no disk'); sys.exit(3)")
    with pytest.raises(NotReady, match=r"ended with exit status 3; .* ends with:\nno disk"), ends:
        raise AssertionError("it serves")
    assert ends.last_line() == "no disk"


def test_one_that_ended_is_told_although_it_was_ready_and_others_are_waited_for(
    tmp_path: Path,
) -> None:
    first, never = server(tmp_path), server(tmp_path, name="other")
    never.is_ready = lambda: first.kill() if first.is_running else None
    first.start()
    never.start()
    with pytest.raises(NotReady) as failure:
        wait_all_ready([first, never])
    assert failure.value.server is first
    stop_all([first, never])
    assert not never.is_running


def test_one_that_is_not_ready_in_time_is_told(tmp_path: Path) -> None:
    late = server(tmp_path)
    late.is_ready, late.start_seconds = lambda: False, 0.0
    with pytest.raises(NotReady, match="is not ready in time"), late:
        raise AssertionError("it serves")
    assert not late.is_running


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with server(tmp_path, HEEDLESS, seconds=0.1) as heedless:
        pass
    assert heedless.poll() == -signal.SIGKILL


def test_one_that_never_started_is_stopped_without_a_word(tmp_path: Path) -> None:
    idle = server(tmp_path)
    assert idle.stop() is None
    idle.kill()
    assert not idle.is_running and idle.last_line() == "its log is empty"


def test_a_program_that_is_not_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool").touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program("tool", server="Tool", advice="get it") == str(tmp_path / "tool")
    with pytest.raises(ServerMissing, match="no Tool here: get it"):
        program("no-such-tool", server="Tool", advice="get it")
