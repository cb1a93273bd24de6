"""A whole group on this machine: the log server and one process for each member.

The demo, the tests and their benchmarks run on it. Members are real processes and can be killed and
started again.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

import grpc

from groupcert.v1 import group_pb2

from ...certifier.errors import NotServing, Unavailable
from ..client.client import Client
from ..errors.usage import MemberEnded
from ..host.loopback import HOST, free_port
from ..host.servers import NotReady, Server, stop_all, wait_all_ready
from ..security.credentials import ANONYMOUS, Credentials
from ..total_order.embedded_server import LogServer
from .command_process import CommandProcess

RETENTION_BYTES = 256 << 20
"""Of the log, where members trim it: they are on one machine, so that a copy takes no longer than
to read so much."""
MEMBERS_MAX = 9
POLL_MS = 2_000
STATUS_MS = 30_000
"""Milliseconds; a machine may stand still for some seconds."""


class LocalGroup:
    """Members `m1`, `m2`, ... on ports of the loopback interface, with one log server."""

    def __init__(
        self,
        folder: Path,
        *,
        members: int = 3,
        addresses: Mapping[str, str] | None = None,
        log_port: int = 0,
        settings: Mapping[str, object] | None = None,
        own_settings: Mapping[str, Mapping[str, object]] | None = None,
        credentials: Credentials = ANONYMOUS,
        certification_logs: Path | None = None,
        module: str = "groupcert.members",
        trims_log: bool = False,
    ) -> None:
        """Prepares folders and settings; nothing runs before `start`.

        Args:
            folder: Holds everything; a folder of an earlier group of the same name goes on with it.
            members: How many there are, on free ports, unless `addresses` says which and where.
            addresses: The address of each member by its name.
            log_port: The port of the log server; 0: a free one.
            settings: Settings of the members beside their names, addresses and folders; with
                `log_servers` the group runs on these, which the caller has started.
            own_settings: Settings of single members, by their names, which win.
            credentials: What `status` shows to members.
            certification_logs: Each member keeps its log in a folder of its name there.
            module: What runs as the command `groupcert` in the members' processes.
            trims_log: Members trim the log of its log server; a member that was away for longer
                copies another one.
        """
        self.folder = folder
        names = (f"m{number}" for number in range(1, members + 1))
        self.addresses = dict(addresses or {name: f"{HOST}:{free_port()}" for name in names})
        self.names = tuple(self.addresses)
        self.log_server = LogServer(folder / "log-server", port=log_port)
        self.processes: dict[str, CommandProcess] = {}
        self._settings = dict(settings or {})
        self._own_settings = dict(own_settings or {})
        self.credentials = credentials
        self.certification_logs = certification_logs
        self._module = module
        self._trims_log = trims_log and self.has_log_server

    @property
    def has_log_server(self) -> bool:
        """True unless its settings name the log servers of somebody else."""
        return "log_servers" not in self._settings

    @property
    def servers(self) -> dict[str, Server]:
        """What is to run, by name, beside the log server: members that were started."""
        return dict(self.processes)

    def start(self) -> None:
        """Starts everything and returns when every member is ONLINE.

        Raises:
            MemberEnded, NotServing: A member did not come up; its last line says why.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.has_log_server:
            self.log_server.start()
        for name in self.names:
            self.start_member(name)
        self.wait_online()

    def start_member(self, name: str, settings: Mapping[str, object] | None = None) -> None:
        """Starts a member that is not running, with settings of its own if it has some."""
        config = self.folder / f"{name}.toml"
        values = {
            "group": "local",
            "member": name,
            "address": self.addresses[name],
            "data_folder": str(self.folder / name),
            "log_servers": [self.log_server.address],
            "log_monitors": [self.log_server.monitor],
            "seeds": [each for other, each in self.addresses.items() if other != name],
            "create_log": True,
            **self._settings,
            **self._own_settings.get(name, {}),
            **(settings or {}),
        }
        if self._trims_log:
            values.setdefault("log_trim_servers", [self.log_server.address])
            values.setdefault("log_retention_bytes", RETENTION_BYTES)
        if self.certification_logs is not None:
            values.setdefault("certification_log", str(self.certification_logs / name))
        lines = (f"{key} = {json.dumps(value)}" for key, value in values.items())
        config.write_text("\n".join(lines) + "\n")
        self.processes[name] = CommandProcess(
            ("member", "--config", str(config)),
            self.folder / f"{name}.log",
            module=self._module,
            name=name,
            is_ready=partial(self._is_online, name),
        )
        self.processes[name].start()

    def wait_online(self) -> None:
        """Waits until every running member is ONLINE in a view of all running ones, as `is_whole`.

        Raises: as `wait_up`.
        """
        self.wait_up(self.processes)

    def wait_up(self, servers: Mapping[str, Server]) -> None:
        """Waits until all of some started servers, by name, are ready.

        Raises:
            MemberEnded: One has ended.
            NotServing: One did not come up in time; its last line says why.
        """
        try:
            wait_all_ready(servers.values())
        except NotReady as failure:
            name = next(name for name, each in servers.items() if each is failure.server)
            last_line, log = failure.server.last_line(), str(failure.server.log)
            if failure.how:
                how = failure.how
                raise MemberEnded(member=name, how=how, last_line=last_line, log=log) from failure
            raise NotServing(member=name, state=f"not up ({last_line})") from failure

    def kill(self, name: str) -> None:
        """Kills a member without warning."""
        self.processes.pop(name).kill()

    def stop_member(self, name: str) -> int | None:
        """Stops a member as its operator would, and returns its exit code."""
        return self.processes.pop(name).stop()

    def stop(self) -> None:
        """Stops members, then the log server."""
        stop_all(self.processes.values())
        self.processes.clear()
        self.log_server.stop()

    def status(self, name: str, timeout_ms: int = STATUS_MS) -> group_pb2.GroupStatus:
        """Returns the group as a member sees it.

        Raises:
            NotServing: It did not answer within `timeout_ms` milliseconds.
        """
        tls, token = self.credentials.tls, self.credentials.token
        with Client(self.addresses[name], timeout_ms=timeout_ms, tls=tls, token=token) as client:
            return client.status()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    def _is_online(self, name: str) -> bool:
        with suppress(grpc.RpcError, Unavailable):
            return is_whole(self.status(name, POLL_MS), self.addresses, self.processes)
        return False


def is_whole(
    status: group_pb2.GroupStatus, members: Collection[str], running: Collection[str]
) -> bool:
    """Returns whether a member is ONLINE in a view that has those of `members` that run. Members
    that others have started beside these do not count.
    """
    seen = {member.name for member in status.members}.intersection(members)
    return status.observer.state == group_pb2.MEMBER_STATE_ONLINE and seen == {*running}
