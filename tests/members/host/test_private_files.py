"""What others on the machine may read: found by its permissions, and mended by the command told."""

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert.members.host.private_files import exposed, keep_private


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody gets to; those of pytest are in one that is its user's alone."""
    made = Path(tempfile.mkdtemp(prefix="groupcert test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_files_that_are_made_from_then_on_are_their_users_alone(tmp_path: Path) -> None:
    keep_private()
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("password")
    subprocess.run(["touch", str(tmp_path / "of-a-child")], check=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"folder": 0o700, "file": 0o600, "of-a-child": 0o600}


@pytest.mark.parametrize(
    ("mode", "who"),
    [(0o755, "everybody"), (0o701, "everybody"), (0o750, "group "), (0o700, None)],
)
def test_a_folder_is_named_with_the_command_that_mends_it(
    folder: Path, mode: int, who: str | None
) -> None:
    (folder / "rows").write_text("rows")
    (folder / "rows").chmod(0o644)
    folder.chmod(mode)
    said: list[str] = []
    keep_private([folder, None, folder / "absent"], said.append)
    assert len(said) == (who is not None)
    for text in said:
        assert text.startswith(who or "") and str(folder) in text
        subprocess.run(text.rpartition(": ")[2], shell=True, check=True)
        assert not list(exposed(folder))
        assert (folder / "rows").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_do_not_get_to_is_not_named(folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    assert list(exposed(below))
    folder.chmod(0o700)
    assert not list(exposed(below))


def test_whom_an_access_control_list_names_may_read_new_files_and_is_not_warned_of(
    folder: Path,
) -> None:
    """`setfacl -m u:65534:rX,d:u:65534:rX`, by the system's call: the program is seldom there."""
    folder.chmod(0o700)
    # Owner, user 65534, group, mask, others: their tags, their permissions.
    entries = (
        (1, 7, 2**32 - 1),
        (2, 5, 65534),
        (4, 0, 2**32 - 1),
        (16, 5, 2**32 - 1),
        (32, 0, 2**32 - 1),
    )
    content = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        for name in ("access", "default"):
            os.setxattr(folder, f"system.posix_acl_{name}", content)
    except OSError as error:
        pytest.skip(f"this file system has no access control lists: {error}")
    keep_private()
    (folder / "below").mkdir()
    file = folder / "below" / "rows"
    file.write_text("rows")
    assert not list(exposed(folder))
    if os.geteuid() == 0:
        for user, code in ((65534, 0), (65533, 1)):
            read = subprocess.run(["cat", str(file)], user=user, group=65533, extra_groups=[])
            assert read.returncode == code
