"""The source's header of a transaction: all properties, beside its rows, that the schemes use.

A header is made once, where the transaction commits, and never changed after. An unknown property
has the value that allows the least parallelism.

Source: WL#7165 and WL#6314 (stamps, commit parent), MDEV-4506 (commit id, domain), WL#5569 (list of
databases).
"""

from collections.abc import Sequence
from typing import NamedTuple


class SourceHeader(NamedTuple):
    """The header of a transaction in a source's binary log; its stamps are in the relay entry.

    `commit_parent`: WL#6314's, the source's commit counter when the transaction was about to
    prepare. `commit_id`: the group commit that it was part of; 0 for a group of one. `domain_id`:
    the session's promise that transactions of other domains do not depend on this one.
    `databases`, `tables`: those that it updates, sorted, a table as `database.table`; None if they
    are not known or too many, which stands for all. `items`: its write set; empty if that is not
    known, which stands for all rows. `committed_us`: the source's clock at its commit, in
    microseconds since 1970. `file`: number of the binary log file that it is in. `view_id`: of a
    view change, else 0. `locked_since`: only at the source, until the transaction is in its binary
    log: the version after which its lock interval began; None if that is not known.
    `parent_items`: items of rows that its rows refer to by foreign keys, without those of `items`;
    other transactions may refer to them at the same time, and none may write them.
    """

    commit_parent: int = 0
    commit_id: int = 0
    domain_id: int = 0
    databases: tuple[str, ...] | None = None
    tables: tuple[str, ...] | None = None
    items: Sequence[int] = ()
    committed_us: int = 0
    file: int = 0
    view_id: int = 0
    locked_since: int | None = None
    parent_items: Sequence[int] = ()


NO_HEADER = SourceHeader()
"""The header in the group's own channel, where only the stamps are known; they are sufficient."""
