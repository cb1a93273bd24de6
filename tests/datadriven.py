"""Runs text scripts: what a thing does is written down as commands and what they answer.

A script is a file of blocks: a command line `name key=value flag ...`, optional lines of body,
`----`, and the answer up to the next empty line. Lines that start with `#` between blocks tell the
story. `pytest --rewrite` writes the answers that the commands give now; review the difference like
code.

Source: the data-driven tests of cockroachdb and of etcd-io/raft.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "----"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a script; a flag is an argument with an empty value. `line`: all of it."""

    name: str
    arguments: Mapping[str, str]
    body: Sequence[str]
    line: str = ""

    def take(self, *known: str) -> list[str | None]:
        """The values of arguments, None where one is missing; others than these are an error."""
        unknown = self.arguments.keys() - set(known)
        assert not unknown, f"{self.name} has no argument {', '.join(sorted(unknown))}"
        return [self.arguments.get(name) for name in known]


Handler = Callable[[Command], str]


def run_script(path: Path, handlers: Mapping[str, Handler], *, rewrite: bool = False) -> None:
    """Runs each command of a script with its handler and compares the answers.

    Raises:
        AssertionError: an answer differs, naming the line; with `rewrite` the file is changed.
    """
    lines = path.read_text().splitlines()
    written: list[str] = []
    commands = 0
    for number, lead, block in _blocks(lines):
        written += lead
        if not block:
            continue
        assert SEPARATOR in block, f"{path.name}:{number}: no {SEPARATOR} after the command"
        separator = block.index(SEPARATOR)
        command = parse_command(block[0], block[1:separator])
        assert command.name in handlers, f"{path.name}:{number}: no command {command.name}"
        answer = handlers[command.name](command).splitlines()
        assert all(answer), f"{path.name}:{number}: an answer has no empty lines"
        if not rewrite:
            assert answer == block[separator + 1 :], f"{path.name}:{number}: {block[0]}"
        written += [*block[: separator + 1], *answer]
        commands += 1
    assert commands, f"{path.name} has no command"
    if rewrite:
        path.write_text("\n".join(written) + "\n")


def parse_command(line: str, body: Sequence[str] = ()) -> Command:
    """The command that a line and its body describe.

    >>> parse_command("certify from=m1 local").arguments
    {'from': 'm1', 'local': ''}
    """
    name, *words = line.split()
    pairs = [word.partition("=") for word in words]
    arguments = {key: value for key, _, value in pairs}
    return Command(name=name, arguments=arguments, body=body, line=line)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of columns under a header, each as wide as its widest value.

    >>> table(("item", "SN"), [("ws1", 2)])
    ['item | SN', 'ws1  | 2']
    """
    texts = [[str(value) for value in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, list[str], list[str]]]:
    """Line number, comments and empty lines before it, and lines of each block."""
    lead: list[str] = []
    block: list[str] = []
    for number, line in enumerate(lines, 1):
        if not block and (not line or line.startswith("#")):
            lead.append(line)
        elif line:
            block.append(line)
        else:
            yield number - len(block), lead, block
            lead, block = [line], []
    yield len(lines) + 1 - len(block), lead, block
