"""What may go wrong in a simulated group, and how often.

A fault is a function of the cluster in the table below; what it needs to choose, it takes from the
cluster's dice, and what it breaks, `Cluster.heal` repairs. Faults of sending (messages twice, late,
overtaken) are in the cluster's own steps, for they need no cause.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from members.log_records import ViewProposal

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.member import SimulatedMember

FAULTS_WEIGHT = 2
PAUSE_MS_MAX = 200


def crash(cluster: "Cluster") -> None:
    """A member dies; a part of what it did not flush is lost, and of what it was sending."""
    member = _victim(cluster)
    if member is not None:
        del cluster.members[member.name]
        cluster.wire += [message for message in member.outbox if cluster.dice.random() < 0.5]
        member.crash(cluster.dice.randint(0, member.disk.unsynced))


def start(cluster: "Cluster") -> None:
    """A member that does not run starts: one that died or left, or one that never was there."""
    names = [name for name in cluster.disks if name not in cluster.members]
    if names:
        cluster.start(cluster.dice.choice(names))


def pause(cluster: "Cluster") -> None:
    """A member stands still: what it sends and reads is late."""
    member = _victim(cluster)
    if member is not None:
        member.paused_until_ms = cluster.now_ms + cluster.dice.randint(1, PAUSE_MS_MAX)


def leave(cluster: "Cluster") -> None:
    """A member asks to be in the group no more."""
    member = _victim(cluster)
    if member is not None:
        member.mind.leave()


def stop_outside(cluster: "Cluster") -> None:
    """A member that was put out of the view, or has left it, is stopped in good order."""
    outside = [
        member
        for member in cluster.members.values()
        if member.mind.view.member(member.mind.me.incarnation) is None
    ]
    if outside:
        member = cluster.dice.choice(outside)
        del cluster.members[member.name]
        member.stop()


def expel(cluster: "Cluster") -> None:
    """A member proposes a view without another one: one that is dead, else one that is alive."""
    online = cluster.online()
    if online:
        member = cluster.dice.choice(online)
        view = member.mind.view
        names = [each.name for each in view.members]
        dead = [name for name in names if name not in cluster.members]
        name = cluster.dice.choice(dead or names)
        member.mind.publisher.control(ViewProposal(view.view_id, view.without_member(name)))


FAULTS: tuple[tuple[int, Callable[["Cluster"], None]], ...] = (
    (3, crash),
    (6, start),
    (3, pause),
    (1, leave),
    (3, stop_outside),
    (3, expel),
)


def _victim(cluster: "Cluster") -> "SimulatedMember | None":
    return cluster.dice.choice(list(cluster.members.values())) if cluster.members else None
