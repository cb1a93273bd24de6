"""A command in a process of its own, where it cannot be started."""

import tempfile
from pathlib import Path

import pytest

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.demo.command_process import FOLDER_BYTES_MAX, CommandProcess


def test_a_folder_whose_sockets_have_too_long_paths_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * FOLDER_BYTES_MAX)
    with pytest.raises(InvalidSetting, match=f"TMPDIR.*{FOLDER_BYTES_MAX} bytes"):
        CommandProcess(["--version"], tmp_path / "log").start()
