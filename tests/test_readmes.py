"""Every code block of every README runs.

`LANGUAGES`, `PROGRAMS` and `VERBS` say how each kind of block, program and verb of `groupcert` is
run. A block of a kind that they do not name fails, so that none is skipped without a reason.
"""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer import BadParameter
from typer.main import get_command

import groupcert
from groupcert.applier.targets.sql_schema import SqlSchema
from groupcert.members.commands.cli import app
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST
from groupcert.members.settings.member import load_config
from groupcert.members.settings.replica import load_replica_config
from groupcert.members.wire.row_changes import decode_changes
from tests.handbook import blocks_by_heading
from tests.sources import ROOT, Source, tree

README_BYTES_MAX = 10_000
FIRST_CODE_LINE_MAX = 40
PORTS = {"m1": 7101, "m2": 7102, "m3": 7103}
"""Where the READMEs have a group's members; a test puts the addresses of a real one there."""
EMBEDDED = {"group": "shop", "member": "m1", "log_server": "embedded"}
READMES = {each.path: each for each in tree() if each.path.endswith("README.md")}


class Block(NamedTuple):
    """A fenced block: `kind` is the first word behind the fence, `label` the second one."""

    path: str
    line: int
    kind: str
    label: str
    text: str

    @property
    def folder(self) -> Path:
        """Where the README is."""
        return (ROOT / self.path).parent

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a block of `sh` or `console`, without comments and variables."""
        joined = self.text.replace("\\\n", " ")
        if self.kind == "console":
            joined = "\n".join(line[2:] for line in joined.splitlines() if line.startswith("$ "))
        return [
            list(filter(None, _without_variables(shlex.split(line, comments=True))))
            for line in joined.splitlines()
            if shlex.split(line, comments=True)
        ]


def _without_variables(words: Sequence[str]) -> Sequence[str]:
    return words[next(i for i, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)) :]


def blocks_of(source: Source) -> Iterator[Block]:
    """Yields the fenced blocks of a Markdown text.

    >>> list(blocks_of(Source("a", "b\\n```toml access\\nc = 1\\n```\\n")))
    [Block(path='a', line=2, kind='toml', label='access', text='c = 1\\n')]
    """
    fence = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for found in fence.finditer(source.text):
        line = source.text.count("\n", 0, found.start()) + 1
        yield Block(source.path, line, found[1], found[2], found[3])


BLOCKS = [block for source in READMES.values() for block in blocks_of(source)]


def without_blocks(text: str) -> str:
    """Returns a Markdown text with its fenced blocks left out."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def blocks(kind: str, *, where: Callable[[Block], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Makes a test of each block of a kind."""
    chosen = [block for block in BLOCKS if block.kind == kind and where(block)]
    return pytest.mark.parametrize("block", chosen, ids=lambda each: f"{each.path}:{each.line}")


# How each kind of block is run. A group is three members as processes.
LANGUAGES = {
    "sh": "each command by PROGRAMS, and one of `groupcert` by VERBS",
    "console": "each command behind `$ ` is run in a folder of its own; it prints the rest",
    "python": "a program of a user, in a process of its own; with `Client(` at a group",
    "toml": "loaded as what its label says: SETTINGS_FILES",
    "jsonl": "a trace; the file that its label names, beside the README, is the same",
    "js": "a program for node: tests/certifier/history/test_other_readers.py",
    "json": "rows for that program",
    "text": "a drawing: nothing to run, and no command in it",
}
# How each verb is run.
ALONE, AT_GROUP, PARSED = "alone, in a folder of its own", "at a group", "the command line only"
VERBS = {
    **dict.fromkeys(("replay", "whatif", "export"), ALONE),
    **dict.fromkeys(("status", "verify", "health", "load", "backup", "restore"), AT_GROUP),
    "demo": PARSED,  # tests/integration/test_cli.py runs it
    **dict.fromkeys(("up", "down"), PARSED),  # the quick start runs those of the first README
    "member": PARSED,  # runs until SIGTERM: tests/integration/test_cli.py
    "bootstrap": PARSED,  # needs log servers: tests/integration/test_membership.py
    "log": PARSED,  # needs a log that is lost: tests/integration/test_log_rebuild.py
    "group": PARSED,  # restarts containers: tests/integration/test_rolling_restart.py
    "postgresql": PARSED,  # tests/integration/test_up.py, test_postgresql.py
    "replica": PARSED,  # runs until SIGTERM: tests/integration/test_replica.py
    "audit": PARSED,  # needs Java: tests/audit/test_command.py
}


def is_run(command: Sequence[str], how: str) -> bool:
    """True if this command of a block is run so: its verb is, and all that it reads exists. An
    export of a log server is run by `tests/audit/test_tampering.py`.
    """
    missing = "--applier --binlog --certification-log --log-server --source --measure --member"
    reads_missing = {*missing.split()} & {*command}
    return command[0] == "groupcert" and VERBS[command[1]] == how and not reads_missing


def is_at_group(block: Block) -> bool:
    """True if a block runs at a group: all of its commands do."""
    return (
        block.kind == "sh"
        and not block.label
        and all(
            command[0] == "groupcert" and VERBS.get(command[1]) == AT_GROUP
            for command in block.commands
        )
    )


def is_script(block: Block) -> bool:
    """True if a block is a script of the shell, run whole: it sets variables for itself."""
    return block.text.startswith("new=")


def is_taken(block: Block) -> bool:
    """True if a block of commands has a label, by which a test takes it and runs it whole."""
    return block.kind == "sh" and block.label != ""


def check_groupcert(words: Sequence[str]) -> None:
    """Parses a command line of `groupcert` by the command itself, which runs nothing."""
    command: Any = get_command(app)
    rest = [word for word in words if word != "--help"]
    while hasattr(command, "commands") and not rest[0].startswith("--"):
        assert rest[0] in command.commands, f"no verb {rest[0]}"
        command = command.commands[rest.pop(0)]
    if "--help" not in words:
        command.make_context(words[0], rest)


def check_make(words: Sequence[str]) -> None:
    """The targets are in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in words)


def check_pip(words: Sequence[str]) -> None:
    """What is installed is this project, and its extras."""
    assert words[0] == "install"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words[1:]:
        found = re.fullmatch(r"(?:\.|groupcert)(?:\[(.*)\])?", word)
        assert found, f"{word} is not this project"
        assert set((found[1] or "").split(",")) <= {"", *project["optional-dependencies"]}


def check_docker(words: Sequence[str]) -> None:
    """The compose files are there, and what is asked of them is known."""
    files = [words[at + 1] for at, word in enumerate(words) if word == "-f"]
    assert all((ROOT / file).is_file() for file in files)
    match [word for word in words if word not in {"-f", *files}]:
        case ["compose", "up"] | ["compose", "up", "--build"]:
            assert files
        case ["compose", "up" | "rm" | "run", *_] | ["volume", "rm", _]:
            pass  # Of the handbook, which tests run as a whole: `test_the_handbook_is_run`.
        case _:
            raise AssertionError(f"what does docker {shlex.join(words)} do?")


def check_chmod(words: Sequence[str]) -> None:
    """What is its user's alone is shown for a while; tests run the handbook as a whole."""
    assert words[0] == "-R" and words[1] in {"o+rX", "o-rX"}


def check_pg_basebackup(words: Sequence[str]) -> None:
    """PostgreSQL's own: `tests/bench/server_joins.py` runs it with these flags."""
    assert {"--checkpoint=fast", "-D"} <= {*words}


def check_kubectl(words: Sequence[str]) -> None:
    """The manifests are there, and have what is named; what runs in a pod is known."""
    rest = words[2:] if list(words[:2]) == ["-n", "groupcert"] else words
    match list(rest):
        case ["apply" | "create", "-k", folder]:
            assert (ROOT / folder / "kustomization.yaml").is_file()
        case ["apply", "-f", file]:
            assert (ROOT / file).is_file()
        case ["create", "secret", "generic", "passwords" | "servers", *values]:
            assert all(value.startswith("--from-literal=") for value in values)
        case ["rollout", "status" | "restart", "statefulset/log" | "statefulset/member"]:
            pass
        case ["exec", "member-0", "--", "groupcert", *command]:
            check_groupcert(command)
        case ["exec", "-i", "member-0", "-c", "member", "--", "groupcert", *command]:
            check_groupcert(command)
        case _:
            raise AssertionError(f"what does kubectl {shlex.join(words)} do?")


@cache
def _help_of(*words: str) -> str:
    return check_ends_well([sys.executable, "-m", *words, "--help"], ROOT)


def check_python(words: Sequence[str]) -> None:
    """The module, or what is named behind it, takes each of the options."""
    assert words[0] == "-m"
    options = [word for word in words if word.startswith("--")]
    named = takewhile(lambda word: not word.startswith("--"), words[1:])
    for known in [_help_of(*named)] if options else []:
        assert all(re.search(rf"{option}\b", known) for option in options)


def check_spark_submit(words: Sequence[str]) -> None:
    """Behind Spark's own options is the audit's file, and then what an audit takes."""
    assert words[0] == "--master" and words[2].endswith(".py")
    check_groupcert(["audit", *words[3:]])


PROGRAMS: dict[str, Callable[[Sequence[str]], None]] = {
    "groupcert": check_groupcert,
    "make": check_make,
    "pip": check_pip,
    "chmod": check_chmod,
    "docker": check_docker,
    "kubectl": check_kubectl,
    "pg_basebackup": check_pg_basebackup,
    "python": check_python,
    "spark-submit": check_spark_submit,
}

SETTINGS_FILES: dict[str, Callable[[Path], object]] = {
    "member": lambda path: load_config(path, {}, {}),
    "replica": lambda path: load_replica_config(path, {}, {}),
    "access": lambda path: load_config(None, {**EMBEDDED, "access": str(path)}, {}).access,
    "mapping": lambda path: SqlSchema.parse(path.read_text(), decode_changes),
}


def test_every_block_is_of_a_kind_that_is_run() -> None:
    assert {block.kind for block in BLOCKS} <= set(LANGUAGES)
    fences = {path: len(re.findall("^```", s.text, re.MULTILINE)) for path, s in READMES.items()}
    counted = {path: 2 * sum(block.path == path for block in BLOCKS) for path in READMES}
    assert fences == counted
    indented = re.compile(r"^\n {4}(?! *[-*\d])", re.MULTILINE)
    texts = {path: without_blocks(source.text) for path, source in READMES.items()}
    assert not [path for path, text in texts.items() if indented.search(text)]


def test_blocks_with_a_label_are_taken() -> None:
    texts = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    taken = set(re.findall(r'labelled_block\("(.+?)", "(.+?)"\)', texts))
    labels = {(block.path, block.label) for block in BLOCKS if is_taken(block)}
    assert labels == taken and len(labels) > 1


@blocks("sh", where=lambda block: not is_script(block) and not is_taken(block))
def test_each_command_is_one_that_there_is(block: Block) -> None:
    assert block.commands
    for program, *words in block.commands:
        PROGRAMS[program](words)


@pytest.mark.parametrize(
    "line",
    [
        "groupcert replai sample.jsonl",
        "groupcert replay sample.jsonl --no-such-option",
        "groupcert group restart 127.0.0.1:7101",
        "groupcert backup 127.0.0.1:7101",
        "make no-such-target",
        "pip install something-else",
        "pip install '.[no-such-extra]'",
        "docker compose -f deploy/no-such.yaml up",
        "docker compose -f deploy/compose.yaml kill",
        "kubectl apply -k deploy",
        "kubectl -n groupcert exec member-0 -- groupcert stat",
        "python -m tests.cluster --no-such-option 1",
        "spark-submit --master local audit.py logs --no-such-option",
        "curl http://127.0.0.1",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    program, *words = shlex.split(line)
    with pytest.raises((AssertionError, KeyError, *BadParameter.__bases__)):
        PROGRAMS[program](words)


def test_the_handbook_is_run() -> None:
    """Each block of commands is taken by a test, by its heading, or is run at a group here."""
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_handbook.py"))
    taken = set(re.findall(r'"([A-Z][a-z ]+)"', "".join(texts)))
    at_group = {block.text for block in BLOCKS if is_at_group(block)}
    found = blocks_by_heading()
    missing = [
        heading for heading, texts in found.items() for text in texts if text not in at_group
    ]
    assert set(missing) <= taken
    assert len(missing) > 5
    assert all(len(texts) <= 1 for texts in found.values())


@blocks("sh", where=is_script)
def test_a_script_ends_well(block: Block, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    check_ends_well(["sh", "-e", "-c", block.text], tmp_path)


@blocks(
    "sh",
    where=lambda block: not is_script(block) and not is_taken(block) and not is_at_group(block),
)
def test_commands_that_need_no_group_end_well(block: Block, tmp_path: Path) -> None:
    lay_out(block, tmp_path)
    for command in block.commands:
        if is_run(command, ALONE):
            check_verb(command[1:], tmp_path)


@blocks("console")
def test_commands_print_what_is_shown(block: Block, tmp_path: Path) -> None:
    lay_out(block, tmp_path)
    shown = re.split(r"^\$ .*\n", block.text, flags=re.MULTILINE)[1:]
    for command, expected in zip(block.commands, shown, strict=True):
        assert is_run(command, ALONE)
        printed = check_verb(command[1:], tmp_path)
        assert [line.rstrip() for line in printed.splitlines()] == expected.splitlines()


@blocks("text")
def test_a_drawing_has_no_command(block: Block) -> None:
    commands = tuple(f"{program} " for program in PROGRAMS)
    assert not [line for line in block.text.splitlines() if line.startswith((*commands, "$ "))]


@blocks("toml")
def test_a_file_of_settings_can_be_loaded(block: Block, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(block.text)
    assert SETTINGS_FILES[block.label](tmp_path / "file.toml")


@blocks("jsonl")
def test_a_trace_is_the_file_in_the_tree(block: Block) -> None:
    assert (block.folder / block.label).read_text() == block.text


@blocks("python", where=lambda block: "Client(" not in block.text)
def test_a_program_without_a_group_ends_well(block: Block, tmp_path: Path) -> None:
    check_ends_well([sys.executable, "-c", block.text], tmp_path)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Three members as processes."""
    with LocalGroup(tmp_path_factory.mktemp("group"), members=len(PORTS)) as group:
        yield group


@pytest.fixture
def addresses(group: LocalGroup) -> dict[str, str]:
    """What a README calls the members of a group, and where those of a real one are."""
    return {f"{HOST}:{PORTS[name]}": address for name, address in group.addresses.items()}


@blocks("python", where=lambda block: "Client(" in block.text)
def test_a_program_runs_at_a_group(block: Block, addresses: dict[str, str], tmp_path: Path) -> None:
    check_ends_well([sys.executable, "-c", put_in(block.text, addresses)], tmp_path)


@blocks("sh", where=is_at_group)
def test_commands_end_well_at_a_group(
    block: Block, addresses: dict[str, str], tmp_path: Path
) -> None:
    for command in block.commands:
        check_verb([put_in(word, addresses) for word in command[1:]], tmp_path)


@pytest.mark.nats
@pytest.mark.cluster
def test_the_quick_start_runs_at_a_group_that_lasts(tmp_path: Path) -> None:
    (up,) = (
        command
        for block in blocks_of(READMES["README.md"])
        for command in (block.commands if block.kind == "sh" else ())
        if command[:2] == ["groupcert", "up"] and "--postgresql" not in command
    )
    (program,) = (each for each in BLOCKS if each.path == "README.md" and each.kind == "python")
    values = []
    for _ in range(2):  # After a restart it is the same group.
        ready = json.loads(check_verb([*up[1:], "--json"], tmp_path))
        address = ready["members"]["m1"]
        try:
            code = put_in(program.text, {f"{HOST}:{PORTS['m1']}": address})
            check_ends_well([sys.executable, "-c", code], tmp_path)
            with groupcert.Client(address) as client, client.transaction() as transaction:
                values.append(int(transaction.get(b"account/1") or b""))
        finally:
            check_verb(["down"], tmp_path)
    assert values == [10, 20]


def put_in(text: str, addresses: dict[str, str]) -> str:
    """Puts the addresses of a real group into a README's text."""
    for written, address in addresses.items():
        text = text.replace(written, address)
    return text


def lay_out(block: Block, folder: Path) -> None:
    """Puts the traces of the tree into a folder, by the paths that the README has for them."""
    for source in tree():
        if source.path.endswith(".jsonl"):
            path = ROOT / source.path
            for name in {source.path, os.path.relpath(path, block.folder)}:
                if not name.startswith(".."):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, folder / name)


def check_verb(words: Sequence[str], folder: Path) -> str:
    """Runs a verb, which has to end with 0, and returns what it prints."""
    return check_ends_well([sys.executable, "-m", "groupcert.members", *words], folder)


def check_ends_well(command: Sequence[str], folder: Path) -> str:
    """Runs a command, which has to end with 0, and returns what it prints."""
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_readme_is_short_and_begins_with_code() -> None:
    text = READMES["README.md"].text
    assert len(text.encode()) <= README_BYTES_MAX
    first = min(block.line for block in BLOCKS if block.path == "README.md" and is_python(block))
    assert first <= FIRST_CODE_LINE_MAX


def is_python(block: Block) -> bool:
    """True for a program."""
    return block.kind == "python"


def test_every_verb_is_in_both_tables() -> None:
    verbs = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert verbs == set(VERBS)
    for path in ("README.md", "members/commands/README.md"):
        rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", READMES[path].text, re.MULTILINE)
        named = {name.split()[0] for row in rows for name in re.findall("`([^`]+)`", row)}
        assert verbs <= named, path


def test_every_test_that_a_readme_names_is_there() -> None:
    named = [
        (path, *found)
        for path, source in READMES.items()
        for found in re.findall(r"`([\w/]+\.py)((?:::\w+)+)`", source.text)
    ]
    assert named
    for path, file, name in named:
        node: Any = ast.parse((ROOT / file).read_text())
        for part in name.split("::")[1:]:
            parts = [each for each in node.body if getattr(each, "name", "") == part]
            assert parts, f"{path} names {file}{name}"
            node = parts[0]
