"""Where the services of a member's process find its runtime.

The process outlives its runtimes: after a full disk, or when it rejoins, the services go on with
another one, and between two of them there is none.
"""

from certifier.errors import NotServing
from members.convert import RequestLimits
from members.member_state import MemberState
from members.runtime import MemberRuntime
from members.stopping import Stopping


class CurrentRuntime:
    """Where the services find the member's runtime, which is made anew after a full disk."""

    def __init__(self) -> None:
        self.runtime: MemberRuntime | None = None
        self.stopping = Stopping()

    @property
    def name(self) -> str:
        """The member's; empty before its first runtime."""
        return self.runtime.member.me.name if self.runtime else ""

    def get(self) -> MemberRuntime:
        """The runtime. Raises NotServing where there is none whose store is open."""
        runtime = self.observed()
        if runtime.closed or runtime.refuses_reads:
            raise NotServing(member=runtime.member.me.name, state=runtime.member.state.name)
        return runtime

    def observed(self) -> MemberRuntime:
        """The runtime, for its status; closed, it has that of its end."""
        if self.runtime is None:
            raise NotServing(member="", state=MemberState.OFFLINE.name)
        return self.runtime

    def limits(self) -> RequestLimits:
        """What a client may hand in at most."""
        runtime = self.get()
        return RequestLimits(
            runtime.member.settings.write_set_items_max,
            runtime.config.transaction_bytes_max,
            runtime.config.domain_sessions,
        )
