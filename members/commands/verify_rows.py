"""`groupcert verify`: compares the rows of all members at one position, and names what differs.

The rule it keeps: members that have equal digests are not read; of those that differ only the
ranges of keys are where they do, a few at a time, until enough keys are named.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import grpc
import typer

from groupcert.v1 import admin_pb2, admin_pb2_grpc, group_pb2, group_pb2_grpc

from ..client.direct_calls import DirectMember
from ..errors.membership import NotComparable
from ..host.progress_bar import Progress, progress
from ..security.credentials import Credentials
from ..wire.status_documents import comparison_document

KEYS_MAX = 100
"""Keys that are named."""
RANGES_AT_ONCE = 8
POLL_SECONDS = 0.2
CALL_SECONDS = 60.0
_WORDS = {
    "missing": "{member} lacks {row}, which {compared_with} has",
    "extra": "{member} has {row}, which {compared_with} lacks",
    "other value": "{member} has another value of {row} than {compared_with}",
}


class Difference(NamedTuple):
    """A row that a member has otherwise than another one that most agree with."""

    member: str
    compared_with: str
    difference: str
    """"missing", "extra" or "other value", at `member`."""
    key: str | None
    """None: the caller may not read rows."""
    key_hash: str


class _Member:
    """Calls one member."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._member = DirectMember(address, credentials)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._member.channel)
        self._group = group_pb2_grpc.GroupServiceStub(self._member.channel)

    def compare(self) -> int:
        """Returns the position of a comparison that has begun."""
        position: int = self._asked(
            self._admin.CompareRows, admin_pb2.CompareRowsRequest()
        ).position
        return position

    def status(self) -> group_pb2.GroupStatus:
        """Returns the group's status."""
        answer: group_pb2.GetStatusResponse
        answer = self._asked(self._group.GetStatus, group_pb2.GetStatusRequest())
        return answer.status

    def rows(self, position: int, ranges: Sequence[int]) -> dict[int, admin_pb2.ComparedRow]:
        """Returns the compared rows in some ranges, by the hash of their keys."""
        request = admin_pb2.ReadComparedRowsRequest(position=position, ranges=ranges)
        found: dict[int, admin_pb2.ComparedRow] = {}
        while True:
            page = self._asked(self._admin.ReadComparedRows, request)
            found.update((row.key_hash, row) for row in page.rows)
            if not page.HasField("next_key"):
                return found
            request.start_key = page.next_key

    def close(self) -> None:
        """Closes the connection."""
        self._member.channel.close()

    def _asked(self, call: Any, request: Any) -> Any:
        try:
            return call(request, CALL_SECONDS)
        except grpc.RpcError as error:
            raise self._member.failure(error) from None


def verify(address: str, credentials: Credentials, *, as_json: bool) -> int:
    """Prints whether the rows of all members are equal; returns 1 if they are not.

    Raises:
        NotServing: A member does not answer.
        NotComparable: The group cannot compare rows.
    """
    asked = _Member(address, credentials)
    try:
        unread: list[str] = []
        with progress("comparing rows") as shown:
            status = _compared(asked, shown)
            found = _differences(status, credentials, shown, unread)
            differences = [*islice(found, KEYS_MAX + 1)]
    finally:
        asked.close()
    document = _document(status, differences, unread)
    typer.echo(json.dumps(document) if as_json else "\n".join(_lines(document)))
    return 0 if document["equal"] else 1


def _compared(asked: _Member, shown: Progress) -> group_pb2.GroupStatus:
    """Returns the group's status once all members have said what their rows are."""
    position = asked.compare()
    while True:
        status = asked.status()
        waiting = [each.name for each in status.comparison.members if not each.answered]
        if status.comparison.position >= position and not waiting:
            return status
        shown.name = f"comparing rows, waiting for {', '.join(waiting)}"
        time.sleep(POLL_SECONDS)


def _differences(
    status: group_pb2.GroupStatus, credentials: Credentials, shown: Progress, unread: list[str]
) -> Iterator[Difference]:
    """Yields the rows that members have otherwise than a member that most agree with; adds to
    `unread` why rows cannot be read any more.
    """
    members = status.comparison.members
    addresses = {each.name: each.address for each in status.departed}
    addresses |= {each.name: each.address for each in status.members}
    for each in members:
        alike = [one for one in members if one.tables == each.tables]
        right = next((one for one in alike if not one.differing_ranges), None)
        right = right or next((one for one in alike if one.name != each.name), None)
        if not each.differing_ranges or right is None:
            continue
        shown.step(f"reading rows of {each.name} and {right.name}", len(each.differing_ranges))
        here, there = (_Member(addresses[one.name], credentials) for one in (each, right))
        try:
            for begin in range(0, len(each.differing_ranges), RANGES_AT_ONCE):
                ranges = each.differing_ranges[begin : begin + RANGES_AT_ONCE]
                mine, theirs = (
                    one.rows(status.comparison.position, ranges) for one in (here, there)
                )
                for row, what in _differing(mine, theirs):
                    key = row.key.decode(errors="backslashreplace") if row.key else None
                    yield Difference(each.name, right.name, what, key, f"{row.key_hash:016x}")
                shown.advance(len(ranges))
        except NotComparable as error:
            unread.append(str(error))
        finally:
            here.close()
            there.close()


def _differing(
    mine: Mapping[int, admin_pb2.ComparedRow], theirs: Mapping[int, admin_pb2.ComparedRow]
) -> Iterator[tuple[admin_pb2.ComparedRow, str]]:
    """Yields the rows that two members have otherwise, and how."""
    for hashed in sorted(mine.keys() | theirs.keys()):
        if hashed not in mine:
            yield theirs[hashed], "missing"
        elif hashed not in theirs:
            yield mine[hashed], "extra"
        elif mine[hashed].digest != theirs[hashed].digest:
            yield mine[hashed], "other value"


def _document(
    status: group_pb2.GroupStatus, differences: Sequence[Difference], unread: Sequence[str]
) -> dict[str, Any]:
    compared = comparison_document(status)
    assert compared is not None
    members = status.comparison.members
    unlike = len({each.tables for each in members if each.tables}) > 1
    return {
        "group": status.group,
        **compared,
        "equal": not unlike and not any(each.differing_ranges for each in members),
        "differences": [each._asdict() for each in differences[:KEYS_MAX]],
        "has_more": len(differences) > KEYS_MAX,
        "without_rows": [each.name for each in status.members if each.without_rows],
        "unread": unread,
    }


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    members = document["members"]
    if document["without_rows"]:
        yield f"left out, without rows: {', '.join(document['without_rows'])}"
    if document["equal"]:
        for alike in _by_tables(members):
            names = ", ".join(each["member"] for each in alike)
            rows = f"{alike[0]['rows']:,} rows{' of tables' if alike[0]['at_server'] else ''}"
            yield f"equal at {names}: {rows}, as of version {document['version']:,}"
        return
    if len(servers := _by_tables(each for each in members if each["at_server"])) > 1:
        names = "; ".join(", ".join(each["member"] for each in alike) for alike in servers)
        yield (
            f"not compared, as other tables are attached: {names}: attach the same at all servers"
        )
    for each in members:
        if ranges := len(each["differing_ranges"]):
            yield (
                f"{each['member']} has other rows than most members, in {ranges} of 256 ranges of "
                f"keys, as of version {document['version']:,}"
            )
    for each in document["differences"]:
        row = each["key"] or f"hash {each['key_hash']}"
        yield f"  {_WORDS[each['difference']].format(**each, row=row)}"
    if document["has_more"]:
        yield f"  and more than these {KEYS_MAX}"
    for why in document["unread"]:
        yield f"  {why}"


def _by_tables(members: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Returns members that are compared with each other: those with a store first."""
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in members:
        found[each["tables"]].append(each)
    return [found[tables] for tables in sorted(found)]
