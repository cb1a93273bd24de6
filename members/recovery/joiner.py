"""Distributed recovery: copies a donor's state where the log does not reach back far enough.

The rule it keeps: the member's state is replaced by a verified copy or not touched at all. Donors
are asked one after the other, the best one first; the choice and its reason are logged. A member
that has executed what its donor has not is refused before anything is read.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from ...certifier.errors import (
    DiskFull,
    ForeignLog,
    GroupcertError,
    NotServing,
    UnsupportedFormat,
)
from ...certifier.gtid_set import GtidSet
from ...certifier.storage.store import StoreIdentity
from ..core.recovery_plan import (
    Candidate,
    DonorChoice,
    Needs,
    choose_donor,
    why_none,
)
from ..core.recovery_progress import RecoveryProgress
from ..errors.recovery import ExtraTransactions, NoDonor
from ..security.credentials import ANONYMOUS, Credentials
from ..total_order.port import LogIdentity, check_same_log
from ..wire.peer_status import ask_members
from . import store_swap
from .donors import donor_at
from .download import download_copy
from .manifest import CopyManifest, verify_content

ROUNDS_MAX = 5
"""Rounds of asking all donors; each begins with those that are there then."""
ROUND_SECONDS = 2.0
log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Joiner:
    """A member that needs a copy, and what it has.

    `addresses`: where members may be. `server_version`: up to which version its PostgreSQL server
    has executed all; None: its store keeps its rows, and it has none. `without_rows`: it keeps none
    anywhere.
    """

    group: str
    member: str
    data_folder: Path
    addresses: tuple[str, ...]
    log: LogIdentity | None = None
    log_sequence: int = 0
    gtid_executed: GtidSet
    server_version: int | None = None
    without_rows: bool = False
    credentials: Credentials = ANONYMOUS

    def check(self, manifest: CopyManifest) -> None:
        """Raises ForeignLog for a copy of another log, NotServing for one older than this member's
        state, ExtraTransactions if this member has what the copy has not.
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


async def fetch_copy(
    joiner: Joiner,
    on_progress: Callable[[RecoveryProgress], None],
    *,
    rounds_max: int = ROUNDS_MAX,
    round_seconds: float = ROUND_SECONDS,
) -> CopyManifest:
    """Copies the best donor's state, or the next one's if that fails, and adopts it.

    Raises:
        NoDonor: All have failed.
        ExtraTransactions, ForeignLog: An operator must act.
        DiskFull: There is no space for a copy.
    """
    needs = Needs(joiner.member, joiner.server_version, joiner.without_rows)
    candidates: list[Candidate] = []
    failures: dict[str, str] = {}
    for number in range(rounds_max):
        if number:
            await asyncio.sleep(round_seconds)
        # Who failed in a round is asked again in the next one: it may have been restarting.
        failures = {}
        while True:
            candidates = await ask_members(joiner.addresses, joiner.credentials)
            choice = choose_donor(candidates, needs, failures)
            if choice is None:
                break
            log.info("donor_chosen", member=joiner.member, reason=choice.reason)
            try:
                return await _copy_from(joiner, choice, on_progress)
            # Another donor would not change that.
            except (ExtraTransactions, ForeignLog, DiskFull, UnsupportedFormat):
                await asyncio.to_thread(store_swap.give_up, joiner.data_folder)
                raise
            except GroupcertError as error:
                failures[choice.donor.address] = str(error)
                log.warning("donor_failed", donor=choice.donor.address, cause=str(error))
                await asyncio.to_thread(store_swap.give_up, joiner.data_folder)
    cause = why_none(candidates, needs, failures)
    raise NoDonor(asked=", ".join(joiner.addresses), cause=cause)


async def _copy_from(
    joiner: Joiner, choice: DonorChoice, on_progress: Callable[[RecoveryProgress], None]
) -> CopyManifest:
    on_progress(RecoveryProgress(donor=choice.donor.name))
    folder = await asyncio.to_thread(store_swap.begin, joiner.data_folder)
    async with donor_at(choice.donor.address, joiner.credentials) as donor:
        manifest = await download_copy(
            donor,
            folder,
            joiner.member,
            on_progress,
            joiner.check,
            reads_on=True,
            without_rows=joiner.without_rows,
        )
    await asyncio.to_thread(verify_content, folder, manifest)
    identity = StoreIdentity(group=joiner.group, member=joiner.member)
    await asyncio.to_thread(store_swap.adopt, joiner.data_folder, manifest, identity)
    return manifest
