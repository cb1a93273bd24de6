"""What a checker found: a code that stays, one line, and a witness in words.

The codes of isolation are Adya's, and those of later papers, where there is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

CODES = {
    "G-nonadjacent": "a cycle that snapshot isolation forbids, of two anti-dependencies or more",
    "G-single": "a cycle with one anti-dependency, such as read skew",
    "G0": "a cycle of writes",
    "G1a": "something was read of a transaction that aborted",
    "G1b": "something was read in the midst of a transaction",
    "G1c": "a cycle of writes and reads",
    "G2": "a cycle of serializable transactions, such as write skew",
    "aborted-committed": "a history has a transaction whose client was told that it aborted",
    "acknowledged-lost": "a history lacks an acknowledged transaction",
    "bank-balance": "an account does not hold what the committed transfers have left there",
    "bank-total": "the accounts do not hold what they held in the beginning",
    "certified-twice": "a transaction has two versions",
    "decision-differs": "members have other transactions, or GTIDs, at one version",
    "digest-differs": "members at rest have other states of certification",
    "duplicate-append": "an element is in a list twice",
    "gtid-executed-differs": "members at rest have executed other transactions",
    "gtid-twice": "two transactions have one GTID",
    "incompatible-order": "a list was read in two orders",
    "internal": "a transaction does not see its own writes, or one state",
    "lost-append": "a member lacks an element of a transaction that took effect",
    "lost-update": "two transactions changed one version of a list",
    "outcome-differs": "members remember other outcomes of a transaction",
    "phantom": "an element is in a list that nobody appended",
    "relay-order": "a transaction was committed before one that comes before it",
    "relay-overlap": "a transaction ran beside one that it depends on, or was stamped so",
    "relay-skipped": "a transaction was certified and never committed",
    "relay-twice": "a transaction was applied twice",
    "rows-differ": "members at rest have other rows",
    "session": "a session went back",
    "set-aborted": "a member has an item of a transaction that aborted",
    "set-differs": "members have other items of transactions that nobody acknowledged",
    "set-duplicate": "a member has an item twice",
    "set-lost": "a member lacks an acknowledged item",
    "set-phantom": "a member has an item that nobody put",
    "snapshot-version": "a snapshot has more or less than its version says",
    "stale": "who asked for the latest state got an older one",
    "version-differs": "a client was told another version than the history has",
    "version-order": "versions do not ascend as they must",
    "versions-not-dense": "a history leaves versions out, or ends too early",
    "write-skew": "both registers of a pair are held",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One promise that was broken. `lost`: the acknowledged transactions that are gone by it."""

    code: str
    summary: str
    witness: Sequence[str] = ()
    lost: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        assert self.code in CODES, f"no finding is called {self.code}"

    def __str__(self) -> str:
        return "\n".join([f"{self.code}: {self.summary}", *(f"  {line}" for line in self.witness)])
