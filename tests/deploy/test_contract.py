"""The contract keeps what clients of any language were promised: names, options, numbers of fields.

buf judges by the rules of `deploy/buf.yaml`. What it compares with is
`tests/testdata/contract.binpb`, the contract of the last release: `buf build` renews it.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileOptions

import groupcert.internal.v1
import groupcert.v1
from groupcert.internal.v1.log_pb2 import FragmentSet, LoggedTransaction
from groupcert.v1.transaction_pb2 import Transaction
from tests.sources import ROOT

BUF = str(Path(sys.executable).with_name("buf"))
RELEASED = ROOT / "tests/testdata/contract.binpb"
LINT = ("lint",)
BREAKING = ("breaking", f"--against={RELEASED}")


def judged(contract: Path, command: tuple[str, ...]) -> str:
    """Returns what buf finds; empty: nothing."""
    config = f"--config={ROOT / 'deploy/buf.yaml'}"
    done = subprocess.run([BUF, *command, config], cwd=contract, capture_output=True, text=True)
    assert (done.returncode == 0) is (done.stdout == ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [LINT, BREAKING], ids=["lint", "breaking"])
def test_buf_finds_nothing(command: tuple[str, ...]) -> None:
    assert judged(ROOT / "proto", command) == ""


@pytest.mark.parametrize(
    ("file", "text", "instead", "command", "found"),
    [
        ("session", "service SessionService", "service Sessions", LINT, "should be suffixed"),
        ("store", "uint64 snapshot_id = 2;", "uint64 snapshotId = 2;", LINT, "lower_snake_case"),
        ("store", "  uint64 snapshot_id = 1;\n", "", BREAKING, "was deleted"),
        ("transaction", "bytes key_bytes = 9;", "bytes key_bytes = 10;", BREAKING, "was deleted"),
        ("error", "REASON_DISK_FULL = 12;", "REASON_NO_DISK = 12;", BREAKING, "changed name"),
        ("admin", "rpc Leave(", "rpc GoAway(", BREAKING, '"Leave"'),
    ],
)
def test_what_breaks_clients_is_found(
    tmp_path: Path, file: str, text: str, instead: str, command: tuple[str, ...], found: str
) -> None:
    contract = tmp_path / "proto"
    shutil.copytree(ROOT / "proto", contract)
    path = contract / f"groupcert/v1/{file}.proto"
    before = path.read_text()
    assert text in before
    path.write_text(before.replace(text, instead))
    assert found in judged(contract, command)


def files(package: str, folders: list[str]) -> Iterator[FileDescriptor]:
    """Yields the files of a package of stubs."""
    for module in iter_modules(folders, f"{package}."):
        if module.name.endswith("_pb2"):
            yield import_module(module.name).DESCRIPTOR


PUBLIC = [*files("groupcert.v1", [*groupcert.v1.__path__])]
INTERNAL = [*files("groupcert.internal.v1", [*groupcert.internal.v1.__path__])]


@pytest.mark.parametrize("file", PUBLIC + INTERNAL, ids=lambda file: file.name)
def test_a_file_has_options_for_each_language(file: FileDescriptor) -> None:
    options = FileOptions()
    options.MergeFromString(file.GetOptions().SerializeToString())
    folder = file.name.rpartition("/")[0]
    assert options.java_package == folder.replace("/", ".")
    assert options.csharp_namespace.lower() == options.java_package
    assert options.go_package.partition(";")[0] == folder
    assert options.java_multiple_files
    assert options.java_outer_classname.endswith("Proto")


def test_the_public_contract_has_nothing_of_the_internal_one() -> None:
    assert PUBLIC
    assert INTERNAL
    own = ("groupcert/v1/", "google/protobuf/")
    for file in PUBLIC:
        assert [each.name for each in file.dependencies if not each.name.startswith(own)] == []


def test_a_transaction_in_the_log_has_the_fields_of_a_clients_and_its_fragments() -> None:
    """All but what a client tells its member alone."""
    public: Descriptor = Transaction.DESCRIPTOR
    logged: Descriptor = LoggedTransaction.DESCRIPTOR
    shared = [field for field in public.fields if field.name != "first_attempt"]
    assert len(shared) == len(public.fields) - 1
    for field in shared:
        other = logged.fields_by_number[field.number]
        assert (other.name, other.type, other.is_repeated) == (
            field.name,
            field.type,
            field.is_repeated,
        )
    assert {each.name for each in logged.fields} == {
        *(each.name for each in shared),
        "fragments",
    }
    fragments = LoggedTransaction(fragments=FragmentSet(number=1))
    assert Transaction.FromString(fragments.SerializeToString()).ListFields() == []
