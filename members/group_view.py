"""`groupcert status`: the group as one member sees it, and each member as it sees itself.

The rule it keeps: the view comes from the member that was asked; every member of it is asked at
its own address. One that does not answer is UNREACHABLE, which is all that is known of it here.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from certifier.errors import Unavailable
from members.client import Client, GroupStatus, MemberFailed, MemberState, MemberStatus

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


def show_status(address: str, *, as_json: bool, watch: bool, period_ms: int) -> int:
    """Prints the group's status, once or again and again; returns 1 if a member is not ONLINE.

    Raises:
        NotServing: The member at the address does not answer.
    """
    if watch and not as_json and sys.stdout.isatty():
        with Live(status_table(group_document(address)), auto_refresh=False) as live:
            while True:
                time.sleep(period_ms / 1000)
                live.update(status_table(group_document(address)), refresh=True)
    while True:
        document = group_document(address)
        if as_json:
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
        else:
            Console().print(status_table(document))
        if not watch:
            return 0 if all(row["state"] == "ONLINE" for row in _members(document)) else 1
        time.sleep(period_ms / 1000)


def group_document(address: str) -> JsonObject:
    """The group as JSON: the view of the member at an address, and what its members say."""
    seen = _status_at(address)
    others = {each.name: each.address for each in seen.members if each.name != seen.observer.name}
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        answers = dict(zip(others, pool.map(_member_at, others, others.values()), strict=True))
    own = next((each.address for each in seen.members if each.name == seen.observer.name), address)
    answers[seen.observer.name] = {
        "name": seen.observer.name,
        "address": own,
        **member_document(seen.observer),
    }
    view = [
        {"name": each.name, "address": each.address, "stable_version": each.stable_version}
        for each in seen.members
    ]
    return {
        "group": seen.group,
        "view_id": seen.view_id,
        "view": view,
        "members": [answers[name] for name in sorted(answers)],
    }


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
        "log_durable": status.log_durable,
        "log_replicas": status.log_replicas,
        "binary_log_files": status.binary_log_files,
        "binary_log_bytes": status.binary_log_bytes,
        "binary_log_first_gtid": status.binary_log_first_gtid,
        "binlog_commits": status.binlog_commits,
        "binlog_group_commits": status.binlog_group_commits,
        "cpu_seconds": round(status.cpu_seconds, 2),
        "workers": [
            {"worker": each.worker, "state": each.state, "applied": each.transactions_applied}
            for each in status.workers
        ],
    }


def status_table(document: JsonObject) -> Table:
    """A group's document as a table for people; reasons stand below it."""
    members = _members(document)
    reasons = [f"{row['name']}: {row['reason']}" for row in members if row["reason"]]
    table = Table(
        title=f"group {document['group']}, view {document['view_id']}",
        title_justify="left",
        caption="\n".join(reasons) or None,
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


def _member_at(name: str, address: str) -> JsonObject:
    try:
        return {"name": name, "address": address, **member_document(_status_at(address).observer)}
    except (Unavailable, MemberFailed) as error:
        return {"name": name, "address": address, "state": "UNREACHABLE", "reason": str(error)}


def _status_at(address: str) -> GroupStatus:
    with Client(address, timeout_ms=TIMEOUT_MS) as client:
        return client.status()


def _members(document: JsonObject) -> list[JsonObject]:
    members = document["members"]
    assert isinstance(members, list)
    return members


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"
