"""Transcripts: what a user types, and what the command answers, as scripts of `datadriven.py`.

A block `$ groupcert ...` is a line of a shell; lines of its body are standard input. The answer has
standard output, then standard error behind `! `, then `exit` with a code that is not 0. An empty
line is a `~`, in a body, too. What differs from run to run is masked by `MASKS`, and by the names
of a terminal: `{m1}` is an address in what is typed, and again in what is answered.

A shell's part is small: `NAME=value` before the command, `| jq -c PATH,...` behind it, with those
paths of jq that are names and indices, and `ls` and `cat`. With `2>&1 | tail -1` the command is a
process of its own, whose log goes before its last words.
"""

import io
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from groupcert.members.commands import failures
from groupcert.members.commands.cli import app
from tests.commands import groupcert
from tests.datadriven import Command, Handler

FOLDER = Path(__file__).parent / "testdata" / "transcripts"
COLUMNS = "120"
MASKS = (
    (re.compile(r"127\.0\.0\.1:\d{5}\b"), "127.0.0.1:PORT"),
    (re.compile(r"UNREACHABLE \([^)]*onnect[^)]*\)"), "UNREACHABLE (WHY)"),
    (re.compile(r"which has logs of [^:]*:"), "which has logs of GROUPS:"),
    (re.compile(r"UNREACHABLE: [^\"]*onnect[^\"]*"), "UNREACHABLE: WHY"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r"(PostgreSQL |postgresql-client-)\d+(?![.\d])"), r"\1VERSION"),
    (re.compile(r" +$", re.MULTILINE), ""),
    (re.compile(r"^$", re.MULTILINE), "~"),
)
LAST_WORDS = " 2>&1 | tail -1"
STEP = re.compile(r"(\w+)|\[(\d*)\]")


class Terminal:
    """A shell in a folder of the test's, in which `groupcert` runs in this process.

    `names`: what stands for `{name}` in what is typed, and is told as `{name}`.
    """

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.names = dict(names or {})
        self._patches = monkeypatch
        self._captured = capsys
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", COLUMNS)

    @property
    def handlers(self) -> dict[str, Handler]:
        """The commands of a transcript: what is typed, and `file`."""
        return {"$": self.typed, "file": write_body}

    def typed(self, command: Command) -> str:
        """$ [NAME=value ...] groupcert|ls|cat ... [| jq -c PATH,...]: what it answers."""
        line = command.line.removeprefix("$ ")
        line, as_process, _ = line.partition(LAST_WORDS)
        line, _, paths = line.partition(" | jq -c ")
        words = [self._named(word) for word in shlex.split(line)]
        environment = {}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        match words:
            case ["groupcert", *arguments] if as_process:
                return self._last_words(arguments, environment)
            case ["groupcert", *arguments]:
                return self._groupcert(arguments, environment, command.body, paths)
            case ["ls", folder]:
                return "\n".join(sorted(each.name for each in Path(folder).iterdir()))
            case ["cat", file]:
                return self.masked(Path(file).read_text())
        raise AssertionError(f"no program is called as {line}")

    def _named(self, word: str) -> str:
        for name, value in self.names.items():
            word = word.replace(f"{{{name}}}", value)
        return word

    def _groupcert(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        lines: Sequence[str],
        paths: str,
    ) -> str:
        typed = io.BytesIO(_text(lines).encode())
        self._captured.readouterr()
        with self._patches.context() as patches:
            for name, value in environment.items():
                patches.setenv(name, value)
            patches.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(typed)))
            code = failures.run(app, arguments)
        out, err = self._captured.readouterr()
        if paths:
            out = "".join(f"{each}\n" for each in picked(out, paths))
        answer = self.masked(out)
        answer += "".join(f"! {line}\n" for line in self.masked(err).splitlines())
        return answer + (f"exit {code}\n" if code else "")

    def _last_words(self, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
        done = groupcert(*arguments, **environment)
        assert (done.stdout, "Traceback" in done.stderr) == ("", False), done.stderr
        return f"{self.masked(done.stderr.splitlines()[-1])}exit {done.returncode}\n"

    def masked(self, text: str) -> str:
        """Returns a text without what differs from run to run."""
        text = text.replace(str(self.folder), "$PWD")
        for name, value in self.names.items():
            text = text.replace(value, f"{{{name}}}")
        for pattern, mask in MASKS:
            text = "\n".join(pattern.sub(mask, line) for line in text.splitlines())
        return f"{text}\n" if text else ""


def write_body(command: Command) -> str:
    """file NAME: a file has the body."""
    path = Path(command.line.split()[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(command.body))
    return ""


def picked(documents: str, paths: str) -> Iterator[str]:
    """Yields what paths lead to in each line, as JSON.

    >>> list(picked('{"a": [{"b": 1}, {"b": "c"}]}', ".a[].b,.a[1]"))
    ['1', '"c"', '{"b": "c"}']
    """
    for document in map(json.loads, documents.splitlines()):
        for path in paths.split(","):
            values = [document]
            for name, index in STEP.findall(path):
                if name:
                    values = [value.get(name) for value in values]
                elif index:
                    values = [value[int(index)] for value in values]
                else:
                    values = [each for value in values for each in value]
            yield from map(json.dumps, values)


def _text(body: Sequence[str]) -> str:
    return "".join("\n" if line == "~" else f"{line}\n" for line in body)
