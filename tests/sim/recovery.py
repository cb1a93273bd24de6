"""Distributed recovery in simulated time: a joiner copies a donor's disk, part by part.

The rule it keeps: it decides as `recovery/joiner.py` does, by the same plan, choice and checks,
and does what that one leaves to gRPC and files. Between two parts anything may happen to either
member: the copy is of one moment, whatever that was.
"""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from groupcert.certifier.errors import (
    ForeignLog,
    GroupcertError,
    Unavailable,
    UnsupportedFormat,
)
from groupcert.certifier.storage.info_store import CertificationInfoStore
from groupcert.certifier.storage.store import Family
from groupcert.members.core.recovery_plan import Candidate, Needs, choose_donor, why_none
from groupcert.members.errors.recovery import CorruptCopy, ExtraTransactions, NoDonor
from groupcert.members.recovery.joiner import Joiner
from groupcert.members.recovery.manifest import CopyManifest
from tests.sim.disk import DiskCopy, SimulatedDisk

PARTS = 6
ROUNDS_MAX = 5
ROUND_MS = 200
PATIENCE_MS = 300
"""How long a joiner waits for a donor that does not answer."""


class OpenCopy(NamedTuple):
    """What a donor hands out."""

    manifest: CopyManifest
    copy: DiskCopy


class Donor(Protocol):
    """A member's process, as one that looks for a copy sees it."""

    def candidate(self) -> Candidate:
        """Its status."""

    def open_copy(self, asker: str, *, without_rows: bool) -> OpenCopy:
        """A copy as of now. Raises NotServing, TooManyCopies."""

    def close_copy(self, asker: str) -> None:
        """The asker has what it wanted, or gave up."""


class _Copying(NamedTuple):
    donor: Donor
    address: str
    opened: OpenCopy
    parts: int


class Recovery:
    """One member's way to a copy; `needed` is why the log does not do."""

    def __init__(
        self,
        joiner: Joiner,
        needed: GroupcertError,
        disk: SimulatedDisk,
        donors: Callable[[], Sequence[Donor]],
    ) -> None:
        """`donors`: the processes that answer now."""
        self.needed = needed
        self._joiner = joiner
        self._needs = Needs(joiner.member, without_rows=joiner.without_rows)
        self._disk = disk
        self._donors = donors
        self._failures: dict[str, str] = {}
        self._rounds = 0
        self._round_ms = 0
        self._heard_ms = 0
        self._copying: _Copying | None = None

    def step(self, now_ms: int) -> CopyManifest | None:
        """Does the next thing; returns the manifest once the copy is this member's own.

        Raises:
            NoDonor: All have failed, round after round.
            ExtraTransactions, ForeignLog: An operator must act.
        """
        try:
            if self._copying is not None:
                return self._copy_on(self._copying, now_ms)
            if now_ms >= self._round_ms:
                self._choose(now_ms)
        except (ExtraTransactions, ForeignLog, UnsupportedFormat):
            self.give_up()
            raise
        except GroupcertError as error:
            if isinstance(error, NoDonor):
                raise
            self._failed(str(error))
        return None

    def give_up(self) -> None:
        """Ends the copy that comes in, if one does."""
        if self._copying is not None:
            self._copying.donor.close_copy(self._joiner.member)
            self._copying = None

    def _choose(self, now_ms: int) -> None:
        donors = [(each.candidate(), each) for each in self._donors()]
        candidates = [candidate for candidate, _ in donors]
        choice = choose_donor(candidates, self._needs, self._failures)
        if choice is None:
            self._next_round(candidates, now_ms)
            return
        donor = next(each for candidate, each in donors if candidate == choice.donor)
        address = choice.donor.address
        try:
            opened = donor.open_copy(self._joiner.member, without_rows=self._joiner.without_rows)
        except Unavailable as error:
            self._failures[address] = str(error)
            return
        self._copying = _Copying(donor, address, opened, 0)
        self._heard_ms = now_ms
        self._joiner.check(opened.manifest)

    def _next_round(self, candidates: list[Candidate], now_ms: int) -> None:
        """All have failed: they are asked again a little later, or not any more."""
        joiner = self._joiner
        self._rounds += 1
        if self._rounds >= ROUNDS_MAX:
            cause = why_none(candidates, self._needs, self._failures)
            raise NoDonor(asked=", ".join(joiner.addresses), cause=cause)
        self._failures = {}
        self._round_ms = now_ms + ROUND_MS

    def _copy_on(self, copying: _Copying, now_ms: int) -> CopyManifest | None:
        """Takes another part, if the donor gives it; the last one makes the copy one's own."""
        donor, _, (manifest, copy), parts = copying
        if donor in self._donors():
            self._heard_ms = now_ms
            self._copying = copying._replace(parts=parts + 1)
            if parts == PARTS:
                self._adopt(manifest, copy)
                self.give_up()
                return manifest
        elif now_ms - self._heard_ms > PATIENCE_MS:
            self._failed("it does not answer, or is gone")
        return None

    def _adopt(self, manifest: CopyManifest, copy: DiskCopy) -> None:
        """See `store_swap.adopt`."""
        saved = copy[Family.META].get(CertificationInfoStore.CHECKPOINT_KEY, b"{}")
        digest = json.loads(saved).get("digest", "")
        if digest != manifest.certification_digest:
            raise CorruptCopy(path="copy", problem=f"its certification info has {digest}")
        self._disk.adopt(copy)

    def _failed(self, cause: str) -> None:
        assert self._copying is not None, cause
        self._failures[self._copying.address] = cause
        self.give_up()
