"""Gives the services of a member's process its current runtime.

A process has several runtimes, one after another: after a full disk, or when it rejoins, the
services continue with the next one, and between two of them there is none.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ...certifier.errors import CorruptStore, NotServing
from ..core.views import MemberState
from ..runtime.observation import Observation, observe
from ..runtime.runtime import MemberRuntime
from .stopping import Stopping


class CurrentRuntime:
    """Holds the member's current runtime for the services: a `serving.Current`, and more."""

    def __init__(self) -> None:
        self.runtime: MemberRuntime | None = None
        self.stopping = Stopping()

    @property
    def name(self) -> str:
        """The member's; empty before its first runtime."""
        return self.runtime.config.member if self.runtime else ""

    def get(self) -> MemberRuntime:
        """Returns the runtime for reads, see `serving.py`.

        Raises:
            NotServing: There is none whose store is open, or it refuses reads.
        """
        runtime = self.operated()
        if runtime.closed or runtime.refuses_reads:
            raise NotServing(member=runtime.config.member, state=runtime.state.name)
        return runtime

    def writable(self) -> MemberRuntime:
        """Returns the runtime for writes. Raises as `get`."""
        return self.get()

    def operated(self) -> MemberRuntime:
        """Returns the runtime for its operator, open or not. Raises NotServing if there is none."""
        if self.runtime is None:
            raise NotServing(member="", state=MemberState.OFFLINE.name)
        return self.runtime

    def observed(self) -> Observation:
        """Returns an observation of the runtime; of a closed one, of its end. Raises NotServing if
        there never was one.
        """
        return observe(self.operated())

    @contextmanager
    def fencing(self) -> Iterator[None]:
        """Fences the member if the block raises CorruptStore: its applier reads the same store."""
        try:
            yield
        except CorruptStore as error:
            self.operated().give_up(error)
            raise
