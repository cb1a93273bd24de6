"""What the members have recorded at the places of findings, side by side.

Who reads of a finding asks next what the others have there: where they differ, it is one member
that is wrong or was changed; where they do not, it is the rule, or all of them.
"""

from collections.abc import Iterable, Sequence

from pyspark.sql import Column, Row
from pyspark.sql import functions as F

from ..answers.findings import Finding
from ..answers.result import JsonObject
from ..rows.certification_log import Log
from ..rows.checks import hexadecimal
from ..rows.surveyed_history import History
from .agree import SHARED

ITEMS_MAX = 8
"""Items of a set that are shown; all of them are compared."""
NO_ROW = "no row"
BESIDE = ("gtid", "members", "differing")
"""Names of the entries that a finding has then."""
_SETS = ("write_set", "read_set")
_ITEMS = ("winner_item", "reported_digest")


def beside(log: Log, findings: Sequence[Finding]) -> list[JsonObject]:
    """Returns for each finding the GTID of its row, the members whose histories reach over its
    place, and the columns that they have recorded differently.

    Cost: a pass over the places of the log, if there is any finding.
    """
    if not findings:
        return []
    wanted = log.rows.where(F.col("place").isin(sorted({finding.place for finding in findings})))
    rows: dict[int, dict[int, Row]] = {}
    for row in wanted.select("h", "place", *map(_told, SHARED)).collect():
        rows.setdefault(row["place"], {}).setdefault(row["h"], row)
    return [_beside(log.histories, finding, rows.get(finding.place, {})) for finding in findings]


def _told(name: str) -> Column:
    """Returns a column; of a set of items how many there are, the first, and a hash of all."""
    if name not in _SETS:
        return F.col(name)
    known = F.struct(
        F.size(name).alias("size"),
        F.slice(name, 1, ITEMS_MAX).alias("first"),
        F.xxhash64(name).alias("hash"),
    )
    return F.when(F.col(name).isNotNull(), known).alias(name)


def _beside(histories: Iterable[History], finding: Finding, rows: dict[int, Row]) -> JsonObject:
    own = next(
        (history for history in histories if history.name == (finding.observer, finding.history)),
        None,
    )
    group = own and own.group_source
    reaching = [
        history
        for history in histories
        if (history is own or (group is not None and history.group_source == group))
        and history.first_place <= finding.place <= history.last_place
    ]
    mine = rows.get(own.h) if own else None
    found = [rows.get(each.h) for each in reaching]
    differing = {
        name: [NO_ROW if row is None else _text(name, row[name]) for row in found]
        for name in SHARED
        if len({None if row is None else repr(row[name]) for row in found}) > 1
    }
    if None in found:  # All else differs with the row.
        differing = {name: texts for name, texts in differing.items() if name == "kind"}
    gtid = mine and mine["gtid_number"] is not None
    return {
        "gtid": f"{mine['gtid_source']}:{mine['gtid_number']}" if mine and gtid else None,
        "members": [{"observer": each.observer, "history": each.history} for each in reaching],
        "differing": differing,
    }


def _text(name: str, value: object) -> str | None:
    """Returns a value as people see it."""
    if value is None:
        return None
    if isinstance(value, Row):
        named = ", ".join(hexadecimal(item) for item in value["first"])
        more = value["size"] - len(value["first"])
        return f"{value['size']} items: {named}" + (f", and {more} more" if more > 0 else "")
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if name in _ITEMS and isinstance(value, int):
        return hexadecimal(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
