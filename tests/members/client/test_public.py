"""The public package: what a user's program gets of it, in the tree and from a wheel."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import groupcert
from groupcert.certifier import errors
from groupcert.members.client import exports
from groupcert.members.errors import calls, membership, permissions, recovery, transactions
from tests.wheels import make_wheels

PROGRAM = """\
import groupcert


def add(client: groupcert.Client, row: bytes) -> int:
    with client.transaction() as transaction:
        value = int(transaction.get(row) or b"0") + 1
        transaction.put(row, b"%d" % value)
    return value


try:
    add(groupcert.Client("127.0.0.1:1", timeout_ms=1), b"counter")
except groupcert.CertificationConflict as conflict:
    print(conflict.winner_gtid)
except groupcert.Error as error:
    print(type(error))
"""


def run(*arguments: str, path: tuple[Path, ...], folder: Path) -> str:
    """What a Python prints that has nothing but what is at some paths, and this Python's libraries:
    its own way to the tree, a line in a file there, does not count.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """A wheel of the tree as `pip install` would lay it out, and the libraries."""
    folder = tmp_path_factory.mktemp("wheel")
    make_wheels(folder)
    (wheel,) = folder.glob("groupcert-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site", Path(sysconfig.get_path("purelib"))


def test_every_error_that_a_client_may_meet_is_public() -> None:
    modules = (errors, calls, membership, recovery, permissions, transactions)
    found = {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert found.pop("GroupcertError") is groupcert.Error
    assert len(found) > 50
    assert [
        name for name, kind in found.items() if getattr(groupcert, name, None) is not kind
    ] == []


def test_public_classes_say_that_they_are_of_the_package() -> None:
    assert repr(groupcert.Client) == "<class 'groupcert.Client'>"
    assert repr(groupcert.Error) == "<class 'groupcert.Error'>"
    for name in exports.NAMES:
        value = getattr(groupcert, name)
        if isinstance(value, type) and not value.__module__.startswith("groupcert.v1."):
            assert value.__module__ == "groupcert", name


def test_what_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'uuid'"):
        groupcert.uuid  # type: ignore[attr-defined]  # noqa: B018
    assert "Client" in dir(groupcert)
    assert "uuid" not in dir(groupcert)


@pytest.mark.slow
class TestWheel:
    def test_it_has_one_package_with_types(self, installed: tuple[Path, ...]) -> None:
        site = installed[0]
        assert [each.name for each in site.iterdir() if "." not in each.name] == ["groupcert"]
        assert (site / "groupcert" / "py.typed").exists()
        assert (site / "groupcert" / "internal" / "v1" / "log_pb2.py").exists()

    def test_a_program_with_modules_of_its_own_named_as_ours_is_left_alone(
        self, installed: tuple[Path, ...], tmp_path: Path
    ) -> None:
        for name in ("members", "certifier", "applier"):
            (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
        (tmp_path / "program.py").write_text(PROGRAM)
        answer = run("program.py", path=installed, folder=tmp_path)
        assert answer.startswith("<class 'groupcert.")

    def test_importing_it_loads_nothing(self, installed: tuple[Path, ...], tmp_path: Path) -> None:
        program = "import sys, groupcert, groupcert.v1; print(*sys.modules)"
        loaded = run("-c", program, path=installed, folder=tmp_path).split()
        assert not {"grpc", "groupcert.members", "groupcert.certifier"} & set(loaded)

    def test_its_types_are_checked_in_a_users_program(
        self, installed: tuple[Path, ...], tmp_path: Path
    ) -> None:
        (tmp_path / "program.py").write_text(PROGRAM)
        (tmp_path / "wrong.py").write_text("import groupcert\ngroupcert.Client(7101)\n")
        check = ("-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"))
        with pytest.raises(AssertionError) as caught:
            run(*check, "program.py", "wrong.py", path=installed, folder=tmp_path)
        assert "wrong.py:2: error" in str(caught.value)
        assert "Found 1 error in 1 file (checked 2 source files)" in str(caught.value)
