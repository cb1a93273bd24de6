"""Lays out the package `groupcert`, whose sources stand in several folders of the tree.

    groupcert/__init__.py      members/client/public.py: the names that a user's program imports
    groupcert/py.typed         its types count
    groupcert/v1/              stubs of protobuf and gRPC, made from `proto/`, and the files there
    groupcert/internal/v1/     likewise, of the records that members alone write and read
    groupcert/etcd/            likewise, of the part of etcd's contract that the total order uses
    groupcert/deploy/          of `deploy/` what a group is watched with
    groupcert/certifier/, applier/, members/

Hatchling calls `PackageBuildHook` for every wheel, which gets copies; `make proto` runs this file
when the contract changed. In the tree the package is in `.build/package`, which git ignores, with
links to the sources: an editable install puts that directory on the import path
(`dev-mode-dirs` in `pyproject.toml`).
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(".build/package/groupcert")
FOLDERS = ("certifier", "applier", "members")
PUBLIC = Path("members/client/public.py")
STUBS = ("v1", "internal", "etcd")
WATCHED_WITH = ("deploy/alerts.yml", "deploy/dashboard.json")
OUTPUTS = {"python": "", "grpc_python": "", "mypy": "quiet:", "mypy_grpc": "quiet:"}
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


class PackageBuildHook(BuildHookInterface[Any]):
    """Puts what is no folder of the tree into a wheel, or lays out all for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Makes the stubs before the build; `version` is "standard" or "editable"."""
        package = make_package(Path(self.root))
        if version == "standard":
            for name in ("__init__.py", "py.typed", *STUBS, *WATCHED_WITH):
                build_data["force_include"][str((package / name).resolve())] = f"groupcert/{name}"


def make_package(root: Path) -> Path:
    """Lays out the package of the tree at `root` and returns its directory.

    Raises:
        SystemExit: a `.proto` file does not compile. Protoc has printed its name and line to
            standard error; the stubs of the run before are still there.
    """
    package = root / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    make_stubs(root, package)
    (package / "deploy").mkdir(exist_ok=True)
    links = {"__init__.py": PUBLIC, **{name: Path(name) for name in (*FOLDERS, *WATCHED_WITH)}}
    for name, path in links.items():
        (package / name).unlink(missing_ok=True)
        (package / name).symlink_to(os.path.relpath(root / path, (package / name).parent))
    (package / "py.typed").touch()
    return package


def make_stubs(root: Path, package: Path) -> None:
    """Compiles `proto/` to directories of `package`, each of which it replaces as a whole. The
    contract lies beside its stubs: the import path is the include path of other compilers, too.
    """
    fresh = package / "stubs.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    contract = root / "proto"
    well_known = Path(protoc.__file__).with_name("_proto")
    arguments = [f"--proto_path={path}" for path in (contract, well_known)]
    arguments += [f"--plugin={name}={find_script(name)}" for name in PLUGINS]
    arguments += [f"--{name}_out={options}{fresh}" for name, options in OUTPUTS.items()]
    arguments += [str(path) for path in sorted((contract / "groupcert").rglob("*.proto"))]
    if protoc.main(["protoc", *arguments]) != 0:
        sys.exit(f"{contract} does not compile; the stubs in {package} are left as they were")
    for name in STUBS:
        made = fresh / "groupcert" / name
        shutil.copytree(contract / "groupcert" / name, made, dirs_exist_ok=True)
        (made / "py.typed").touch()
        shutil.rmtree(package / name, ignore_errors=True)
        made.rename(package / name)
    shutil.rmtree(fresh)


def find_script(name: str) -> str:
    """Returns the path of a script of this Python environment, activated or not."""
    places = (os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts"))
    script = shutil.which(name, path=os.pathsep.join(places))
    if script is None:
        sys.exit(f"{name} is missing; install mypy-protobuf, or run `make venv`")
    return script


if __name__ == "__main__":
    make_package(Path(__file__).resolve().parent.parent)
