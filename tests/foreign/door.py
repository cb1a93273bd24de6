"""Where a program's process asks for what only the group can do: to be attached, to change its
schema, to compare rows. The parts in `inside/` call it, and import nothing of this project.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from tests.foreign.foreign_group import ForeignGroup

CALLS = frozenset(("spread", "change", "differences"))


@contextmanager
def open_door(group: ForeignGroup, folder: Path) -> Iterator[dict[str, str]]:
    """Serves calls during the block; yields what the program's environment has to have."""
    path, key = str(folder / "door.sock"), secrets.token_hex()
    lock = threading.Lock()

    def answer(connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):
            while True:
                name, *arguments = connection.recv()
                assert name in CALLS, name
                with lock:
                    try:
                        result = getattr(group, name)(*arguments)
                        connection.send((True, result))
                    except Exception as error:
                        connection.send((False, f"{type(error).__name__}: {error}"))

    def serve(listener: Listener) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()

    with Listener(path, authkey=key.encode()) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield {"FOREIGN_DOOR": path, "FOREIGN_KEY": key}
