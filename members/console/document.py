"""The document that a console's page draws: plain JSON, with units in the names of its fields."""

from collections.abc import Iterable, Iterator
from importlib.metadata import version

from groupcert.v1.group_pb2 import GroupStatus, MemberStatus, ViewMember

from ...certifier.position import log_sequence_of
from ...certifier.write_set import store_key_item
from ..core.hot_rows import hottest
from ..services.group_problems import problems_of_all
from ..settings.shown import OF_ONE_MEMBER, default_settings
from ..wire.row_changes import changed_keys
from ..wire.status_documents import (
    JsonObject,
    fields_of,
    log_document,
    recovery_document,
    role_name,
    state_name,
)
from .samples import PERIOD_SECONDS, WINDOW_SECONDS, Point
from .seen import Seen

HOT_ROWS_SHOWN = 10
KEY_CHARACTERS_MAX = 80


def document(seen: Seen, own_settings: dict[str, str]) -> JsonObject:
    """Returns all of it."""
    status = seen.status
    own = status.observer
    return {
        "at_us": seen.at_us,
        "release": version("groupcert"),
        "group": status.group,
        "view_id": status.view_id,
        "primary": status.primary,
        "observer": own.name,
        "problems": [each._asdict() for each in problems_of_all(status, _answers(seen))],
        "members": list(_members(seen)),
        "log": _log(own),
        "history": _history(seen.points),
        "transactions": {
            "certified": own.transactions_certified,
            "conflict": own.transactions_conflict,
            "too_old": own.transactions_too_old,
            "refused": own.transactions_refused,
        },
        "conflicts": list(_conflicts(seen)),
        "hot_rows": _hot_rows(seen),
        "servers": list(_servers(seen)),
        "applier": _applier(seen),
        "certification": _certification(seen),
        "flow_control": _flow_control(seen),
        "settings": _settings(seen, own_settings),
    }


def _answers(seen: Seen) -> dict[str, GroupStatus | str]:
    """Returns the statuses of members of the view; of those that do not answer, the reason."""
    answers: dict[str, GroupStatus | str] = {}
    for each in seen.status.members:
        peer = seen.peers.get(each.name)
        if peer is not None and peer.problem:
            answers[each.name] = peer.problem
        elif peer is not None and peer.status is not None:
            answers[each.name] = peer.status
    return answers


def _statuses(seen: Seen) -> dict[str, MemberStatus]:
    """Returns the last status of each member that has told one, by name."""
    told = {
        name: peer.status.observer for name, peer in seen.peers.items() if peer.status is not None
    }
    return {**told, seen.status.observer.name: seen.status.observer}


def _members(seen: Seen) -> Iterator[JsonObject]:
    """Yields the members of the view, then those that departed, by name."""
    statuses = _statuses(seen)
    view = {each.name: each for each in seen.status.members}
    departed = {each.name: each for each in seen.status.departed if each.name not in view}
    own = seen.status.observer.name
    for name in [*sorted({*view, own}), *sorted(departed)]:
        peer, status = seen.peers.get(name), statuses.get(name)
        gone, there = departed.get(name), view.get(name)
        newest = peer.newest_version if peer else seen.status.observer.certified_version
        yield {
            "name": name,
            "address": there.address if there else gone.address if gone else "",
            "role": role_name(seen.status, name) if there else "",
            "without_rows": bool(there and there.without_rows),
            "silent_ms": there.silent_ms if there else 0,
            "suspected": bool(there and there.suspected),
            "unreachable_since_us": peer.silent_since_us if peer else 0,
            "unreachable_why": peer.problem if peer else "",
            "departed": gone and fields_of(gone),
            "commits_per_second": seen.commits_per_second.get(name),
            **(_of_status(status, newest) if status else {"state": ""}),
        }


def _of_status(status: MemberStatus, newest: int) -> JsonObject:
    return {
        "state": state_name(status),
        "reason": status.reason,
        "console": status.console_address,
        "version": status.committed_version,
        "lag_transactions": max(0, newest - status.committed_version),
        "stable_version": status.stable_version,
        "relay_queue_transactions": status.relay_queue_length,
        "open_snapshots": status.open_snapshots,
        "recovery": recovery_document(status),
    }


def _servers(seen: Seen) -> Iterator[JsonObject]:
    """Yields the servers that keep members' rows, as `groupcert postgresql status` shows them."""
    for name, status in sorted(_statuses(seen).items()):
        if status.HasField("server"):
            peer = seen.peers.get(name)
            answers = peer is None or not peer.problem
            yield fields_of(status.server) | {"member": name, "answers": answers}


def _log(own: MemberStatus) -> JsonObject | None:
    health = log_document(own)
    return health and {
        **health,
        "sequence": own.log_sequence,
        "replicas": own.log_replicas,
        "durable": own.log_durable,
    }


def _history(points: Iterable[Point]) -> JsonObject:
    columns = list(zip(*points, strict=True)) or [(), (), (), (), ()]
    at_us, commits, aborts, p50, p99 = columns
    return {
        "window_seconds": WINDOW_SECONDS,
        "period_seconds": PERIOD_SECONDS,
        "at_ms": [each // 1000 for each in at_us],
        "commits_per_second": _rounded(commits),
        "aborts_per_second": _rounded(aborts),
        "p50_ms": _rounded(each if each is None else 1e3 * each for each in p50),
        "p99_ms": _rounded(each if each is None else 1e3 * each for each in p99),
    }


def _rounded(numbers: Iterable[float | None]) -> list[float | None]:
    return [each if each is None else round(each, 2) for each in numbers]


def _conflicts(seen: Seen) -> Iterator[JsonObject]:
    for lost in seen.lost:
        conflict = lost.conflict
        yield {
            "at_us": lost.decided_us,
            "row": _row(conflict.item, lost.payload, seen),
            "winner_gtid": str(conflict.winner_gtid),
            "winner_member": conflict.winner_origin,
            "winner_version": conflict.winner_version,
            "winner_log_sequence": log_sequence_of(conflict.winner_position),
            "loser_member": lost.member,
            "loser_transaction_id": lost.transaction_id.hex(),
            "loser_snapshot_version": max(conflict.snapshot_version, 0),
            "log_sequence": log_sequence_of(conflict.position),
        }


def _hot_rows(seen: Seen) -> JsonObject:
    rows = [
        {
            "row": _row(row.item, row.payload, seen),
            "conflicts": row.conflicts,
            "conflicts_min": row.conflicts - row.overcount,
            "last_us": row.decided_us,
        }
        for row in hottest(seen.rows, HOT_ROWS_SHOWN)
    ]
    return {"since_us": seen.rows_since_us, "rows": rows}


def _row(item: int, payload: bytes, seen: Seen) -> JsonObject:
    """Returns the row of an item: its key, if the changes have it or a client has named it."""
    key = next((each for each in changed_keys(payload) if store_key_item(each) == item), None)
    key = seen.names.get(item, b"") if key is None else key
    return {"key": shown_key(key), "item": f"{item:016x}"}


def shown_key(key: bytes) -> str:
    """Returns a key as text of one line: what cannot be printed is escaped, long ones are cut.

    >>> shown_key(b"account/1"), shown_key(b"a\\xff\\n")
    ('account/1', 'a\\\\xff\\\\n')
    """
    text = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in key[: 4 * KEY_CHARACTERS_MAX].decode(errors="backslashreplace")
    )
    is_long = len(text) > KEY_CHARACTERS_MAX
    return f"{text[: KEY_CHARACTERS_MAX - 1]}…" if is_long else text


def _applier(seen: Seen) -> JsonObject:
    coordinator = seen.applier.coordinator
    return fields_of(coordinator) | {
        "parallelism_mean": round(coordinator.parallelism_mean, 2),
        "holds": {each.cause: each.count for each in coordinator.holds},
        "workers": [fields_of(each) for each in seen.applier.workers],
    }


def _certification(seen: Seen) -> JsonObject:
    """Returns the size of certification info, and the member whose report is the oldest."""
    own = seen.status.observer
    oldest = min(seen.status.members, key=lambda each: each.stable_version, default=None)
    status = _statuses(seen).get(oldest.name) if oldest else None
    return {
        "items": own.certification_info_items,
        "newest_version": own.certified_version,
        "stable_version": own.stable_version,
        "held_by": oldest.name if oldest else "",
        "held_at_version": oldest.stable_version if oldest else 0,
        "held_why": _why_held(seen, status, oldest) if oldest else "",
    }


def _why_held(seen: Seen, status: MemberStatus | None, oldest: ViewMember) -> str:
    """Returns the reason why a member's last report is old: it has what is on its disk, and not
    newer than its oldest snapshot.
    """
    peer = seen.peers.get(oldest.name)
    if peer is not None and peer.problem:
        return "it does not answer"
    if status is None:
        return ""
    if 0 < status.oldest_snapshot_version <= oldest.stable_version:
        return f"a client there works on a snapshot of version {status.oldest_snapshot_version:,}"
    missing = status.certified_version - oldest.stable_version
    lag = status.certified_version - status.committed_version
    if 2 * lag > missing:
        return f"it has {lag:,} transactions to apply"
    return "its next report is due"


def _flow_control(seen: Seen) -> JsonObject:
    statuses = _statuses(seen)
    own = seen.status.observer
    return {
        "lag_max_transactions": int(seen.group_settings["flow_control_lag_max"]),
        "slowest_member": own.slowest_member,
        "slowest_lag_transactions": own.slowest_lag,
        "held": [
            {"member": name, "held_ms": each.flow_control_held_ms, "text": each.flow_control}
            for name, each in sorted(statuses.items())
        ],
    }


def _settings(seen: Seen, own_settings: dict[str, str]) -> JsonObject:
    """Returns the group's settings, and each member's own, which should mostly be alike."""
    told = {name: peer.settings for name, peer in sorted(seen.peers.items()) if peer.settings}
    told[seen.status.observer.name] = own_settings
    members, defaults = sorted(told), default_settings()
    rows = []
    for name in own_settings:
        values = [told[member].get(name) for member in members]
        rows.append(
            {
                "name": name,
                "default": defaults[name],
                "values": values,
                "differs": name not in OF_ONE_MEMBER and len(set(values)) > 1,
            }
        )
    not_told = sorted({each.name for each in seen.status.members} - told.keys())
    return {"group": seen.group_settings, "members": members, "rows": rows, "not_told": not_told}
