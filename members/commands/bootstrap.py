"""`groupcert bootstrap`: a group's log, made once."""

import asyncio
from typing import NamedTuple

from ..errors.membership import AlreadyBootstrapped
from ..total_order.log_options import LogOptions, make_order


class Made(NamedTuple):
    """A group's log. `created`: when, as its servers say; `is_new`: by this call."""

    group: str
    created: str
    is_new: bool

    def __str__(self) -> str:
        how = "bootstrapped" if self.is_new else "was bootstrapped before"
        return f"group {self.group} {how}, at {self.created}: start its members"


def bootstrap(options: LogOptions, *, if_absent: bool) -> Made:
    """Makes the group's log, once, and returns it.

    Raises:
        AlreadyBootstrapped: It is there; not with `if_absent`.
        LogServerUnavailable: No log server answered in time.
    """
    made, created = asyncio.run(_make_log(options))
    if not made and not if_absent:
        raise AlreadyBootstrapped(group=options.group, created=created)
    return Made(options.group, created, made)


async def _make_log(options: LogOptions) -> tuple[bool, str]:
    asking, making = make_order(options), make_order(options)
    try:
        made = not await asking.exists()
        state = await making.open(create=made)
    finally:
        await asking.close()
        await making.close()
    return made, state.identity.created
