"""`groupcert status`: prints the group as one member sees it, and each member as it sees itself.

The rule it keeps: the view comes from the member that was asked; every member of it is asked at its
own address. One that does not answer is UNREACHABLE, as nothing more is known of it here.
`members/services/group_problems.py` lists the problems; any problem makes the exit code 1.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from groupcert.v1.group_pb2 import GroupStatus, MemberStatus

from ...certifier.errors import InvalidRequest, Unavailable
from ..client.client import Client
from ..core.recovery_progress import readable
from ..errors.transactions import MemberFailed
from ..security.credentials import ANONYMOUS, Credentials
from ..services.group_problems import problems_of_all, since
from ..wire.status_documents import (
    JsonObject,
    comparison_document,
    fields_of,
    log_document,
    recovery_document,
    role_name,
)
from .watching import FirstThatFits, show

TIMEOUT_MS = 3_000
COUNTS = {
    "position": "position",
    "certified": "certified",
    "conflicts": "conflicts",
    "items": "certification_info_items",
    "queued": "relay_queue_length",
}
"""Headings of the tables, and the names of the counters below them."""
UNTOLD = ("name", "stages", "run_verdicts", "commit_durations")
"""Fields of a member's status that its row has already, or that metrics tell better."""
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
    document = show(
        partial(group_document, address, credentials),
        status_table,
        lambda document: document,
        as_json=as_json,
        watch=watch,
        period_ms=period_ms,
    )
    return 1 if document["problems"] else 0


def group_document(address: str, credentials: Credentials = ANONYMOUS) -> JsonObject:
    """Returns the group as JSON: the view of the member at an address, its members' statuses."""
    seen = _status_at(address, credentials)
    others = {each.name: each.address for each in seen.members if each.name != seen.observer.name}
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        asked = pool.map(partial(answer_at, credentials), others.values())
        answers = dict(zip(others, asked, strict=True))
    own = next((each.address for each in seen.members if each.name == seen.observer.name), address)
    addresses = {**others, seen.observer.name: own}
    answers[seen.observer.name] = seen
    return {
        "group": seen.group,
        "view_id": seen.view_id,
        "primary": seen.primary,
        "format_version": seen.format_version,
        "view": [fields_of(each) | {"role": role_name(seen, each.name)} for each in seen.members],
        "departed": [fields_of(each) | {"since": since(each) or None} for each in seen.departed],
        "log": log_document(seen.observer),
        "comparison": comparison_document(seen),
        "members": [_row(name, addresses[name], answers[name]) for name in sorted(answers)],
        "problems": [problem._asdict() for problem in problems_of_all(seen, answers)],
    }


def member_document(status: MemberStatus) -> JsonObject:
    """Returns a member's own status, under the names that `status --json` has."""
    told = {name: value for name, value in fields_of(status).items() if name not in UNTOLD}
    return told | {
        "parallelism_mean": round(status.parallelism_mean, 2),
        "recovery": recovery_document(status),
        "cpu_seconds": round(status.cpu_seconds, 2),
    }


def status_table(document: JsonObject) -> RenderableType:
    """Returns a group's document as a table, or as lines where that is too wide; the log and the
    problems are below it.
    """
    members = _rows(document, "members")
    notes = [*_log_line(document["log"]), *(row["text"] for row in _rows(document, "problems"))]
    notes += [f"{row['name']}: {row['flow_control']}" for row in members if row.get("flow_control")]
    notes += sorted({_words(row) for row in members if row.get("skipped_last")})
    notes += [f"{row['name']}: RECOVERING {_copied(row)}" for row in members if _copied(row)]
    notes += _formats(document, members)
    primary = f", primary {document['primary']}" if document["primary"] else ""
    releases = {str(row["release"]) for row in members if row.get("release")}
    alike = f", release {releases.pop()}" if len(releases) == 1 else ""
    title = Text(f"group {document['group']}, view {document['view_id']}{primary}{alike}\n")
    rows = FirstThatFits(
        _table(members, not alike), Group(*(_lines(row, not alike) for row in members))
    )
    return Group(title, rows, *(Text(str(note)) for note in ("", *notes)))


def _table(members: Sequence[JsonObject], shows_release: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    for heading in ("member", "address", "state", *(["release"] if shows_release else [])):
        table.add_column(heading, no_wrap=True)
    for heading in COUNTS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in members:
        release = [str(row.get("release") or "-")] if shows_release else []
        counts = (_number(row.get(name)) for name in COUNTS.values())
        table.add_row(str(row["name"]), str(row["address"]), _state(row), *release, *counts)
    return table


def _lines(row: JsonObject, shows_release: bool) -> RenderableType:
    """Returns a member as lines, none of which is wide."""
    counts = (f"{heading} {_number(row.get(name))}" for heading, name in COUNTS.items())
    first = Text.assemble(f"{row['name']}  {row['address']}  ", _state(row))
    first.append(f"  {row.get('release') or '-'}" if shows_release else "")
    return Group(first, Padding(Text(", ".join(counts)), (0, 0, 0, 2)))


def _state(row: JsonObject) -> Text:
    state = str(row["state"])
    return Text(state, STATE_STYLES.get(state, "red"))


def _words(row: JsonObject) -> str:
    """Returns a sentence on skipped messages: their number, and the last one."""
    last = row["skipped_last"]
    assert isinstance(last, dict)
    claims = f", which says it is of {last['claimed_member']}" if last["claimed_member"] else ""
    return (
        f"{row['skipped_messages']} messages of the log were skipped, the last one is "
        f"{last['log_sequence']}{claims}: {last['why']}"
    )


def _copied(row: JsonObject) -> str:
    recovery = row.get("recovery")
    return str(recovery["text"]) if isinstance(recovery, dict) else ""


def _formats(document: JsonObject, members: Sequence[JsonObject]) -> list[str]:
    """Returns as one line which format the group writes, while members could write others."""
    written = document["format_version"]
    found = [row for row in members if row.get("format_version") not in (None, 0, written)]
    newest = ", ".join(f"{row['name']} {row['format_version']}" for row in found)
    text = f"the group writes format {written} of the log: not all read what these do"
    return [f"{text}: {newest}"] if found else []


def _log_line(log: object) -> list[str]:
    """Returns the log's servers as one line."""
    if not isinstance(log, dict):
        return []
    servers = (f"{each['name']} {each['state']}" for each in log["servers"])
    acknowledged_ms = log["acknowledged_ms_ago"]
    took = "" if acknowledged_ms is None else f"; it took a message {acknowledged_ms:,} ms ago"
    room = f" of {readable(log['bytes_max'])}" if log["bytes_max"] else ""
    size = f"; {readable(log['bytes'])}{room}" if log["bytes"] else ""
    return [f"log: leader {log['leader'] or 'not known'}; {', '.join(servers)}{took}{size}"]


def _row(name: str, address: str, answer: GroupStatus | str) -> JsonObject:
    where: JsonObject = {"name": name, "address": address}
    if isinstance(answer, str):
        return {**where, "state": "UNREACHABLE", "reason": answer}
    return {**where, **member_document(answer.observer)}


def answer_at(
    credentials: Credentials, address: str, timeout_ms: int = TIMEOUT_MS
) -> GroupStatus | str:
    """Returns a member's status, or why it does not answer."""
    try:
        return _status_at(address, credentials, timeout_ms)
    except (Unavailable, InvalidRequest, MemberFailed) as error:
        return str(error)


def _status_at(address: str, credentials: Credentials, timeout_ms: int = TIMEOUT_MS) -> GroupStatus:
    tls, token = credentials.tls, credentials.token
    with Client(address, timeout_ms=timeout_ms, tls=tls, token=token) as client:
        return client.status()


def _rows(document: JsonObject, name: str) -> list[JsonObject]:
    rows = document[name]
    assert isinstance(rows, list)
    return rows


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"
