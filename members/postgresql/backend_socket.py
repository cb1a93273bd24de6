"""The socket of a member, in a folder of the server's account, and its lock.

The rule it keeps: nobody but that account and root reaches the socket or can put another one in
its place, and one member at a time listens there, until its process ends.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BackendSocket:
    """Where a member listens; `prepare_socket` in place.sql has made the folder and the lock."""

    def __init__(self, path: Path, token: str, account: int) -> None:
        """Takes the path, the token that both sides prove to know, and the server's account."""
        self.path = path
        self.token = token
        self.account = account
        self._lock: int | None = None

    @property
    def accounts(self) -> frozenset[int]:
        """The user ids that may ask: the server's, root's, and the member's own."""
        return frozenset({self.account, 0, os.geteuid()})

    def lock(self) -> bool:
        """Takes the lock; returns False if another member has it.

        Raises:
            OSError: The folder is not there, not for this account, or not the server's account's;
                or something else is at the path.
        """
        owner = self.path.parent.stat().st_uid
        if owner != self.account:  # A superuser of the server may have noted any path.
            raise PermissionError(f"its folder is owned by uid {owner}, not {self.account}")
        if self.path.exists() and not self.path.is_socket():
            raise FileExistsError("something else than a socket is there")
        lock = os.open(f"{self.path}.lock", os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def touch(self) -> None:
        """Shows who watches the locked file that its member is at work."""
        assert self._lock is not None, "touched before it was locked"
        os.utime(self._lock)

    def bind(self) -> socket.socket:
        """Returns a socket at the path, in the place of what an earlier member has left."""
        self.remove()
        bound = socket.socket(socket.AF_UNIX)
        os.fchmod(bound.fileno(), 0o600)  # It is bound with that mode.
        with short(self.path) as path:
            bound.bind(path)
            if os.geteuid() != self.account:
                os.chown(path, self.account, -1, follow_symlinks=False)
        return bound

    def remove(self) -> None:
        """Removes the socket, which nobody reaches then; nothing else."""
        if self.path.is_socket():
            self.path.unlink()

    def close(self) -> None:
        """Gives the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def short(path: Path) -> Iterator[str]:
    """Yields a path of the same file that is short: those of sockets have 107 bytes at most, and
    data directories may lie deep.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
