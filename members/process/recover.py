"""Recovery of a member whose log does not reach back, or is long: by a copy of a donor's state.

The copy takes the place of the member's own state before the next run (`recovery/store_swap.py`).
"""

import time

import structlog

from groupcert.certifier.errors import GroupcertError
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.position import log_sequence_of
from groupcert.certifier.storage.store import Family
from groupcert.members.core.recovery_progress import RecoveryProgress, readable
from groupcert.members.core.states import MemberState
from groupcert.members.errors.recovery import LogTooLong, LogTrimmed
from groupcert.members.recovery.joiner import Joiner, fetch_copy
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.runtime.state_store import LOG_IDENTITY_KEY
from groupcert.members.settings.member import MemberConfig
from groupcert.members.total_order.port import LogIdentity

LOG_SECONDS = 5.0
"""Between two lines of the log on how far a copy is."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def joiner_of(config: MemberConfig, runtime: MemberRuntime) -> Joiner:
    """Returns a member in its present state as a joiner, with the members that it knows."""
    checkpoint = runtime.target.checkpoint()
    identity = runtime.store.get(Family.META, LOG_IDENTITY_KEY)
    known = [each.address for each in runtime.member.view.members if each.name != config.member]
    return Joiner(
        group=config.group,
        member=config.member,
        data_folder=config.data_folder,
        addresses=tuple(dict.fromkeys((*config.seeds, *known))),
        log=None if identity is None else LogIdentity.decode(identity),
        log_sequence=max(
            runtime.member.log_sequence, log_sequence_of(checkpoint.position) if checkpoint else 0
        ),
        gtid_executed=checkpoint.gtid_executed if checkpoint else GtidSet(),
        credentials=config.credentials(),
    )


async def recover(config: MemberConfig, runtime: MemberRuntime, needed: GroupcertError) -> None:
    """Copies a donor's state, to be put in place of the member's once its store is closed.

    Args:
        needed: Why the log is not enough. Meanwhile the member is RECOVERING and reports its
            progress.

    Raises:
        LogTrimmed: It knows no member to ask.
        NoDonor: All have failed.
        ExtraTransactions, ForeignLog: An operator must act.
        DiskFull: There is no space for a copy.
    """
    assert isinstance(needed, (LogTrimmed, LogTooLong))
    joiner = joiner_of(config, runtime)
    log.warning(
        "recovery_by_copy", member=config.member, seeds=joiner.addresses, reason=str(needed)
    )
    if not joiner.addresses:
        raise needed
    if runtime.member.state is MemberState.RECOVERING:
        runtime.member.reason = "the log does not reach back, or is long: copying a donor's state"
    else:
        reason = "it was away for so long that the log was trimmed: copying a donor's state"
        runtime.stop_serving(MemberState.ERROR, reason)
    logged = time.monotonic()

    def on_progress(progress: RecoveryProgress) -> None:
        nonlocal logged
        runtime.show_recovery(progress)
        if time.monotonic() - logged > LOG_SECONDS or progress.bytes_done == progress.bytes_total:
            logged = time.monotonic()
            rate = f"{readable(progress.bytes_per_second)}/s"
            log.info("recovery_progress", member=config.member, text=str(progress), rate=rate)

    on_progress(RecoveryProgress())
    manifest = await fetch_copy(joiner, on_progress)
    log.info("recovery_copied", member=config.member, log_sequence=manifest.log_sequence)
