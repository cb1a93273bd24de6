"""`groupcert status`: the group as one member sees it, and each member as it sees itself.

The rule it keeps: the view comes from the member that was asked; every member of it is asked at
its own address. One that does not answer is UNREACHABLE, which is all that is known of it here.
What is wrong, `members/problems.py` says; anything that is, makes the exit code 1.
"""

import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from certifier.errors import InvalidRequest, Unavailable
from groupcert.v1.group_pb2 import LogServerState
from members.client import Client, GroupStatus, MemberFailed, MemberState, MemberStatus
from members.credentials import ANONYMOUS, Credentials
from members.problems import OF_OTHERS, Problem, ProblemKind, cause_name, problems_of, since
from members.recovery_choice import RecoveryProgress

JsonObject = dict[str, object]

TIMEOUT_MS = 3_000
COUNTS = {
    "position": "position",
    "certified": "certified",
    "conflicts": "conflicts",
    "items": "certification_info_items",
    "queued": "relay_queue_length",
}
"""Headings for people, and the names of the counters below them."""
STATE_STYLES = {"ONLINE": "green", "RECOVERING": "yellow", "JOINING": "yellow"}


def show_status(
    address: str,
    credentials: Credentials = ANONYMOUS,
    *,
    as_json: bool,
    watch: bool,
    period_ms: int,
) -> int:
    """Prints the group's status, once or again and again; returns 1 if anything is wrong.

    Raises:
        NotServing: The member at the address does not answer.
    """
    if watch and not as_json and sys.stdout.isatty():
        with Live(status_table(group_document(address, credentials)), auto_refresh=False) as live:
            while True:
                time.sleep(period_ms / 1000)
                live.update(status_table(group_document(address, credentials)), refresh=True)
    while True:
        document = group_document(address, credentials)
        if as_json:
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
        else:
            Console().print(status_table(document))
        if not watch:
            return 1 if document["problems"] else 0
        time.sleep(period_ms / 1000)


def group_document(address: str, credentials: Credentials = ANONYMOUS) -> JsonObject:
    """The group as JSON: the view of the member at an address, and what its members say."""
    seen = _status_at(address, credentials)
    others = {each.name: each.address for each in seen.members if each.name != seen.observer.name}
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        asked = pool.map(partial(_answer_at, credentials), others.values())
        answers = dict(zip(others, asked, strict=True))
    own = next((each.address for each in seen.members if each.name == seen.observer.name), address)
    addresses = {**others, seen.observer.name: own}
    answers[seen.observer.name] = seen
    view = [
        {
            "name": each.name,
            "address": each.address,
            "stable_version": each.stable_version,
            "suspected": each.suspected,
            "weight": each.weight,
            "role": "SECONDARY" if seen.primary not in ("", each.name) else "PRIMARY",
        }
        for each in seen.members
    ]
    return {
        "group": seen.group,
        "view_id": seen.view_id,
        "primary": seen.primary,
        "view": view,
        "departed": [
            {
                "name": each.name,
                "address": each.address,
                "cause": cause_name(each.cause),
                "view_id": each.view_id,
                "since": since(each) or None,
            }
            for each in seen.departed
        ],
        "log": log_document(seen.observer),
        "members": [_row(name, addresses[name], answers[name]) for name in sorted(answers)],
        "problems": [problem._asdict() for problem in _problems(seen, answers)],
    }


def _problems(seen: GroupStatus, answers: Mapping[str, GroupStatus | str]) -> list[Problem]:
    """What is wrong, each once: what the member that was asked says of the group, and what every
    member says of itself and of the log as it sees it.
    """
    found = [*problems_of(seen)]
    for name, answer in sorted(answers.items()):
        if isinstance(answer, str):
            text = f"{name} does not answer: {answer}"
            found.append(Problem(ProblemKind.MEMBER_UNREACHABLE, name, text))
        elif answer is not seen:
            found += (each for each in problems_of(answer) if each.kind not in OF_OTHERS)
    first = {(each.kind, each.name): each for each in reversed(found)}
    return sorted(first.values())


def member_document(status: MemberStatus) -> JsonObject:
    """What a member says of itself, under the names that `status --json` has."""
    return {
        "state": MemberState.Name(status.state).removeprefix("MEMBER_STATE_"),
        "reason": status.reason,
        "position": status.log_sequence,
        "gtid_executed": status.gtid_executed,
        "certified_version": status.certified_version,
        "committed_version": status.committed_version,
        "durable_version": status.durable_version,
        "stable_version": status.stable_version,
        "digest": status.digest,
        "certification_info_items": status.certification_info_items,
        "last_committed_global": status.last_committed_global,
        "sequence_number": status.sequence_number,
        "relay_queue_length": status.relay_queue_length,
        "relay_queue_bytes": status.relay_queue_bytes,
        "certified": status.transactions_certified,
        "conflicts": status.transactions_conflict,
        "too_old": status.transactions_too_old,
        "refused": status.transactions_refused,
        "local": status.transactions_local,
        "applied": status.transactions_applied,
        "parallelism_mean": round(status.parallelism_mean, 2),
        "open_snapshots": status.open_snapshots,
        "publishing_messages": status.publishing_messages,
        "log_unacknowledged_ms": status.log_unacknowledged_ms,
        "log": log_document(status),
        "log_durable": status.log_durable,
        "log_replicas": status.log_replicas,
        "skipped_messages": status.skipped_messages,
        "skipped_last": _skipped(status),
        "binary_log_files": status.binary_log_files,
        "binary_log_bytes": status.binary_log_bytes,
        "binary_log_first_gtid": status.binary_log_first_gtid,
        "binlog_commits": status.binlog_commits,
        "binlog_group_commits": status.binlog_group_commits,
        "certification_log_waiting_rows": status.certification_log_waiting_rows,
        "certification_log_waiting_bytes": status.certification_log_waiting_bytes,
        "certification_log_waiting_bytes_max": status.certification_log_waiting_bytes_max,
        "certification_log_written_rows": status.certification_log_written_rows,
        "certification_log_last_file": status.certification_log_last_file,
        "certification_log_error": status.certification_log_error,
        "slowest_member": status.slowest_member,
        "slowest_lag": status.slowest_lag,
        "flow_control_held_ms": status.flow_control_held_ms,
        "flow_control": status.flow_control,
        "recovery": _recovery(status),
        "cpu_seconds": round(status.cpu_seconds, 2),
        "workers": [
            {"worker": each.worker, "state": each.state, "applied": each.transactions_applied}
            for each in status.workers
        ],
    }


def log_document(status: MemberStatus) -> JsonObject | None:
    """How the log's servers are, as a member was told; nothing where it has not opened the log."""
    if not status.HasField("log"):
        return None
    log = status.log
    acknowledged_ms = log.acknowledged_ms if log.HasField("acknowledged_ms") else None
    return {
        "leader": log.leader,
        "leaderless_ms": log.leaderless_ms,
        "servers": [
            {
                "name": each.name,
                "state": LogServerState.Name(each.state).removeprefix("LOG_SERVER_STATE_"),
                "current": each.current,
                "lag": each.lag,
            }
            for each in log.servers
        ],
        "acknowledged_ms_ago": acknowledged_ms,
        "problem": log.problem,
    }


def status_table(document: JsonObject) -> Table:
    """A group's document as a table for people; the log and what is wrong stand below it."""
    members = _members(document)
    notes = [*_log_line(document["log"]), *(row["text"] for row in _rows(document, "problems"))]
    notes += [f"{row['name']}: {row['flow_control']}" for row in members if row.get("flow_control")]
    notes += sorted({_words(row) for row in members if row.get("skipped_last")})
    notes += [f"{row['name']}: RECOVERING {_copied(row)}" for row in members if _copied(row)]
    primary = f", primary {document['primary']}" if document["primary"] else ""
    table = Table(
        title=f"group {document['group']}, view {document['view_id']}{primary}",
        title_justify="left",
        caption=escape("\n".join(map(str, notes))) or None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for heading in ("member", "address", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in COUNTS:
        table.add_column(heading, justify="right", overflow="fold")
    for row in members:
        state = str(row["state"])
        table.add_row(
            str(row["name"]),
            str(row["address"]),
            f"[{STATE_STYLES.get(state, 'red')}]{state}[/]",
            *(_number(row.get(name)) for name in COUNTS.values()),
        )
    return table


def _skipped(status: MemberStatus) -> JsonObject | None:
    """The last message of the log that was skipped, if one was."""
    if not status.HasField("skipped_last"):
        return None
    found = status.skipped_last
    return {
        "log_sequence": found.log_sequence,
        "why": found.why,
        "claimed_member": found.claimed_member,
    }


def _words(row: JsonObject) -> str:
    """How many messages were skipped, and which one was the last."""
    last = row["skipped_last"]
    assert isinstance(last, dict)
    claims = f", which says it is of {last['claimed_member']}" if last["claimed_member"] else ""
    return (
        f"{row['skipped_messages']} messages of the log were skipped, the last one is "
        f"{last['log_sequence']}{claims}: {last['why']}"
    )


def _recovery(status: MemberStatus) -> JsonObject | None:
    """How far the copy of a donor's state is, where the member makes one."""
    if not status.HasField("recovery"):
        return None
    found = status.recovery
    progress = RecoveryProgress(
        donor=found.donor,
        bytes_done=found.bytes_done,
        bytes_total=found.bytes_total,
        bytes_per_second=found.bytes_per_second,
    )
    left = progress.seconds_left
    return {
        **asdict(progress),
        "seconds_left": None if left is None else round(left, 1),
        "text": str(progress),
    }


def _copied(row: JsonObject) -> str:
    recovery = row.get("recovery")
    return str(recovery["text"]) if isinstance(recovery, dict) else ""


def _log_line(log: object) -> list[str]:
    """The log's servers in a line."""
    if not isinstance(log, dict):
        return []
    servers = (f"{each['name']} {each['state']}" for each in log["servers"])
    acknowledged_ms = log["acknowledged_ms_ago"]
    took = "" if acknowledged_ms is None else f"; it took a message {acknowledged_ms:,} ms ago"
    return [f"log: leader {log['leader'] or 'not known'}; {', '.join(servers)}{took}"]


def _row(name: str, address: str, answer: GroupStatus | str) -> JsonObject:
    where: JsonObject = {"name": name, "address": address}
    if isinstance(answer, str):
        return {**where, "state": "UNREACHABLE", "reason": answer}
    return {**where, **member_document(answer.observer)}


def _answer_at(credentials: Credentials, address: str) -> GroupStatus | str:
    """What a member says, or why it does not."""
    try:
        return _status_at(address, credentials)
    except (Unavailable, InvalidRequest, MemberFailed) as error:
        return str(error)


def _status_at(address: str, credentials: Credentials) -> GroupStatus:
    tls, token = credentials.tls, credentials.token
    with Client(address, timeout_ms=TIMEOUT_MS, tls=tls, token=token) as client:
        return client.status()


def _members(document: JsonObject) -> list[JsonObject]:
    return _rows(document, "members")


def _rows(document: JsonObject, name: str) -> list[JsonObject]:
    rows = document[name]
    assert isinstance(rows, list)
    return rows


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"
