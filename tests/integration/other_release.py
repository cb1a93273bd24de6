"""A member of another release: the command `groupcert` with the release and the newest format of
the log that the variable `RELEASE` names, such as `1.1/3`; `/0` is one that announces neither.

`LocalGroup(module=...)` runs this in the place of the command. What a later format would have that
this one has not is nobody's to know: its messages are the same but for their number.
"""

import os
import runpy
from typing import Any

from groupcert.members.core import record_kinds
from groupcert.members.runtime import opening
from groupcert.members.wire import log_batches

RELEASE_VARIABLE = "RELEASE"


def become(release: str, format_version: int) -> None:
    """Makes this process one of that release."""
    announcing: Any = opening
    announcing.FORMAT_VERSION = format_version
    reading: tuple[Any, ...] = (log_batches, record_kinds) if format_version else ()
    for module in reading:
        assert module.FORMAT_VERSION
        module.FORMAT_VERSION = format_version
    setattr(opening, "version", lambda package: release)  # noqa: B010  # imported there


if __name__ == "__main__":
    name, _, newest = os.environ[RELEASE_VARIABLE].partition("/")
    become(name, int(newest))
    runpy.run_module("groupcert.members", run_name="__main__")
