"""Tells where members and servers of a lasting group are now, by the folder in which it is up.

A verb that is given no address goes by it. `group.json` has the ports of the first start; where
others listen today the members are elsewhere, and a verb would change another group than the one
that is meant. So each start says where it is in `up.json`, which counts while `up.lock` is held.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ...certifier.errors import InvalidSetting
from ..errors.usage import NothingUp
from ..host.file_lock import lock

DEFAULT_FOLDER = Path(".groupcert")
GROUP_FILE, LOCK_FILE, RUNNING_FILE = "group.json", "up.lock", "up.json"
UP_LOG = "up.log"
"""What a group in the background says."""


def has_group(folder: Path) -> bool:
    """Returns whether a folder is that of a lasting group, up or not."""
    return (folder / GROUP_FILE).is_file()


def members_up_in(folder: Path) -> dict[str, str]:
    """Returns the addresses of the members that are up in a folder, by name.

    Raises:
        InvalidSetting: It is no folder of a lasting group.
        NothingUp: That group is down, or begins to start.
    """
    return dict(_up_in(folder)["members"])


def servers_up_in(folder: Path) -> dict[str, str]:
    """Returns the DSNs of the PostgreSQL servers that are up in a folder, by member.

    Raises:
        InvalidSetting: It is no folder of a lasting group, or of one without such servers.
        NothingUp: That group is down, or begins to start.
    """
    if servers := _up_in(folder).get("postgresql"):
        return dict(servers)
    expected = "a folder of `groupcert up --postgresql`"
    raise InvalidSetting(name="--data-folder", value=str(folder), expected=expected)


def _up_in(folder: Path) -> Any:
    """Returns the places of the group that is up in a folder. Raises as `members_up_in`."""
    if not has_group(folder):
        expected = "a folder of `groupcert up`"
        raise InvalidSetting(name="--data-folder", value=str(folder), expected=expected)
    with suppress(FileNotFoundError), (folder / LOCK_FILE).open() as file:
        if is_held(file, folder):
            return json.loads((folder / RUNNING_FILE).read_text())
    raise NothingUp(folder=str(folder))


def is_held(file: IO[str], folder: Path) -> bool:
    """Returns whether the process of a lasting group holds its lock.

    Who asks holds the lock with others who ask, until the file is closed: so none of them takes
    another one for a group.
    """
    return not lock(file, folder, shared=True)
