"""The newest format that this release reads; refuses a view whose messages it cannot read. Pure.

A member of an earlier release stops where the group goes over to another format, before it reads
any message in that format: its state is then the one that the later release goes on from.
"""

from ..errors.membership import ReleaseTooOld
from .views import View, ViewMember

FORMAT_VERSION = 3
"""Newest format of a log message that this release reads; it writes what all of the view read
(`View.written_format`). The first one, `FORMAT_FIRST`, has no comparisons of rows."""


def check_release(me: ViewMember, view: View) -> None:
    """Raises ReleaseTooOld if the members of a view write a format that `me` does not read."""
    if view.format_version <= me.newest_format:
        return
    raise ReleaseTooOld(
        member=me.name,
        release=me.release,
        newest=me.newest_format,
        written=view.format_version,
        view_id=view.view_id,
        others=", ".join(f"{each.name} runs {each.release}" for each in view.members),
    )
