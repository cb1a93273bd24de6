"""Leaves out a transaction that a server cannot execute: what `groupcert postgresql skip` does.

The rule it keeps: only the first one that the server lacks is left out, by somebody who says why.
It counts as executed there, the rows that it would have left are kept in `groupcert.skipped`, and
the server differs from the others, as its status says, until `groupcert postgresql verify` finds
that it does not.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import NamedTuple

from ...certifier.errors import InvalidSetting, NotServing
from ...certifier.gtid_set import GtidSet
from ..security.credentials import Credentials
from .attachment import is_attached, name_of, opened, unsuitable
from .commit_order import Entry
from .database import gtids_of
from .log_follower import LogFollower
from .rows import rows_in
from .schema_changes import change_of

ANSWER_SECONDS = 30.0
"""For which members may have nothing that the server lacks."""


class Skipped(NamedTuple):
    """A transaction that was left out, and the keys of its rows."""

    gtid: str
    version: int
    rows: list[str]


def skip(
    dsn: str, addresses: Sequence[str], credentials: Credentials, gtid: str, reason: str
) -> Skipped:
    """Notes a transaction as executed at a server whose companion has ended before it.

    Raises:
        InvalidSetting: It is not the first one that the server lacks, or is a schema change.
        NotServing: The server or the members do not answer, or it lacks none.
        UnsuitableTarget: Nothing is attached, or the companion has executed it meanwhile.
    """
    with opened(dsn) as connection:
        if not is_attached(connection):
            raise unsuitable(dsn, "nothing is attached", "a server of the group")
        ((text,),) = connection.execute("SELECT gtid_set FROM groupcert.executed_set").fetchall()
        rows = connection.execute("SELECT source, number FROM groupcert.executed").fetchall()
        executed = gtids_of(text, rows)
    entry = asyncio.run(_first(addresses, credentials, executed, name_of(dsn)))
    if str(entry.gtid) != gtid:
        expected = f"{entry.gtid}, the first that {name_of(dsn)} has not executed"
        raise InvalidSetting(name="GTID", value=gtid, expected=expected)
    if change_of(entry):
        expected = "a transaction with rows: what a schema change needs has to be mended"
        raise InvalidSetting(name="GTID", value=gtid, expected=expected)
    left = {
        key.decode(): None if value is None else json.loads(value)
        for key, value in rows_in(entry.parts)
    }
    with opened(dsn) as connection:
        connection.execute(
            "INSERT INTO groupcert.executed VALUES (%s, %s, %s)",
            (entry.version, entry.gtid.source, entry.gtid.number),
        )
        connection.execute(
            "INSERT INTO groupcert.skipped (gtid, version, reason, rows) VALUES (%s, %s, %s, %s)",
            (gtid, entry.version, reason, json.dumps(left, ensure_ascii=False)),
        )
    return Skipped(gtid, entry.version, [*left])


async def _first(
    addresses: Sequence[str], credentials: Credentials, executed: GtidSet, server: str
) -> Entry:
    """Returns the first transaction of the group that a server lacks."""
    follower = LogFollower(addresses, credentials, executed)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            async for entries in follower.entries():
                return entries[0]
    except TimeoutError:
        pass
    state = f"silent for {ANSWER_SECONDS:.0f} s, or has nothing that {server} lacks"
    raise NotServing(member=", ".join(addresses), state=state)
