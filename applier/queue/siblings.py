"""Siblings: which transactions of a commit group may run at once, by commit parent and commit id.

Both are computed from the stamps of the binary log, wherever they are needed, and are versions,
which no rotation of the log restarts. Pure.

Source: WL#6314 (commit parent), MDEV-4506 (group commit id).
"""

from collections.abc import Iterable, Sequence

from .relay_group import RelayEntry


def commit_parents(entries: Iterable[RelayEntry], last_committed: Iterable[int]) -> list[int]:
    """Returns the commit parent of each entry of a commit group. The commit parent is a version:
    the newest transaction that must commit before this one starts. It is at least `last_committed`,
    and at least the last view change, which is a barrier.

    Args:
        last_committed: for each entry the version that its stamp in the binary log means.
    """
    parents = []
    floor = 0
    for entry, last in zip(entries, last_committed, strict=True):
        _, version, gtid, _, _, _, _, header = entry
        if gtid is None:
            # A view change runs alone: nothing after it starts before it.
            floor = version
            parents.append(version)
            continue
        parent = header.commit_parent
        if parent < last:
            parent = last
        parents.append(parent if parent > floor else floor)
    return parents


def commit_ids(versions: Sequence[int], parents: Sequence[int]) -> list[int]:
    """Returns the group commit id of each entry of a commit group, by its version and commit
    parent: the version of the first transaction of those that held their locks at one time; 0 for a
    group of one.

    An entry joins the group before it if its parent is older than the group's first entry.

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
