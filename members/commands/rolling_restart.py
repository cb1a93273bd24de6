"""`groupcert group restart`: restarts every process of a group, one by one, while the others serve.

An operator who restarts the second process before the first is back stops the group: two log
servers of three take nothing, and a member that still reads the log serves no client. So each
restart waits until all members are in the view and have what the group has, and all log servers
have the log, and until that has held for some seconds. The operator's command restarts a process:
Docker, systemd or anything else that returns once the process was asked to stop and start.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from groupcert.v1.group_pb2 import LOG_SERVER_STATE_CURRENT, GroupStatus

from ...certifier.errors import InvalidSetting
from ..client.client import Client
from ..security.credentials import Credentials
from ..services.group_problems import ProblemKind, problems_of
from ..total_order.server_health import LOST_MS
from .status_views import answer_at

FINE, FINDING = 0, 1
STANDARD_ERROR = 2
"""Standard error, for the output of commands: standard output has the steps alone."""
ASK_MS = 2_000
POLL_SECONDS = 0.25
SETTLE_SECONDS = LOST_MS / 1000 + 1.5
"""Seconds for which the group must have been whole: a log server that is down, or lacks some of the
log, is shown so after `LOST_MS`, and members ask twice a second."""
LAG_MAX = 1_000
"""Transactions that a member may lack of the newest version while clients write."""

Statuses = Mapping[str, GroupStatus | str]
"""By the member's name its status, or why it does not answer."""


class Process(NamedTuple):
    """One process of the group."""

    name: str
    is_log_server: bool

    def __str__(self) -> str:
        return f"{'log server' if self.is_log_server else 'member'} {self.name}"

    def fields(self) -> dict[str, str]:
        """Returns it as `--json` prints it."""
        return {"process": self.name, "kind": "log server" if self.is_log_server else "member"}


class Group(NamedTuple):
    """The processes that a group has to have at each step."""

    members: Mapping[str, str]
    """Addresses, by name."""
    log_servers: frozenset[str]


class Commands(NamedTuple):
    """The operator's commands; `{name}` and `{address}` stand for those of a process."""

    member: str
    log_server: str

    def of(self, process: Process, group: Group) -> list[str]:
        """Returns the words of the command that restarts a process."""
        template = self.log_server if process.is_log_server else self.member
        values = {"{name}": process.name, "{address}": group.members.get(process.name, "")}
        words = shlex.split(template)
        for place, value in values.items():
            words = [word.replace(place, value) for word in words]
        return words


class Steps:
    """Prints what is done, for people or for programs."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def tell(self, text: str, **document: object) -> None:
        """Prints a step at once: its text, unless that is empty, or its document."""
        line = json.dumps(document) if self._as_json else text
        if line:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


class Stuck(Exception):
    """The group is not whole, or a process was not restarted; the restart ends here."""


def restart_group(
    addresses: Sequence[str],
    commands: Commands,
    credentials: Credentials,
    *,
    limit_s: float,
    log_servers: bool,
    members: bool,
    dry_run: bool,
    as_json: bool = False,
) -> int:
    """Restarts a group's processes, and prints each step; returns 1 if it had to stop.

    Args:
        addresses: Members; those of the view that are not named are asked where the view has them.
        limit_s: How long a process may take until the group is whole again.
        log_servers: Whether to restart them, if there are several; they come first.
        members: Whether to restart them.
        as_json: Whether to print each step as a JSON document; the last one has `result`.

    Raises:
        NotServing: No member answers.
        InvalidSetting: A command does not name what it restarts.
    """
    for name, template in commands._asdict().items():
        if not any(place in template for place in ("{name}", "{address}")):
            raise InvalidSetting(name=f"run ({name})", value=template, expected="{name} in it")
    steps = Steps(as_json)
    asked = Asked(addresses, credentials)
    group = asked.group()
    waiting = [Process(name, True) for name in sorted(group.log_servers) if log_servers]
    if log_servers and len(waiting) < 2:
        text = "the log has one server, which is left out: without it the group takes nothing"
        steps.tell(text, step="left out", log_servers=sorted(group.log_servers))
        waiting.clear()
    waiting += [Process(name, False) for name in sorted(group.members) if members]
    try:
        statuses = asked.statuses(group) if dry_run else _whole(asked, group, limit_s)
        while waiting:
            process = next_of(waiting, statuses)
            waiting.remove(process)
            words = commands.of(process, group)
            steps.tell(
                f"{process}: {shlex.join(words)}", step="restart", **process.fields(), command=words
            )
            if not dry_run:
                runs = _runs_of(statuses, process.name)
                began = time.monotonic()
                _run(process, words, limit_s)
                statuses = _whole(asked, group, limit_s)
                seconds = round(time.monotonic() - began, 1)
                text = f"{process}: the group is whole after {seconds} s"
                steps.tell(text, step="whole", **process.fields(), seconds=seconds)
                if not process.is_log_server and runs & _runs_of(statuses, process.name):
                    raise Stuck(f"{process} is the run that it was: nothing has restarted it")
    except Stuck as stuck:
        sys.stderr.write(f"groupcert: {stuck}\n")
        steps.tell("", result="stuck", why=str(stuck))
        return FINDING
    if dry_run:
        steps.tell("nothing was restarted", result="nothing was restarted")
    else:
        steps.tell("all are restarted, and the group is whole", result="restarted")
    return FINE


def next_of(waiting: Sequence[Process], statuses: Statuses) -> Process:
    """Returns the next process: log servers first, and of each kind the leading one last."""
    leading = set()
    for status in statuses.values():
        if not isinstance(status, str):
            leading |= {(status.observer.log.leader, True), (status.primary, False)}
    return min(waiting, key=lambda each: (not each.is_log_server, each in leading, each.name))


def why_not_whole(group: Group, statuses: Statuses) -> str:
    """Returns the lacks of the group, in words; empty if it is whole. Pure."""
    return next(_lacks(group, statuses), "")


def _lacks(group: Group, statuses: Statuses) -> Iterator[str]:
    answers = [each.observer for each in statuses.values() if not isinstance(each, str)]
    newest = max((each.certified_version for each in answers), default=0)
    for name, status in statuses.items():
        if isinstance(status, str):
            yield f"{name} does not answer: {status}"
            continue
        yield from (
            problem.text
            for problem in problems_of(status)
            if problem.kind is not ProblemKind.CERTIFICATION_LOG
        )
        seen = {each.name for each in status.members}
        if seen != set(group.members):
            yield f"{name} sees {_names(seen)} in the view, expected {_names(group.members)}"
        lag = newest - status.observer.committed_version
        if lag > LAG_MAX:
            yield f"{name} lacks {lag} transactions, the limit is {LAG_MAX}"
        known = {
            each.name
            for each in status.observer.log.servers
            if each.state == LOG_SERVER_STATE_CURRENT
        }
        if missing := group.log_servers - known:
            yield f"{_names(missing)} does not have all of the log, says {name}"


class Asked:
    """Asks the members of a group for their status."""

    def __init__(self, addresses: Sequence[str], credentials: Credentials) -> None:
        self._addresses = addresses
        self._credentials = credentials

    def group(self) -> Group:
        """Returns the group's processes. Raises NotServing if no member answers."""
        tls, token = self._credentials.tls, self._credentials.token
        with Client(self._addresses, tls=tls, token=token) as client:
            seen = client.status()
        members = {each.name: each.address for each in seen.members}
        members |= {each.name: each.address for each in seen.departed}
        for address in self._addresses:
            answer = self._status(address)
            if not isinstance(answer, str):
                members[answer.observer.name] = address
        return Group(members, frozenset(each.name for each in seen.observer.log.servers))

    def statuses(self, group: Group) -> Statuses:
        """Returns each member's present status."""
        with ThreadPoolExecutor(len(group.members)) as pool:
            answers = pool.map(self._status, group.members.values())
            return dict(zip(group.members, answers, strict=True))

    def _status(self, address: str) -> GroupStatus | str:
        return answer_at(self._credentials, address, ASK_MS)


def _whole(asked: Asked, group: Group, limit_s: float) -> Statuses:
    """Returns the members' statuses once the group was whole for some seconds. Raises Stuck."""
    deadline = time.monotonic() + limit_s
    whole_since = None
    while True:
        statuses = asked.statuses(group)
        lacking = why_not_whole(group, statuses)
        now = time.monotonic()
        if lacking:
            whole_since = None
        else:
            whole_since = whole_since or now
            if now - whole_since >= SETTLE_SECONDS:
                return statuses
        if now > deadline:
            raise Stuck(
                f"not whole within {limit_s:.0f} s: {lacking or 'it changes again and again'}; "
                "nothing more is restarted"
            )
        time.sleep(POLL_SECONDS)


def _run(process: Process, words: Sequence[str], limit_s: float) -> None:
    try:
        ended = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=STANDARD_ERROR, timeout=limit_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Stuck(f"{process}: {error}; nothing more is restarted") from None
    if ended.returncode:
        text = f"the command ended with {ended.returncode}"
        raise Stuck(f"{process}: {text}; look at it, nothing more is restarted")


def _runs_of(statuses: Statuses, name: str) -> set[int]:
    """Returns the runs of a member that members have in their views."""
    seen = (each for each in statuses.values() if not isinstance(each, str))
    return {each.incarnation for status in seen for each in status.members if each.name == name}


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "nobody"
