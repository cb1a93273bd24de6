"""What `pip install groupcert` brings, used as by those who have nothing else.

The wheel is installed alone into a virtual environment, in an empty folder, and then meets a real
group. A verb that needs an extra says which one. Wheel and source distribution, made in a tree that
has been built, each run a group of their own.
"""

import json
import os
import subprocess
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

import groupcert
from groupcert.members.core.views import FORMAT_VERSION
from groupcert.members.demo.local_group import LocalGroup
from tests.sources import ROOT
from tests.wheels import files_of, install, make_distributions, make_environment, make_wheels

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow]

BYTES_MAX = 60_000_000
BROUGHT_BY_EXTRAS = {
    "nats",
    "nats_server",
    "numpy",
    "pandas",
    "prometheus_client",
    "psutil",
    "psycopg",
    "pyarrow",
    "pymysql",
    "pyspark",
    "rocksdict",
    "uvloop",
}
USE = """
import sys, groupcert
with groupcert.Client(sys.argv[1]) as client:
    client.run(lambda transaction: transaction.put(b"greeting", b"hello"))
    with client.transaction() as transaction:
        print(transaction.get(b"greeting").decode())
"""
EXTRAS_OF_VERBS = {
    "up": "member",
    "demo": "member",
    "demo --postgresql": "member,postgresql",
    "demo --replicas": "member,postgresql",
    "member": "member",
    "bootstrap": "member",
    "replica 127.0.0.1:1 --target rocksdb:rows": "member",
    "replay trace.jsonl": "member",
    "whatif trace.jsonl": "member",
    "export --trace trace.jsonl --out logs": "member",
    "backup 127.0.0.1:1 --out backup": "member",
    "restore backup --check": "member",
    "postgresql attach --dsn postgresql://h/d": "postgresql",
    "postgresql detach --dsn postgresql://h/d": "postgresql",
    "audit logs --out report": "audit",
}

COMPLETIONS = {
    "gr": ["group"],
    "group re": ["rejoin", "restart"],
    "status --js": ["--json"],
}
COMPLETE = r"""
. ~/.bashrc
COMP_WORDS=(groupcert $@) COMP_CWORD=$#
$(complete -p groupcert | sed 's/.*-F \([^ ]*\) .*/\1/') groupcert
echo "${COMPREPLY[*]}"
"""
"""What bash does when somebody presses the tab key."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and what it needs without any extra."""
    folder = tmp_path_factory.mktemp("client")
    make_wheels(folder)
    (wheel,) = folder.glob("*.whl")
    programs = make_environment(folder / "environment")
    install(programs, str(wheel))
    return programs


@pytest.fixture(scope="module")
def installed(programs: Path) -> Path:
    """The folder of that environment's packages."""
    (packages,) = programs.parent.glob("lib/python3*/site-packages")
    return packages


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of a tree that has been built."""
    folder = tmp_path_factory.mktemp("distributions")
    make_distributions(folder)
    return folder


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_client_is_small_and_has_no_server(installed: Path) -> None:
    there = {path.name for path in installed.iterdir()}
    assert {"groupcert", "grpc", "typer"} <= there
    assert not there & BROUGHT_BY_EXTRAS
    assert not [path.name for path in installed.parents[2].glob("bin/nats-server*")]
    files = [path for path in installed.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= BYTES_MAX


def test_the_wheel_has_the_contract_and_what_a_group_is_watched_with(installed: Path) -> None:
    package = installed / "groupcert"
    assert 'syntax = "proto3"' in (package / "v1" / "transaction.proto").read_text()
    assert "alert: GroupcertMemberDown" in (package / "deploy" / "alerts.yml").read_text()
    assert json.loads((package / "deploy" / "dashboard.json").read_text())["panels"]
    assert (package / "py.typed").is_file()


def test_a_client_alone_works_at_a_group(programs: Path, group: LocalGroup, tmp_path: Path) -> None:
    address = group.addresses["m1"]
    used = run(tmp_path, programs / "python", "-c", USE, address)
    assert used.stdout == "hello\n", used.stderr
    shown = run(tmp_path, programs / "groupcert", "status", address, "--json")
    assert {each["name"] for each in json.loads(shown.stdout)["members"]} == set(group.addresses)
    loaded = run(tmp_path, programs / "groupcert", "load", address, "--seconds", "0.5", "--json")
    assert loaded.returncode == 0, loaded.stderr


def test_distributions_of_a_used_tree_have_all_sources(distributions: Path) -> None:
    def paths(*names: str) -> set[str]:
        return {str(path.relative_to(ROOT)) for path in files_of(names)}

    sources = paths("certifier", "applier", "members")
    (wheel,) = distributions.glob("*.whl")
    places = {f"groupcert/{path}" for path in sources - {"members/client/public.py"}}
    assert places | {"groupcert/__init__.py"} <= set(ZipFile(wheel).namelist())
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        packed = {name.partition("/")[2] for name in files.getnames()}
    assert sources | paths("proto", "deploy", "tests", "pyproject.toml", "*.md") <= packed
    assert not [name for name in packed if name.startswith((".build", ".venv"))]


@pytest.mark.in_turns
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_a_distribution_runs_a_group_of_its_own(
    distributions: Path, tmp_path: Path, kind: str
) -> None:
    (distribution,) = distributions.glob(kind)
    programs = make_environment(tmp_path / "environment")
    install(programs, f"{distribution}[member]")
    up = run(tmp_path, programs / "groupcert", "up", "--detach", "--json")
    try:
        assert up.returncode == 0, up.stderr
        address = json.loads(up.stdout)["members"]["m1"]
        used = run(tmp_path, programs / "python", "-c", USE, address)
        assert used.stdout == "hello\n", used.stderr
        demo = run(tmp_path, programs / "groupcert", "demo", "--seconds", "1", "--json")
        assert demo.returncode == 0, demo.stderr
    finally:
        down = run(tmp_path, programs / "groupcert", "down")
    assert down.returncode == 0, down.stderr


@pytest.mark.parametrize("line", EXTRAS_OF_VERBS)
def test_a_verb_says_which_extra_it_needs(programs: Path, tmp_path: Path, line: str) -> None:
    done = run(tmp_path, programs / "groupcert", *line.split())
    extras = EXTRAS_OF_VERBS[line]
    assert done.returncode == 3, done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"groupcert: this needs the extra {extras} (not installed: ")
    assert said.endswith(f"): pip install 'groupcert[{extras}]'")
    assert list(tmp_path.iterdir()) == []


def test_it_tells_its_release_and_the_newest_log_that_it_reads(
    programs: Path, tmp_path: Path
) -> None:
    said = run(tmp_path, programs / "groupcert", "--version").stdout
    release = f"groupcert {groupcert.__version__}, log messages up to format {FORMAT_VERSION}, "
    assert said.startswith(release)


def test_bash_completes_verbs_and_options(programs: Path, tmp_path: Path) -> None:
    path = f"{programs}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(tmp_path)}

    def bash(script: str, *arguments: str) -> str:
        command = ["bash", "--norc", "-c", script, "bash", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    bash("groupcert --install-completion; true")
    for typed, expected in COMPLETIONS.items():
        assert bash(COMPLETE, *typed.split()).split() == expected
