"""Locks of folders: taken once, and where a file system has none, not taken for another process."""

from pathlib import Path

import pytest

from groupcert.members.host.file_lock import lock
from tests.lockless import python_without_locks

CASES = {
    "a log server": """
from groupcert.members.total_order.embedded_server import LogServer
act = LogServer(folder).start
""",
    "a group": """
from groupcert.members.demo.lasting_group import alone_in
act = alone_in(folder).__enter__
""",
    "a group's end": """
from groupcert.members.demo.lasting_group import take_down
(folder / "up.lock").touch()
act = lambda: take_down(folder)
""",
    "an export": """
from groupcert.members.certification_log.export_folder import locked_work_folder
act = locked_work_folder(folder, "m1").__enter__
""",
    "a rebuild": """
from groupcert.members.rebuild.holding import holding
(folder / "rocksdb").mkdir()
(folder / "rocksdb" / "LOCK").touch()
act = holding(folder, lambda entries: None).__enter__
""",
}
"""What locks a folder of its own, by what it is."""


def test_a_lock_is_taken_once(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open("w") as other:
        assert lock(one, tmp_path)
        assert not lock(other, tmp_path)
    with (tmp_path / "lock").open("w") as other:
        assert lock(other, tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_a_folder_on_a_file_system_without_locks_is_no_folder_in_use(
    case: str, tmp_path: Path
) -> None:
    said = python_without_locks(_LOCKING.format(act=CASES[case]), str(tmp_path))
    assert said.startswith("INVALID_SETTING: setting folder is ")
    assert str(tmp_path) in said and "with locks" in said and "(No locks available)" in said


_LOCKING = """
import sys
from pathlib import Path
from groupcert.certifier.errors import GroupcertError
folder = Path(sys.argv[1])
{act}
try:
    act()
except GroupcertError as error:
    sys.stdout.write(f"{{error.reason}}: {{error}}")
"""
