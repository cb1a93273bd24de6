"""A group that lasts, on this machine: `groupcert up` starts it in a folder, and starts it again.

What was chosen at the first start stands in the folder's `group.json`: names, addresses, log
servers. A program has a folder alone while it holds the folder's lock, and its process id is in
that file: so `groupcert down` never asks another process to end.
"""

import itertools
import json
import os
import secrets
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from ...certifier.errors import InvalidSetting
from ..host.file_lock import lock
from ..host.loopback import HOST, claim
from .local_group import LocalGroup
from .running_group import GROUP_FILE, LOCK_FILE, RUNNING_FILE, UP_LOG, is_held

LOG_PORT, MEMBER_PORT, CONSOLE_PORT, POSTGRESQL_PORT = 7100, 7101, 7180, 15431
"""Where the log server, the first member, its console and its PostgreSQL server are, unless others
listen there.
"""
TABLES = ("public.*",)
PASSWORD_BYTES = 16
MEMBERS = 3
RESTART_SECONDS = 10.0
"""A member or a PostgreSQL server that ended by itself is started again so much later."""
POLL_SECONDS = 0.1
ALONE_SECONDS_MAX = 0.5
"""More than somebody who looks whether a group is up has its folder's lock."""
DOWN_SECONDS_MAX = 120.0
"""More than members and log server take to end, with all the limits of their steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the parts of a group are. Where `log_servers` is empty, it has a log server of its own
    on `log_port`; where `postgresql` has the DSN of a server for each member, these keep the rows,
    of tables that match `tables`.
    """

    group: str
    members: Mapping[str, str]
    consoles: Mapping[str, str]
    log_servers: tuple[str, ...] = ()
    log_port: int = 0
    postgresql: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Returns the places of the folder's group, if there is one.

        Raises InvalidSetting: the folder has something else.
        """
        try:
            values = json.loads((folder / GROUP_FILE).read_text())
            tuples = {name: tuple(values.get(name, ())) for name in ("log_servers", "tables")}
            return cls(**{**values, **tuples})
        except FileNotFoundError:
            if folder.is_dir() and {each.name for each in folder.iterdir()} - {LOCK_FILE, UP_LOG}:
                raise _not_a_group(folder) from None
            return None
        except (ValueError, KeyError, TypeError, AttributeError, NotADirectoryError):
            raise _not_a_group(folder) from None

    def write(self, path: Path) -> None:
        """Puts them into a file, whole or not at all."""
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(asdict(self), indent=2) + "\n")
        new.replace(path)


def places_of(
    folder: Path,
    *,
    group: str | None,
    members: int | None,
    log_servers: tuple[str, ...],
    postgresql: bool = False,
    tables: tuple[str, ...] = (),
) -> Places:
    """Returns where a group is now: where its folder has it, or else at the default ports; where
    others listen, at the next free ones. The folder keeps the first choice, and has both.

    Args:
        postgresql: PostgreSQL servers keep the rows of its members.
        tables: Patterns of the tables that are attached there; none: `TABLES`.

    Raises InvalidSetting: the folder has another group, one on another log, or one whose rows are
        elsewhere; or one with PostgreSQL servers is to have another number of them.
    """
    before = Places.read(folder)
    if before is not None:
        _check_same(group or before.group, before.group, "--group")
        _check_same(log_servers or before.log_servers, before.log_servers, "--log-server")
        _check_same(postgresql or bool(before.postgresql), bool(before.postgresql), "--postgresql")
        _check_same(tables or before.tables, before.tables, "--tables")
        servers = len(before.postgresql)
        if servers:  # A new one has to join, which takes a group that runs.
            _check_same(members or servers, servers, "--members")
    else:
        before = Places(
            group=group or "local",
            members={},
            consoles={},
            log_servers=log_servers,
            tables=(tables or TABLES) if postgresql else (),
        )
    count = members or len(before.members) or MEMBERS
    names = [f"m{number}" for number in range(1, count + 1)]
    taken: set[int] = set()
    places = replace(
        before,
        log_port=_next_free(before.log_port or LOG_PORT, taken),
        members=_addresses(names, before.members, MEMBER_PORT, taken),
        consoles=_addresses(names, before.consoles, CONSOLE_PORT, taken),
        postgresql=_servers(names, before.postgresql, taken) if before.tables else {},
    )
    first_choice = replace(
        before,
        log_port=before.log_port or places.log_port,
        members={**places.members, **before.members},
        consoles={**places.consoles, **before.consoles},
        postgresql={**places.postgresql, **before.postgresql},
    )
    first_choice.write(folder / GROUP_FILE)
    places.write(folder / RUNNING_FILE)
    return places


def group_at(folder: Path, places: Places) -> LocalGroup:
    """Returns the group, not started yet."""
    settings: dict[str, object] = {"group": places.group}
    if places.log_servers:
        settings |= {"log_servers": places.log_servers, "log_monitors": ()}
    options: dict[str, Any] = {
        "addresses": places.members,
        "log_port": places.log_port,
        "settings": settings,
        "trims_log": True,
        "own_settings": {
            name: {"metrics_address": console} for name, console in places.consoles.items()
        },
    }
    if not places.postgresql:
        return LocalGroup(folder, **options)
    from .postgresql_servers import GroupAtServers, Primary  # Needs psycopg.

    flags = f"groupcert.ddl_flags=--data-folder {shlex.quote(str(folder.absolute()))}"
    primaries = [
        Primary(name, folder, flags, port=_port_of(dsn), password=urlsplit(dsn).password)
        for name, dsn in places.postgresql.items()
    ]
    return GroupAtServers(primaries, folder, schema="", tables=places.tables, **options)


def keep_up(group: LocalGroup, tell: Callable[[str], None]) -> None:
    """Starts again what ends by itself, all but the log server after `RESTART_SECONDS`, until it is
    interrupted; `tell` gets a line about each.
    """
    due: dict[str, float] = {}
    while True:
        time.sleep(POLL_SECONDS)
        if group.has_log_server and (done := group.log_server.mend()):
            tell(f"the log server {done}")
        servers = group.servers
        for name, server in servers.items():
            if name not in due and (how := server.how_it_ended()):
                due[name] = time.monotonic() + RESTART_SECONDS
                tell(
                    f"{name} ended {how}, see {server.log}; "
                    f"it starts again in {RESTART_SECONDS:.0f} s"
                )
        for name in [name for name, at in due.items() if at <= time.monotonic()]:
            try:
                servers[name].start()
            except OSError as error:  # As where the disk is full.
                due[name] = time.monotonic() + RESTART_SECONDS
                tell(
                    f"{name} does not start: {error}; it is tried again in {RESTART_SECONDS:.0f} s"
                )
            else:
                del due[name]
                tell(f"{name} starts again as process {servers[name].pid}")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Has a folder for this process alone, which is made if it is not there.

    Raises InvalidSetting: another process has it, or it cannot be locked.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + ALONE_SECONDS_MAX
    with (folder / LOCK_FILE).open("a+") as file:
        while not lock(file, folder):
            if time.monotonic() > deadline:
                expected = "a folder whose group is down: `groupcert down` stops it"
                raise InvalidSetting(name="--data-folder", value=str(folder), expected=expected)
            time.sleep(POLL_SECONDS)
        (folder / RUNNING_FILE).unlink(missing_ok=True)  # Of the start before.
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def take_down(folder: Path) -> bool:
    """Has the group of a folder stop, and waits until all of it has; False if it was not up.

    Raises:
        TimeoutError: It has not stopped within `DOWN_SECONDS_MAX`.
    """
    deadline = time.monotonic() + DOWN_SECONDS_MAX
    asked = False
    try:
        file = (folder / LOCK_FILE).open()
    except FileNotFoundError:
        return False
    with file:
        while is_held(file, folder):
            pid = file.read()
            if pid and not asked:
                os.kill(int(pid), signal.SIGTERM)
                asked = True
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} did not stop within {DOWN_SECONDS_MAX:.0f} s")
            file.seek(0)
            time.sleep(POLL_SECONDS)
    return asked


def _addresses(
    names: list[str], before: Mapping[str, str], first: int, taken: set[int]
) -> dict[str, str]:
    return {
        name: f"{HOST}:{_next_free(_port_of(before.get(name)) or first + at, taken)}"
        for at, name in enumerate(names)
    }


def _servers(names: list[str], before: Mapping[str, str], taken: set[int]) -> dict[str, str]:
    password = secrets.token_hex(PASSWORD_BYTES)
    for dsn in before.values():
        password = urlsplit(dsn).password or password
    return {
        name: f"postgresql://postgres:{password}@{address}/postgres"
        for name, address in _addresses(names, before, POSTGRESQL_PORT, taken).items()
    }


def _port_of(place: str | None) -> int:
    """Returns the port of an address or a DSN; 0: there is none."""
    return urlsplit(place if place and "//" in place else f"//{place or ''}").port or 0


def _next_free(wanted: int, taken: set[int]) -> int:
    """Returns the first port from `wanted` on that is free and no other group's here, and adds it
    to `taken`: of two groups that start at once each has its own.
    """
    port = next(each for each in itertools.count(wanted) if each not in taken and claim(each))
    taken.add(port)
    return port


def _check_same(asked: object, before: object, flag: str) -> None:
    if asked != before:
        expected = f"{before or 'none'}, as at this folder's first start; or another --data-folder"
        raise InvalidSetting(name=flag, value=str(asked), expected=expected)


def _not_a_group(folder: Path) -> InvalidSetting:
    expected = "a folder of `groupcert up`, an empty one, or none yet"
    return InvalidSetting(name="--data-folder", value=str(folder), expected=expected)
