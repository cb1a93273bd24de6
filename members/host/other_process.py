"""Another process of this program, which does what it is asked to and ends with who asks.

A second thread shares the interpreter with the first one; another process has its own processor.
It is a plain Python that imports what it is asked to call, not the program again: it begins in a
tenth of a second. What it is told and what it tells goes through a socket, pickled.
"""

import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final, ParamSpec, TypeVar

from .interruption import held_back

Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")
_ITEM: Final = "item"
_ERROR: Final = "error"
_END: Final = "end"


class OtherProcess:
    """A process that begins at once and calls generators, one at a time; `end` is for any thread.

    >>> other = OtherProcess()
    >>> [*other.ask(iter, "abc")]
    ['a', 'b', 'c']
    >>> other.end()
    """

    def __init__(self) -> None:
        """Starts the process. It gets no Ctrl-C, which a terminal sends to a group of processes."""
        ours, theirs = socket.socketpair()
        # -P: of no module that happens to lie in the current folder.
        command = (sys.executable, "-P", "-m", __name__, str(theirs.fileno()))
        with theirs, held_back():
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, process_group=0
            )
        self.pid = self._process.pid
        self._connection = Connection(ours.detach())

    def ask(
        self,
        function: Callable[Arguments, Iterable[Item]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Generator[Item, None, None]:
        """Yields the items of a generator in the process, as soon as they are there; a caller that
        reads slowly has it wait. Whoever stops in the midst ends the process.

        Raises:
            ChildProcessError: the process has ended, by `end` or otherwise.
            What the function raises.
        """
        is_over = False
        try:
            self._connection.send((function, args, kwargs))
            while True:
                kind, found = self._connection.recv()
                if kind == _ITEM:
                    yield found
                    continue
                is_over = True
                if kind == _ERROR:
                    raise found
                return
        except (EOFError, ConnectionError) as error:
            if is_over:
                raise
            code = self._process.wait()
            raise ChildProcessError(f"the other process has ended with {code}") from error
        finally:
            if not is_over:
                self.end()

    def end(self) -> None:
        """Kills the process: it has nothing of its own."""
        self._process.kill()
        self._process.wait()


def _serve(connection: Connection) -> None:
    """Does what it is asked, until nobody is there that asks."""
    with suppress(EOFError, ConnectionError):
        while True:
            function, args, kwargs = connection.recv()
            answers = _answers(function, args, kwargs)
            for answer in answers:
                connection.send(answer)


def _answers(
    function: Callable[..., Iterable[object]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, object]]:
    try:
        for item in function(*args, **kwargs):
            yield _ITEM, item
    except Exception as error:
        yield _ERROR, error
    else:
        yield _END, None


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
