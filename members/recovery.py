"""Distributed recovery: a member that cannot go on by the log copies a donor's state.

The rule it keeps: what the member has is replaced by a verified copy or not touched at all. Donors
are asked one after the other, the best one first; the choice and its reason are logged. A member
that has executed what its donor has not is refused before anything is read.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from certifier.errors import DiskFull, ForeignLog, GroupcertError, NotServing, UnsupportedFormat
from certifier.gtid_set import GtidSet
from certifier.records import log_sequence_of
from certifier.store import Family, StoreIdentity
from members import store_swap
from members.config import MemberConfig
from members.copy_download import download_copy
from members.copy_manifest import CopyManifest, verify_content
from members.credentials import ANONYMOUS, Credentials
from members.donors import ask_members, donor_at
from members.failures import MemberFailed
from members.member_state import MemberState
from members.mind_store import LOG_IDENTITY_KEY
from members.recovery_choice import (
    Candidate,
    DonorChoice,
    RecoveryProgress,
    choose_donor,
    readable,
    why_none,
)
from members.recovery_errors import ExtraTransactions, LogTooLong, LogTrimmed, NoDonor
from members.runtime import MemberRuntime
from members.total_order import LogIdentity, check_same_log

ROUNDS_MAX = 5
"""How often all donors are asked; each round begins with those that are there then."""
ROUND_SECONDS = 2.0
LOG_SECONDS = 5.0
"""Between two lines of the log on how far a copy is."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Joiner:
    """Who needs a copy, and what it has. `addresses`: where members may be."""

    group: str
    member: str
    data_folder: Path
    addresses: tuple[str, ...]
    log: LogIdentity | None = None
    log_sequence: int = 0
    gtid_executed: GtidSet
    credentials: Credentials = ANONYMOUS

    def check(self, manifest: CopyManifest) -> None:
        """Raises ForeignLog for a copy of another log, NotServing for one that is older than what
        this member has, ExtraTransactions where it has what the copy has not.
        """
        if self.log is not None:
            check_same_log(self.log, manifest.log)
        if manifest.log_sequence < self.log_sequence:
            state = f"BEHIND (at {manifest.log_sequence}, this member is at {self.log_sequence})"
            raise NotServing(member=manifest.member, state=state)
        extra = self.gtid_executed - manifest.gtids()
        if extra:
            lacking = f"donor {manifest.member}"
            raise ExtraTransactions(member=self.member, lacking=lacking, extra=str(extra))


def joiner_of(config: MemberConfig, runtime: MemberRuntime) -> Joiner:
    """A member as it stands, with the members that it knows."""
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
    """Has a donor's state ready to be put in place of the member's once its store is closed.

    Args:
        needed: Why the log does not do. Meanwhile the member is RECOVERING and says how far it is.

    Raises:
        LogTrimmed: It knows nobody to ask.
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
        runtime.recovery = progress
        if time.monotonic() - logged > LOG_SECONDS or progress.bytes_done == progress.bytes_total:
            logged = time.monotonic()
            rate = f"{readable(progress.bytes_per_second)}/s"
            log.info("recovery_progress", member=config.member, text=str(progress), rate=rate)

    on_progress(RecoveryProgress())
    manifest = await fetch_copy(joiner, on_progress)
    log.info("recovery_copied", member=config.member, log_sequence=manifest.log_sequence)


async def fetch_copy(
    joiner: Joiner,
    on_progress: Callable[[RecoveryProgress], None],
    *,
    rounds_max: int = ROUNDS_MAX,
    round_seconds: float = ROUND_SECONDS,
) -> CopyManifest:
    """Copies the best donor's state, the next one's where that fails, and adopts it.

    Raises: as `recover` does.
    """
    candidates: list[Candidate] = []
    failures: dict[str, str] = {}
    for number in range(rounds_max):
        if number:
            await asyncio.sleep(round_seconds)
        failures = {}
        while True:
            candidates = await ask_members(joiner.addresses, joiner.credentials)
            choice = choose_donor(candidates, asker=joiner.member, failed=failures)
            if choice is None:
                break
            log.info("donor_chosen", member=joiner.member, reason=choice.reason)
            try:
                return await _copy_from(joiner, choice, on_progress)
            except (ExtraTransactions, ForeignLog, DiskFull, UnsupportedFormat):
                await asyncio.to_thread(store_swap.give_up, joiner.data_folder)
                raise
            except (GroupcertError, MemberFailed) as error:
                failures[choice.donor.address] = str(error)
                log.warning("donor_failed", donor=choice.donor.address, cause=str(error))
                await asyncio.to_thread(store_swap.give_up, joiner.data_folder)
    cause = why_none(candidates, joiner.member, failures)
    raise NoDonor(asked=", ".join(joiner.addresses), cause=cause)


async def _copy_from(
    joiner: Joiner, choice: DonorChoice, on_progress: Callable[[RecoveryProgress], None]
) -> CopyManifest:
    on_progress(RecoveryProgress(donor=choice.donor.name))
    folder = await asyncio.to_thread(store_swap.begin, joiner.data_folder)
    async with donor_at(choice.donor.address, joiner.credentials) as donor:
        manifest = await download_copy(
            donor, folder, joiner.member, on_progress, joiner.check, reads_on=True
        )
    await asyncio.to_thread(verify_content, folder, manifest)
    identity = StoreIdentity(group=joiner.group, member=joiner.member)
    await asyncio.to_thread(store_swap.adopt, joiner.data_folder, manifest, identity)
    return manifest
