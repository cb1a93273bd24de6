"""Leaves out a transaction that a server cannot execute: what `groupcert postgresql skip` does.

The rule it keeps: only the first one that the server lacks is left out, by somebody who says why.
It counts as executed there, the rows that it would have left are kept in `groupcert.skipped`, and
the server differs from the others, as its status says, until a comparison finds that it does not.
"""

from typing import NamedTuple

from ...certifier.errors import InvalidSetting
from ...certifier.gtid import parse_gtid
from .attachment import name_of, opened_attached


class Skipped(NamedTuple):
    """A transaction that was left out, and the keys of its rows."""

    gtid: str
    version: int
    rows: list[str]


def skip(dsn: str, gtid: str, reason: str) -> Skipped:
    """Notes the transaction that a server has stopped before as executed; its member goes on.

    Raises:
        InvalidSetting: It is not the one that the server has stopped before.
        NotServing: The server does not answer.
        UnsuitableTarget: Nothing is attached.
    """
    with opened_attached(dsn) as connection:
        stopped = connection.execute(
            "SELECT gtid, version, position, rows FROM groupcert.stopped"
            " WHERE version > (SELECT coalesce(max(version), 0) FROM groupcert.executed)"
        ).fetchone()
        if stopped is None or stopped[0] != gtid:
            first = f"{stopped[0]}, which" if stopped else "none: there is no transaction that"
            expected = f"{first} {name_of(dsn)} could not execute"
            raise InvalidSetting(name="GTID", value=gtid, expected=expected)
        _, version, position, rows = stopped
        connection.execute(
            "INSERT INTO groupcert.executed VALUES (%s, %s, %s, %s)",
            (version, *parse_gtid(gtid), position),
        )
        connection.execute(
            "INSERT INTO groupcert.skipped (gtid, version, reason, rows)"
            " SELECT gtid, version, %s, rows FROM groupcert.stopped",
            (reason,),
        )
        connection.execute("DELETE FROM groupcert.stopped")
    return Skipped(gtid, version, [*rows])
