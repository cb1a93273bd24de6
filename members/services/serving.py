"""Protocols of a runtime for the services of a member: a small one for each kind of caller.

A replica with a store of its own has the part that is read (`replica/replica_reads.py`).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import grpc.aio

from ...certifier.gtid_set import GtidSet
from ..binary_log.stored_log import BinaryLog
from ..core.held_versions import HeldVersions
from ..core.log_records import LoggedTransaction
from ..core.publisher import Submission
from ..core.views import MemberState
from ..large_transactions.fragment_store import FragmentStore
from ..large_transactions.uploads import Uploads
from ..runtime.answers import KnownOutcomes
from ..runtime.snapshots import Snapshots
from ..settings.member import MemberConfig
from ..wire.requests import RequestLimits
from .stopping import Stopping

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Reading(Protocol):
    """Rows as clients read them; `MemberRuntime` says what each method does and raises."""

    @property
    def snapshots(self) -> Snapshots: ...
    def now_ms(self) -> int: ...
    def open_snapshot(self, caller: str, session_id: int) -> tuple[int, int]: ...
    async def committed(self, version: int) -> None: ...


class Serving(Reading, Protocol):
    """A member as its clients see it, likewise."""

    config: MemberConfig
    held: HeldVersions
    known: KnownOutcomes
    uploads: Uploads
    record_bytes_max: int

    def limits(self) -> RequestLimits: ...
    def submit(
        self,
        transactions: Sequence[LoggedTransaction],
        decided: Callable[[Submission], None] | None = None,
    ) -> "asyncio.Future[Submission]": ...
    async def applied_everywhere(self, version: int) -> None: ...
    def name_row(self, item: int, key: bytes) -> None: ...
    def give_up(self, error: Exception) -> None: ...


class Current(Protocol):
    """What a process serves at present; `CurrentRuntime` says what each method does and raises."""

    stopping: Stopping

    @property
    def name(self) -> str: ...
    def get(self) -> Reading: ...
    def writable(self) -> Serving: ...
    def fencing(self) -> AbstractContextManager[None]: ...


class Followed(Protocol):
    """A member as its replicas see it."""

    config: MemberConfig
    closed: bool
    binary_log: BinaryLog | None
    committed_version: int
    committed_position: int
    fragments: FragmentStore

    @property
    def state(self) -> MemberState: ...
    @property
    def group_source(self) -> str: ...
    def gtid_executed(self) -> GtidSet: ...
    def check_readable(self) -> None: ...
    def submit(self, transactions: Sequence[LoggedTransaction]) -> "asyncio.Future[Submission]": ...
    async def committed(self, version: int) -> None: ...
    async def news(self, timeout_s: float) -> None: ...
