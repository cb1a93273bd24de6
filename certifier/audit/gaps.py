"""Where rows of a history are missing by their number."""

from pyspark.sql import functions as F

from certifier.audit.log import Log
from certifier.audit.sequence import walked


class Gaps:
    """Places between which rows of a history are missing; found when asked for."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._gaps: dict[int, list[tuple[int, int]]] | None = None

    def has(self, h: int, place: int) -> bool:
        """Whether a place lies in a gap of a history."""
        if self._gaps is None:
            self._gaps = {}
            wide = walked(self._log).where(F.col("number") > F.col("previous.number") + 1)
            found = wide.select("h", "place", F.col("previous.place").alias("before"))
            for row in found.collect():
                self._gaps.setdefault(row["h"], []).append((row["before"], row["place"]))
        return any(before < place < after for before, after in self._gaps.get(h, ()))
