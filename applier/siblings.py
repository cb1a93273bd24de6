"""Siblings: which transactions of a commit group may run at once, by commit parent and commit id.

The rule it keeps: both follow from the stamps of the binary log, wherever they are asked for. They
are versions, which no rotation of the log restarts. Pure.

Source: WL#6314 (commit parent), MDEV-4506 (group commit id).
"""

from collections.abc import Iterable, Sequence

from applier.relay_queue import RelayEntry


def commit_parents(entries: Iterable[RelayEntry], last_committed: Iterable[int]) -> list[int]:
    """The commit parent of each entry of a commit group: what has ended its lock interval, and what
    waits for all before it, is no sibling. A view change waits, and is the parent of what follows.

    Args:
        last_committed: Of each entry the version that its stamp in the binary log stands for.
    """
    parents = []
    floor = 0
    for entry, last in zip(entries, last_committed, strict=True):
        _, version, gtid, _, _, _, _, header = entry
        if gtid is None:
            floor = version
            parents.append(version)
            continue
        parent = header.commit_parent
        if parent < last:
            parent = last
        parents.append(parent if parent > floor else floor)
    return parents


def commit_ids(versions: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The group commit id of each entry of a commit group, by its version and its commit parent:
    the version of the first of those that held their locks at one time; 0 for a group of one.

    An entry is with those before it if its parent is older than the first of them.

    >>> commit_ids([1, 2, 3, 4], [0, 0, 1, 3])
    [1, 1, 0, 0]
    """
    groups: list[list[int]] = []
    first = 0
    for version, parent in zip(versions, parents, strict=True):
        if parent >= first:
            first = version
            groups.append([])
        groups[-1].append(version)
    ids = []
    for group in groups:
        ids += [group[0] if len(group) > 1 else 0] * len(group)
    return ids
