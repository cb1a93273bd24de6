"""What may go wrong in a simulated group.

A fault is a function of the cluster; what it needs to choose, it takes from the cluster's dice, and
what it breaks, `Cluster.heal` repairs. How often each one happens, `scenarios.py` says. Faults of
sending (messages twice, late, overtaken) are in the cluster's own steps, for they need no cause.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.targets.rocksdb import CHECKPOINT_KEY
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.storage.store import Family
from groupcert.members.core.log_records import (
    LogBatch,
    LoggedTransaction,
    MemberReport,
    ViewProposal,
)
from groupcert.members.core.members import NUMBERS_AHEAD_MAX
from groupcert.members.core.views import FORMAT_FIRST, FORMAT_VERSION, MemberState, ViewMember
from groupcert.members.wire.log_batches import encode_batch
from tests.sim.member import SUSPICION_MS
from tests.sim.settings import some_settings

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.process import SimulatedProcess

AWAY_MS = (200, 200, 3_000)
"""How long somebody is away at most: mostly a moment, else longer than it takes to be expelled."""
LAG_MS_MAX = 2_000
CLOCK_STEP_MS_MAX = 5_000
TAIL_MESSAGES_MAX = 10
FOREIGN_GTIDS = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb:1-2"

Fault = Callable[["Cluster"], None]


def crash(cluster: "Cluster") -> None:
    """A member dies; a part of what it did not flush is lost, and of what it was sending."""
    process = _victim(cluster)
    if process is not None:
        cluster.crash(process.name)


def crash_all(cluster: "Cluster") -> None:
    """All members die at once."""
    for name in list(cluster.processes):
        cluster.crash(name)


def start(cluster: "Cluster") -> None:
    """A member that does not run starts: one that died or left, or one that never was there."""
    names = [name for name in cluster.disks if cluster.may_start(name)]
    if names:
        cluster.start(cluster.dice.choice(names))


def pause(cluster: "Cluster") -> None:
    """A member stands still: what it sends and reads is late."""
    process = _victim(cluster)
    if process is not None:
        cluster.paused_until_ms[process.name] = _until_ms(cluster)
        cluster.excuse(process.name, cluster.paused_until_ms[process.name])


def leave(cluster: "Cluster") -> None:
    """A member asks to be in the group no more."""
    online = cluster.online()
    if online:
        member = cluster.dice.choice(online)
        cluster.leaving.add(member.name)
        member.machine.leave()


def stop_outside(cluster: "Cluster") -> None:
    """A member that is not in the view, or has left it, is stopped in good order."""
    outside = [
        process
        for process in cluster.processes.values()
        if process.member.machine.view.member(process.member.machine.me.incarnation) is None
    ]
    if outside:
        cluster.stop(cluster.dice.choice(outside).name)


def roll(cluster: "Cluster") -> None:
    """The next member, in turn, is stopped in good order and started again at once."""
    name = list(cluster.disks)[cluster.rolled % len(cluster.disks)]
    cluster.rolled += 1
    if name in cluster.processes:
        cluster.stop(name)
    cluster.start(name)


def expel(cluster: "Cluster") -> None:
    """An operator has a member expelled that is alive; the dead are expelled by the others."""
    online = cluster.online()
    if online:
        machine = cluster.dice.choice(online).machine
        name = cluster.dice.choice(machine.view.members).name
        # The log may be away for a while, until it has the proposal.
        cluster.excuse(name, cluster.now_ms + max(AWAY_MS))
        machine.expel(name)


def lose_log(cluster: "Cluster") -> None:
    """The log takes nothing and gives nothing for a while, as where its leader has died."""
    cluster.log_away_until_ms = _until_ms(cluster)


def cut_off(cluster: "Cluster") -> None:
    """One member, or some, or half of them, are cut off from the log for a while."""
    until_ms = _until_ms(cluster)
    for name in cluster.dice.sample(list(cluster.disks), cluster.dice.randint(1, 2)):
        cluster.cut_until_ms[name] = until_ms
        cluster.excuse(name, until_ms)


def lag(cluster: "Cluster") -> None:
    """A member reads the log slowly for a while, and sends as ever."""
    name = cluster.dice.choice(list(cluster.disks))
    cluster.lagging_until_ms[name] = cluster.now_ms + cluster.dice.randint(1, LAG_MS_MAX)


def step_clock(cluster: "Cluster") -> None:
    """A member's clock jumps; not more often than a member may be silent, as each jump counts as a
    gap between two of its messages.
    """
    clock = cluster.clocks[cluster.dice.choice(list(cluster.disks))]
    step_ms = cluster.dice.randint(1, CLOCK_STEP_MS_MAX)
    if cluster.now_ms - clock.stepped_ms >= SUSPICION_MS:
        clock.stepped_ms = cluster.now_ms
        clock.offset_ms += step_ms


def lose_disk(cluster: "Cluster") -> None:
    """A member dies, and its disk is lost whole, if another disk still reaches the log."""
    name = cluster.dice.choice(list(cluster.disks))
    if cluster.is_spare(name):
        if name in cluster.processes:
            cluster.crash(name)
        cluster.lose_disk(name)


def switch_timelines(cluster: "Cluster") -> None:
    """A member that is so late that it needs a copy gets rows that the group has never had."""
    first_sequence = cluster.log.state().first_sequence
    for name, disk in cluster.disks.items():
        reached = cluster.durable_sequence(name)
        encoded = disk.durable(Family.DATA, CHECKPOINT_KEY)
        is_late = name not in cluster.processes and 0 < reached < first_sequence - 1
        if is_late and encoded is not None and cluster.is_spare(name):
            rows = Checkpoint.decode(encoded)
            executed = rows.gtid_executed.union(GtidSet.parse(FOREIGN_GTIDS))
            batch = disk.batch()
            foreign = Checkpoint(
                version=rows.version, position=rows.position, tick=rows.tick, gtid_executed=executed
            )
            batch.put(Family.DATA, CHECKPOINT_KEY, foreign.encode())
            disk.write(batch)
            disk.flush()
            cluster.foreign.add(name)
            return


def lose_tail(cluster: "Cluster") -> None:
    """The log loses its newest messages, acknowledged ones among them: no fault that a group can
    survive whole. Whoever runs and has read them sees it at once; who is down stays down.
    """
    state = cluster.log.state()
    last = state.last_sequence - cluster.dice.randint(1, TAIL_MESSAGES_MAX)
    if cluster.is_tail_lost or last < state.first_sequence:
        return
    cluster.lose_tail(last)


def trust_log(cluster: "Cluster") -> None:
    """The operators of members that wait to join say that the log is whole, which may be wrong."""
    for process in cluster.processes.values():
        process.trusts_log = process.member.machine.state is MemberState.RECOVERING


def act_as_operator(cluster: "Cluster") -> None:
    """An operator looks after members that will not come back by themselves."""
    for name in list(cluster.processes):
        if cluster.processes[name].member.machine.state is MemberState.FENCED:
            if cluster.dice.random() < 0.5:
                cluster.stop(name)
                cluster.start(name)
            else:
                cluster.mend(name)


def change_settings(cluster: "Cluster") -> None:
    """A member asks for other settings, another mode among them; others may ask, too."""
    dice, online = cluster.dice, cluster.online()
    if online:
        machine = dice.choice(online).machine
        machine.change_settings(some_settings(dice, machine.settings))


def appoint(cluster: "Cluster") -> None:
    """A member asks for another primary, which may be gone, or in a group that has none."""
    online = cluster.online()
    if online:
        cluster.dice.choice(online).machine.appoint(cluster.dice.choice(list(cluster.disks)))


def write_junk(cluster: "Cluster") -> None:
    """Somebody who is no member writes to the log what is no message of one."""
    online = cluster.online()
    if not online:
        return
    dice, machine = cluster.dice, cluster.dice.choice(online).machine
    view, me = machine.view, machine.me
    stranger = ViewMember(name="m9", incarnation=dice.getrandbits(64) | 1 << 63, address="m9:1")
    everybody_out = ViewProposal(view.view_id, ())
    last = machine.numbers.last(me.incarnation) or 0
    forged = LogBatch(me.name, me.incarnation, last + 1 + dice.randint(0, 9))
    far_ahead = MemberReport(1 << 40, 1 << 40, machine.log_sequence, bytes(8), 1 << 40)
    junk = machine.settings._replace(
        settings_version=1 + machine.settings.settings_version, gc_window=""
    )
    by_stranger = LogBatch(stranger.name, stranger.incarnation, 1)
    message: LogBatch | bytes = dice.choice(
        (
            dice.randbytes(dice.randint(0, 9)),
            by_stranger._replace(controls=[everybody_out]),
            by_stranger._replace(controls=[ViewProposal(view.view_id, (stranger, *view.members))]),
            by_stranger._replace(transactions=[LoggedTransaction(b"", 0, [1])]),
            by_stranger._replace(controls=[junk._replace(settings_version=1)]),
            forged._replace(batch_number=1 << 63),
            forged._replace(member=stranger.name),
            forged._replace(format_version=FORMAT_VERSION + 1),
            forged._replace(controls=[junk]),
            forged._replace(controls=[far_ahead]),
            forged._replace(controls=[ViewProposal(view.view_id, (stranger,))]),
            forged._replace(transactions=[LoggedTransaction(b"", 0, [1], payload=b"\xff")]),
        )
    )
    if isinstance(message, LogBatch):
        message = encode_batch(message, message.format_version or FORMAT_FIRST)
    _write(cluster, message)


def impersonate(cluster: "Cluster") -> None:
    """Somebody writes a valid message in the name of a member, which has to come back as another
    run.
    """
    online = cluster.online()
    if online:
        machine = cluster.dice.choice(online).machine
        last = machine.numbers.last(machine.me.incarnation) or 0
        number = last + cluster.dice.randint(1, NUMBERS_AHEAD_MAX)
        cluster.excuse(machine.me.name, cluster.now_ms + max(AWAY_MS))
        _write(cluster, encode_batch(LogBatch(machine.me.name, machine.me.incarnation, number)))


def _write(cluster: "Cluster", payload: bytes) -> None:
    """A message that no member has sent is in the log, if that takes it."""
    if cluster.log_away_until_ms <= cluster.now_ms:
        cluster.checks.strange_messages += 1
        cluster.log.append(f"strange {cluster.checks.strange_messages}", payload)


def _victim(cluster: "Cluster") -> "SimulatedProcess | None":
    processes = list(cluster.processes.values())
    return cluster.dice.choice(processes) if processes else None


def _until_ms(cluster: "Cluster") -> int:
    return cluster.now_ms + cluster.dice.randint(1, cluster.dice.choice(AWAY_MS))
