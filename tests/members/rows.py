"""The rows of a member in the store of a process."""

from groupcert.members.runtime.opening import ProcessRows
from groupcert.members.runtime.runtime import MemberRuntime


def rows_of(runtime: MemberRuntime) -> ProcessRows:
    """Returns a member's rows, which its store keeps."""
    assert isinstance(runtime.rows, ProcessRows)
    return runtime.rows
